"""Optimizers from a rule of one's own: the parts, the bits and the errors of the built-in ones."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

import islices
from islices import IndexedSlices, optim
from islices.optim.fused import _expressible
from islices.optim.operators import div, mul, row_mean, sqrt
from islices.optim.rules import running


def my_adagrad(g: Any, q: Any, w: Any, accumulator: Any, lr: Any, eps: Any) -> Any:
    accumulator = accumulator + q
    return w - mul(lr, div(g, sqrt(accumulator) + eps)), accumulator


def my_rowwise(g: Any, w: Any, accumulator: Any, lr: Any, eps: Any) -> Any:
    accumulator = accumulator + row_mean(mul(g, g))
    return w - mul(lr, div(g, sqrt(accumulator) + eps)), accumulator


def my_mean(g: Any, w: Any, m: Any, lr: Any, gain: Any, t: Any) -> Any:
    m = running(m, g, gain, None)
    return w - mul(lr, div(m, t)), m


def literal(g: Any, w: Any, lr: Any) -> Any:
    return (w - mul(lr, g + 0.1),)


def trained(optimizer: Any, framework: str = "numpy", dtype: str = "float32", **options: Any) -> list[Any]:
    table = islices.convert(np.linspace(-1, 1, 20).reshape(5, 4).astype(dtype), framework)
    state = optimizer.init(table, **options)
    for k in range(3):
        values = np.linspace(-2, k, 12).reshape(3, 4).astype(dtype)
        grad = islices.convert(IndexedSlices(values, np.array([3, 1, 3]), (5, 4)), framework)
        table, state = optimizer.step(table, grad, state)
    return [islices.convert(x, "numpy") for x in (table, *state.values())]


BUILT_IN = [
    (optim.custom(my_adagrad, 0.1, state={"accumulator": 0.2}, eps=1e-10), optim.adagrad, {"initial_accumulator": 0.2}),
    (optim.custom(my_rowwise, 0.1, row_state={"accumulator": 0.0}, eps=1e-8), optim.rowwise_adagrad, {}),
    (optim.custom(my_adagrad, 0.1, state={"accumulator": 0.0}, eps=1e-10, rows="all", maximize=True), optim.adagrad,
     {"rows": "all", "maximize": True}),
]  # fmt: skip


@pytest.mark.parametrize(("own", "function", "options"), BUILT_IN)
@pytest.mark.parametrize(("dtype", "master"), [("float32", False), ("float16", True)])
def test_a_rule_of_the_same_formula_has_the_same_bits(
    own: Any, function: Any, options: Any, dtype: str, master: bool
) -> None:
    expected = trained(function(0.1, **options), dtype=dtype, master=master)
    for optimizer in (own, pickle.loads(pickle.dumps(own))):
        for got, want in zip(trained(optimizer, dtype=dtype, master=master), expected, strict=True):
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("framework", ["torch", "tensorflow", "jax"])
def test_frameworks_have_the_bits(framework: str) -> None:
    pytest.importorskip(framework)
    frozen = optim.custom(my_mean, lambda step: 0.5, state={"m": 0.0}, gain=0.3, frozen=[1])
    for optimizer in (BUILT_IN[1][0], frozen):
        for got, want in zip(trained(optimizer, framework), trained(optimizer), strict=True):
            np.testing.assert_array_equal(got, want)


def test_a_jitted_step_has_the_bits() -> None:
    jax = pytest.importorskip("jax")
    optimizer = BUILT_IN[1][0]
    table, values = np.ones((5, 4), np.float32), np.linspace(-2, 1, 12, dtype=np.float32).reshape(3, 4)

    def step(table: Any, values: Any) -> Any:
        return optimizer.step(table, IndexedSlices(values, jax.numpy.array([3, 1, 3]), (5, 4)), optimizer.init(table))[
            0
        ]

    grad = IndexedSlices(values, np.array([3, 1, 3]), (5, 4))
    want, _ = optimizer.step(table.copy(), grad, optimizer.init(table))
    np.testing.assert_array_equal(jax.jit(step)(jax.numpy.array(table), jax.numpy.array(values)), want)


def test_kernels_take_rules_of_elements() -> None:
    made = [optim.custom(my_mean, 1.0, state={"m": 0.0}, gain=0.3), BUILT_IN[1][0], optim.custom(literal, 1.0)]
    assert [_expressible(x._formula) for x in made] == [True, False, False]


@pytest.mark.parametrize(
    ("function", "options", "error", "text"),
    [
        (my_adagrad, {"eps": 1e-8}, ValueError, "update: got the parameter 'accumulator'"),
        (literal, {"state": {"m": 0.0}}, ValueError, "update: got none for 'm'"),
        (literal, {"state": {"m": "zeros"}}, TypeError, "state: got"),
        (my_mean, {"state": {"m": 0.0}, "gain": float("inf")}, ValueError, "gain: got inf; accepted is a finite"),
        (len, {}, TypeError, "plain function"),
        (literal, {"rows": "some"}, ValueError, "rows: got 'some'"),
    ],
)  # fmt: skip
def test_errors(function: Any, options: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        optim.custom(function, 0.1, **options)
