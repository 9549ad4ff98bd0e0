"""The adapter's contract: its parts and marks, and what of it no case of the suite can ask."""

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
    assert public == {*names, "version", "is_array", "lacks"}


class Bare(Backend):
    name = module = "bare"
    capture = not_implemented("bare has no layers")


def test_what_is_missing_is_named_and_what_is_declared_is_marked_as_that() -> None:
    bare: Any = Bare()
    for part in PARTS:
        for name, method in methods(part).items():
            if not hasattr(method, "optional"):
                with pytest.raises(NotImplementedError, match=f"^bare: {name}: the adapter supplies none$") as missing:
                    getattr(bare, name)(*_positional(method), **_named(method))
                assert not hasattr(missing.value, "primitive"), "the suite counts it as a failure"
    for name in ("trace", "differentiate", "capture"):
        with pytest.raises(NotImplementedError, match=f"^bare: {name}: ") as lacking:
            getattr(bare, name)(*_positional(getattr(Backend, name)))
        assert lacking.value.primitive == name, "the suite counts it as unsupported"  # type: ignore[attr-defined]
    assert bare.modes() == ["host", "framework"]


def _positional(method: Any) -> list[None]:
    parameters = [*inspect.signature(method).parameters.values()][1:]
    return [None for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]


def _named(method: Any) -> dict[str, None]:
    return {name: None for name, p in inspect.signature(method).parameters.items() if p.kind is p.KEYWORD_ONLY}


# ---------------------------------------------------------------------- two contracts
@pytest.mark.parametrize("name", FRAMEWORKS)
@pytest.mark.parametrize("arrives", [np.inf, np.nan])
def test_the_gradient_of_where_selects(name: str, arrives: float) -> None:
    """A framework that multiplied what arrives by the mask would make NaN of it on the side not taken."""
    B = backend_of(name)
    weights = B.asarray(np.array([arrives, 1.0], np.float32))
    limit = B.asarray(np.array([1.0, 1.0], np.float32))

    def loss(x: Any) -> Any:
        with B.scope():
            chosen = B.where(B.less_equal(limit, x), x, limit) * weights
            return B.reshape(B.row_sum(B.reshape(chosen, (1, 2))), (1,) if name == "mxnet" else ())

    _, gradient = islices.value_and_grad(loss)(B.asarray(np.array([0.0, 4.0], np.float32)))
    assert B.to_numpy(gradient).tolist() == [0.0, 1.0]


def test_asarray_refuses_an_index_that_would_be_narrowed() -> None:
    B = backend_of("jax")
    with pytest.raises(IndexError, match="position 1"):
        B.asarray(np.array([0, 2**40]))
    with pytest.raises(TypeError, match="jax_enable_x64"):
        B.asarray(np.ones(1))
