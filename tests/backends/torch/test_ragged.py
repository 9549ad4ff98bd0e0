"""Compare lookups of nested (jagged) ids on torch with torch's functions: values and gradients.

torch sums in other orders than islices, and multiplies by rounded reciprocals. The comparisons therefore use whole
numbers or a tolerance of 1e-6.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import islices
from islices import lookup

WEIGHTS = torch.from_numpy(np.random.default_rng(3).integers(-8, 9, (7, 4)).astype(np.float32))
ROWS = [[1, 2], [], [3, 3, 4], [0]]


def jagged(rows: list[list[Any]] = ROWS, dtype: Any = torch.int64) -> Any:
    return torch.nested.nested_tensor([torch.tensor(r, dtype=dtype) for r in rows], layout=torch.jagged)


def with_gaps() -> Any:
    """Return a jagged tensor with the rows [0, 1], [4, 5, 6] and [1]. The buffer has other numbers between these
    rows."""
    return torch.nested.nested_tensor_from_jagged(
        torch.arange(10) % 7, torch.tensor([0, 4, 8, 10]), torch.tensor([2, 3, 1])
    )


def gradient(loss: Any) -> Any:
    return islices.to_dense(islices.value_and_grad(loss)(islices.Table(WEIGHTS))[1])


@pytest.mark.parametrize("mode", ["mean", "max"])
def test_nested_ids_are_the_bags_of_embedding_bag(mode: str) -> None:
    ids, layer = jagged(), nn.EmbeddingBag(7, 4, mode=mode, _weight=WEIGHTS.clone())
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
    with pytest.raises(ValueError, match="weights: got a nested tensor unlike the ids; accepted is a nested tensor"):
        lookup(WEIGHTS, ids, weights=jagged([[1.0] * 6, [], [], []], torch.float32), combiner="sum")


def test_rows_of_nested_ids_are_nested() -> None:
    ids = jagged()
    rows = lookup(WEIGHTS, ids)
    assert rows.layout is torch.jagged
    assert rows.shape == functional.embedding(ids, WEIGHTS).shape  # one ragged size, so that both can be added
    assert torch.equal(rows.values(), WEIGHTS[ids.values()])
    _, g = islices.value_and_grad(
        lambda t: torch.stack([(row**2).sum() for row in lookup(t, ids).unbind()]), per_sample=True
    )(islices.Table(WEIGHTS))
    assert g.samples.tolist() == [0, 0, 2, 2, 2, 3]


def test_gaps_between_rows_are_no_members() -> None:
    """Check that numbers in the gaps between rows do not count. nn.EmbeddingBag counts these numbers, because it reads
    offsets and no lengths; nn.Embedding raises."""
    ids = with_gaps()
    expected = torch.stack([WEIGHTS[r].sum(0) for r in ([0, 1], [4, 5, 6], [1])])
    assert torch.equal(lookup(WEIGHTS, ids, combiner="sum"), expected)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")  # torch warns once per process
def test_other_nested_tensors_are_refused() -> None:
    strided = torch.nested.nested_tensor([torch.tensor([1]), torch.tensor([2, 3])])
    with pytest.raises(TypeError, match=r"ids: got a nested tensor of layout torch.strided; .*layout=torch.jagged"):
        lookup(WEIGHTS, strided, combiner="sum")
    with pytest.raises(IndexError, match="ids: got 9 at position 1"):
        lookup(WEIGHTS, jagged([[1, 9]]), combiner="sum")
    with pytest.raises(TypeError, match=r"ids: got .*float32"):
        lookup(WEIGHTS, jagged([[1.0]], torch.float32))


# ---------------------------------------------------------------------- capture


@pytest.mark.parametrize("make", [jagged, with_gaps])
def test_capture_of_bags_of_nested_ids(make: Any) -> None:
    layer, ids = nn.EmbeddingBag(7, 4, mode="mean", _weight=WEIGHTS.clone()), make()
    with islices.capture(layer) as captured:
        (layer(ids) ** 2).sum().backward()
    torch.testing.assert_close(islices.to_dense(captured.gradients()[""]), layer.weight.grad, rtol=1e-6, atol=0)
    assert captured.per_sample()[""].dense_shape[0] == ids.shape[0]
