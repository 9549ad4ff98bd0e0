"""What torch's own functions do with row-sparse gradients: sums, linear operations, norms and clipping."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

from islices.conformance import oracle
from islices.conformance.tools.audit.inputs import ROWS, Given, gradients
from islices.conformance.tools.audit.probe import Ask, probe
from islices.conformance.tools.audit.probes.arithmetic import left_fold

Array = np.ndarray[Any, Any]
INF = float("inf")


def native(g: Given) -> torch.Tensor:
    return torch.sparse_coo_tensor(torch.from_numpy(g.indices)[None], torch.from_numpy(g.values), (ROWS, 2))


def sparse(indices: Any, values: Any, rows: int = ROWS, dtype: Any = torch.float32, **options: Any) -> torch.Tensor:
    values = torch.as_tensor(values, dtype=dtype)
    return torch.sparse_coo_tensor(torch.as_tensor(indices)[None], values, (rows, *values.shape[1:]), **options)


def dense(x: Any) -> Array:
    """What a tensor holds, in float64, which holds all of torch's formats."""
    return x.detach().to_dense().double().numpy()  # type: ignore[no-any-return]


def trained(gradient: torch.Tensor, weight: Any = 0.0) -> torch.nn.Parameter:
    """A parameter that has the gradient."""
    start = torch.as_tensor(weight, dtype=gradient.dtype).expand(gradient.shape).clone()
    parameter = torch.nn.Parameter(start)
    parameter.grad = gradient
    return parameter


def unruly(n: int, rows: int = 3) -> tuple[Array, Array]:
    """(values, indices) whose sums depend on the order of addition."""
    rng = np.random.default_rng(n)
    values = (rng.standard_normal((n, 2)) * 10.0 ** rng.integers(-3, 4, (n, 2))).astype(np.float32)
    return values, np.arange(n) % rows


# ---------------------------------------------------------------------- sums
def summing(call: str, claim: str, sizes: list[int], trap: str, add: Any) -> None:
    """A probe of a way to sum duplicates: the left fold is asked for, to the bit."""

    @probe("torch", call, "3", claim=claim, trap=trap, instead="islices.to_dense(x), islices.coalesce(x)")
    def ask() -> Iterator[Ask]:
        for n in sizes:
            values, indices = unruly(n)
            what = partial(add, torch.from_numpy(values), torch.from_numpy(indices))
            yield Ask(f"{n} slices of 3 rows", what, left_fold(values, indices, ROWS))


summing(
    "torch.Tensor.coalesce", "up to 16 slices are summed in order of occurrence", [1, 3, 16], "",
    lambda v, i: dense(sparse(i, v).coalesce()),
)  # fmt: skip
summing(
    "torch.Tensor.coalesce", "more than 16 slices are not summed in order of occurrence: other bits than to_dense",
    [17, 100, 4999, 6000], "differs", lambda v, i: dense(sparse(i, v).coalesce()),
)  # fmt: skip
summing(
    "torch.Tensor.to_dense", "it sums in order of occurrence", [1, 17, 6000], "",
    lambda v, i: dense(sparse(i, v)),
)  # fmt: skip
summing(
    "torch.Tensor.index_add_", "it sums in order of occurrence", [1, 17, 6000], "",
    lambda v, i: torch.zeros(ROWS, 2).index_add_(0, i, v).numpy(),
)  # fmt: skip
summing(
    "torch.Tensor.index_put_(accumulate=True)", "it sums in order of occurrence", [1, 17, 6000], "",
    lambda v, i: torch.zeros(ROWS, 2).index_put_((i,), v, accumulate=True).numpy(),
)  # fmt: skip


