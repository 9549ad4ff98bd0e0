"""torch.func, torch.jit.trace and make_fx around operations; factors and divisors that are tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import islices  # noqa: E402
from islices import IndexedSlices  # noqa: E402

VALUES = torch.tensor([[1.0, -2.0], [3.0, 0.5], [2.0, 1.0]])
IDS = torch.tensor([2, 0, 2])


def slices(values: Any) -> IndexedSlices:
    return IndexedSlices(values, IDS, (5, 2))


@pytest.mark.parametrize(
    ("op", "slope"),
    [(lambda s, c: s * c, 5.5), (lambda s, c: c * s, 5.5), (lambda s, c: s / c, -5.5 / 4.0)],
    ids=["times", "times-from-the-left", "over"],
)
def test_a_factor_and_a_divisor_have_gradients(op: Callable[[Any, Any], Any], slope: float) -> None:
    c = torch.tensor(2.0, requires_grad=True)
    (found,) = torch.autograd.grad(op(slices(VALUES), c).values.sum(), c)
    assert float(found) == slope


def test_division_by_a_tensor_is_no_product_with_its_reciprocal() -> None:
    values = torch.linspace(0.1, 9.0, 200).reshape(100, 2)
    s = IndexedSlices(values, torch.arange(100), (100, 2))
    for c in (torch.tensor(3.0), torch.tensor([49.0]), torch.tensor(7, dtype=torch.int32)):
        torch.testing.assert_close((s / c).values, values / c, rtol=0, atol=0)
        with pytest.raises(TypeError, match="below"):
            c / s
