"""16-bit tables with float32 master rows, and the loss scale: overflow is seen after duplicates are summed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import islices
from islices import optim

BACKENDS = islices.list_backends()
ROWS, DIM = 8, 2


def cast(name: str, x: Any, dtype: str) -> Any:
    if (name, dtype) == ("numpy", "bfloat16"):
        return x.astype(pytest.importorskip("ml_dtypes", reason="NumPy has no bfloat16 of its own").bfloat16)
    return islices.get_backend(name).astype(x, dtype)


def slices(name: str, dtype: str, ids: list[int], values: Any) -> islices.IndexedSlices:
    B = islices.get_backend(name)
    rows = cast(name, B.asarray(np.broadcast_to(np.asarray(values, np.float32), (len(ids), DIM))), dtype)
    return islices.IndexedSlices(rows, B.asarray(np.array(ids, np.int32)), (ROWS, DIM))


def numpy(x: Any) -> np.ndarray:
    B = islices.get_backend(x)
    if B.dtype(x) in ("float16", "bfloat16"):
        x = x.astype(np.float32) if B.name == "numpy" else B.astype(x, "float32")
    return np.array(B.to_numpy(x))


#: dtype -> two values that are finite in it, while their sum is not
OVERFLOWING = {"float16": 4e4, "bfloat16": 3e38, "float32": 3e38}


@pytest.mark.repeats_where(lambda dtype, mode: mode == "framework" and dtype != "float16")
@pytest.mark.parametrize("mode", ["host", "framework"])
@pytest.mark.parametrize("dtype", OVERFLOWING)
@pytest.mark.parametrize("name", BACKENDS)
def test_overflow_is_seen_after_duplicates_are_summed(name: str, dtype: str, mode: str) -> None:
    B = islices.get_backend(name)
    if dtype not in B.float_dtypes:
        pytest.skip(f"{name} has no {dtype}")
    loss_scale = optim.LossScale(initial=8.0)
    with islices.execution(mode):
        state = loss_scale.init(B.asarray(np.zeros(1, np.float32)))
        big = slices(name, dtype, [3, 1, 3], [OVERFLOWING[dtype]])
        fine = slices(name, dtype, [3, 1, 3], [[1.0], [3.0], [0.25]])
        (_, _), finite = loss_scale.unscale((fine, big), state)
        assert finite is False
        (found, nothing), finite = loss_scale.unscale((fine, None), state)
        assert finite is True
        assert nothing is None
        assert B.dtype(found.values) == "float32"
        assert numpy(found.values).tolist() == [[3 / 8] * DIM, [1.25 / 8] * DIM]
        dense, finite = loss_scale.unscale(islices.to_dense(big), state)
        assert finite is False
        assert B.dtype(dense) == "float32"


def test_what_dividing_makes_infinite_is_not_finite() -> None:
    loss_scale = optim.LossScale(2.0**-20)
    state = loss_scale.init(np.zeros(1, np.float32))
    found, finite = loss_scale.unscale(slices("numpy", "float32", [1], [1e35]), state)
    assert np.isinf(found.values).all()
    assert finite is False


@pytest.mark.parametrize(
    ("state", "error"),
    [({}, ValueError), (None, ValueError), ({"scale": 1.0, "good_steps": np.int32([0])}, TypeError)],
)
def test_a_state_that_is_none(state: Any, error: type[Exception]) -> None:
    loss_scale, grad = optim.LossScale(), slices("numpy", "float32", [1], [1.0])
    for call in (
        lambda: loss_scale.unscale(grad, state),
        lambda: loss_scale.update(state, True),
        lambda: loss_scale.scaled(np.float32([1.0]), state),
    ):
        with pytest.raises(error, match="state"):
            call()
    with pytest.raises(TypeError, match="apply: got None"):
        loss_scale.update(loss_scale.init(np.zeros(1, np.float32)), None)


@pytest.mark.parametrize("part", ["scale", "good_steps"])
def test_what_cannot_be_written_is_found_before_anything_is(part: str) -> None:
    loss_scale = optim.LossScale()
    state = loss_scale.init(np.zeros(1, np.float32))
    state[part].flags.writeable = False
    with pytest.raises(ValueError, match=rf"^state\['{part}'\]: got a read-only array"):
        loss_scale.update(state, False)
    assert (state["scale"][0], state["good_steps"][0]) == (2.0**16, 0)


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, bool])
def test_a_loss_is_a_floating_point_number(dtype: Any) -> None:
    loss_scale = optim.LossScale()
    state = loss_scale.init(np.zeros(1, np.float32))
    with pytest.raises(TypeError, match=r"^loss: got .*; accepted is one floating-point number"):
        loss_scale.scaled(np.array(1, dtype), state)


def test_torchs_own_check_misses_what_duplicates_sum_to() -> None:
    """Why there is one here. SPEC clause 16; pytorch's GradScaler coalesces float16 alone."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    parameter = torch.nn.Parameter(torch.zeros(ROWS, DIM))
    grad = torch.sparse_coo_tensor(
        torch.tensor([[3, 3]]), torch.full((2, DIM), 3e38), (ROWS, DIM), check_invariants=True
    )
    parameter.grad = grad
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    scaler.scale(torch.ones(()))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    scaler.unscale_(optimizer)
    found = scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
    assert sum(x.item() for x in found.values()) == 0  # it says finite
    assert not torch.isfinite(parameter.grad.to_dense()).all()  # while what is applied is not
    loss_scale = optim.LossScale(initial=1.0)
    assert loss_scale.unscale(grad, loss_scale.init(torch.zeros(1)))[1] is False


