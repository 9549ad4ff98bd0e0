"""The Keras front: optimizers beside Keras' own, on gradients by hand and in model.fit of a real model."""

from __future__ import annotations

import doctest
import itertools
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras", minversion="3")
if keras.backend.backend() != "tensorflow":
    pytest.skip("Keras runs on another backend", allow_module_level=True)

import islices  # noqa: E402
from islices import optim  # noqa: E402
from islices.backends import keras as front  # noqa: E402

STOCK = [name for name in front.__all__ if getattr(keras.optimizers, name, None) and "Optimizer" not in name]
RNG = np.random.default_rng(0)
IDS = RNG.integers(0, 10, (24, 5)).astype(np.int32)  # 0 is the padding; rows 10 and 11 of the table are never named
LABELS = RNG.standard_normal((24, 1)).astype(np.float32)
RATE = float(np.float32(0.01))  # Keras holds it as float32
CLIP = 0.1  # below the norm of every gradient here

Apply = Callable[[list[Any], list[Any]], None]


# ---------------------------------------------------------------------- a table and a dense weight, gradients by hand
def weights() -> list[Any]:
    rng = np.random.default_rng(1)
    return [keras.Variable(rng.standard_normal(shape).astype(np.float32)) for shape in ((9, 3), (3, 2))]


def gradients(step: int) -> list[Any]:
    rng = np.random.default_rng(100 + step)
    values, ids = rng.standard_normal((7, 3)).astype(np.float32), rng.integers(0, 6, 7)
    sparse = tf.IndexedSlices(tf.constant(values), tf.constant(ids), tf.constant([9, 3]))
    return [sparse, tf.constant(rng.standard_normal((3, 2)).astype(np.float32))]


def stepped(optimizer: Any, change: Callable[[list[Any]], list[Any]] = list, steps: int = 4) -> list[np.ndarray]:
    """Weights and variables of the optimizer after some steps on gradients changed first."""
    variables = weights()
    for k in range(steps):
        optimizer.apply(change(gradients(k)), variables)
    return [v.numpy() for v in (*variables, *optimizer.variables)]


