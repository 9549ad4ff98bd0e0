"""Compare `Stepped` with steps of islices.optim and with Keras's optimizers: micro-batches, scalar weights, dtypes and
decay."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from comparing import assert_same
from suite_runs import run_code

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras", minversion="3")
if keras.backend.backend() != "tensorflow":
    pytest.skip("Keras runs on another backend", allow_module_level=True)

import islices  # noqa: E402
from islices import optim  # noqa: E402
from islices.backends import keras as front  # noqa: E402

RATE = float(np.float32(0.1))  # Keras stores the rate as float32
SHAPES = ((9, 3), (3, 2), ())


def weights(dtype: str = "float32", shapes: Sequence[tuple[int, ...]] = SHAPES) -> list[Any]:
    rng = np.random.default_rng(1)
    return [keras.Variable(rng.standard_normal(shape), dtype=dtype) for shape in shapes]


def gradients(step: int, dtype: str = "float32") -> list[Any]:
    """Return the gradients of a table, of a dense weight and of a scalar weight. The gradient of the table may
    contain duplicates, but never contains the rows 6 to 8."""
    rng = np.random.default_rng(100 + step)
    rows = tf.IndexedSlices(
        tf.cast(rng.standard_normal((5, 3)), dtype), tf.constant(rng.integers(0, 6, 5)), tf.constant([9, 3])
    )
    return [rows, tf.cast(rng.standard_normal((3, 2)), dtype), tf.cast(rng.standard_normal(), dtype)]


def run(optimizer: Any, variables: list[Any], batches: list[list[Any]], *, graph: bool = False) -> list[np.ndarray]:
    """Return the variables after one call of the optimizer per batch. If `graph` is True, each call runs in the same
    tf.function."""

    def step(values: Any, indices: Any, dense: Any, number: Any) -> None:
        rows = tf.IndexedSlices(values, indices, tf.constant([9, 3]))
        optimizer.apply([rows, dense, number], variables)

    optimizer.build(variables)
    call = tf.function(step, reduce_retracing=True) if graph else step
    for rows, *rest in batches:
        call(rows.values, rows.indices, *rest)
    return [v.numpy() for v in variables]


def clipped(grads: list[Any], by: dict[str, float]) -> list[Any]:
    if "clipnorm" in by:
        return islices.clip_by_norm(grads, by["clipnorm"])
    return islices.clip_by_global_norm(grads, by["global_clipnorm"])[0]


def by_hand(rule: optim.Optimizer, micro: int, calls: int, clip: dict[str, float]) -> list[np.ndarray]:
    """Train with functions of islices, and return the weights. Each step adds the gradients of its micro-batches,
    coalesces the sparse sum, and divides and clips the sums."""
    tables = [tf.Variable(tf.reshape(v.value, tuple(v.shape) or (1,))) for v in weights()]
    states = [rule.init(t) for t in tables]
    for first in range(0, calls - micro + 1, micro):
        batches = [gradients(k) for k in range(first, first + micro)]
        rows = islices.coalesce(islices.add(*[b[0] for b in batches]))
        mean = [tf.IndexedSlices(rows.values / micro, rows.indices, rows.dense_shape)]
        for k in (1, 2):
            total = tf.reshape(batches[0][k], tables[k].shape)
            for b in batches[1:]:
                total = total + tf.reshape(b[k], tables[k].shape)
            mean.append(total / micro)
        for table, grad, state in zip(tables, clipped(mean, clip), states, strict=True):
            rule.step(table, grad, state)
    return [t.numpy().reshape(s) for t, s in zip(tables, SHAPES, strict=True)]


# ---------------------------------------------------------------------- micro-batches
@pytest.mark.parametrize("clip", [{"clipnorm": 0.2}, {"global_clipnorm": 0.3}], ids=str)
def test_micro_batches_are_averaged_then_clipped_then_stepped(clip: dict[str, float]) -> None:
    optimizer = front.Stepped(optim.adam(RATE), gradient_accumulation_steps=3, **clip)
    got = run(optimizer, weights(), [gradients(k) for k in range(8)], graph="clipnorm" in clip)
    assert_same(got, by_hand(optim.adam(RATE), 3, 8, clip))
    assert int(optimizer.iterations) == 2
    np.testing.assert_array_equal(got[0][6:], weights()[0].numpy()[6:])


def test_what_waits_for_a_step_is_its_rows() -> None:
    table = keras.Variable(tf.zeros((10**6, 4)))
    optimizer = front.Stepped(optim.sgd(1.0), gradient_accumulation_steps=3)
    optimizer.build([table])
    assert sum(int(tf.size(v)) for v in optimizer.variables) < 10  # a step count, but no table of zeros
    for row in (7, 9, 7):
        waiting = optimizer._accumulated_gradients[0]
        assert waiting.values.shape.as_list() == [None, 4]
        assert waiting.values.numpy().nbytes <= 2 * 16
        optimizer.apply([tf.IndexedSlices(tf.ones((2, 4)), tf.constant([row, row]), tf.constant([10**6, 4]))], [table])
    np.testing.assert_allclose(table.numpy()[[7, 9, 8], 0], [-4 / 3, -2 / 3, 0], rtol=1e-7)
    assert waiting.indices.numpy().tolist() == []


def test_sixteen_bits_are_added_up_in_thirty_two() -> None:
    """Check that float16 gradients accumulate in float32. In float16, 2048 + 1 rounds to 2048."""
    table = keras.Variable(tf.zeros((2, 1)), dtype="float16")
    optimizer = front.Stepped(optim.sgd(1.0), gradient_accumulation_steps=3)
    for value in (2048.0, 1.0, 1.0):
        optimizer.apply(
            [tf.IndexedSlices(tf.constant([[value]], tf.float16), tf.constant([1]), tf.constant([2, 1]))], [table]
        )
    assert float(table[1, 0]) == -float(np.float16(2050 / 3))


def test_raw_duplicates_reach_the_rule() -> None:
    raw = optim.adagrad(RATE, semantics="keras", duplicates="raw")
    pair = (
        run(o, weights(), [gradients(1), gradients(2)]) for o in (front.Stepped(raw), keras.optimizers.Adagrad(RATE))
    )
    for got, stock in zip(*pair, strict=True):
        np.testing.assert_allclose(got, stock, rtol=24 * 2**-23)  # docs/formulas.md: k = 24


def test_sparse_and_dense_micro_batches_meet() -> None:
    slices = tf.IndexedSlices(tf.constant([[1.0], [2.0]]), tf.constant([1, 1]), tf.constant([3, 1]))
    dense = tf.constant([[10.0], [20.0], [30.0]])
    for batches in ([slices, dense, slices], [dense, slices, dense], [dense, dense, slices]):
        table = keras.Variable(tf.zeros((3, 1)))
        optimizer = front.Stepped(optim.sgd(3.0), gradient_accumulation_steps=3)
        for grad in batches:
            optimizer.apply([grad], [table])
        expected = -sum(np.asarray(islices.to_dense(g)) for g in batches)
        np.testing.assert_array_equal(table.numpy(), expected)


def test_weights_that_their_gradients_overwrite_are_left_to_keras() -> None:
    scale, table = keras.Variable(tf.ones(2)), keras.Variable(tf.zeros((3, 2)))
    scale.overwrite_with_gradient = True
    optimizer = front.Stepped(optim.sgd(1.0), gradient_accumulation_steps=2)
    for value in (1.0, 2.0):
        optimizer.apply([tf.fill((2,), value), tf.fill((3, 2), value)], [scale, table])
    assert scale.numpy().tolist() == [2.0, 2.0]
    assert table.numpy().tolist() == [[-1.5, -1.5]] * 3


# ---------------------------------------------------------------------- compared with Keras's optimizers


def test_kerass_own_course_around_the_rule() -> None:
    """Compare `Stepped`, for a rule in Keras's semantics, with Keras's Adam on dense gradients. Around both rules,
    Keras accumulates and unscales gradients, and decays and averages weights."""
    averages = {"use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": 2}
    options = {"gradient_accumulation_steps": 2, "weight_decay": 0.05, "loss_scale_factor": 4.0, **averages}
    rule, results = optim.adam(RATE, rows="all", semantics="keras"), []
    for optimizer in (keras.optimizers.Adam(RATE, **options), front.Stepped(rule, **options)):
        variables = weights(shapes=SHAPES[:2])
        for k in range(6):
            optimizer.apply([islices.to_dense(g) for g in gradients(k)[:2]], variables)
        optimizer.finalize_variable_values(variables)
        results.append([v.numpy() for v in variables])
    assert_same(*results)


def test_variables_that_are_excluded_do_not_decay() -> None:
    nothing = tf.IndexedSlices(tf.zeros((1, 1)), tf.constant([0]), tf.constant([2, 1]))
    of_keras = front.Stepped(optim.sgd(0.5, rows="all"), weight_decay=0.5)
    for optimizer in (of_keras, front.Stepped(optim.adamw(0.5, weight_decay=0.5))):
        kept, decayed = keras.Variable(tf.ones((2, 1)), name="kept"), keras.Variable(tf.ones((2, 1)), name="other")
        optimizer.exclude_from_weight_decay(var_names=["kept"])
        optimizer.apply([nothing, nothing], [kept, decayed])
        assert kept.numpy().ravel().tolist() == [1.0, 1.0]
        assert float(decayed[0, 0]) == 0.75


# ---------------------------------------------------------------------- processes
REPLICAS = """
    import tensorflow as tf
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    import keras
    import numpy as np
    from islices import optim
    from islices.backends import keras as front

    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