def test_the_scale_grows_and_backs_off() -> None:
    loss_scale = optim.LossScale(initial=4.0, growth_interval=3)
    state = loss_scale.init(np.zeros(1, np.float32))
    seen = []
    for finite in (True, True, False, True, True, True, True, True, True, False, False):
        state = loss_scale.update(state, finite)
        seen.append((float(state["scale"][0]), int(state["good_steps"][0])))
    assert seen == [
        (4, 1), (4, 2), (2, 0), (2, 1), (2, 2), (4, 0), (4, 1), (4, 2), (8, 0), (4, 0), (2, 0)
    ]  # fmt: skip
    assert float(loss_scale.scaled(np.float32([3.0]), state)[0]) == 6.0
    # never infinite, never zero, and a count that was loaded from elsewhere may be beyond the interval
    for scale, finite, kept in ((2.0**125, True, 2.0**125), (2.0**-125, False, 2.0**-125), (1.0, True, 2.0)):
        late = {"scale": np.float32([scale]), "good_steps": np.int32([7])}
        assert loss_scale.update(late, finite)["scale"].tolist() == [kept]
    assert repr(loss_scale) == "LossScale(4.0, growth_factor=2.0, backoff_factor=0.5, growth_interval=3)"


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"initial": "8"}, TypeError), ({"initial": 0.0}, ValueError), ({"initial": float("inf")}, ValueError),
        ({"growth_factor": 0.5}, ValueError), ({"backoff_factor": 1.0}, ValueError),
        ({"growth_interval": 0}, ValueError), ({"growth_interval": 2.5}, TypeError), ({"initial": True}, TypeError),
        ({"initial": 1e300}, ValueError),
    ],
)  # fmt: skip
def test_bad_parameters(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(options))):
        optim.LossScale(**options)


