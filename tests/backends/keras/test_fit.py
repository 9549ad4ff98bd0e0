"""Test Keras models with row-sparse gradients, on the current backend of Keras.

test_each_backend.py runs this module on the other installed backends. The reference is a layer that multiplies one-hot
ids by its table, so that the table's gradient is dense. `islices.parity` compares recorded steps (SPEC clause 23).
Recorded steps run eagerly; test_each_backend.py shows that compiled steps have the bits of eager steps for a model
whose gradients need no rounding.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from comparing import assert_same
from errors import each_raises

keras = pytest.importorskip("keras", minversion="3")
BACKEND = keras.backend.backend()
if BACKEND not in ("tensorflow", "torch", "jax"):
    pytest.skip("Keras runs on another backend", allow_module_level=True)

import islices  # noqa: E402
from islices import optim  # noqa: E402
from islices.backends import keras as front  # noqa: E402
from islices.optim.operators import mul, row_mean  # noqa: E402

ROWS, WIDTH, BATCH = 30, 4, 8
RNG = np.random.default_rng(0)
IDS = RNG.integers(1, ROWS - 2, (32, 5)).astype(np.int32)  # no batch contains row 0 or the last two rows
LABELS = RNG.standard_normal((32, 1)).astype(np.float32)
RATE = float(np.float32(0.05))  # Keras stores the rate as float32
ops = keras.ops


@keras.saving.register_keras_serializable("tests")
class OneHot(keras.layers.Embedding):  # type: ignore[misc]
    """An embedding layer that multiplies one-hot ids by its table, so that the gradient is dense on every backend."""

    def call(self, ids: Any) -> Any:
        return ops.matmul(ops.one_hot(ids, self.input_dim, dtype=self.compute_dtype), self.embeddings)


def made(layer: Any = keras.layers.Embedding, **options: Any) -> Any:
    """Return a functional model. If `layer` is OneHot, the model is plain Keras; otherwise `row_sparse` has changed
    it."""
    keras.utils.set_random_seed(3)
    ids = keras.Input((5,), dtype="int32")
    x = keras.layers.GlobalAveragePooling1D()(layer(ROWS, WIDTH, name="table", **options)(ids))
    model = keras.Model(ids, keras.layers.Dense(1, name="head")(x))
    return model if layer is OneHot else front.row_sparse(model)


def fitted(model: Any, optimizer: Any, *, epochs: int = 2, batch: int = BATCH, **compile_: Any) -> Any:
    model.compile(optimizer, loss="mse", **compile_)
    model.fit(IDS, LABELS, batch_size=batch, epochs=epochs, verbose=0, shuffle=False)
    return model


def weights(model: Any) -> list[np.ndarray[Any, Any]]:
    return [np.array(keras.ops.convert_to_numpy(w)) for w in model.weights]


def assert_parity(folder: Path, ours: Any, theirs: Any) -> Any:
    """Train each pair (model, optimizer), check that the recorded steps agree, and return the weights of the first
    model."""
    for name, (model, optimizer) in (("ours", ours), ("stock", theirs)):
        model.compile(optimizer, loss="mse")
        callbacks = [front.KerasRecorder(folder / name)]
        model.fit(IDS, LABELS, batch_size=BATCH, epochs=1, verbose=0, shuffle=False, callbacks=callbacks)
    found = islices.parity(folder / "ours", folder / "stock", names=("ours", "stock"))
    assert found.equal, str(found)
    assert len(found.steps) == 4
    assert {"gradients", "step"} <= found.steps[-1].positions.keys()
    return weights(ours[0])


# ---------------------------------------------------------------------- trajectories
K: dict[str, Any] = {"rows": "all", "semantics": "keras"}
PAIRS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "adagrad": (keras.optimizers.Adagrad, lambda **k: front.Stepped(optim.adagrad(RATE, semantics="keras"), **k)),
    "Adam": (keras.optimizers.Adam, lambda **k: front.Adam(RATE, **k)),
}


@pytest.mark.parametrize(
    ("name", "options"), [("adagrad", {"global_clipnorm": 0.05}), ("Adam", {"gradient_accumulation_steps": 2})]
)
def test_fit_follows_kerass_own_optimizer_on_arrays(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    theirs, ours = PAIRS[name]
    got = assert_parity(tmp_path, (made(), ours(**options)), (made(OneHot), theirs(RATE, **options)))
    assert any(np.abs(g - b).max() > 1e-3 for g, b in zip(got, weights(made()), strict=True)), "nothing moved"


def test_rows_that_no_batch_names_keep_their_bits() -> None:
    optimizer = front.Stepped(optim.adamw(RATE, weight_decay=0.1), global_clipnorm=0.5, gradient_accumulation_steps=2)
    still = (weights(made())[0] == weights(fitted(made(), optimizer, batch=12))[0]).all(1)
    assert np.flatnonzero(still).tolist() == sorted({*range(ROWS)} - {*IDS.ravel().tolist()})


class Taken(keras.layers.Layer):  # type: ignore[misc]
    """A custom layer that reads its table with keras.ops.take, as layers of keras-hub do."""

    def __init__(self, **options: Any) -> None:
        super().__init__(name="table", **options)
        self.embeddings = self.add_weight(shape=(ROWS, WIDTH), name="embeddings")

    def call(self, ids: Any) -> Any:
        return ops.take(self.embeddings, ids, axis=0)


def subclassed(table: Any) -> Any:
    class Inner(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = table, keras.layers.Dense(1)

        def call(self, ids: Any) -> Any:
            return self.head(ops.mean(self.table(ids), 1))

    class Outer(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner()

        def call(self, ids: Any) -> Any:
            return self.inner(ids)

    return Outer()


def test_one_call_on_a_model_somebody_else_wrote() -> None:
    """Check that row_sparse works on a model that is compiled but not yet built. After `fit`, the weights have the bits
    of the functional model's weights."""
    expected = weights(fitted(made(), front.Stepped(optim.adam(RATE)), epochs=1))
    model = subclassed(Taken())
    kind = type(model)
    model.compile(front.Stepped(optim.adam(RATE)), loss="mse")
    assert front.row_sparse(front.row_sparse(model)) is model
    model(IDS[:2])
    model.set_weights(weights(made()))
    model.fit(IDS, LABELS, batch_size=BATCH, verbose=0, shuffle=False)
    assert_same(weights(model), expected)
    assert type(model) is kind
    assert model.evaluate(IDS, LABELS, verbose=0) < 2
    assert model.predict(IDS[:3], verbose=0).shape == (3, 1)