def assert_same_bits(got: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for g, e in zip(got, expected, strict=True):
        np.testing.assert_array_equal(g, e)


def differ(got: list[np.ndarray], expected: list[np.ndarray]) -> bool:
    return any(not np.array_equal(g, e) for g, e in zip(got, expected, strict=True))


@pytest.mark.parametrize("name", STOCK)
def test_each_optimizer_takes_kerass_own_step_on_the_sum_of_duplicates(name: str) -> None:
    stock = getattr(keras.optimizers, name)
    got = stepped(getattr(front, name)(0.1))
    assert_same_bits(got, stepped(stock(0.1), islices.coalesce))
    assert_same_bits(got, stepped(stock(0.1), lambda grads: [islices.to_dense(g) for g in grads]))


@pytest.mark.parametrize("name", ["SGD", "Adagrad", "Adam", "RMSprop"])
def test_keras_itself_steps_elsewhere(name: str) -> None:
    assert differ(stepped(getattr(front, name)(0.1)), stepped(getattr(keras.optimizers, name)(0.1)))


@pytest.mark.parametrize("semantics", ["islices", "keras", "tensorflow"])
@pytest.mark.parametrize("clip", ["clipnorm", "global_clipnorm", "clipvalue"])
def test_each_clip_is_that_of_islices_on_the_sum_of_duplicates(clip: str, semantics: str) -> None:
    def by_hand(grads: list[Any]) -> list[Any]:
        grads = islices.coalesce(grads)
        if clip == "clipnorm":
            return islices.clip_by_norm(grads, CLIP, semantics=semantics)
        if clip == "global_clipnorm":
            return islices.clip_by_global_norm(grads, CLIP, semantics=semantics)[0]
        return islices.clip_by_value(grads, -CLIP, CLIP, semantics=semantics)

    got = stepped(front.Adam(0.1, semantics=semantics, **{clip: CLIP}))
    assert_same_bits(got, stepped(keras.optimizers.Adam(0.1), by_hand))
    assert differ(got, stepped(keras.optimizers.Adam(0.1, **{clip: CLIP})))


def test_accumulated_gradients_are_averaged_then_clipped() -> None:
    got = stepped(front.SGD(0.5, global_clipnorm=CLIP, gradient_accumulation_steps=2), steps=4)[:2]
    expected, optimizer = weights(), keras.optimizers.SGD(0.5)
    for first, second in ((0, 1), (2, 3)):
        a, b = (islices.to_dense(gradients(first)[0]), islices.to_dense(gradients(second)[0]))
        c, d = gradients(first)[1], gradients(second)[1]
        mean, _ = islices.clip_by_global_norm([(b + a) / 2, (d + c) / 2], CLIP)
        optimizer.apply(mean, expected)
    assert_same_bits(got, [v.numpy() for v in expected])


def test_loss_scales_of_a_power_of_two_change_no_bit() -> None:
    expected = stepped(front.Adam(0.1, global_clipnorm=CLIP))[:2]

    def scaled(grads: list[Any]) -> list[Any]:
        return [islices.scale(g, 1024.0) for g in grads]

    fixed = front.Adam(0.1, global_clipnorm=CLIP, loss_scale_factor=1024.0)
    assert_same_bits(stepped(fixed, scaled)[:2], expected)
    dynamic = keras.optimizers.LossScaleOptimizer(front.Adam(0.1, global_clipnorm=CLIP), initial_scale=1024.0)
    assert_same_bits(stepped(dynamic, scaled)[:2], expected)


def test_a_norm_that_is_not_finite() -> None:
    grads = [tf.IndexedSlices(tf.constant([[np.nan], [1.0]]), tf.constant([1, 2]), tf.constant([4, 1]))]
    for nonfinite, expected in (("propagate", [1.0, np.nan, np.nan, 1.0]), ("zero", [1.0] * 4)):
        table = tf.Variable(tf.ones((4, 1)))
        front.SGD(1.0, global_clipnorm=1.0, nonfinite=nonfinite).apply(grads, [table])
        np.testing.assert_array_equal(table.numpy().ravel(), expected)


@pytest.mark.parametrize("clip", [{"clipnorm": 1.0}, {"global_clipnorm": 1.0}, {"clipvalue": 0.5}])
def test_the_hook_of_keras_that_clips_does_so_when_called_by_itself(clip: dict[str, float]) -> None:
    grad = tf.IndexedSlices(tf.constant([[3.0], [1.0]]), tf.constant([1, 1]), tf.constant([3, 1]))
    expected = 0.5 if "clipvalue" in clip else 1.0
    for given in (grad, np.array([0.0, 4.0], np.float32)):
        (got,) = front.SGD(**clip)._clip_gradients([given])
        assert type(got) is type(given)
        assert float(tf.reduce_max(tf.convert_to_tensor(got))) == expected


def test_indices_out_of_range_raise_before_anything_changes() -> None:
    table, other = tf.Variable(tf.ones((4, 1))), tf.Variable(tf.ones(2))
    bad = tf.IndexedSlices(tf.ones((1, 1)), tf.constant([4]), tf.constant([4, 1]))
    optimizer = front.AdamW(1.0, global_clipnorm=1.0)
    with pytest.raises(IndexError, match=r"indices.*4"):
        optimizer.apply([tf.ones(2), bad], [other, table])
    assert table.numpy().tolist() == [[1.0]] * 4
    assert other.numpy().tolist() == [1.0] * 2
    assert int(optimizer.iterations) == 0


BAD = {
    "negative": (lambda: front.Adam(clipnorm=-1.0), ValueError, r"clipnorm: got -1.0; accepted .* above 0"),
    "zero": (lambda: front.Adam(global_clipnorm=0), ValueError, r"global_clipnorm: got 0; accepted .* above 0"),
    "nan": (lambda: front.Adam(clipvalue=float("nan")), ValueError, r"clipvalue: got nan"),
    "text": (lambda: front.Adam(clipnorm="1"), TypeError, r"clipnorm: got str '1'; accepted"),
    "two clips": (lambda: front.Adam(clipnorm=1.0, clipvalue=1.0), ValueError, "Only one of"),
    "semantics": (lambda: front.Adam(clipnorm=1.0, semantics="torch"), ValueError, "clipnorm has islices"),
    "no semantics": (lambda: front.Adam(semantics="none"), ValueError, "semantics: got 'none'"),
    "nonfinite": (lambda: front.Adam(nonfinite="raise"), ValueError, "accepted are 'propagate', 'zero'"),
    "unknown": (lambda: front.Adam(clip=1.0), ValueError, "not recognized"),
    "rule": (lambda: front.Stepped("adam"), TypeError, "rule: got str 'adam'; accepted"),
    "function": (lambda: front.Stepped(optim.adam(lambda step: 0.1)), TypeError, "rule: got a learning rate"),
    "decay": (
        lambda: front.Stepped(optim.adam(0.1), weight_decay=0.1), ValueError, "weight_decay: got 0.1; .* rows='touched'"
    ),
    "accumulation": (
        lambda: front.Stepped(optim.adam(0.1), gradient_accumulation_steps=1), ValueError, "gradient_accumulation_steps"
    ),
    "frozen": (lambda: front.Stepped(optim.adam(0.1, frozen=[9])).build(weights()), IndexError,
               "^variable.*: frozen: got 9 .*MultiOptimizer"),
    "touched": (
        lambda: front.Stepped(optim.adam(0.1, rows="touched")).apply([tf.ones((2, 1))], [tf.Variable(tf.ones((2, 1)))]),
        ValueError, r"^Variable:?\d*: rows: got 'touched' and a dense gradient.*row_sparse.*or rows left out",
    ),
}  # fmt: skip


@pytest.mark.parametrize("label", BAD)
def test_bad_input_is_named(label: str) -> None:
    call, error, message = BAD[label]
    with pytest.raises(error, match=message):
        call()


# ---------------------------------------------------------------------- a real model in model.fit
def dataset() -> Any:
    return tf.data.Dataset.from_tensor_slices((IDS, LABELS)).batch(8)


def model() -> Any:
    keras.utils.set_random_seed(3)
    ids = keras.Input((5,), dtype="int32")
    x = keras.layers.Embedding(12, 4, mask_zero=True, name="table")(ids)
    x = keras.layers.GlobalAveragePooling1D()(x)
    return keras.Model(ids, keras.layers.Dense(1)(x))


def recurrent() -> Any:
    keras.utils.set_random_seed(3)
    ids = keras.Input((5,), dtype="int32")
    x = keras.layers.Embedding(12, 4, mask_zero=True, name="table")(ids)
    return keras.Model(ids, keras.layers.Dense(1)(keras.layers.GRU(3)(x)))


def values(m: Any) -> list[np.ndarray]:
    return [v.numpy() for v in m.trainable_variables]


def fitted(optimizer: Any, *, eager: bool = False, epochs: int = 2, make: Callable[[], Any] = model, **fit: Any) -> Any:
    m = make()
    m.compile(optimizer=optimizer, loss="mse", run_eagerly=eager)
    m.fit(dataset(), epochs=epochs, verbose=0, shuffle=False, **fit)
    return m


def looped(apply: Apply, *, eager: bool, epochs: int = 2, make: Callable[[], Any] = model) -> Any:
    """The training loop a user writes, with what apply makes of the gradients."""
    m = make()
    loss = keras.losses.MeanSquaredError()

    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            value = loss(y, m(x, training=True))
        apply(tape.gradient(value, m.trainable_variables), m.trainable_variables)

    run = step if eager else tf.function(step)
    for _ in range(epochs):
        for x, y in dataset():
            run(x, y)
    return m


def by_hand(optimizer: Any, change: Callable[[Any], Any] = lambda g: g) -> Apply:
    def apply(grads: list[Any], variables: list[Any]) -> None:
        clipped, _ = islices.clip_by_global_norm(islices.coalesce(grads), CLIP)
        optimizer.apply([change(g) for g in clipped], variables)

    return apply


@pytest.mark.parametrize(("eager", "make"), [(True, recurrent), (False, model)], ids=["eager", "graph"])
def test_fit_takes_the_course_of_the_loop_by_hand(eager: bool, make: Callable[[], Any]) -> None:
    got = fitted(front.Adam(RATE, global_clipnorm=CLIP), eager=eager, make=make)
    expected = looped(by_hand(keras.optimizers.Adam(RATE)), eager=eager, make=make)
    assert_same_bits(values(got), values(expected))
    expected.compile(loss="mse", run_eagerly=eager)
    assert got.evaluate(dataset(), verbose=0) == expected.evaluate(dataset(), verbose=0)


def test_fit_takes_the_course_of_dense_gradients() -> None:
    got = fitted(front.Adam(RATE, global_clipnorm=CLIP), eager=True)
    expected = looped(by_hand(keras.optimizers.Adam(RATE), islices.to_dense), eager=True)
    assert_same_bits(values(got), values(expected))


def test_a_saved_model_goes_on_where_it_was(tmp_path: Path) -> None:
    def optimizer() -> Any:
        return front.Adam(RATE, global_clipnorm=CLIP, semantics="keras", nonfinite="zero")

    whole, first = fitted(optimizer(), epochs=3), fitted(optimizer(), epochs=2)
    first.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded.optimizer) is front.Adam
    assert loaded.optimizer.get_config() == first.optimizer.get_config()
    assert int(loaded.optimizer.iterations) == 6
    loaded.fit(dataset(), epochs=1, verbose=0, shuffle=False)
    assert_same_bits(values(loaded), values(whole))


