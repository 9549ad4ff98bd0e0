"""Test that optimizers made from a user's rule have the bits of built-in optimizers, also in compiled code, and that
invalid rules raise."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from comparing import assert_same

import islices
from islices import IndexedSlices, optim
from islices.conformance import judge
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


def bare(g: Any, w: Any, lr: Any) -> Any:
    return w - mul(lr, g)


def by_element(g: Any, w: Any, a: Any, lr: Any) -> Any:
    return w - mul(lr, g), a + mul(g, g)


def literal_first(g: Any, w: Any, lr: Any) -> Any:
    return (w - mul(0.5, g),)


def star(g: Any, w: Any, lr: Any) -> Any:
    return (w - lr * g,)


def calls_star(g: Any, w: Any, lr: Any) -> Any:
    return star(g, w, lr)


def compares(g: Any, w: Any, lr: Any) -> Any:
    return (w - mul(lr, div(g, g <= w)),)


def method(g: Any, w: Any, lr: Any) -> Any:
    return (w - mul(lr, g.clip(lr)),)


def built_in(g: Any, w: Any, lr: Any) -> Any:
    return (w - mul(lr, max(g, w)),)


def start(dtype: str) -> Any:
    return np.linspace(-1, 1, 20).reshape(5, 4).astype(dtype)


def gradients(dtype: str) -> list[IndexedSlices]:
    values = [np.linspace(-2, k, 12).reshape(3, 4).astype(dtype) for k in range(3)]
    return [IndexedSlices(x, np.array([3, 1, 3]), (5, 4)) for x in values]


def trained(optimizer: Any, framework: str = "numpy", dtype: str = "float32", **options: Any) -> dict[str, Any]:
    table = islices.convert(start(dtype), framework)
    state = optimizer.init(table, **options)
    for grad in gradients(dtype):
        table, state = optimizer.step(table, islices.convert(grad, framework), state)
    return {"table": table, **state}


BUILT_IN = [
    (optim.custom(my_adagrad, 0.1, state={"accumulator": 0.2}, eps=1e-10), optim.adagrad, {"initial_accumulator": 0.2}),
    (optim.custom(my_rowwise, 0.1, row_state={"accumulator": 0.0}, eps=1e-8), optim.rowwise_adagrad, {}),
    (optim.custom(my_adagrad, 0.1, state={"accumulator": 0.0}, eps=1e-10, rows="all", maximize=True), optim.adagrad,
     {"rows": "all", "maximize": True}),
]  # fmt: skip


FROZEN = optim.custom(my_mean, lambda step: 0.5, state={"m": 0.0}, gain=0.3, frozen=[1])
#: optimizers that are compared with NumPy on every framework
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
    pytest.importorskip(f"islices.backends.{framework}")
    for own in STEPS:
        for dtype, master in TABLES:
            assert_same(trained(own, framework, dtype, master=master), trained(own, dtype=dtype, master=master))


def in_jax(step: Any, table: Any, state: Any, grads: Any) -> Any:
    jax = pytest.importorskip("jax")
    compiled = jax.jit(step, donate_argnums=(0, 2))
    for grad in grads:
        before = table
        table, state = compiled(table, grad, state)
        assert before.is_deleted()
    return table, state


def in_tensorflow(step: Any, table: Any, state: Any, grads: Any) -> Any:
    tf = pytest.importorskip("tensorflow")
    table, state = tf.Variable(table), {name: tf.Variable(x) for name, x in state.items()}
    compiled = tf.function(lambda values, ids: step(table, tf.IndexedSlices(values, ids, (5, 4)), state)[0])
    for grad in grads:
        compiled(grad.values, grad.indices)
    return table, state


def in_torch(step: Any, table: Any, state: Any, grads: Any) -> Any:
    torch = pytest.importorskip("torch")
    compiled = torch.compile(lambda *given: step(*given), backend="aot_eager", fullgraph=True)
    for grad in grads:
        table, state = compiled(table, grad, state)
    return table, state


@pytest.mark.parametrize(
    ("framework", "run"),
    [("jax", in_jax), ("tensorflow", in_tensorflow), pytest.param("torch", in_torch, marks=pytest.mark.outside)],
)
def test_compiled_steps_have_the_bits(framework: str, run: Any) -> None:
    pytest.importorskip(framework)
    for own in STEPS:
        for dtype, master in TABLES if own is STEPS[0] else TABLES[:1]:
            table, grads = (islices.convert(x, framework) for x in (start(dtype), gradients(dtype)))
            table, state = run(own.step, table, own.init(table, master=master), grads)
            assert_same({"table": table, **state}, trained(own, dtype=dtype, master=master))


def test_the_judge_takes_one() -> None:
    def step(weights: Any, grad: Any, state: Any, t: int, *, lr: float, eps: float) -> Any:
        own = optim.custom(my_rowwise, lr, row_state={"accumulator": 0.0}, eps=eps)
        weights, state["own"] = own.step(weights, grad, state.get("own") or own.init(weights))
        state["accumulator"] = state["own"]["accumulator"][:, None]
        return weights

    found = judge(step, formula="fbgemm.EXACT_ROWWISE_ADAGRAD")
    assert found.grade == 1, str(found)


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
        (bare, {}, TypeError, "accepted is a tuple of 1: w"),
        (by_element, {"row_state": {"a": 0.0}}, ValueError, r"got a of shape \(1, 2\).* one number per row"),
        (by_element, {"state": {"a": 0.0}, "row_state": {"a": 0.0}}, ValueError, "got the name 'a'"),
        (literal, {"one": 2.0}, ValueError, "hyperparameters: got the name 'one'"),
        (literal_first, {}, TypeError, "it raised AttributeError: .*shape.*second argument"),
        (star, {}, TypeError, r"got the operator \* in the function star; accepted are \+, -"),
        (calls_star, {}, TypeError, r"got the operator \* in the function star"),
        (compares, {}, TypeError, "got the operator <= in the function compares"),
        (method, {}, TypeError, r"got the attribute \.clip in the function method"),
        (built_in, {}, TypeError, "it raised"),
    ],
)  # fmt: skip
def test_errors(function: Any, options: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        optim.custom(function, 0.1, **options)


def test_rows_that_are_asked_for_refuse_dense_gradients_in_fronts() -> None:
    options: dict[str, Any] = {"state": {"m": 0.0}, "gain": 0.3}
    optim.custom(my_mean, 0.5, **options)._check_dense("a Table has one")
    with pytest.raises(ValueError, match="rows: got 'touched'"):
        optim.custom(my_mean, 0.5, rows="touched", **options)._check_dense("a Table has one")
