"""The torch front: clip_grad_norm_ and clip_grad_value_ beside torch.nn.utils, on gradients of real layers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

import islices  # noqa: E402
from islices.backends.torch import (  # noqa: E402
    clip_grad_norm_,
    clip_grad_value_,
    clip_grads_with_norm_,
    get_total_norm,
)

EPS = float(np.finfo(np.float32).eps)
ORDS = (1.0, 2.0, math.inf, 3.0, 0.5, 2.7)
#: (ids, why): what an embedding layer meets. Row 0 is the padding.
BATCHES = [
    ([[1, 2, 3], [4, 5, 6]], "unique sorted"),
    ([[6, 1, 4], [3, 2, 5]], "unique unsorted"),
    ([[1, 2, 1], [2, 2, 6]], "duplicates"),
    ([[1, 0, 1], [0, 0, 6]], "duplicates and padding"),
    ([[0, 0], [0, 0]], "padding only"),
    ([[3]], "one"),
    ([[]], "empty"),
]


class Model(torch.nn.Module):
    """A sparse table with padding, a dense head, and a layer that gets no gradient."""

    def __init__(self, *, sparse: bool = True, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(7)
        self.table = torch.nn.Embedding(7, 3, padding_idx=0, sparse=sparse, dtype=dtype)
        self.head = torch.nn.Linear(3, 2, dtype=dtype)
        self.unused = torch.nn.Embedding(4, 2, sparse=sparse, dtype=dtype)
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(torch.randn(p.shape, generator=generator, dtype=torch.float64))

    def loss(self, ids: torch.Tensor, power: int = 2) -> torch.Tensor:
        return (self.head(self.table(ids)) ** power).sum()


def with_gradients(ids: object, *, sparse: bool = True, dtype: torch.dtype = torch.float32) -> Model:
    model = Model(sparse=sparse, dtype=dtype)
    model.loss(torch.tensor(ids, dtype=torch.int64)).backward()
    return model


def dense_gradients(model: Model) -> list[torch.Tensor | None]:
    return [None if p.grad is None else p.grad.to_dense().clone() for p in model.parameters()]


def assert_close(got: list[torch.Tensor | None], expected: list[torch.Tensor | None], rtol: float) -> None:
    for g, e in zip(got, expected, strict=True):
        assert (g is None) == (e is None)
        if g is not None and e is not None:
            torch.testing.assert_close(g, e, rtol=rtol, atol=0.0, equal_nan=True)


# ---------------------------------------------------------------------- clip_grad_norm_
def test_torch_itself_still_refuses_sparse_gradients() -> None:
    with pytest.raises((NotImplementedError, RuntimeError)):
        torch.nn.utils.clip_grad_norm_(with_gradients([[1, 1]]).parameters(), 1.0)


@pytest.mark.parametrize("ord", ORDS)
@pytest.mark.parametrize("max_norm", [0.0, 1e-3, 1.0, 1e6, math.inf])
@pytest.mark.parametrize(("ids", "why"), BATCHES, ids=[why for _, why in BATCHES])
def test_sparse_is_clipped_like_torch_clips_the_densified(
    ids: list[list[int]], why: str, max_norm: float, ord: float
) -> None:
    model, twin = with_gradients(ids), with_gradients(ids, sparse=False)
    got = clip_grad_norm_(model.parameters(), max_norm, ord)
    expected = torch.nn.utils.clip_grad_norm_(twin.parameters(), max_norm, ord)
    assert (got.shape, got.dtype, got.requires_grad) == ((), torch.float32, False)
    # torch's float32 norm of a few dozen elements is off by some units; the factor carries that over
    torch.testing.assert_close(got, expected, rtol=8 * EPS, atol=0.0)
    assert_close(dense_gradients(model), dense_gradients(twin), rtol=32 * EPS)


@pytest.mark.parametrize("ord", ORDS)
def test_dense_gradients_follow_torch(ord: float) -> None:
    generator = torch.Generator().manual_seed(1)
    for scale in (1e-6, 1.0, 1e6):
        mine = [torch.nn.Parameter(torch.zeros(shape)) for shape in ((50, 7), (13,), (1,), ())]
        for p in mine:
            p.grad = torch.randn(p.shape, generator=generator) * scale
        theirs = [torch.nn.Parameter(p.detach().clone()) for p in mine]
        for p, q in zip(mine, theirs, strict=True):
            q.grad = p.grad.clone()
        storages = [p.grad.data_ptr() for p in mine]
        got, expected = clip_grad_norm_(mine, scale, ord), torch.nn.utils.clip_grad_norm_(theirs, scale, ord)
        # torch sums 364 float32 terms in float32; the measured worst case is 46 units in the last place
        torch.testing.assert_close(got, expected, rtol=64 * EPS, atol=0.0)
        assert_close([p.grad for p in mine], [q.grad for q in theirs], rtol=64 * EPS)
        assert [p.grad.data_ptr() for p in mine] == storages


def test_the_norm_sums_duplicates_first() -> None:
    p = torch.nn.Parameter(torch.zeros(4, 2))
    p.grad = torch.sparse_coo_tensor(
        [[1, 2, 1]], torch.tensor([[3.0, 0.0], [0.0, 8.0], [3.0, 0.0]]), (4, 2), check_invariants=True
    )
    assert float(clip_grad_norm_(p, 5.0, semantics="islices")) == 10.0
    assert p.grad._indices().tolist() == [[1, 2, 1]]
    assert not p.grad.is_coalesced()
    assert p.grad._values().tolist() == [[1.5, 0.0], [0.0, 4.0], [1.5, 0.0]]


def test_semantics_choose_the_factor() -> None:
    def clipped(semantics: str) -> float:
        p = torch.nn.Parameter(torch.zeros(2, 1))
        p.grad = torch.sparse_coo_tensor([[1]], torch.tensor([[2.0]]), (2, 1), check_invariants=True)
        clip_grad_norm_([p], 1.0, semantics=semantics)
        return float(p.grad._values())

    assert clipped("islices") == 1.0
    # torch's own factor, which is a hair below 1 / 2
    q = torch.nn.Parameter(torch.zeros(2, 1))
    q.grad = torch.tensor([[0.0], [2.0]])
    torch.nn.utils.clip_grad_norm_([q], 1.0)
    assert abs(clipped("torch") - float(q.grad[1])) <= EPS
    assert clipped("torch") < 1.0
    with pytest.raises(ValueError, match="semantics: got 'adam'"):
        clipped("adam")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_dtypes(dtype: torch.dtype) -> None:
    model = with_gradients([[1, 2, 1], [0, 2, 2]], dtype=dtype)
    before = dense_gradients(model)
    norm = clip_grad_norm_(model.parameters(), 0.5, semantics="islices")
    assert norm.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    exact = math.sqrt(sum(float((g.double() ** 2).sum()) for g in before if g is not None))
    assert float(norm) == pytest.approx(exact, rel=1e-6)
    eps = torch.finfo(dtype).eps
    for g, b in zip(dense_gradients(model), before, strict=True):
        if g is not None and b is not None:
            assert g.dtype == dtype
            # duplicates are added after the scaling here and before it there
            torch.testing.assert_close(g.double(), b.double() * (0.5 / exact), rtol=8 * eps, atol=8 * eps)


def test_the_result_is_the_one_of_clip_by_global_norm() -> None:
    model, twin = with_gradients([[1, 2, 1], [2, 2, 6]]), with_gradients([[1, 2, 1], [2, 2, 6]])
    for semantics in ("torch", "islices", "optax", "tensorflow"):
        grads = [p.grad for p in twin.parameters()]
        expected, norm = islices.clip_by_global_norm(grads, 0.7, semantics=semantics)
        assert torch.equal(clip_grad_norm_(model.parameters(), 0.7, semantics=semantics), norm)
        for p, q, e in zip(model.parameters(), twin.parameters(), expected, strict=True):
            if e is not None:
                assert torch.equal(p.grad._values() if e.is_sparse else p.grad, e._values() if e.is_sparse else e)
                q.grad = e


def test_within_the_norm_nothing_changes() -> None:
    model = with_gradients([[1, 2, 1]])
    before = [(p.grad, None if p.grad is None else p.grad.to_dense()) for p in model.parameters()]
    clip_grad_norm_(model.parameters(), 1e9)
    for p, (grad, dense) in zip(model.parameters(), before, strict=True):
        assert p.grad is grad
        if grad is not None:
            assert torch.equal(grad.to_dense(), dense)


def test_the_gradient_stays_the_same_object_and_the_callers_tensors_keep_their_values() -> None:
    layer = torch.nn.Embedding(5, 2, sparse=True)
    ids = torch.tensor([1, 4, 1])
    rows = layer(ids)
    upstream = torch.full((3, 2), 10.0)
    rows.backward(upstream)
    grad = layer.weight.grad
    for clip in (lambda: clip_grad_norm_(layer.weight, 1.0), lambda: clip_grad_value_(layer.weight, 0.01)):
        clip()
        assert layer.weight.grad is grad
        assert ids.tolist() == [1, 4, 1]
        assert torch.equal(upstream, torch.full((3, 2), 10.0))
    assert grad.is_coalesced()
    assert grad.to_dense()[1].tolist() == pytest.approx([0.01, 0.01])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nonfinite(bad: float) -> None:
    model, twin = with_gradients([[1, 2, 1]]), with_gradients([[1, 2, 1]], sparse=False)
    for m in (model, twin):
        m.head.bias.grad[0] = bad
    before = dense_gradients(model)
    with pytest.raises(RuntimeError, match=r"norm of order 2\.0"):
        clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
    assert_close(dense_gradients(model), before, rtol=0.0)
    got = clip_grad_norm_(model.parameters(), 1.0)
    expected = torch.nn.utils.clip_grad_norm_(twin.parameters(), 1.0)
    torch.testing.assert_close(got, expected, equal_nan=True)
    got, expected = dense_gradients(model), dense_gradients(twin)
    stored = [1, 2]
    got[0], expected[0] = got[0][stored], expected[0][stored]  # rows not stored stay zero
    assert_close(got, expected, rtol=8 * EPS)


def test_large_values_do_not_overflow() -> None:
    p = torch.nn.Parameter(torch.zeros(4, 1))
    p.grad = torch.sparse_coo_tensor([[0, 1, 2, 3]], torch.full((4, 1), 1e20), (4, 1), check_invariants=True)
    assert float(clip_grad_norm_([p], 1.0, error_if_nonfinite=True)) == pytest.approx(2e20, rel=EPS)
    assert p.grad.to_dense().flatten().tolist() == pytest.approx([0.5] * 4)


def test_accepted_parameters() -> None:
    def clipped(choose: object) -> tuple[float, list[torch.Tensor | None]]:
        model = with_gradients([[1, 2, 1]])
        norm = clip_grad_norm_(choose(model), 0.1)  # type: ignore[operator]
        return float(norm), dense_gradients(model)

    expected = clipped(lambda m: list(m.parameters()))
    for choose in (
        lambda m: m.parameters(),
        lambda m: tuple(m.parameters()),
        lambda m: (p for p in m.parameters()),
        lambda m: dict(m.named_parameters()).values(),
    ):
        norm, grads = clipped(choose)
        assert norm == expected[0]
        assert_close(grads, expected[1], rtol=0.0)
    assert clipped(lambda m: m.table.weight)[0] < expected[0]


def test_nothing_to_clip() -> None:
    for parameters in ([], [torch.nn.Parameter(torch.ones(2))]):
        norm = clip_grad_norm_(parameters, 1.0)
        assert (norm.shape, float(norm)) == ((), 0.0)
        clip_grad_value_(parameters, 1.0)
    with pytest.warns(UserWarning, match="generator with nothing"):
        clip_grad_norm_((p for p in []), 1.0)


@pytest.mark.parametrize("gradient", [lambda x: x[0].expand(3, 2), lambda x: x.as_strided((3, 2), (1, 1))])
def test_a_gradient_whose_elements_share_memory_is_clipped_too(gradient: Callable[..., torch.Tensor]) -> None:
    p, q = torch.nn.Parameter(torch.zeros(3, 2)), torch.nn.Parameter(torch.zeros(1))
    p.grad, q.grad = gradient(one := torch.full((4,), 2.0)), torch.ones(1)
    assert float(clip_grad_norm_([q, p], 2.5, semantics="islices")) == 5.0
    assert p.grad.tolist() == [[1.0, 1.0]] * 3
    assert q.grad.tolist() == [0.5]
    assert one.tolist() == [2.0] * 4


def sparse_gradient(indices: list[int], *, coalesced: bool = False, rows: int = 4) -> torch.Tensor:
    values = torch.ones(len(indices), 2)
    return torch.sparse_coo_tensor([indices], values, (rows, 2), is_coalesced=coalesced, check_invariants=False)


@pytest.mark.parametrize(
    ("grad", "error", "message"),
    [
        (lambda: sparse_gradient([0, 4]), IndexError, "position 1: indices: got 4 at position 1"),
        (lambda: sparse_gradient([0, -1]), IndexError, "position 1: indices: got -1"),
        (lambda: sparse_gradient([2, 1], coalesced=True), ValueError, "position 1: indices: claimed coalesced"),
        (lambda: torch.eye(4, 2).to_sparse(), ValueError, "position 1: x: got a sparse COO tensor .* 2 sparse dim"),
        (torch.inference_mode()(lambda: torch.ones(4, 2)), ValueError, "position 1: got an inference tensor"),
    ],
)
def test_a_bad_gradient_changes_nothing(grad: object, error: type[Exception], message: str) -> None:
    good, bad = torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(4, 2))
    good.grad, bad.grad = torch.ones(2), grad()  # type: ignore[operator]
    for clip in (lambda: clip_grad_norm_([good, bad], 0.1), lambda: clip_grad_value_([good, bad], 0.1)):
        with pytest.raises(error, match=message):
            clip()
        assert good.grad.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda p: clip_grad_norm_(p, -1.0), ValueError, "max_norm: got -1.0"),
        (lambda p: clip_grad_norm_(p, math.nan), ValueError, "max_norm: got nan"),
        (lambda p: clip_grad_norm_(p, None), TypeError, "max_norm: got None"),
        (lambda p: clip_grad_norm_(p, 1.0, -math.inf), ValueError, "norm_type: got -inf; accepted is a number > 0"),
        (lambda p: clip_grad_norm_(p, 1.0, 0.0), ValueError, "norm_type: got 0.0"),
        (lambda p: clip_grad_norm_(["weight"], 1.0), TypeError, "parameters: got str 'weight' at position 0"),
        (lambda p: clip_grad_norm_(torch.nn.Linear(1, 1), 1.0), TypeError, r"model\.parameters\(\)"),
        (lambda p: clip_grad_norm_(3, 1.0), TypeError, "parameters: got int 3"),
        (lambda p: clip_grad_value_(p, -1.0), ValueError, "clip_value: got -1.0"),
        (lambda p: clip_grad_value_(p, math.nan), ValueError, "clip_value: got nan"),
        (lambda p: clip_grad_value_(p, "x"), TypeError, "clip_value: got str 'x'"),
    ],
)
def test_bad_arguments(call: object, error: type[Exception], message: str) -> None:
    p = torch.nn.Parameter(torch.zeros(2))
    p.grad = torch.ones(2)
    with pytest.raises(error, match=message):
        call([p] if "parameters" not in message else p)  # type: ignore[operator]
    assert p.grad.tolist() == [1.0, 1.0]


def test_norm_type_and_numbers_come_as_torch_takes_them() -> None:
    p = torch.nn.Parameter(torch.zeros(2))
    p.grad = torch.tensor([3.0, -4.0])
    assert float(clip_grad_norm_(p, torch.tensor(100.0), "inf", foreach=True)) == 4.0
    assert float(clip_grad_norm_(p, 100, 1, False, False)) == 7.0
    assert float(clip_grad_norm_(p, np.float32(100))) == 5.0
    assert float(clip_grad_norm_(p, 10**400)) == 5.0
    theirs = torch.nn.Parameter(torch.zeros(2))
    theirs.grad = p.grad.clone()
    for clip, q in ((clip_grad_norm_, p), (torch.nn.utils.clip_grad_norm_, theirs)):
        clip(q, "2.5")  # type: ignore[operator]
    assert p.grad.tolist() == theirs.grad.tolist()


# ---------------------------------------------------------------------- the two halves of clip_grad_norm_
@pytest.mark.parametrize("ord", ORDS)
@pytest.mark.parametrize(("ids", "why"), BATCHES, ids=[why for _, why in BATCHES])
def test_the_total_norm_is_torchs_of_the_densified(ids: list[list[int]], why: str, ord: float) -> None:
    model, twin = with_gradients(ids), with_gradients(ids, sparse=False)
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    got = get_total_norm(grads, ord)
    expected = torch.nn.utils.get_total_norm([p.grad for p in twin.parameters() if p.grad is not None], ord)
    assert (got.shape, got.dtype) == ((), torch.float32)
    torch.testing.assert_close(got, expected, rtol=8 * EPS, atol=0.0)
    exact = [g.to_dense().double().flatten() for g in grads]
    # exact sums, rounded once: a float64 norm of a few dozen elements rounds to the same float32
    assert torch.equal(got, torch.linalg.vector_norm(torch.cat(exact), ord).float())
    assert torch.equal(get_total_norm((g for g in grads), str(ord), True, foreach=True), got)


@pytest.mark.parametrize("semantics", ["torch", "tensorflow", "mxnet", "optax"])
@pytest.mark.parametrize("max_norm", [0.0, 0.3, 1e6, math.inf])
def test_both_halves_are_the_whole(max_norm: float, semantics: str) -> None:
    ids = (
        [[6, 1, 4], [3, 2, 5]] if semantics == "tensorflow" else [[1, 2, 1], [0, 2, 6]]
    )  # raw rows there, if they repeat
    model, twin = with_gradients(ids), with_gradients(ids)
    norm = get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    assert clip_grads_with_norm_(model.parameters(), max_norm, norm, semantics=semantics) is None
    assert torch.equal(norm, clip_grad_norm_(twin.parameters(), max_norm, semantics=semantics))
    assert_close(dense_gradients(model), dense_gradients(twin), rtol=0.0)


def test_a_norm_of_several_processes_clips_as_torch_does() -> None:
    """Two stages, each with its own parameters, one norm."""
    ids = [[1, 2, 1], [0, 2, 6]]
    stages, twins = (
        [with_gradients(ids), with_gradients([[3]])],
        [with_gradients(i, sparse=False) for i in (ids, [[3]])],
    )
    for models, total, clip in (
        (stages, get_total_norm, clip_grads_with_norm_),
        (twins, torch.nn.utils.get_total_norm, torch.nn.utils.clip_grads_with_norm_),
    ):
        norms = [total([p.grad for p in m.parameters() if p.grad is not None]) for m in models]
        together = torch.linalg.vector_norm(torch.stack(norms))
        for m in models:
            clip(m.parameters(), 0.7, together)
    for m, t in zip(stages, twins, strict=True):
        assert_close(dense_gradients(m), dense_gradients(t), rtol=32 * EPS)


def test_a_known_norm_in_other_forms() -> None:
    for norm in (torch.tensor(8.0), torch.tensor([8.0], dtype=torch.float64), torch.tensor(8.0).bfloat16(), 8.0, 8):
        p = torch.nn.Parameter(torch.zeros(3, 1))
        p.grad = torch.sparse_coo_tensor([[1, 1]], torch.ones(2, 1), (3, 1), check_invariants=True)
        clip_grads_with_norm_(p, 2, norm, None, semantics="islices")
        assert p.grad.to_dense().flatten().tolist() == [0.0, 0.5, 0.0]
        clip_grads_with_norm_([p], 2, math.nan)
        assert p.grad._values().isnan().all()
    assert float(get_total_norm([])) == 0.0
    clip_grads_with_norm_([], 1.0, torch.tensor(1.0))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda p: get_total_norm([None]), TypeError, "tensors: got None at position 0; accepted are Tensors"),
        (lambda p: get_total_norm(torch.nn.Linear(1, 1)), TypeError, r"tensors: got .*p\.grad for p in"),
        (lambda p: get_total_norm([p.grad], math.nan), ValueError, "norm_type: got nan; accepted is a number > 0"),
        (lambda p: get_total_norm([p.grad], "x"), TypeError, "norm_type: got str 'x'"),
        (lambda p: get_total_norm([p.grad, torch.ones(2, dtype=torch.int64)]), TypeError, "tensors: the one at pos"),
        (lambda p: get_total_norm([sparse_gradient([4])]), IndexError, "the one at position 0: indices: got 4"),
        (lambda p: get_total_norm([p.grad * math.inf], error_if_nonfinite=True), RuntimeError, "norm of order 2.0"),
        (lambda p: clip_grads_with_norm_(p, -1.0, 1.0), ValueError, r"max_norm: got -1\.0"),
        (lambda p: clip_grads_with_norm_(p, 1.0, -1.0), ValueError, r"total_norm: got -1\.0"),
        (lambda p: clip_grads_with_norm_(p, 1.0, None), TypeError, "total_norm: got None; accepted is a Tensor of one"),
        (lambda p: clip_grads_with_norm_(p, 1.0, torch.ones(2)), TypeError, "total_norm: got torch.Tensor"),
        (lambda p: clip_grads_with_norm_(p, 1.0, 1.0, semantics="x"), ValueError, "semantics: got 'x'"),
    ],
)  # fmt: skip
def test_bad_arguments_of_the_halves(call: object, error: type[Exception], message: str) -> None:
    p = torch.nn.Parameter(torch.zeros(2))
    p.grad = torch.ones(2)
    with pytest.raises(error, match=message):
        call(p)  # type: ignore[operator]
    assert p.grad.tolist() == [1.0, 1.0]


# ---------------------------------------------------------------------- clip_grad_value_
@pytest.mark.parametrize("bound", [0.0, 0.3, 2, 1e6, math.inf])
@pytest.mark.parametrize(("ids", "why"), BATCHES, ids=[why for _, why in BATCHES])
def test_values_are_clipped_like_torch_clips_the_densified(ids: list[list[int]], why: str, bound: float) -> None:
    model, twin = with_gradients(ids), with_gradients(ids, sparse=False)
    # the two layers add duplicates in the same order, so nothing rounds differently
    assert_close(dense_gradients(model), dense_gradients(twin), rtol=0.0)
    assert clip_grad_value_(model.parameters(), bound) is None
    torch.nn.utils.clip_grad_value_(twin.parameters(), bound)
    assert_close(dense_gradients(model), dense_gradients(twin), rtol=0.0)


def test_clip_value_keeps_nan_and_acts_on_sums() -> None:
    p = torch.nn.Parameter(torch.zeros(4, 1))
    p.grad = torch.sparse_coo_tensor(
        [[1, 3, 1]], torch.tensor([[3.0], [math.nan], [-2.5]]), (4, 1), check_invariants=True
    )
    clip_grad_value_([p], 2.0)
    np.testing.assert_array_equal(p.grad.to_dense().flatten().numpy(), [0.0, 0.5, 0.0, math.nan])


# ---------------------------------------------------------------------- training
def train(optimizer: str, *, sparse: bool, steps: int = 25, clip: str = "norm") -> tuple[Model, list[float]]:
    model = Model(sparse=sparse)
    dense, tables = list(model.head.parameters()), [model.table.weight]
    kinds = {
        "sgd": lambda: [torch.optim.SGD([*dense, *tables], lr=0.05)],
        "adagrad": lambda: [torch.optim.Adagrad([*dense, *tables], lr=0.1)],
        "sparse_adam": lambda: [torch.optim.Adam(dense, lr=0.02), torch.optim.SparseAdam(tables, lr=0.02)],
    }
    optimizers = kinds[optimizer]()
    mine = sparse or optimizer == "sparse_adam"
    generator = torch.Generator().manual_seed(3)
    losses = []
    for _ in range(steps):
        ids = torch.randint(0, 7, (6, 5), generator=generator)  # 30 lookups of 7 rows: duplicates, and padding
        for o in optimizers:
            o.zero_grad()
        loss = model.loss(ids)
        loss.backward()
        if clip == "norm":
            (clip_grad_norm_ if mine else torch.nn.utils.clip_grad_norm_)(model.parameters(), 1.0)
        else:
            (clip_grad_value_ if mine else torch.nn.utils.clip_grad_value_)(model.parameters(), 0.2)
        for o in optimizers:
            o.step()
        losses.append(loss.item())
    return model, losses


@pytest.mark.parametrize("clip", ["norm", "value"])
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
def test_training_follows_the_dense_model(optimizer: str, clip: str) -> None:
    model, losses = train(optimizer, sparse=True, clip=clip)
    twin, expected = train(optimizer, sparse=False, clip=clip)
    assert losses == pytest.approx(expected, rel=1e-4)
    assert losses[-1] < losses[0]
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("clip", ["norm", "value"])
def test_training_with_sparse_adam(clip: str) -> None:
    model, losses = train("sparse_adam", sparse=True, clip=clip)
    start = Model()
    assert losses[-1] < losses[0]
    assert all(map(math.isfinite, losses))
    assert torch.equal(model.table.weight[0], start.table.weight[0])  # the padding row
    assert torch.equal(model.unused.weight, start.unused.weight)
    assert not torch.equal(model.table.weight[1:], start.table.weight[1:])


def test_execution_modes_agree() -> None:
    model, twin = with_gradients([[1, 2, 1], [2, 2, 6]]), with_gradients([[1, 2, 1], [2, 2, 6]])
    norm = clip_grad_norm_(model.parameters(), 0.7)
    with islices.execution("framework"):
        assert torch.equal(norm, clip_grad_norm_(twin.parameters(), 0.7))
    assert_close(dense_gradients(model), dense_gradients(twin), rtol=0.0)


# ---------------------------------------------------------------------- tensors without data
def without_data(sparse: bool) -> torch.Tensor:
    with torch.device("meta"):
        if sparse:
            return torch.sparse_coo_tensor(torch.tensor([[1, 4, 1]]), torch.ones(3, 2), (6, 2))
        return torch.ones(6, 2)


def with_gradient(grad: torch.Tensor) -> list[torch.Tensor]:
    parameter = torch.nn.Parameter(torch.ones(6, 2, device=grad.device))
    parameter.grad = grad
    return [parameter]


@pytest.mark.parametrize(
    ("call", "sparse"),
    [
        (lambda x: clip_grad_norm_(with_gradient(x), 1.0), False),
        (lambda x: clip_grad_norm_(with_gradient(x), 1.0), True),
        (lambda x: clip_grad_value_(with_gradient(x), 1.0), True),
        (islices.coalesce, True),
        (islices.to_dense, True),
        (islices.norm, True),
        (lambda x: islices.clip_by_global_norm([x], 1.0), True),
        (lambda x: islices.scatter_add(torch.ones(6, 2), x), True),
        (lambda x: islices.convert(x, "numpy"), False),
        (lambda x: islices.convert(x, "numpy"), True),
        (lambda x: islices.diff(x, x), False),
    ],
)
def test_a_tensor_without_data_is_refused_for_that(call: Callable[[torch.Tensor], Any], sparse: bool) -> None:
    """On the device meta, where values must be known; what needs shapes alone goes on (`islices.lookup`)."""
    with pytest.raises(TypeError, match=r"tensor on the device meta of shape .* which holds no data"):
        call(without_data(sparse))


def test_meta_tensors_beside_tensors_with_data_are_refused() -> None:
    def slices(device: str) -> islices.IndexedSlices:
        return islices.IndexedSlices(
            torch.ones(2, 3, device=device), torch.zeros(2, dtype=torch.int64, device=device), (4, 3)
        )

    for call in (
        lambda: islices.IndexedSlices(torch.ones(2, 3), torch.zeros(2, dtype=torch.int64, device="meta"), (4, 3)),
        lambda: islices.add(slices("cpu"), slices("meta")),
        lambda: islices.keep_rows(slices("cpu"), torch.zeros(2, dtype=torch.int64, device="meta")),
    ):
        with pytest.raises(TypeError, match=r"got tensors on the devices cpu, (cpu, )?meta; accepted are"):
            call()


def test_what_needs_shapes_alone_takes_tensors_without_data() -> None:
    rows = islices.lookup(without_data(False), torch.tensor([[1, 2, 0]]))
    assert (rows.shape, rows.device.type) == ((1, 3, 2), "meta")
    state = islices.optim.adam(0.1).init(without_data(False))
    assert {x.device.type for x in state.values()} == {"meta"}


def test_a_fake_tensor_is_refused_for_that() -> None:
    with FakeTensorMode(), pytest.raises(TypeError, match=r"fake tensor of shape .* which holds no data"):
        islices.convert(torch.ones(3), "numpy")