def ones(dtype: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(4096, dtype=torch.int64), torch.ones(4096, 1, dtype=dtype)


def saturating(call: str, claim: str, trap: str, add: Any) -> None:
    """A probe of 4096 ones in 16 bits, whose sum the type holds."""

    @probe("torch", call, "3", claim=claim, trap=trap, instead="islices.coalesce(x)")
    def ask() -> Iterator[Ask]:
        for dtype in (torch.float16, torch.bfloat16):
            indices, values = ones(dtype)
            yield Ask(f"4096 ones, {str(dtype)[6:]}", partial(add, indices, values), [[4096.0], [0.0]])


saturating(
    "torch.Tensor.coalesce, 16 bits", "sums of 16-bit values stop growing: 4096 ones give 2048 and 256", "differs",
    lambda i, v: dense(sparse(i, v, 2, v.dtype).coalesce()),
)  # fmt: skip
saturating(
    "torch.Tensor.to_dense, 16 bits", "sums of 16-bit values stop growing: 4096 ones give 2048 and 256", "differs",
    lambda i, v: dense(sparse(i, v, 2, v.dtype)),
)  # fmt: skip
saturating(
    "dense + sparse, 16 bits", "sums of 16-bit values stop growing: 4096 ones give 2048 and 256", "differs",
    lambda i, v: dense(torch.zeros(2, 1, dtype=v.dtype) + sparse(i, v, 2, v.dtype)),
)  # fmt: skip
saturating(
    "torch.Tensor.index_add_, 16 bits", "one row's 16-bit values are summed in more than 16 bits", "",
    lambda i, v: dense(torch.zeros(2, 1, dtype=v.dtype).index_add_(0, i, v)),
)  # fmt: skip


@probe(
    "torch", "torch.Tensor.coalesce", "4", trap="", instead="islices.coalesce(x)",
    claim="rows ascend, are unique, and hold their sums, zeros included",
)  # fmt: skip
def coalesce() -> Iterator[Ask]:
    for g in gradients():
        wanted = oracle.coalesce(g.slices)
        yield Ask(f"{g.name}: indices", lambda g=g: native(g).coalesce().indices()[0].numpy(), wanted.indices)
        yield Ask(f"{g.name}: values", lambda g=g: native(g).coalesce().values().numpy(), wanted.values)


@probe(
    "torch", "torch.Tensor.coalesce, subnormal values", "3", trap="", instead="islices.coalesce(x)",
    claim="subnormal values and sums are kept, as by NumPy; TensorFlow and JAX make zeros of them",
)  # fmt: skip
def subnormal() -> Iterator[Ask]:
    tiny = np.float32(1e-40)
    yield Ask("1e-40 twice", lambda: dense(sparse([1, 1], [[tiny], [tiny]])), [[0], [tiny + tiny], [0], [0]])


# ---------------------------------------------------------------------- linear operations
def linear(call: str, trap: str, claim: str, do: Any, wanted: Any, **more: Any) -> None:
    """A probe of an operation on each gradient: do(native gradient), as dense; wanted(dense gradient)."""

    @probe("torch", call, "6", claim=claim, trap=trap, **{"instead": "islices.add(x, y)", **more})
    def ask() -> Iterator[Ask]:
        for g in gradients():
            yield Ask(g.name, lambda g=g: dense(do(native(g))), wanted(g.dense))


SCALE = {"instead": "islices.scale(x, 2.0)"}
linear("sparse * 2", "", "it multiplies stored values", lambda x: x * 2, lambda d: d * 2, **SCALE)
linear("sparse.mul_(2)", "", "it multiplies stored values", lambda x: x.mul_(2), lambda d: d * 2, **SCALE)
linear("sparse / 2", "", "it divides stored values", lambda x: x / 2, lambda d: d / 2, instead="islices.scale(x, 0.5)")
linear("sparse + sparse", "", "both are summed, duplicates included", lambda x: x + x, lambda d: d + d)
linear("dense + sparse", "", "it is dense, with duplicates summed", lambda x: torch.ones(ROWS, 2) + x, lambda d: d + 1)
linear("sparse + dense", "raises", "only dense + sparse works", lambda x: x + torch.ones(ROWS, 2), lambda d: d + 1)
linear("torch.sum", "", "it counts every slice", lambda x: x.sum(), lambda d: d.sum(), instead="islices.to_dense(x)")
linear(
    "torch.abs", "", "duplicates are summed before an operation that is not linear",
    torch.abs, np.abs, instead="islices.coalesce(x)",
)  # fmt: skip
linear(
    "sparse.abs_()", "raises", "in place, what is not linear refuses duplicates, and slices not known to have none",
    lambda x: x.abs_(), np.abs, instead="islices.coalesce(x)",
)  # fmt: skip
linear(
    "torch.clamp", "raises", "it refuses every sparse gradient, coalesced or not",
    lambda x: x.coalesce().clamp(-5, 5), lambda d: d.clip(-5, 5), instead="islices.clip_by_value(x, -5.0, 5.0)",
)  # fmt: skip
linear(
    "torch.isfinite", "raises", "it refuses every sparse gradient, coalesced or not",
    lambda x: torch.isfinite(x.coalesce()), np.isfinite, instead="islices.norm(x)",
)  # fmt: skip


@probe(
    "torch", "torch.Tensor.mul_", "4", issue="pytorch/pytorch#109462", instead="islices.scale(x, 2.0)",
    claim="it forgets that the slices are coalesced, which mul, div and div_ remember",
)  # fmt: skip
def forgotten() -> Iterator[Ask]:
    for g in gradients():
        yield Ask(g.name, lambda g=g: native(g).coalesce().mul_(2).is_coalesced(), True)
    yield Ask("div_", lambda: native(next(gradients("duplicates"))).coalesce().div_(2).is_coalesced(), True)


@probe(
    "torch", "torch.Tensor.index_select", "13", instead="islices.keep_rows(x, rows)",
    claim="a row number out of range selects a row of zeros from a sparse tensor; a dense one raises",
)  # fmt: skip
def select() -> Iterator[Ask]:
    g = next(gradients("duplicates"))
    yield Ask("row 2", lambda: dense(native(g).index_select(0, torch.tensor([2]))), g.dense[2:3])
    for row in (-1, ROWS):
        call = partial(refused, native(g).index_select, 0, torch.tensor([row]))
        yield Ask(f"row {row} of {ROWS}", call, "refused")


def refused(call: Any, *arguments: Any, **options: Any) -> str:
    """Whether a call raises, where the specification says it must: "refused" or "accepted"."""
    try:
        call(*arguments, **options)
    except (IndexError, RuntimeError, TypeError, ValueError):
        return "refused"
    return "accepted"


# ---------------------------------------------------------------------- norms
def norms(call: str, trap: str, claim: str, orders: tuple[float, ...], do: Any, **more: Any) -> None:
    """A probe of norms: those of the densified gradient are asked for."""
    names = more.pop("names", ())

    options = {"instead": "islices.norm(x, ord)", **more}

    @probe("torch", call, "7", claim=claim, trap=trap, **options)
    def ask() -> Iterator[Ask]:
        for g in gradients(*names):
            for p in orders:
                wanted = oracle.norm(g.slices, "inf" if p == INF else p) if p in (1, 2, INF) else numpy_norm(g.dense, p)
                yield Ask(f"{g.name}, {p}", lambda g=g, p=p: float(do(native(g), p)), wanted)


def numpy_norm(x: Array, p: float) -> float:
    return float(np.linalg.norm(x.reshape(-1), p))


norms("torch.norm", "", "p = 1 and 2 sum duplicates first", (1, 2), torch.norm)
norms("torch.norm(p=0)", "", "it counts what is not zero after duplicates are summed", (0,), torch.norm)
norms(
    "torch.norm(p=-inf)", "differs", "absent rows are not counted as the zeros they are", (-INF,), torch.norm,
    names=("sorted, unique", "one"),
)  # fmt: skip
norms(
    "torch.norm(p=inf)", "", "it sums duplicates first", (INF,), torch.norm, names=("unsorted, unique", "duplicates"),
)  # fmt: skip
norms(
    "torch.norm(p=inf), no slices", "raises", "it refuses a gradient without slices, whose norm is 0", (INF,),
    torch.norm, names=("none",),
)  # fmt: skip
norms("torch.linalg.vector_norm", "raises", "it refuses every sparse gradient", (2,), torch.linalg.vector_norm)
norms(
    "torch.nn.utils.get_total_norm", "raises", "it refuses every sparse gradient", (2,),
    lambda x, p: torch.nn.utils.get_total_norm([x], p), instead="islices.global_norm(gradients)",
)  # fmt: skip


@probe(
    "torch", "torch.norm, large and 16-bit values", "7", instead="islices.norm(x)",
    claim="squares are summed in float32, which 1e20 overflows; float16 gradients have float16 norms",
)  # fmt: skip
def range_of_norms() -> Iterator[Ask]:
    large = np.full((2, 2), 1e20, np.float32)
    yield Ask("four of 1e20", lambda: float(sparse([1, 2], large).norm()), np.float32(2e20))
    yield Ask("the same, dense", lambda: float(torch.from_numpy(large).norm()), np.float32(2e20))
    half = [[40000.0, 40000.0], [40000.0, 40000.0]]
    yield Ask("float16, four of 40000", lambda: float(sparse([1, 2], half, dtype=torch.float16).norm()), 80000.0)


# ---------------------------------------------------------------------- clipping
def clipped(gradient: torch.Tensor, max_norm: float, **options: Any) -> Array:
    parameter = trained(gradient)
    torch.nn.utils.clip_grad_norm_([parameter], max_norm, **options)
    return dense(parameter.grad)


CLIP = "islices.backends.torch.clip_grad_norm_(parameters, max_norm)"


@probe(
    "torch", "torch.nn.utils.clip_grad_norm_", "10", trap="raises", instead=CLIP, issue="pytorch/pytorch#4829",
    claim="it refuses every sparse gradient",
)  # fmt: skip
def clip_grad_norm() -> Iterator[Ask]:
    for g in gradients():
        wanted = oracle.to_dense(oracle.clip_by_norm(g.slices, 2.0))
        yield Ask(g.name, partial(clipped, native(g), 2.0), wanted)
        yield Ask(f"{g.name}, foreach=False", partial(clipped, native(g), 2.0, foreach=False), wanted)


@probe(
    "torch", "torch.nn.utils.clip_grad_value_", "9", trap="raises", issue="pytorch/pytorch#4829",
    instead="islices.backends.torch.clip_grad_value_(parameters, clip_value)",
    claim="it refuses every sparse gradient",
)  # fmt: skip
def clip_grad_value() -> Iterator[Ask]:
    def call(gradient: torch.Tensor, **options: Any) -> Array:
        parameter = trained(gradient)
        torch.nn.utils.clip_grad_value_([parameter], 5.0, **options)
        return dense(parameter.grad)

    for g in gradients():
        wanted = oracle.to_dense(oracle.clip_by_value(g.slices, -5.0, 5.0))
        yield Ask(g.name, partial(call, native(g)), wanted)
        yield Ask(f"{g.name}, foreach=False", partial(call, native(g), foreach=False), wanted)


@probe(
    "torch", "torch.nn.utils.clip_grads_with_norm_", "10", instead=CLIP,
    claim="it scales sparse gradients by a norm that is given, but 1e-6 is added to that: other bits, and a gradient "
    "whose norm is max_norm is changed",
)  # fmt: skip
def clip_grads_with_norm() -> Iterator[Ask]:
    def call(g: Given, norm: float, max_norm: float) -> Array:
        parameter = trained(native(g))
        torch.nn.utils.clip_grads_with_norm_([parameter], max_norm, torch.tensor(norm))
        return dense(parameter.grad)

    for g in gradients():
        norm = float(np.linalg.norm(g.dense))
        for bound in (2.0, norm):
            wanted = oracle.to_dense(oracle.clip_by_norm(g.slices, bound))
            yield Ask(f"{g.name}, norm {norm:g} to {bound:g}", partial(call, g, norm, bound), wanted)


def clipping(call: str, claim: str, asks: list[tuple[str, list[float], float, Any]], issue: str = "") -> None:
    """A probe of clip_grad_norm_ on dense gradients, which is what it takes: (given, gradient, max_norm, wanted)."""

    @probe("torch", call, "10", claim=claim, instead=CLIP, issue=issue)
    def ask() -> Iterator[Ask]:
        for given, gradient, bound, wanted in asks:
            yield Ask(given, partial(clipped, torch.tensor(gradient), bound), wanted)


clipping(
    "torch.nn.utils.clip_grad_norm_, dense, at max_norm", "a gradient whose norm is max_norm is changed: 1e-6 is added",
    [("norm 10, max_norm 10", [6.0, 8.0], 10.0, [6.0, 8.0])],
)  # fmt: skip
clipping(
    "torch.nn.utils.clip_grad_norm_, dense, infinite", "what was finite beside an infinity becomes 0, not NaN",
    [("[6, inf]", [6.0, INF], 5.0, [np.nan, np.nan])], "pytorch/pytorch#46849",
)  # fmt: skip
clipping(
    "torch.nn.utils.clip_grad_norm_, dense, large", "the norm of 1e20 overflows, and the gradient becomes zeros",
    [("four of 1e20, max_norm 4", [1e20] * 4, 4.0, [2.0] * 4)],
)  # fmt: skip


@probe(
    "torch", "torch.nn.utils.clip_grad_norm_(max_norm=-1)", "10", issue="pytorch/pytorch#31367",
    claim="a negative or NaN max_norm is taken: it turns the gradient around, or makes it NaN", instead=CLIP,
)  # fmt: skip
def negative_bound() -> Iterator[Ask]:
    for bound in (-1.0, float("nan")):
        yield Ask(str(bound), lambda bound=bound: refused(clipped, torch.tensor([6.0, 8.0]), bound), "refused")


# ---------------------------------------------------------------------- arithmetic
@probe(
    "torch", "torch.sqrt", "16", issue="pytorch/pytorch#31250", instead='islices.get_backend("torch").sqrt(x)',
    claim="some of its roots are not the nearest float32, nor the nearest float64",
)  # fmt: skip
def sqrt() -> Iterator[Ask]:
    x = np.random.default_rng(0).random(20_000) * 10
    yield Ask("20,000 float32", lambda: torch.from_numpy(x.astype(np.float32)).sqrt().numpy(), np.sqrt(x.astype("f4")))
    exact = [oracle.square_root(v) for v in x[:2000].tolist()]
    yield Ask("2000 float64", lambda: torch.from_numpy(x[:2000]).sqrt().numpy(), exact)


@probe(
    "torch", "x.double().sqrt().float()", "16", trap="", instead='islices.get_backend("torch").sqrt(x)',
    claim="through float64 every float32 root is the nearest",
)  # fmt: skip
def sqrt_in_double() -> Iterator[Ask]:
    x = (np.random.default_rng(0).random(2000) * 10).astype(np.float32)
    exact = [oracle.round_to(oracle.square_root(v), "float32") for v in x.tolist()]
    yield Ask("2000 float32", lambda: torch.from_numpy(x).double().sqrt().float().numpy(), exact)