"""

SUMMED = """
    with strategy.scope():
        table, bias = tf.Variable(tf.zeros((4, 1))), tf.Variable(tf.zeros(1))
        optimizer = front.SGD(1.0, global_clipnorm=5.0)
        optimizer.build([table, bias])

    @tf.function
    def step():
        def replica():  # the two add up to 6 in row 1 and 8: the norm is 10
            share = tf.distribute.get_replica_context().replica_id_in_sync_group
            rows = tf.IndexedSlices(tf.fill((2, 1), 1.5), tf.constant([1, 1]), tf.constant([4, 1]))
            optimizer.apply([rows, 8.0 * tf.cast(share, tf.float32)[None]], [table, bias])
        strategy.run(replica)

    step()
    assert (table.numpy().ravel().tolist(), bias.numpy().tolist()) == ([0.0, -3.0, 0.0, 0.0], [-4.0])
"""

#: `build` and `compile` must raise before training, because Keras does not support this accumulation on replicas.
REFUSED = """
    def refused(call):
        try:
            call()
        except ValueError as error:
            assert str(error).startswith("gradient_accumulation_steps: got 2 under a strategy of 2 replicas"), error
        else:
            raise AssertionError(call)

    elsewhere = front.Stepped(optim.sgd(1.0), gradient_accumulation_steps=2)
    with strategy.scope():
        refused(lambda: elsewhere.build([tf.Variable(tf.zeros((4, 1)))]))
        model = front.row_sparse(keras.Sequential([keras.layers.Embedding(5, 3)]))
    refused(lambda: model.compile(elsewhere, "mse"))
