"""Nested (jagged) ids, include_last_offset and max_norm on torch, beside torch's own functions: values and gradients.

torch sums in orders of its own and divides by what it rounded: the comparisons are on whole numbers, or within 1e-6.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import islices
from islices import lookup

torch = pytest.importorskip("torch", reason="torch is not installed")
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

WEIGHTS = torch.from_numpy(np.random.default_rng(3).integers(-8, 9, (7, 4)).astype(np.float32))
ROWS = [[1, 2], [], [3, 3, 4], [0]]


def jagged(rows: list[list[Any]] = ROWS, dtype: Any = torch.int64) -> Any:
    return torch.nested.nested_tensor([torch.tensor(r, dtype=dtype) for r in rows], layout=torch.jagged)


def with_gaps() -> Any:
    """Rows [0, 1], [4, 5, 6], [1] between numbers that are in no row."""
    return torch.nested.nested_tensor_from_jagged(
        torch.arange(10) % 7, torch.tensor([0, 4, 8, 10]), torch.tensor([2, 3, 1])
    )


def gradient(loss: Any) -> Any:
    return islices.to_dense(islices.value_and_grad(loss)(islices.Table(WEIGHTS))[1])


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_nested_ids_are_the_bags_of_embedding_bag(mode: str, dtype: Any) -> None:
    ids, layer = jagged(dtype=dtype), nn.EmbeddingBag(7, 4, mode=mode, _weight=WEIGHTS.clone())
    theirs = layer(ids)
    torch.testing.assert_close(lookup(WEIGHTS, ids, combiner=mode), theirs.detach(), rtol=1e-6, atol=0)
    (theirs**2).sum().backward()
    ours = gradient(lambda t: (lookup(t, ids, combiner=mode) ** 2).sum())
    torch.testing.assert_close(ours, layer.weight.grad, rtol=1e-6, atol=0)


def test_weights_are_nested_or_flat_and_get_their_gradient() -> None:
    ids, numbers = jagged(), torch.tensor([1.0, 2.0, 0.5, 4.0, 1.0, 3.0], requires_grad=True)
    theirs = functional.embedding_bag(
        ids, WEIGHTS, mode="sum", per_sample_weights=torch.nested.nested_tensor_from_jagged(numbers, ids.offsets())
    )
    own = torch.nested.nested_tensor_from_jagged(numbers, ids.offsets())
    for weights in (numbers, own):
        ours = lookup(WEIGHTS, ids, weights=weights, combiner="sum")
        assert torch.equal(ours, theirs)
        ((found,), (expected,)) = (torch.autograd.grad(x.sum(), numbers, retain_graph=True) for x in (ours, theirs))
        assert torch.equal(found, expected)
    with pytest.raises(ValueError, match="weights: got a nested tensor whose rows are not those of the ids"):
        lookup(WEIGHTS, ids, weights=jagged([[1.0] * 6, [], [], []], torch.float32), combiner="sum")


def test_rows_of_nested_ids_are_nested() -> None:
    ids = jagged()
    rows = lookup(WEIGHTS, ids)
    assert rows.layout is torch.jagged
    assert rows.shape == functional.embedding(ids, WEIGHTS).shape  # the same ragged size, so that both can be added
    assert torch.equal(rows.values(), WEIGHTS[ids.values()])
    _, g = islices.value_and_grad(
        lambda t: torch.stack([(row**2).sum() for row in lookup(t, ids).unbind()]), per_sample=True
    )(islices.Table(WEIGHTS))
    assert g.samples.tolist() == [0, 0, 2, 2, 2, 3]


def test_gaps_between_rows_are_no_members() -> None:
    """nn.EmbeddingBag counts them (it looks at offsets alone), nn.Embedding refuses such ids."""
    ids = with_gaps()
    expected = torch.stack([WEIGHTS[r].sum(0) for r in ([0, 1], [4, 5, 6], [1])])
    assert torch.equal(lookup(WEIGHTS, ids, combiner="sum"), expected)


def test_embedding_grad_and_per_sample_of_nested_ids() -> None:
    ids = jagged()
    upstream = functional.embedding(ids, WEIGHTS)
    g = islices.per_sample(upstream, ids, 7, padding_idx=3)
    assert g.samples.tolist() == [0, 0, 2, 3]
    assert islices.embedding_grad(upstream, ids, 7).indices.tolist() == [1, 2, 3, 3, 4, 0]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")  # once a process
def test_other_nested_tensors_are_refused() -> None:
    strided = torch.nested.nested_tensor([torch.tensor([1]), torch.tensor([2, 3])])
    with pytest.raises(TypeError, match=r"ids: got a nested tensor of layout torch.strided; .*layout=torch.jagged"):
        lookup(WEIGHTS, strided, combiner="sum")
    with pytest.raises(IndexError, match="ids: got 9 at position 1"):
        lookup(WEIGHTS, jagged([[1, 9]]), combiner="sum")
    with pytest.raises(TypeError, match=r"ids: got .*float32"):
        lookup(WEIGHTS, jagged([[1.0]], torch.float32))


# ---------------------------------------------------------------------- include_last_offset
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("ends", [[0, 2, 2, 6], [0, 1, 4], [0, 0, 0]])
def test_include_last_offset(mode: str, ends: list[int]) -> None:
    ids, offsets = torch.tensor([1, 2, 3, 3, 4, 0]), torch.tensor(ends)
    options = {"mode": mode, "include_last_offset": True}
    # torch counts ids behind the last bag among its members where it divides, and leaves their gradient uninitialised
    theirs = functional.embedding_bag(ids[: ends[-1]], WEIGHTS, offsets, **options)
    ours = lookup(WEIGHTS, ids, offsets=offsets, include_last_offset=True, combiner=mode)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=0)
    weight = WEIGHTS.clone().requires_grad_()
    (functional.embedding_bag(ids[: ends[-1]], weight, offsets, **options) ** 2).sum().backward()
    loss = lambda t: (lookup(t, ids, offsets=offsets, include_last_offset=True, combiner=mode) ** 2).sum()  # noqa: E731
    g = islices.value_and_grad(loss)(islices.Table(WEIGHTS))[1]
    assert g.indices.tolist() == ids[: ends[-1]].tolist()
    torch.testing.assert_close(islices.to_dense(g), weight.grad, rtol=1e-6, atol=0)


# ---------------------------------------------------------------------- max_norm
@pytest.mark.parametrize("max_norm", [0.0, 3.0, 11.0])
def test_torchs_max_norm_is_renorm_rows_before_the_lookup(max_norm: float) -> None:
    ids, theirs, ours = torch.tensor([[1, 2], [2, 5]]), WEIGHTS.clone().requires_grad_(), WEIGHTS.clone()
    rows = functional.embedding(ids, theirs, max_norm=max_norm or 1e-30)
    (rows**2).sum().backward()
    islices.renorm_rows(ours, ids, max_norm or 1e-30)
    torch.testing.assert_close(ours, theirs.detach(), rtol=1e-6, atol=1e-30)
    torch.testing.assert_close(
        islices.to_dense(islices.value_and_grad(lambda t: (lookup(t, ids) ** 2).sum())(islices.Table(ours))[1]),
        theirs.grad,
        rtol=1e-6,
        atol=1e-30,
    )


@pytest.mark.parametrize("max_norm", [0.5, 3.0, 11.0, 1e9])
def test_the_gradient_passes_through_max_norm_as_autograd_has_it(max_norm: float) -> None:
    ids, weight = torch.tensor([[1, 2], [2, 5]]), WEIGHTS.clone().requires_grad_()
    rows = weight[ids]
    norms = rows.norm(dim=-1, keepdim=True)
    clipped = torch.where(norms > max_norm, rows * (max_norm / norms), rows)
    (clipped**3).sum().backward()
    ours = gradient(lambda t: (lookup(t, ids, max_norm=max_norm) ** 3).sum())
    torch.testing.assert_close(lookup(WEIGHTS, ids, max_norm=max_norm), clipped.detach(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(ours, weight.grad, rtol=1e-5, atol=1e-5)
    plain = WEIGHTS.clone().requires_grad_()  # an array in place of a Table: torch's own backward pass, dense
    (lookup(plain, ids, max_norm=max_norm) ** 3).sum().backward()
    torch.testing.assert_close(plain.grad, weight.grad, rtol=1e-5, atol=1e-5)


def test_a_second_derivative_through_max_norm_is_refused() -> None:
    weight = WEIGHTS.clone().requires_grad_()
    (g,) = torch.autograd.grad((lookup(weight, torch.tensor([1]), max_norm=1.0) ** 3).sum(), weight, create_graph=True)
    with pytest.raises(NotImplementedError, match="max_norm"):
        g.sum().backward()


# ---------------------------------------------------------------------- capture
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("options", [{}, {"include_last_offset": True}, {"max_norm": 3.0}])
def test_capture_of_stock_bags(mode: str, options: dict[str, Any]) -> None:
    layer = nn.EmbeddingBag(7, 4, mode=mode, _weight=WEIGHTS.clone(), **options)
    ids = torch.tensor([1, 2, 3, 3, 4, 0])
    offsets = torch.tensor([0, 2, 2, 6] if "include_last_offset" in options else [0, 2, 2])
    with islices.capture(layer) as captured:
        (layer(ids, offsets) ** 3).sum().backward()
    torch.testing.assert_close(islices.to_dense(captured.gradients()[""]), layer.weight.grad, rtol=1e-6, atol=0)
    assert captured.per_sample()[""].samples.tolist() == [0, 0, 2, 2, 2, 2]


def test_capture_of_an_embedding_with_max_norm() -> None:
    layer = nn.Embedding(7, 4, _weight=WEIGHTS.clone(), max_norm=3.0)
    with islices.capture(layer) as captured:
        (layer(torch.tensor([[1, 2], [2, 5]])) ** 3).sum().backward()
    assert torch.equal(islices.to_dense(captured.gradients()[""]), layer.weight.grad)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("make", [jagged, with_gaps])
def test_capture_of_bags_of_nested_ids(mode: str, make: Any) -> None:
    layer, ids = nn.EmbeddingBag(7, 4, mode=mode, _weight=WEIGHTS.clone()), make()
    with islices.capture(layer) as captured:
        (layer(ids) ** 2).sum().backward()
    torch.testing.assert_close(islices.to_dense(captured.gradients()[""]), layer.weight.grad, rtol=1e-6, atol=0)
    assert captured.per_sample()[""].dense_shape[0] == ids.shape[0]


def test_capture_of_rows_of_nested_ids() -> None:
    layer, ids = nn.Embedding(7, 4, _weight=WEIGHTS.clone()), jagged()
    with islices.capture(layer) as captured:
        (layer(ids).values() ** 2).sum().backward()
    assert torch.equal(islices.to_dense(captured.gradients()[""]), layer.weight.grad)
    assert captured.per_sample()[""].samples.tolist() == [0, 0, 2, 2, 2, 3]