def test_a_table_that_is_cast_before_it_is_read() -> None:
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        model = front.row_sparse(subclassed(Taken()))
        model(IDS[:2])
        before = weights(model)[0]
        after = weights(fitted(model, front.Stepped(optim.adam(RATE)), epochs=1))[0]
    finally:
        keras.mixed_precision.set_global_policy("float32")
    assert type(model.optimizer) is front.LossScaleOptimizer
    assert after.dtype == np.float32
    moved = set(np.flatnonzero((after != before).any(1)).tolist())
    assert len(moved) > 15
    assert moved <= {*IDS.ravel().tolist()}


@pytest.mark.parametrize("name", ["adam", "in a map"])
def test_optimizers_of_keras_become_those_of_this_package(name: str) -> None:
    if name == "adam":
        given = inner = keras.optimizers.get({"class_name": name, "config": {"global_clipnorm": 0.05}})
    else:
        inner = keras.optimizers.RMSprop(RATE)
        given = keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(inner))
    model = fitted(made(), given, epochs=1)
    assert model.optimizer is given
    assert type(inner) is (front.Adam if name == "adam" else front.RMSprop)


@pytest.mark.parametrize("sparse", [True, False], ids=["row_sparse", "forgotten"])
def test_a_large_dense_gradient_is_warned_of_once(sparse: bool) -> None:
    layers = [keras.layers.Embedding(100_000, 2), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        fitted(front.row_sparse(model) if sparse else model, front.Stepped(optim.sgd(RATE)), epochs=1)
    found = [str(w.message) for w in seen if "dense gradient" in str(w.message)]
    assert len(found) == (not sparse and BACKEND != "tensorflow"), found  # TensorFlow's gradient is sparse already
    assert all("100,000 x 2" in text and "row_sparse(model) before fit" in text for text in found)


class Own(keras.Sequential):  # type: ignore[misc]
    def train_step(self, *args: Any) -> Any:
        return super().train_step(*args)


test_what_is_refused = each_raises([
    (lambda: front.row_sparse(keras.layers.Dense(1)), TypeError, r"model: .*is a keras\.Model"),
    (lambda: fitted(made(), keras.optimizers.Muon(RATE)), TypeError,
                  r"optimizer: got .*Muon.*, which takes dense gradients; accepted .* Coalesced"),
])  # fmt: skip
if BACKEND == "jax":
    averaged = {"gradient_accumulation_steps": 2, "use_ema": True}
    test_what_jax_refuses = each_raises([
        (lambda: fitted(made(), front.Stepped(optim.sgd(RATE), **averaged)), ValueError, "use_ema: got True"),
        (lambda: front.row_sparse(Own()), TypeError, "with a train_step of its class; accepted on JAX"),
    ])  # fmt: skip


@pytest.mark.skipif(BACKEND != "torch", reason="of torch")
def test_a_model_of_jax_trains_on_torch_without_its_compiler() -> None:
    """Check that a model with jit_compile=True trains on torch with a warning. Keras on JAX writes this setting into
    the files of models."""
    with pytest.warns(UserWarning, match="jit_compile: got True; torch.compile refuses .* Proceeding with"):
        model = fitted(made(), front.Stepped(optim.sgd(RATE)), jit_compile=True)
    assert model.jit_compile is False


# ---------------------------------------------------------------------- other uses of the table
def test_tied_weights_get_both_gradients(tmp_path: Path) -> None:
    def tied(layer: Any) -> Any:
        class Tied(keras.Model):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__(name="tied")
                self.table = layer(ROWS, WIDTH, name="table")

            def call(self, ids: Any) -> Any:
                hidden = ops.mean(self.table(ids), 1)
                return ops.logsumexp(ops.matmul(hidden, ops.transpose(self.table.embeddings)), 1, keepdims=True)

        keras.utils.set_random_seed(3)
        model = Tied()
        model(IDS[:2])
        return model

    got = front.row_sparse(tied(keras.layers.Embedding))
    stock = tied(OneHot), keras.optimizers.Adam(RATE)
    assert_parity(tmp_path, (got, front.Stepped(optim.adam(RATE, **K))), stock)
    assert (weights(got)[0] != weights(tied(OneHot))[0]).any(1).all(), "the output layer names every row"


def test_frozen_layers_stay_and_large_ids_are_noticed() -> None:
    model = made()
    model.get_layer("table").trainable = False
    got = weights(fitted(model, front.Stepped(optim.adam(RATE))))
    assert_same(got[:1], weights(made())[:1])
    model.trainable = False
    assert_same(weights(fitted(model, front.Stepped(optim.adam(RATE)))), got)
    ids, model = IDS.copy(), made()
    ids[0, 0] = ROWS
    model.compile(front.Stepped(optim.sgd(RATE)), loss="mse")
    if BACKEND == "jax":
        assert np.isnan(model.fit(ids, LABELS, verbose=0).history["loss"][0]), "as keras.ops.take on JAX"
    else:
        with pytest.raises(Exception, match=r"out of range|not in \[0, 30\)"):
            model.fit(ids, LABELS, verbose=0)


def test_an_embeddings_regularizer_takes_the_whole_table(tmp_path: Path) -> None:
    model, options = made(embeddings_regularizer="l2"), {"global_clipnorm": 0.05}
    stock = made(OneHot, embeddings_regularizer="l2"), keras.optimizers.Adam(RATE, **options)
    got = assert_parity(tmp_path, (model, front.Stepped(optim.adam(RATE, **K), **options)), stock)
    assert (got[0] != weights(made())[0]).any(1).all(), "rows that no batch names move, too"


# ---------------------------------------------------------------------- sixteen bits
def scaled_fit(model: Any, optimizer: Any, scale: float, labels: Any = LABELS) -> Any:
    model.compile(
        keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=scale, dynamic_growth_steps=3), loss="mse"
    )
    model.fit(IDS, labels, batch_size=BATCH, epochs=1, verbose=0, shuffle=False)
    return model


