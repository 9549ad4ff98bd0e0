"""What torch's optimizers, gradient scaler and collectives do with row-sparse gradients."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import optim

from islices.conformance.data import Slices
from islices.conformance.operations import UnsupportedError
from islices.conformance.oracle_optim import optimizer_steps
from islices.conformance.tools.audit.inputs import ROWS, gradients, plain
from islices.conformance.tools.audit.probe import Ask, probe
from islices.conformance.tools.audit.probes.torch import dense, native, sparse, unruly

INF = float("inf")


def stepped(kind: Any, grads: Sequence[torch.Tensor], start: Any = 1.0, **options: Any) -> torch.nn.Parameter:
    """A table of `start` after a step for each gradient."""
    dtype, shape = grads[0].dtype, grads[0].shape
    table = torch.nn.Parameter(torch.as_tensor(start, dtype=dtype).expand(shape).clone())
    optimizer = kind([table], **options)
    for gradient in grads:
        table.grad = gradient
        optimizer.step()
    return table


def exact(name: str, grads: Sequence[Slices], start: float = 1.0, dtype: str = "float32", **options: Any) -> Any:
    """The table that clause 16 gives."""
    rows = options.pop("rows", "touched")
    return optimizer_steps(name, options, plain(np.full((ROWS, 2), start, dtype)), list(grads), rows=rows)["table"]


def slices(indices: Sequence[int], values: Any, dtype: str = "float32") -> Slices:
    return Slices(plain(np.array(values, dtype)), plain(np.array(indices, np.int64)), (ROWS, 2))


def compared(rule: str, kind: Any, trap: str, claim: str, call: str = "", issue: str = "", **options: Any) -> None:
    """A probe of one step on every gradient; clause 16 with the same hyperparameters is asked for."""
    given = "".join(f", {k}={v}" for k, v in options.items())
    instead = f"islices.optim.{rule}(lr{given}).step(table, grad, state)"

    @probe("torch", f"torch.optim.{kind.__name__}{call}", "16", claim=claim, trap=trap, instead=instead, issue=issue)
    def ask() -> Iterator[Ask]:
        for g in gradients():
            wanted = exact(rule, [g.slices], lr=0.5, **options)
            yield Ask(g.name, lambda g=g: dense(stepped(kind, [native(g)], lr=0.5, **options)), wanted)


# ---------------------------------------------------------------------- which optimizers take sparse gradients
compared("sgd", optim.SGD, "", "it steps by the sum of duplicates")
compared("adagrad", optim.Adagrad, "", "duplicates are summed before they are squared; other rows keep their bits")
compared(
    "sgd", optim.SGD, "raises", "weight decay refuses sparse gradients", "(weight_decay=0.25)",
    "pytorch/pytorch#30402", weight_decay=0.25,
)  # fmt: skip
compared(
    "adagrad", optim.Adagrad, "raises", "weight decay refuses sparse gradients", "(weight_decay=0.25)",
    weight_decay=0.25,
)  # fmt: skip
compared("adam", optim.Adam, "raises", "it refuses sparse gradients")
compared("adamw", optim.AdamW, "raises", "it refuses sparse gradients")
compared("rmsprop", optim.RMSprop, "raises", "it refuses sparse gradients")


@probe(
    "torch", "torch.optim.Adadelta, Adamax, NAdam, RAdam, ASGD, Rprop, Adafactor", "16", trap="raises",
    instead="islices.to_dense(grad), or islices.optim's adam, rmsprop, ftrl", claim="all refuse sparse gradients",
)  # fmt: skip
def refusing() -> Iterator[Ask]:
    g = next(gradients("duplicates"))
    for name in ("Adadelta", "Adamax", "NAdam", "RAdam", "ASGD", "Rprop", "Adafactor"):
        kind = getattr(optim, name)
        wanted = dense(stepped(kind, [native(g).to_dense()], lr=0.5))
        yield Ask(name, lambda kind=kind: dense(stepped(kind, [native(g)], lr=0.5)), wanted)


@probe(
    "torch", "torch.optim.SGD(fused=True), torch.optim.Adagrad(fused=True)", "16", trap="raises",
    instead="islices.optim.sgd(lr), islices.optim.adagrad(lr)", claim="the fused forms refuse sparse gradients",
)  # fmt: skip
def fused() -> Iterator[Ask]:
    g = next(gradients("duplicates"))
    for kind, rule in ((optim.SGD, "sgd"), (optim.Adagrad, "adagrad")):
        call = partial(lambda kind: dense(stepped(kind, [native(g)], lr=0.5, fused=True)), kind)
        yield Ask(kind.__name__, call, exact(rule, [g.slices], lr=0.5))


@probe(
    "torch", "torch.optim.SparseAdam, dense gradients", "16", trap="raises",
    instead="islices.optim.adam(lr), which takes both", claim="it refuses dense gradients",
)  # fmt: skip
def dense_refused() -> Iterator[Ask]:
    g = next(gradients("duplicates"))
    wanted = dense(stepped(optim.Adam, [native(g).to_dense()], lr=0.5))
    yield Ask(g.name, lambda: dense(stepped(optim.SparseAdam, [native(g).to_dense()], lr=0.5)), wanted)


# ---------------------------------------------------------------------- how they step
@probe(
    "torch", "torch.optim.SGD, cancelling duplicates", "16", instead="islices.optim.sgd(lr)",
    claim="duplicates are subtracted one by one, not summed first: two that cancel wipe the weight out",
)  # fmt: skip
def one_by_one() -> Iterator[Ask]:
    values = [[1e8, 1e8], [-1e8, -1e8]]
    call = partial(lambda: dense(stepped(optim.SGD, [sparse([1, 1], values)], lr=1.0)))
    yield Ask("weights 1, 1e8 and -1e8 in one row", call, exact("sgd", [slices([1, 1], values)], lr=1.0))


@probe(
    "torch", "torch.optim.SGD, 16-bit tables", "16", instead="islices.optim.sgd(lr)",
    claim="each duplicate is rounded into the weight: 4096 ones move it by 2048 or 256",
)  # fmt: skip
def sixteen_bits() -> Iterator[Ask]:
    for dtype, name in ((torch.float16, "float16"), (torch.bfloat16, "bfloat16")):
        x = sparse([1] * 4096, np.ones((4096, 2)), dtype=dtype)
        wanted = np.zeros((ROWS, 2))
        wanted[1] = -4096
        yield Ask(name, lambda x=x: dense(stepped(optim.SGD, [x], start=0.0, lr=1.0)), wanted)


@probe(
    "torch", "torch.optim.Adagrad, float16 tables", "16", instead="islices.optim.adagrad(lr)",
    claim="the state is float16, too: a gradient of 300 overflows it and the weight stays",
)  # fmt: skip
def half_state() -> Iterator[Ask]:
    values = [[300.0, 300.0]]
    wanted = exact("adagrad", [slices([1], values, "float16")], dtype="float16", lr=0.5)
    call = partial(lambda: dense(stepped(optim.Adagrad, [sparse([1], values, dtype=torch.float16)], lr=0.5)))
    yield Ask("gradient 300, weight 1", call, wanted)


@probe(
    "torch", "torch.optim.SparseAdam, float16 tables", "16", instead="islices.optim.adam(lr)",
    claim="the state is float16, too: squares and eps vanish, and a gradient of 1e-4 makes the weight infinite",
)  # fmt: skip
def half_adam() -> Iterator[Ask]:
    values = [[1e-4, 1e-4]]
    wanted = exact("adam", [slices([1], np.array(values, np.float16), "float16")], dtype="float16", lr=0.5)
    call = partial(lambda: dense(stepped(optim.SparseAdam, [sparse([1], values, dtype=torch.float16)], lr=0.5)))
    yield Ask("gradient 1e-4, weight 1", call, wanted)


@probe(
    "torch", "torch.optim.Adagrad, rounding", "16", instead="islices.optim.adagrad(lr)",
    claim="some weights are off in the last bits: its roots and products are not each rounded once",
)  # fmt: skip
def adagrad_rounding() -> Iterator[Ask]:
    values, indices = unruly(16, ROWS)
    grads = [slices(indices.tolist(), values * k) for k in (1, 3)]
    natives = [sparse(indices, values * np.float32(k)) for k in (1, 3)]
    wanted = exact("adagrad", grads, lr=0.1)
    yield Ask("two steps, 4 rows", lambda: dense(stepped(optim.Adagrad, natives, lr=0.1)), wanted)


@probe(
    "torch", "torch.optim.Adagrad(lr_decay=1)", "16", trap="", instead="islices.optim.adagrad(lr, lr_decay=1)",
    claim="the second step has half the learning rate",
)  # fmt: skip
def lr_decay() -> Iterator[Ask]:
    first, second = slices([1], [[3, 3]]), slices([1, 2], [[4, 4], [2, 2]])
    natives = [sparse([1], [[3.0, 3.0]]), sparse([1, 2], [[4.0, 4.0], [2.0, 2.0]])]

    def rounded(x: Any) -> Any:
        return np.round(x, 5)

    wanted = rounded(np.array(exact("adagrad", [first, second], lr=0.5, lr_decay=1.0).data).reshape(ROWS, 2))
    yield Ask("two steps", lambda: rounded(dense(stepped(optim.Adagrad, natives, lr=0.5, lr_decay=1.0))), wanted)


def lazy_adam(call: str, trap: str, claim: str, *steps: tuple[list[int], list[list[float]]]) -> None:
    """A probe of SparseAdam against clause 16's adam on the rows it names, to five decimals: rounding is no matter."""

    @probe("torch", f"torch.optim.SparseAdam{call}", "16", claim=claim, trap=trap, instead="islices.optim.adam(lr)")
    def ask() -> Iterator[Ask]:
        natives = [sparse(indices, values) for indices, values in steps]
        wanted = exact("adam", [slices(*step) for step in steps], lr=0.5)
        rounded = np.round(np.array(wanted.data).reshape(wanted.shape), 5)
        call = partial(lambda: np.round(dense(stepped(optim.SparseAdam, natives, lr=0.5)), 5))
        yield Ask(f"{len(steps)} steps, lr 0.5", call, rounded)