def test_what_keras_saved_of_its_optimizer_is_loaded() -> None:
    stock, ours = keras.optimizers.Adam(0.1, name="adam"), front.Adam(0.1, name="adam")
    stepped(stock)
    ours.build(weights())
    assert [v.shape for v in ours.variables] == [v.shape for v in stock.variables]
    store: dict[str, Any] = {}
    stock.save_own_variables(store)
    ours.load_own_variables(store)
    assert_same_bits([v.numpy() for v in ours.variables], [v.numpy() for v in stock.variables])
    again = keras.optimizers.deserialize(keras.optimizers.serialize(ours))
    assert type(again) is front.Adam


def test_checkpoints_of_tensorflow_hold_it(tmp_path: Path) -> None:
    first = fitted(front.Adam(RATE, global_clipnorm=CLIP), epochs=1)
    path = tf.train.Checkpoint(model=first, optimizer=first.optimizer).save(str(tmp_path / "ck"))
    second, optimizer = model(), front.Adam(RATE, global_clipnorm=CLIP)
    optimizer.build(second.trainable_variables)
    tf.train.Checkpoint(model=second, optimizer=optimizer).restore(path).assert_existing_objects_matched()
    assert_same_bits(values(second), values(first))
    assert_same_bits([v.numpy() for v in optimizer.variables], [v.numpy() for v in first.optimizer.variables])