def test_dynamic_loss_scales() -> None:
    theirs, ours = PAIRS["adagrad"]
    got, expected = scaled_fit(made(), ours(), 1024.0), scaled_fit(made(OneHot), theirs(RATE), 1024.0)
    assert_same(weights(got), weights(fitted(made(), ours(), epochs=1)))  # powers of two do not round
    for part in ("step_counter", "dynamic_scale", "iterations"):
        assert float(getattr(got.optimizer, part)) == float(getattr(expected.optimizer, part)), part
    # the scale is too large: the optimizer skips all four steps, and halves the scale at each
    got = scaled_fit(made(), ours(global_clipnorm=1.0), 2.0**127, 1e3 * LABELS)
    assert_same(weights(got), weights(made()))
    assert float(got.optimizer.dynamic_scale) == 2.0**123
    assert int(got.optimizer.iterations) == 0
    micro = {"gradient_accumulation_steps": 2}  # duplicates are summed once for both micro-batches
    got = scaled_fit(made(), ours(**micro), 1024.0)
    assert_same(weights(got), weights(fitted(made(), ours(**micro), epochs=1)))


def scaled_steps(inner: Any, value: float, compiled: bool) -> tuple[list[float], float]:
    """Return the table and the loss scale after one step of a table of zeros. The gradient has two slices of row 1,
    both equal to `value`."""
    table = keras.Variable(np.zeros((3, 1), np.float32))
    optimizer = front.LossScaleOptimizer(inner, initial_scale=2.0)
    optimizer.build([table])

    def gradient(values: Any) -> Any:
        indices = ops.convert_to_tensor(np.array([1, 1]))
        slices = islices.IndexedSlices(values, indices, (3, 1), validate=False)
        return slices if BACKEND == "jax" else islices.to_native(slices)  # to_native would return a BCOO

    values = ops.convert_to_tensor(np.full((2, 1), value, np.float32))
    if compiled and BACKEND == "jax":
        import jax

        state = [v.value for v in optimizer.variables]
        step = jax.jit(lambda state, table, values: optimizer.stateless_apply(state, [gradient(values)], [table]))
        (moved,), state = step(state, table.value, values)
        table.assign(moved)
        for variable, x in zip(optimizer.variables, state, strict=True):
            variable.assign(x)
    elif compiled:
        import tensorflow as tf

        stepped = isinstance(inner, front.Stepped)  # Stepped raises if XLA compiles the step
        tf.function(lambda x: optimizer.apply([gradient(x)], [table]), jit_compile=not stepped)(values)
    else:
        optimizer.apply([gradient(values)], [table])
    return ops.convert_to_numpy(table).ravel().tolist(), float(optimizer.dynamic_scale)


