"""Compare clip_grad_norm_ and clip_grad_value_ for torch with torch.nn.utils, on gradients of real layers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import islices
from islices.backends.torch import (
    clip_grad_norm_,
    clip_grad_value_,
    clip_grads_with_norm_,
    get_total_norm,
)

EPS = float(np.finfo(np.float32).eps)


#: kinds of ids in an embedding layer's batch; row 0 is the padding
BATCHES: dict[str, list[list[int]]] = {
    "unsorted": [[6, 1, 4], [3, 2, 5]],
    "duplicates": [[1, 0, 1], [2, 2, 6]],
    "padding": [[0, 0], [0, 0]],
    "empty": [[]],
}


class Model(torch.nn.Module):
    """A model with a sparse table that has a padding row, a dense head, and a layer that gets no gradient."""

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


@pytest.mark.parametrize("ord", [1.0, 2.0, math.inf, 0.5, 2.7])
@pytest.mark.parametrize("ids", BATCHES.values(), ids=BATCHES)
def test_sparse_is_clipped_like_torch_clips_the_densified(ids: list[list[int]], ord: float) -> None:
    for max_norm in (0.0, 1e-3, 1.0, math.inf):
        model, twin = with_gradients(ids), with_gradients(ids, sparse=False)
        given = [p.grad for p in model.parameters() if p.grad is not None]
        storage = model.head.weight.grad.data_ptr()
        exact = torch.cat([g.to_dense().double().flatten() for g in given])
        total = get_total_norm((g for g in given), str(ord), True, foreach=True)
        # exact sums, rounded once: a float64 norm of a few dozen elements rounds to the same float32
        assert torch.equal(total, torch.linalg.vector_norm(exact, ord).float())
        got = clip_grad_norm_(model.parameters(), max_norm, ord)
        expected = torch.nn.utils.clip_grad_norm_(twin.parameters(), max_norm, ord)
        assert torch.equal(got, total)
        assert not got.requires_grad
        # torch's float32 norm of a few dozen elements has an error of some units in the last place, and so has the
        # factor
        torch.testing.assert_close(got, expected, rtol=8 * EPS, atol=0.0)
        assert_close(dense_gradients(model), dense_gradients(twin), rtol=32 * EPS)
        assert model.head.weight.grad.data_ptr() == storage
        for m, clip in ((model, clip_grad_value_), (twin, torch.nn.utils.clip_grad_value_)):
            m.zero_grad()
            m.loss(torch.tensor(ids, dtype=torch.int64)).backward()
            clip(m.parameters(), max_norm)
        # both layers add duplicates in the same order, so that both round equally
        assert_close(dense_gradients(model), dense_gradients(twin), rtol=0.0)


@pytest.mark.parametrize("semantics", ["torch", "islices", "optax", "tensorflow"])
def test_the_result_is_the_one_of_clip_by_global_norm(semantics: str) -> None:
    ids = [[6, 1, 4], [3, 2, 5]] if semantics == "tensorflow" else [[1, 2, 1], [2, 2, 6]]  # tensorflow keeps duplicates
    whole, halves, given = (with_gradients(ids) for _ in range(3))
    grads = [p.grad for p in given.parameters()]
    expected, norm = islices.clip_by_global_norm(grads, 0.7, semantics=semantics)
    with islices.config.execution("framework"):
        assert torch.equal(clip_grad_norm_(whole.parameters(), 0.7, semantics=semantics), norm)
    total = get_total_norm([p.grad for p in halves.parameters() if p.grad is not None])
    clip_grads_with_norm_(halves.parameters(), 0.7, total, semantics=semantics)
    for p, q, e in zip(whole.parameters(), halves.parameters(), expected, strict=True):
        for x in (p.grad, q.grad):
            assert e is None or torch.equal(x._values() if e.is_sparse else x, e._values() if e.is_sparse else e)


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


def test_nonfinite() -> None:
    model, twin = with_gradients([[1, 2, 1]]), with_gradients([[1, 2, 1]], sparse=False)
    for m in (model, twin):
        m.head.bias.grad[0] = math.inf
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
    ("grad", "message"),
    [
        (lambda: sparse_gradient([0, 4]), "position 1: indices: got 4 at position 1"),
        (lambda: sparse_gradient([2, 1], coalesced=True), "position 1: indices: claimed coalesced"),
        (lambda: torch.eye(4, 2).to_sparse(), "position 1: x: got a sparse COO tensor .* 2 sparse dim"),
        (torch.inference_mode()(lambda: torch.ones(4, 2)), "position 1: got an inference tensor"),
    ],
)
def test_a_bad_gradient_changes_nothing(grad: Any, message: str) -> None:
    good, bad = torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(4, 2))
    good.grad, bad.grad = torch.ones(2), grad()
    for clip in (lambda: clip_grad_norm_([good, bad], 0.1), lambda: clip_grad_value_([good, bad], 0.1)):
        with pytest.raises((IndexError, ValueError), match=message):
            clip()
        assert good.grad.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda p: clip_grad_norm_(p, math.nan), ValueError, "max_norm: got nan"),
        (lambda p: clip_grad_norm_(p, 1.0, -math.inf), ValueError, "norm_type: got -inf; accepted is a number > 0"),
        (lambda p: clip_grad_norm_(["weight"], 1.0), TypeError, "parameters: got str 'weight' at position 0"),
        (lambda p: clip_grad_norm_(torch.nn.Linear(1, 1), 1.0), TypeError, r"model\.parameters\(\)"),
        (lambda p: clip_grad_norm_(p, 1.0, semantics="x"), ValueError, "semantics: got 'x'"),
        (lambda p: clip_grad_value_(p, -1.0), ValueError, "clip_value: got -1.0"),
        (lambda p: get_total_norm([None]), TypeError, "tensors: got None at position 0; accepted are Tensors"),
        (lambda p: get_total_norm([sparse_gradient([4])]), IndexError, "the one at position 0: indices: got 4"),
        (lambda p: get_total_norm([p.grad * math.inf], error_if_nonfinite=True), RuntimeError, "norm of order 2.0"),
        (lambda p: clip_grads_with_norm_(p, 1.0, -1.0), ValueError, r"total_norm: got -1\.0"),
        (lambda p: clip_grads_with_norm_(p, 1.0, torch.ones(2)), TypeError, "total_norm: got torch.Tensor"),
    ],
)
def test_bad_arguments(call: Any, error: type[Exception], message: str) -> None:
    p = torch.nn.Parameter(torch.zeros(2))
    p.grad = torch.ones(2)
    with pytest.raises(error, match=message):
        call(p)
    assert p.grad.tolist() == [1.0, 1.0]


def test_norm_type_and_numbers_come_as_torch_takes_them() -> None:
    p = torch.nn.Parameter(torch.zeros(2))
    p.grad = torch.tensor([3.0, -4.0])
    assert float(clip_grad_norm_(p, torch.tensor(100.0), "inf", foreach=True)) == 4.0
    assert float(clip_grad_norm_(p, 100, 1, False, False)) == 7.0
    assert float(clip_grad_norm_(p, np.float32(100))) == 5.0
    assert float(clip_grad_norm_(p, 10**400)) == 5.0
    assert float(clip_grad_norm_(p, "4.5")) == 5.0  # type: ignore[arg-type]
    clip_grad_norm_(p, torch.tensor(2.5, requires_grad=True))
    assert p.grad.norm().item() == pytest.approx(2.5)
    assert not p.grad.requires_grad, "like torch's function, it records nothing"


# ---------------------------------------------------------------------- tensors without data
def without_data(sparse: bool) -> torch.Tensor:
    with torch.device("meta"):
        if sparse:
            return torch.sparse_coo_tensor(torch.tensor([[1, 4, 1]]), torch.ones(3, 2), (6, 2))
        return torch.ones(6, 2)


def test_a_tensor_without_data_is_refused_for_that() -> None:
    p = torch.nn.Parameter(torch.ones(6, 2, device="meta"))
    p.grad = without_data(True)
    for call in (
        lambda: clip_grad_norm_([p], 1.0),
        lambda: islices.coalesce(p.grad),
        lambda: islices.scatter(torch.ones(6, 2), p.grad),
        lambda: islices.convert(without_data(False), "numpy"),
    ):
        with pytest.raises(TypeError, match=r"tensor on the device meta of shape .* which holds no data"):
            call()
    ids = torch.zeros(2, dtype=torch.int64, device="meta")
    with pytest.raises(TypeError, match=r"got tensors on the devices cpu, meta; accepted are"):
        islices.IndexedSlices(torch.ones(2, 3), ids, (4, 3))


def test_a_fake_tensor_is_refused_for_that() -> None:
    with FakeTensorMode(), pytest.raises(TypeError, match=r"fake tensor of shape .* which holds no data"):
        islices.convert(torch.ones(3), "numpy")
