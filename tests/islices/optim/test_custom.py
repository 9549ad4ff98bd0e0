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


def start(dtype: str) -> Any:
    return np.linspace(-1, 1, 20).reshape(5, 4).astype(dtype)


def gradients(dtype: str) -> list[IndexedSlices]:
    values = [np.linspace(-2, k, 12).reshape(3, 4).astype(dtype) for k in range(3)]
    return [IndexedSlices(x, np.array([3, 1, 3]), (5, 4)) for x in values]


def in_numpy(table: Any, state: Any) -> dict[str, Any]:
    return {name: islices.convert(x, "numpy") for name, x in {"table": table, **state}.items()}


def trained(optimizer: Any, framework: str = "numpy", dtype: str = "float32", **options: Any) -> dict[str, Any]:
    table = islices.convert(start(dtype), framework)
    state = optimizer.init(table, **options)
    for grad in gradients(dtype):
        table, state = optimizer.step(table, islices.convert(grad, framework), state)
    return in_numpy(table, state)


def assert_same(got: dict[str, Any], expected: dict[str, Any]) -> None:
    assert got.keys() == expected.keys()
    for name, x in expected.items():
        np.testing.assert_array_equal(got[name], x, err_msg=name)


BUILT_IN = [
    (optim.custom(my_adagrad, 0.1, state={"accumulator": 0.2}, eps=1e-10), optim.adagrad, {"initial_accumulator": 0.2}),
    (optim.custom(my_rowwise, 0.1, row_state={"accumulator": 0.0}, eps=1e-8), optim.rowwise_adagrad, {}),
    (optim.custom(my_adagrad, 0.1, state={"accumulator": 0.0}, eps=1e-10, rows="all", maximize=True), optim.adagrad,
     {"rows": "all", "maximize": True}),
]  # fmt: skip


FROZEN = optim.custom(my_mean, lambda step: 0.5, state={"m": 0.0}, gain=0.3, frozen=[1])
#: Optimizers that are compared with NumPy, everywhere.
STEPS = [BUILT_IN[1][0], FROZEN, BUILT_IN[2][0]]
TABLES = [("float32", False), ("float16", True)]


@pytest.mark.parametrize(("own", "function", "options"), BUILT_IN)
@pytest.mark.parametrize(("dtype", "master"), [("float32", False), ("float16", True)])
def test_a_rule_of_the_same_formula_has_the_same_bits(
    own: Any, function: Any, options: Any, dtype: str, master: bool
) -> None:
    expected = trained(function(0.1, **options), dtype=dtype, master=master)
    for optimizer in (own, pickle.loads(pickle.dumps(own))):
        assert_same(trained(optimizer, dtype=dtype, master=master), expected)


@pytest.mark.parametrize("framework", ["torch", "tensorflow", "jax", "mxnet"])
def test_frameworks_have_the_bits(framework: str) -> None:
    pytest.importorskip(framework)
    for own in STEPS:
        for dtype, master in TABLES:
            assert_same(trained(own, framework, dtype, master=master), trained(own, dtype=dtype, master=master))


def in_jax(step: Any, table: Any, state: Any, batches: Any) -> Any:
    jax = pytest.importorskip("jax")
    compiled = jax.jit(step, donate_argnums=(0, 1))
    for values, indices in batches:
        before = table
        table, state = compiled(table, state, values, indices)
        assert before.is_deleted()
    return table, state


def in_tensorflow(step: Any, table: Any, state: Any, batches: Any) -> Any:
    tf = pytest.importorskip("tensorflow")
    table = tf.Variable(table)
    state = {name: tf.Variable(x) for name, x in state.items()}
    compiled = tf.function(lambda values, indices: step(table, state, values, indices)[0])
    for values, indices in batches:
        compiled(values, indices)
    return table, state


def in_torch(step: Any, table: Any, state: Any, batches: Any) -> Any:
    torch = pytest.importorskip("torch")
    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    for values, indices in batches:
        table, state = compiled(table, state, values, indices)
    return table, state


COMPILED = [("jax", in_jax), ("tensorflow", in_tensorflow)]


@pytest.mark.parametrize(
    ("framework", "run"), [*COMPILED, pytest.param("torch", in_torch, marks=pytest.mark.outside)]
)
def test_compiled_steps_have_the_bits(framework: str, run: Any) -> None:
    pytest.importorskip(framework)
    for own in STEPS:
        for dtype, master in TABLES if own is STEPS[0] else TABLES[:1]:

            def step(table: Any, state: Any, values: Any, indices: Any, own: Any = own) -> Any:
                return own.step(table, IndexedSlices(values, indices, (5, 4), validate=False), state)

            table, batches = islices.convert(start(dtype), framework), gradients(dtype)
            batches = [[islices.convert(x, framework) for x in (g.values, g.indices)] for g in batches]
            after = run(step, table, own.init(table, master=master), batches)
            assert_same(in_numpy(*after), trained(own, dtype=dtype, master=master))


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