@pytest.mark.parametrize("compiled", [False] if BACKEND == "torch" else [False, True])
def test_duplicates_that_overflow_together_take_no_step(compiled: bool) -> None:
    def inner() -> Any:
        return front.Stepped(optim.sgd(1.0)) if compiled else front.SGD(1.0, global_clipnorm=1e38)

    assert scaled_steps(inner(), 3e38, compiled) == ([0.0, 0.0, 0.0], 1.0)
    assert scaled_steps(inner(), 3.0, compiled) == ([0.0, -3.0, 0.0], 2.0)


# ---------------------------------------------------------------------- saved models and options
def test_a_saved_model_goes_on_to_the_bit(tmp_path: Path) -> None:
    def optimizer() -> Any:
        return front.Stepped(optim.adam(RATE), global_clipnorm=0.5, gradient_accumulation_steps=3)

    whole = fitted(made(), optimizer())  # 8 batches: 2 steps, and 2 batches that are not applied
    first = fitted(made(), optimizer(), epochs=1)  # 4 batches: 1 step, and 1 batch that is not applied
    first.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded.get_layer("table")) is keras.layers.Embedding
    front.row_sparse(loaded).fit(IDS, LABELS, batch_size=BATCH, epochs=1, verbose=0, shuffle=False)
    assert_same(weights(loaded), weights(whole))
    assert int(loaded.optimizer.iterations) == 2