def test_schedules_averages_and_callbacks_work_through_it() -> None:
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([1, 3], [0.5, 0.25, 0.125])
    options = {"use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": 2}
    got = fitted(front.SGD(schedule, global_clipnorm=CLIP, **options), eager=True)
    stock = keras.optimizers.SGD(schedule, **options)
    expected = looped(by_hand(stock), eager=True)
    stock.finalize_variable_values(expected.trainable_variables)
    assert_same_bits(values(got), values(expected))
    plateau = keras.callbacks.ReduceLROnPlateau(monitor="loss", factor=0.5, patience=0, min_delta=1e9)
    m = fitted(front.SGD(0.5, global_clipnorm=CLIP), eager=True, epochs=3, callbacks=[plateau])
    assert float(m.optimizer.learning_rate) == 0.125
    assert int(m.optimizer.iterations) == 9


def test_mixed_precision_wraps_it() -> None:
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        m = fitted(front.Adam(RATE, global_clipnorm=CLIP), epochs=1)
    finally:
        keras.mixed_precision.set_global_policy("float32")
    assert type(m.optimizer.inner_optimizer) is front.Adam
    assert int(m.optimizer.iterations) == 3
    assert all(np.isfinite(x).all() for x in values(m))


def test_xla_compiles_it() -> None:
    """Numbers that every order of sums and products leaves exact."""
    ids = np.array([[1, 1, 1, 2], [1, 3, 3, 2]], np.int32)
    m = keras.Sequential(
        [keras.Input((4,), dtype="int32"), keras.layers.Embedding(5, 2, embeddings_initializer="ones")]
    )
    m.compile(optimizer=front.SGD(0.5, clipvalue=2.5), loss=lambda y, p: tf.reduce_sum(p, (1, 2)), jit_compile=True)
    m.fit(
        tf.data.Dataset.from_tensors((ids, np.zeros(2, np.float32))), verbose=0, shuffle=False
    )  # the mean over two samples
    assert m.layers[0].embeddings.numpy()[:, 0].tolist() == [1, 0, 0.5, 0.5, 1]

    @tf.function(jit_compile=True)
    def step(values: Any, ids: Any) -> None:
        optimizer.apply([tf.IndexedSlices(values, ids, tf.constant([5, 1]))], [table])

    table, optimizer = tf.Variable(tf.zeros((5, 1))), front.SGD(1.0, global_clipnorm=2.5)
    optimizer.build([table])
    step(tf.constant([[1.0], [4.0], [2.0], [100.0]]), tf.constant([3, 1, 3, 7]))  # 3 and 4; 7 is out of range
    assert table.numpy().ravel().tolist() == [0, -2, 0, -1.5, 0]


# ---------------------------------------------------------------------- rules of islices
RULES = {
    "lazy adam": optim.adam(RATE),
    "rowwise_adagrad": optim.rowwise_adagrad(0.125),
    "adam of keras": optim.adam(RATE, rows="all", semantics="keras"),
}


def rule_by_hand(rule: optim.Optimizer) -> Apply:
    states: dict[int, Any] = {}

    def apply(grads: list[Any], variables: list[Any]) -> None:
        clipped, _ = islices.clip_by_global_norm(islices.coalesce(grads), CLIP)
        for k, (grad, v) in enumerate(zip(clipped, variables, strict=True)):
            if k not in states:
                states[k] = rule.init(v.value)
            rule.step(v.value, grad, states[k])

    return apply