def train(name: str, dtype: str, master: bool, compile: Any = lambda step: step) -> dict[str, np.ndarray]:
    """Ten steps of a half table by its scaled gradients; the third overflows."""
    B = islices.get_backend(name)
    optimizer, loss_scale = optim.adam(2.0**-9), optim.LossScale(initial=16.0, growth_interval=4)
    table = cast(name, B.asarray(np.linspace(1, 2, ROWS * DIM, dtype=np.float32).reshape(ROWS, DIM)), dtype)
    state, scale = optimizer.init(table, master=master), None
    scale = loss_scale.init(table)
    like = slices(name, dtype, [0], [0.0])

    def step(table: Any, state: Any, scale: Any, values: Any, ids: Any) -> Any:
        grad = like.replace(values=values, indices=ids)
        grad, finite = loss_scale.unscale(grad, scale)
        table, state = optimizer.step(table, grad, state, apply=finite)
        return table, state, loss_scale.update(scale, finite)

    step, rng = compile(step), np.random.default_rng(0)
    for k in range(10):
        values = rng.integers(-8, 9, (5, DIM)).astype(np.float32) / 8
        if k == 2:
            values[:] = OVERFLOWING[dtype]
        grad = cast(name, B.asarray(values), dtype)
        table, state, scale = step(table, state, scale, grad, B.asarray(np.array([1, 5, 1, 0, 5], np.int32)))
    parts = {"table": table, **state, **scale}
    return {key: numpy(x) for key, x in parts.items()}


@pytest.mark.repeats_where(lambda name, dtype: dtype == "float16" and name not in ("numpy", "mxnet"))
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", BACKENDS)
def test_master_rows_keep_what_half_rows_lose(name: str, dtype: str) -> None:
    if dtype not in islices.get_backend(name).float_dtypes:
        pytest.skip(f"{name} has no {dtype}")
    kept, alone = train(name, dtype, master=True), train(name, dtype, master=False)
    assert kept["step"].tolist() == [9]  # one of ten was not taken
    assert kept["scale"].tolist() == [16.0]  # halved once, doubled once
    B = islices.get_backend(name)
    np.testing.assert_array_equal(numpy(cast(name, B.asarray(kept["master"]), dtype)), kept["table"])
    still = np.ones(ROWS, bool)
    still[[0, 1, 5]] = False
    np.testing.assert_array_equal(kept["master"][still], alone["table"][still])
    assert (kept["table"] != alone["table"]).any()


@pytest.mark.parametrize("name", [n for n in ("jax", "tensorflow") if n in BACKENDS])
def test_the_whole_step_compiles(name: str) -> None:
    if name == "jax":
        import jax

        wrap: Any = jax.jit
    else:
        import tensorflow as tf

        wrap = tf.function
    wanted, found = train(name, "float16", True), train(name, "float16", True, wrap)
    for key, x in wanted.items():
        np.testing.assert_array_equal(found[key], x, err_msg=key)


@pytest.mark.parametrize("name", [n for n in BACKENDS if n != "numpy"])
def test_a_scaled_loss_gives_scaled_gradients(name: str) -> None:
    B = islices.get_backend(name)
    loss_scale = optim.LossScale(initial=32.0)
    table = islices.Table(B.asarray(np.ones((ROWS, DIM), np.float32)))
    state = loss_scale.init(table.weights)
    ids = B.asarray(np.array([1, 1, 4], np.int32))

    def loss(table: Any) -> Any:
        total = (table[ids] * table[ids]).sum() if name != "tensorflow" else _tf_sum(table[ids] * table[ids])
        return loss_scale.scaled(total, state)

    value, grad = islices.value_and_grad(loss)(table)
    assert numpy(value).reshape(()) == 32.0 * 6
    grad, finite = loss_scale.unscale(grad, state)
    assert finite
    assert numpy(grad.values).tolist() == [[4.0] * DIM, [2.0] * DIM]


def _tf_sum(x: Any) -> Any:
    import tensorflow as tf

    return tf.reduce_sum(x)


@pytest.mark.parametrize("name", ["torch", "tensorflow", "jax"])
def test_a_bfloat16_scalar_is_its_number(name: str) -> None:
    """On the host it travels as its bits."""
    pytest.importorskip(name)
    B = islices.get_backend(name)
    x = B.asarray(np.ones(2, np.float32))
    c = B.reshape(B.astype(B.asarray(np.full(1, 2, np.float32)), "bfloat16"), ())
    assert B.to_numpy(islices.scale(x, c)).tolist() == [2, 2]