ROW, SMALL = [[4.0, 4.0]], [[1e-7, 1e-7]]
lazy_adam("", "", "it is Adam on the rows of the gradient, one step count for the table", ([1], ROW), ([2], ROW))
lazy_adam(", duplicates", "", "they are summed first", ([1, 2, 1], [[3.0, 0.0], [0.0, 8.0], [3.0, 0.0]]))
lazy_adam(
    ", stored zeros", "", "a stored row of zeros is a row of the gradient and moves", ([1], ROW), ([1], [[0.0, 0.0]])
)
lazy_adam(
    ", small gradients", "differs",
    "eps is added before the root's bias is corrected: gradients of 1e-7 move the weight by a quarter of Adam's step",
    ([1], SMALL),
)  # fmt: skip


# ---------------------------------------------------------------------- momentum
def momentum(call: str, trap: str, claim: str, instead: str, rows: str) -> None:
    """A probe of two steps that name one row each."""

    @probe("torch", f"torch.optim.SGD(momentum=0.5), {call}", "16", claim=claim, trap=trap, instead=instead)
    def ask() -> Iterator[Ask]:
        natives = [sparse([1], ROW), sparse([2], ROW)]
        wanted = exact("sgd", [slices([1], ROW), slices([2], ROW)], lr=0.5, momentum=0.5, rows=rows)
        yield Ask("row 1, then row 2", lambda: dense(stepped(optim.SGD, natives, lr=0.5, momentum=0.5)), wanted)


