"""Test the class Backend: its parts, the methods that fall back to NumPy, and the gradient of `where`."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import islices
from islices.backend import PARTS, Backend, not_implemented

FRAMEWORKS = ("torch", "tensorflow", "jax", "mxnet")


def backend_of(name: str) -> Any:
    if name not in islices.list_backends():
        pytest.skip(f"{name} is not installed")
    return islices.get_backend(name)


# ---------------------------------------------------------------------- the parts
def methods(part: type) -> dict[str, Any]:
    return {name: member for name, member in vars(part).items() if inspect.isfunction(member) and name[0] != "_"}


def test_a_backend_is_its_parts_and_each_method_stands_in_one() -> None:
    assert set(Backend.__mro__) > set(PARTS)
    names = [name for part in PARTS for name in methods(part)]
    assert len(names) == len(set(names)) > 70
    public = {name for name in dir(Backend) if callable(getattr(Backend, name)) and name[0] != "_"}
    assert public == {*names, "version", "is_array", "lacks", "stand_in"}


class Bare(Backend):
    """A backend for NumPy arrays that has only three methods of stage 1 of docs/adapter_author.md."""

    name = module = "bare"
    capture = not_implemented("bare has no layers")
    is_array = staticmethod(lambda x: isinstance(x, np.ndarray))  # type: ignore[assignment]
    to_numpy = staticmethod(lambda x: x)  # type: ignore[assignment]
    from_host = staticmethod(lambda x, like: x)  # type: ignore[assignment]


def test_the_host_stands_in_and_mode_framework_has_to_wait() -> None:
    bare: Any = Bare()
    x, k = np.array([[1.0], [2.0]]), np.array([1, 1])
    assert bare.take(x, k).tolist() == bare.concat([x[1:], x[1:]]).tolist() == [[2.0], [2.0]]
    assert [y.tolist() for y in bare.unique(k, 2)] == [[1], [0, 0]]
    assert (bare.set_rows(x, k[:1], x[:1]).tolist(), x.tolist()) == ([[1.0], [1.0]], [[1.0], [2.0]])
    assert not bare.in_place(x)
    with (
        islices.config.execution("framework"),
        pytest.raises(NotImplementedError, match=r"^bare: take: to be") as waiting,
    ):
        bare.take(x, k)
    assert waiting.value.primitive == "take", "the suite counts it as unsupported"  # type: ignore[attr-defined]
    with pytest.raises(NotImplementedError, match=r"^bare: dtype: the adapter supplies none$") as missing:
        bare.dtype(x)
    assert not hasattr(missing.value, "primitive"), "the suite counts it as a failure"
    for name, arguments in (("trace", [None]), ("differentiate", [None] * 3), ("capture", [None] * 2)):
        with pytest.raises(NotImplementedError, match=f"^bare: {name}: ") as lacking:
            getattr(bare, name)(*arguments)
        assert lacking.value.primitive == name  # type: ignore[attr-defined]
    assert bare.modes() == ["host", "framework"]


# ---------------------------------------------------------------------- a contract
@pytest.mark.parametrize("name", FRAMEWORKS)
@pytest.mark.parametrize("arrives", [np.inf, np.nan])
def test_the_gradient_of_where_selects(name: str, arrives: float) -> None:
    """Check that only the selected side of `where` gets the upstream gradient. A product of infinity or NaN with a mask
    of zeros would be NaN."""
    B = backend_of(name)
    weights = B.asarray(np.array([arrives, 1.0], np.float32))
    limit = B.asarray(np.array([1.0, 1.0], np.float32))

    def loss(x: Any) -> Any:
        with B.scope():
            chosen = B.where(B.less_equal(limit, x), x, limit) * weights
            return B.reshape(B.row_sum(B.reshape(chosen, (1, 2))), (1,) if name == "mxnet" else ())

    _, gradient = islices.value_and_grad(loss)(B.asarray(np.array([0.0, 4.0], np.float32)))
    assert B.to_numpy(gradient).tolist() == [0.0, 1.0]