@pytest.mark.repeats_where(lambda label: label == "rowwise_adagrad")
@pytest.mark.parametrize("label", RULES)
def test_stepped_follows_the_rule(label: str) -> None:
    got = fitted(front.Stepped(RULES[label], global_clipnorm=CLIP), eager=True)
    expected = looped(rule_by_hand(RULES[label]), eager=True)
    assert_same_bits(values(got), values(expected))
    still = np.array_equal(values(got)[0][10:], values(model())[0][10:])
    assert still, "no gradient has named these rows"


@pytest.mark.repeats
def test_stepped_in_a_graph_is_saved_and_goes_on(tmp_path: Path) -> None:
    rule = optim.adam(RATE, beta2=0.99, frozen=[0], semantics="torch")
    whole = fitted(front.Stepped(rule, clipnorm=CLIP), eager=True, epochs=3)
    first = fitted(front.Stepped(rule, clipnorm=CLIP))
    first.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert repr(loaded.optimizer.rule) == repr(rule)
    loaded.compile(optimizer=loaded.optimizer, loss="mse", run_eagerly=True)
    loaded.fit(dataset(), epochs=1, verbose=0, shuffle=False)
    assert_same_bits(values(loaded), values(whole))


def test_lazy_adam_leaves_rows_that_adam_moves() -> None:
    """A row named once, in the first step, then in none."""
    for optimizer, still in ((front.Stepped(optim.adam(0.1)), True), (front.Adam(0.1), False)):
        table, seen = tf.Variable(tf.ones((3, 1))), []
        for row in (1, 2, 2):
            optimizer.apply([tf.IndexedSlices(tf.ones((1, 1)), tf.constant([row]), tf.constant([3, 1]))], [table])
            seen.append(float(table[1, 0]))
        assert (seen[0] == seen[1] == seen[2]) is still


def test_stepped_takes_schedules_and_refuses_xla() -> None:
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([0], [0.5, 0.25])
    table, optimizer = tf.Variable(tf.ones((3, 1))), front.Stepped(optim.sgd(schedule))
    grad = tf.IndexedSlices(tf.ones((2, 1)), tf.constant([1, 1]), tf.constant([3, 1]))
    for expected in (0.0, -0.5):
        optimizer.apply([grad], [table])
        assert float(table[1, 0]) == expected
    with pytest.raises(ValueError, match="jit_compile: got True"):
        tf.function(lambda: optimizer.apply([grad], [table]), jit_compile=True)()


def test_each_part_of_a_model_may_have_its_own() -> None:
    choice = keras.optimizers.OptimizerMap(front.Adam(RATE))
    choice["table/.*"] = front.Stepped(optim.rowwise_adagrad(0.125, frozen=[1, 2]))
    before, after = values(model()), values(fitted(keras.optimizers.MultiOptimizer(choice), eager=True, epochs=1))
    unmoved = [r for r, (a, b) in enumerate(itertools.zip_longest(before[0], after[0])) if np.array_equal(a, b)]
    assert unmoved == [0, 1, 2, 10, 11]
    assert not np.array_equal(before[1], after[1])


# ---------------------------------------------------------------------- processes of their own
REPLICAS = """
    import sys
    import tensorflow as tf
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    import islices
    islices.get_backend("tensorflow")
    assert "islices.backends.keras" not in sys.modules
    from islices.backends import keras as front

    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
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
    print(table.numpy().ravel().tolist(), bias.numpy().tolist())
"""


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **environment}
    code = textwrap.dedent(code)
    return subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, check=False, env=env)


@pytest.mark.repeats
def test_replicas_are_added_up_before_the_clip() -> None:
    done = run(REPLICAS)
    assert done.stdout == "[0.0, -3.0, 0.0, 0.0] [-4.0]\n", done.stderr[-2000:]


@pytest.mark.repeats
def test_keras_on_another_framework_is_refused() -> None:
    done = run("import islices.backends.keras", KERAS_BACKEND="numpy")
    assert done.returncode == 1
    assert "got Keras on the backend 'numpy'; accepted are 'tensorflow', 'torch' and 'jax'" in done.stderr


@pytest.mark.parametrize("name", ["capturing", "choice", "coalesced", "stock_models", "scaling", "states", "stepped"])
def test_the_examples_of_the_docstrings_are_true(name: str) -> None:
    results = doctest.testmod(import_module(f"{front.__name__}.{name}"))
    assert results.attempted
    assert not results.failed