momentum(
    "dense rows", "", "it is dense momentum: rows of earlier gradients move at every step",
    'islices.optim.sgd(lr, momentum=0.5, rows="all")', "all",
)  # fmt: skip
momentum(
    "touched rows", "differs", "rows that the gradient does not name move: those of all earlier gradients",
    "islices.optim.sgd(lr, momentum=0.5)", "touched",
)  # fmt: skip


@probe(
    "torch", "torch.optim.SGD(momentum=0.9), its state", "16", issue="pytorch/pytorch#3129",
    instead="islices.optim.sgd(lr, momentum=0.9)",
    claim="the momentum buffer is never coalesced and grows with every step",
)  # fmt: skip
def momentum_state() -> Iterator[Ask]:
    def rows_kept(steps: int) -> int:
        table = torch.nn.Parameter(torch.zeros(20, 2))
        optimizer = optim.SGD([table], lr=0.1, momentum=0.9)
        rng = np.random.default_rng(0)
        for _ in range(steps):
            table.grad = sparse(rng.integers(0, 20, 64), np.ones((64, 2)), 20)
            optimizer.step()
        return int(optimizer.state[table]["momentum_buffer"]._nnz())

    for steps in (10, 40):
        yield Ask(f"slices kept for 20 rows after {steps} steps of 64", partial(rows_kept, steps), 20)


@probe(
    "torch", "torch.optim.SGD(weight_decay=0.1), a dense and a sparse parameter", "16",
    issue="pytorch/pytorch#30402", instead="islices.optim.sgd(lr, weight_decay=0.1)",
    claim="the step that raises at the sparse one has moved the dense one",
)  # fmt: skip
def half_done() -> Iterator[Ask]:
    def call() -> Any:
        first, second = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(ROWS, 2))
        first.grad, second.grad = torch.ones(2), sparse([1], ROW)
        try:
            optim.SGD([first, second], lr=0.5, weight_decay=0.1).step()
        except RuntimeError:  # the question is what it leaves behind
            return dense(first)
        return "it did not raise"

    yield Ask("the dense parameter, ones before", call, [1.0, 1.0])