"""

#: A thread of TensorFlow's pool collects garbage. Python did not start the thread, and the thread holds a lock that
#: another thread waits for.
COLLECTED = """
    import gc, sys, threading, time

    ids, labels = np.arange(16).reshape(8, 2) % 5, np.ones((8, 2, 3), "float32")

    def train(optimizer):
        with strategy.scope():
            model = keras.Sequential([keras.layers.Embedding(5, 3)])
            model.compile(optimizer, "mse")
        model.fit(ids, labels, batch_size=4, epochs=2, verbose=0)

    gc.disable()
    try:
        train(front.Stepped(optim.sgd(0.1), gradient_accumulation_steps=2))
    except ValueError:
        pass  # the iterator of this fit is garbage now, and its destructor waits for the pool
    heard = []

    def hook(event, arguments):
        if event in ("compile", "import") and isinstance(threading.current_thread(), threading._DummyThread):
            heard.append((event, arguments[0]))
            if len(heard) < 5:
                time.sleep(0.3)  # the other replica comes
                gc.collect()

    sys.addaudithook(hook)
    train(front.Stepped(optim.sgd(0.1), global_clipnorm=0.1))
    assert not heard, heard
"""


@pytest.mark.outside
@pytest.mark.parametrize("program", [SUMMED, REFUSED, COLLECTED], ids=["summed", "refused", "collected"])
def test_replicas(program: str) -> None:
    """Run the program in a separate process, with two replicas on two logical devices of one CPU."""
    run_code(REPLICAS + program, TF_CPP_MIN_LOG_LEVEL="3")


def test_a_variable_given_twice_is_refused() -> None:
    variable = keras.Variable(np.ones((4, 2), np.float32))
    grad = tf.IndexedSlices(tf.ones((2, 2)), tf.constant([1, 2]), tf.constant([4, 2]))
    optimizer = front.Stepped(optim.adam(0.1))
    with pytest.raises(ValueError, match=r"^trainable_variables: got 'variable\w*' twice; accepted is each once"):
        optimizer.apply_gradients([(grad, variable), (grad, variable)])
    np.testing.assert_array_equal(variable.numpy(), 1.0)