def test_the_state_by_its_names(tmp_path: Path) -> None:
    scaled = keras.optimizers.LossScaleOptimizer(front.Stepped(optim.adam(RATE)))
    state = front.state_of(fitted(made(), scaled).optimizer)
    assert sorted(state) == ["head/bias", "head/kernel", "table/embeddings"]
    assert {k: (x.shape, x.dtype.name) for k, x in state["table/embeddings"].items()} == {
        "step": ((1,), "int32"), "m": ((ROWS, WIDTH), "float32"), "v": ((ROWS, WIDTH), "float32")
    }  # fmt: skip
    assert state["table/embeddings"]["step"].tolist() == [8]
    with pytest.raises(TypeError, match=r"optimizer: got .*Adafactor"):
        front.state_of(keras.optimizers.Adafactor(RATE))


def squared(g: Any, w: Any, accumulator: Any, lr: Any) -> Any:
    accumulator = accumulator + row_mean(mul(g, g))
    return w - mul(lr, g), accumulator


def test_a_rule_of_your_own_trains_and_is_loaded_by_its_function(tmp_path: Path) -> None:
    rule = optim.custom(squared, RATE, row_state={"accumulator": 1.0})
    expected = weights(fitted(made(), front.Stepped(optim.sgd(RATE))))
    model = fitted(made(), front.Stepped(rule))
    assert_same(weights(model), expected)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras", custom_objects={"squared": squared})
    for x in (model, loaded):
        front.row_sparse(x).fit(IDS, LABELS, batch_size=BATCH, epochs=1, verbose=0, shuffle=False)
    assert_same([x.numpy() for x in loaded.optimizer.variables], [x.numpy() for x in model.optimizer.variables])
    with pytest.raises(ValueError, match=r"rule: got 'squared', a function of optim\.custom"):
        keras.models.load_model(tmp_path / "model.keras")


# ---------------------------------------------------------------------- properties of single backends
@pytest.mark.skipif(BACKEND != "tensorflow", reason="of TensorFlow")
def test_a_compiled_step_is_traced_once() -> None:
    traced = []

    class Counted(front.Stepped):  # type: ignore[misc]
        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            traced.append(variable.name.removesuffix(":0"))
            super().update_step(gradient, variable, learning_rate)

    fitted(made(), Counted(optim.sgd(RATE)))
    assert sorted(traced) == ["head/bias", "head/kernel", "table/embeddings"]


@pytest.mark.skipif(BACKEND != "jax", reason="of JAX")
def test_distributions_are_refused() -> None:
    keras.distribution.set_distribution(keras.distribution.DataParallel())
    try:
        with pytest.raises(ValueError, match=r"keras.distribution: got .*DataParallel; accepted .* is none"):
            fitted(made(), front.Stepped(optim.sgd(RATE)))
    finally:
        keras.distribution.set_distribution(None)


@pytest.mark.skipif(BACKEND != "jax", reason="of JAX")
@pytest.mark.parametrize("scaled", [False, True])
def test_a_compiled_step_has_no_temporary_of_the_tables_size(scaled: bool) -> None:
    import jax

    rows, x, y = 2**16, IDS[:8], LABELS[:8]
    layers = [keras.layers.Embedding(rows, 16), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)]
    model = front.row_sparse(keras.Sequential(layers))
    optimizer = front.Stepped(optim.adam(0.1), global_clipnorm=1.0)
    model.compile(keras.optimizers.LossScaleOptimizer(optimizer) if scaled else optimizer, loss="mse")
    model.train_on_batch(x, y)
    kinds = ("trainable_variables", "non_trainable_variables", "optimizer_variables", "metrics_variables")
    state = model._get_jax_state(**dict.fromkeys(kinds, True))
    memory = jax.jit(model.train_step, donate_argnums=0).lower(state, (x, y)).compile().memory_analysis()
    assert memory.temp_size_in_bytes < rows * 16 * 4 / 8
    assert memory.alias_size_in_bytes > rows * 16 * 4