# ---------------------------------------------------------------------- mixed precision
def scaled(values: list[list[float]], dtype: Any) -> str:
    """Whether a GradScaler steps with a gradient of these values in row 1."""
    table = torch.nn.Parameter(torch.ones(ROWS, 2, dtype=dtype))
    optimizer, scaler = optim.SGD([table], lr=1.0), torch.amp.GradScaler("cpu", init_scale=1.0)
    scaler.scale(torch.ones(()))
    table.grad = sparse([1] * len(values), values, dtype=dtype)
    scaler.step(optimizer)
    return "stepped" if (dense(table) != 1).any() else "skipped"


@probe(
    "torch", "torch.amp.GradScaler", "16", instead="islices.optim.LossScale().unscale(grad, state)",
    issue="pytorch/pytorch#36786",
    claim="it looks at stored slices: duplicates whose sum overflows float32 or bfloat16 are stepped with",
)  # fmt: skip
def scaler() -> Iterator[Ask]:
    for dtype in (torch.float32, torch.bfloat16):
        name = str(dtype)[6:]
        yield Ask(f"{name}, an infinity", partial(scaled, [[INF, 0.0]], dtype), "skipped")
        yield Ask(f"{name}, 3e38 twice", partial(scaled, [[3e38, 0.0], [3e38, 0.0]], dtype), "skipped")
        yield Ask(f"{name}, 1 twice", partial(scaled, [[1.0, 0.0], [1.0, 0.0]], dtype), "stepped")


@probe(
    "torch", "torch.amp.GradScaler, float16 parameters", "16", trap="raises",
    instead="islices.optim.LossScale().unscale(grad, state)", claim="it refuses float16 gradients",
)  # fmt: skip
def scaler_half() -> Iterator[Ask]:
    yield Ask("6e4 twice", partial(scaled, [[6e4, 0.0], [6e4, 0.0]], torch.float16), "skipped")


# ---------------------------------------------------------------------- collectives
def all_reduced(operation: str, parts: Sequence[torch.Tensor]) -> Any:
    """What all_reduce of gloo gives the first of as many ranks, each a thread of this process."""
    if not (dist.is_available() and dist.is_gloo_available()):
        raise UnsupportedError("torch was built without gloo")
    store = dist.HashStore()
    results: list[torch.Tensor | RuntimeError | None] = [None] * len(parts)

    def rank(k: int) -> None:
        try:
            group: Any = dist.ProcessGroupGloo(store, k, len(parts), timedelta(seconds=30))
            options = dist.AllreduceOptions()
            options.reduceOp = getattr(dist.ReduceOp, operation)
            group.allreduce([parts[k]], options).wait()
            results[k] = parts[k]
        except RuntimeError as error:  # raised again below, in the thread that asked
            results[k] = error

    threads = [threading.Thread(target=rank, args=(k,)) for k in range(len(parts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if isinstance(results[0], RuntimeError):
        raise results[0]
    return dense(results[0])


REDUCED: dict[str, Callable[[Any, Any], Any]] = {
    "SUM": np.add, "AVG": lambda a, b: (a + b) / 2, "MAX": np.maximum
}  # fmt: skip


def reducing(operations: Sequence[str], trap: str, claim: str, call: str) -> None:
    """A probe of all_reduce over gloo on sparse tensors of two ranks."""

    @probe("torch", call, "6", claim=claim, trap=trap, instead="islices.add(x, y) of what is gathered")
    def ask() -> Iterator[Ask]:
        for g in gradients("duplicates", "cancelling duplicates", "none"):
            other = next(gradients("unsorted, unique"))
            for name in operations:
                wanted = REDUCED[name](g.dense, other.dense)
                call = partial(all_reduced, name, [native(g), native(other)])
                yield Ask(f"{name} of {g.name} and unsorted, unique", call, wanted)


reducing(["SUM"], "", "it sums sparse tensors, duplicates included", "torch.distributed.all_reduce, gloo")
reducing(["AVG", "MAX"], "raises", "of sparse tensors only SUM is taken", "torch.distributed.all_reduce(op=AVG), gloo")


@probe(
    "deepspeed", "deepspeed.runtime.sparse_tensor.SparseTensor(dense)", "1", issue="deepspeedai/DeepSpeed#8504",
    instead="islices.from_dense(x)", claim="a row whose elements sum to zero is dropped, as if it were zeros",
)  # fmt: skip
def deepspeed_rows() -> Iterator[Ask]:
    from deepspeed.runtime.sparse_tensor import SparseTensor  # pyright: ignore[reportMissingImports]

    for row in ([1.0, 1.0], [1.0, -1.0]):
        x = torch.zeros(ROWS, 2)
        x[1] = torch.tensor(row)
        yield Ask(f"a row {row}", lambda x=x: dense(SparseTensor(x).to_coo_tensor()), dense(x))
