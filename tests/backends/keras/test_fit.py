"""Models that train by rows, on whichever backend Keras has here; test_each_backend.py runs this on all three.

What is compared with is Keras itself: a layer that multiplies one-hot ids by its table, whose gradient is an array.
Trajectories follow it as SPEC clause 23 says, by `islices.parity` over recorded, hence eager, steps; that compiled
steps are the same to the bit, where the model around rounds nothing, test_each_backend.py shows.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

keras = pytest.importorskip("keras", minversion="3")
BACKEND = keras.backend.backend()
if BACKEND not in ("tensorflow", "torch", "jax"):
    pytest.skip("Keras runs on another backend", allow_module_level=True)

import islices  # noqa: E402
from islices import optim  # noqa: E402
from islices.backends import keras as front  # noqa: E402

ROWS, WIDTH, BATCH = 30, 4, 8
RNG = np.random.default_rng(0)
IDS = RNG.integers(1, ROWS - 2, (32, 5)).astype(np.int32)  # row 0 and the last two are never named
LABELS = RNG.standard_normal((32, 1)).astype(np.float32)
RATE = float(np.float32(0.05))  # Keras holds it as float32
ops = keras.ops


@keras.saving.register_keras_serializable("tests")
class OneHot(keras.layers.Embedding):  # type: ignore[misc]
    """Keras' embedding with an array for a gradient, on every backend."""

    def call(self, ids: Any) -> Any:
        return ops.matmul(ops.one_hot(ids, self.input_dim, dtype=self.compute_dtype), self.embeddings)


def made(layer: Any = keras.layers.Embedding, **options: Any) -> Any:
    """A stock functional model, row_sparse but for one-hot products."""
    keras.utils.set_random_seed(3)
    ids = keras.Input((5,), dtype="int32")
    x = keras.layers.GlobalAveragePooling1D()(layer(ROWS, WIDTH, name="table", **options)(ids))
    model = keras.Model(ids, keras.layers.Dense(1, name="head")(x))
    return model if layer is OneHot else front.row_sparse(model)


def fitted(model: Any, optimizer: Any, *, epochs: int = 2, loss: Any = "mse", **compile_: Any) -> Any:
    model.compile(optimizer, loss=loss, **compile_)
    model.fit(IDS, LABELS, batch_size=BATCH, epochs=epochs, verbose=0, shuffle=False)
    return model


def weights(model: Any) -> list[np.ndarray[Any, Any]]:
    return [np.array(keras.ops.convert_to_numpy(w)) for w in model.weights]


def assert_parity(folder: Path, ours: Any, theirs: Any) -> Any:
    """Train both, each a model and its optimizer; the first one's weights."""
    for name, (model, optimizer) in (("ours", ours), ("stock", theirs)):
        model.compile(optimizer, loss="mse")
        callbacks = [front.Recorder(folder / name)]
        model.fit(IDS, LABELS, batch_size=BATCH, epochs=2, verbose=0, shuffle=False, callbacks=callbacks)
    found = islices.parity(folder / "ours", folder / "stock", names=("ours", "stock"))
    assert found.equal, str(found)
    assert len(found.steps) == 8
    assert {"gradients", "step"} <= found.steps[-1].positions.keys()
    return weights(ours[0])


def assert_same_bits(got: list[Any], expected: list[Any]) -> None:
    for g, e in zip(got, expected, strict=True):
        np.testing.assert_array_equal(g, e)


# ---------------------------------------------------------------------- trajectories
K: dict[str, Any] = {"rows": "all", "semantics": "keras"}
PAIRS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "sgd": (keras.optimizers.SGD, lambda **k: front.Stepped(optim.sgd(RATE, semantics="keras"), **k)),
    "adagrad": (keras.optimizers.Adagrad, lambda **k: front.Stepped(optim.adagrad(RATE, semantics="keras"), **k)),
    "adam": (keras.optimizers.Adam, lambda **k: front.Stepped(optim.adam(RATE, **K), **k)),
    "rmsprop": (keras.optimizers.RMSprop, lambda **k: front.Stepped(optim.rmsprop(RATE, **K), **k)),
    "Adam": (keras.optimizers.Adam, lambda **k: front.Adam(RATE, **k)),
    "AdamW": (keras.optimizers.AdamW, lambda **k: front.AdamW(RATE, **k)),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "clipnorm": {"clipnorm": 0.05},
    "global": {"global_clipnorm": 0.05},
    "clipvalue": {"clipvalue": 0.01},
    "loss scale": {"loss_scale_factor": 64.0},
    "micro-batches": {"gradient_accumulation_steps": 2},
}


@pytest.mark.repeats_where(lambda name, options: (name, options) not in {("adagrad", "global"), ("adam", "plain")})
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.one_in(4)
def test_fit_follows_kerass_own_optimizer_on_arrays(name: str, options: str, tmp_path: Path) -> None:
    theirs, ours = PAIRS[name]
    stock = made(OneHot), theirs(RATE, **OPTIONS[options])
    got = assert_parity(tmp_path, (made(), ours(**OPTIONS[options])), stock)
    assert any(np.abs(g - b).max() > 1e-3 for g, b in zip(got, weights(made()), strict=True)), "nothing moved"


@pytest.mark.parametrize("clip", [{}, {"global_clipnorm": 0.05}], ids=["plain", "clip"])
def test_rows_that_no_batch_names_keep_their_bits(clip: dict[str, float]) -> None:
    got = weights(fitted(made(), front.Stepped(optim.adam(RATE), **clip)))[0]
    before = weights(made())[0]
    moved = (got != before).any(1)
    assert np.flatnonzero(~moved).tolist() == sorted({*range(ROWS)} - {*IDS.ravel().tolist()})


def test_lazy_adam_is_not_kerass() -> None:
    lazy = weights(fitted(made(), front.Stepped(optim.adam(RATE, semantics="islices"))))
    stock = weights(fitted(made(OneHot), keras.optimizers.Adam(RATE)))
    assert np.abs(lazy[0] - stock[0]).max() > 1e-3


class Taken(keras.layers.Layer):  # type: ignore[misc]
    """A layer of one's own, of another dtype policy than its weight where one is set, as those of keras-hub."""

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


STOCK_MODELS: dict[str, Callable[[], Any]] = {
    "sequential": lambda: keras.Sequential(
        [keras.layers.Embedding(ROWS, WIDTH), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)]
    ),
    "subclassed": lambda: subclassed(keras.layers.Embedding(ROWS, WIDTH)),
    "own layer": lambda: subclassed(Taken()),
}


@pytest.mark.repeats_where(lambda name: name == "sequential")
@pytest.mark.parametrize("name", STOCK_MODELS)
def test_one_call_on_stock_models(name: str) -> None:
    """Unbuilt, then compiled, then row_sparse; the rows and bits of the functional model."""
    expected = weights(fitted(made(), front.Stepped(optim.adam(RATE)), epochs=1))
    model = STOCK_MODELS[name]()
    kind = type(model)
    model.compile(front.Stepped(optim.adam(RATE)), loss="mse")
    assert front.row_sparse(front.row_sparse(model)) is model
    model(IDS[:2])
    model.set_weights(weights(made()))
    model.fit(IDS, LABELS, batch_size=BATCH, verbose=0, shuffle=False)
    assert_same_bits(weights(model), expected)
    assert type(model) is kind
    assert model.evaluate(IDS, LABELS, verbose=0) < 2
    assert model.predict(IDS[:3], verbose=0).shape == (3, 1)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_a_table_that_is_cast_before_it_is_read(policy: str) -> None:
    model = front.row_sparse(subclassed(Taken(dtype=policy)))
    model(IDS[:2])
    before = weights(model)[0]
    moved = (weights(fitted(model, front.Stepped(optim.adam(RATE)), epochs=1))[0] != before).any(1)
    assert np.flatnonzero(~moved).tolist() == sorted({*range(ROWS)} - {*IDS.ravel().tolist()})


def test_a_table_read_twice(tmp_path: Path) -> None:
    def twice(layer: Any) -> Any:
        keras.utils.set_random_seed(3)
        ids, table = keras.Input((5,), dtype="int32"), layer(ROWS, WIDTH, name="table")
        x = ops.mean(table(ids), 1) * ops.max(table(ids[:, :2]), 1)
        return keras.Model(ids, keras.layers.Dense(1, name="head")(x))

    ours = front.row_sparse(twice(keras.layers.Embedding)), front.Stepped(optim.adam(RATE, **K))
    assert_parity(tmp_path, ours, (twice(OneHot), keras.optimizers.Adam(RATE)))


@pytest.mark.parametrize("name", ["adam", "SGD", "in a map"])
def test_optimizers_of_keras_become_those_of_this_package(name: str, tmp_path: Path) -> None:
    def optimizer() -> Any:
        if name != "in a map":
            return keras.optimizers.get({"class_name": name, "config": {"global_clipnorm": 0.05}})
        return keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(keras.optimizers.RMSprop(RATE)))

    given = optimizer()
    model = fitted(made(), given)
    assert model.optimizer is given
    inner = given.optimizers[0] if name == "in a map" else given
    assert type(inner) is getattr(front, {"adam": "Adam", "SGD": "SGD"}.get(name, "RMSprop"))
    expected = fitted(made(OneHot), optimizer())
    for got, stock in zip(weights(model), weights(expected), strict=True):
        np.testing.assert_allclose(got, stock, rtol=1e-4, atol=1e-6)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded) is type(expected)
    front.row_sparse(loaded).fit(IDS, LABELS, batch_size=BATCH, verbose=0, shuffle=False)
    model.fit(IDS, LABELS, batch_size=BATCH, verbose=0, shuffle=False)
    assert_same_bits(weights(loaded), weights(model))


def test_other_optimizers_are_refused_by_name() -> None:
    with pytest.raises(TypeError, match=r"optimizer: got .*Muon.*, which takes dense gradients; accepted .* Coalesced"):
        fitted(made(), keras.optimizers.Muon(RATE))


@pytest.mark.parametrize("sparse", [True, False], ids=["row_sparse", "forgotten"])
def test_a_large_dense_gradient_is_warned_of_once(sparse: bool) -> None:
    layers = [keras.layers.Embedding(100_000, 2), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        fitted(front.row_sparse(model) if sparse else model, front.Stepped(optim.adam(RATE)), epochs=1)
    found = [str(w.message) for w in seen if "dense gradient" in str(w.message)]
    assert len(found) == (not sparse and BACKEND != "tensorflow"), found  # whose own gradients are sparse
    assert all("100,000 x 2" in text and "row_sparse(model) before fit" in text for text in found)


def test_what_is_no_model() -> None:
    with pytest.raises(TypeError, match=r"model: got .*; accepted is a keras\.Model"):
        front.row_sparse(keras.layers.Dense(1))


def test_a_train_step_of_ones_own() -> None:
    class Own(keras.Sequential):  # type: ignore[misc]
        def train_step(self, *args: Any) -> Any:
            return super().train_step(*args)

    model = Own([keras.layers.Embedding(ROWS, WIDTH), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)])
    if BACKEND == "jax":
        with pytest.raises(TypeError, match=r"with a train_step of its class; accepted on JAX .*value_and_grad"):
            front.row_sparse(model)
        return
    front.row_sparse(model)(IDS[:2])
    model.set_weights(weights(made()))
    got = weights(fitted(model, front.Stepped(optim.adam(RATE)), epochs=1))
    assert_same_bits(got, weights(fitted(made(), front.Stepped(optim.adam(RATE)), epochs=1)))


@pytest.mark.repeats
def test_batches_by_hand() -> None:
    model, expected = made(), made()
    for m in (model, expected):
        m.compile(front.Stepped(optim.adagrad(RATE)), loss="mse", run_eagerly=True)
    for k in range(0, 32, BATCH):
        model.train_on_batch(IDS[k : k + BATCH], LABELS[k : k + BATCH])
    expected.fit(IDS, LABELS, batch_size=BATCH, verbose=0, shuffle=False)
    assert_same_bits(weights(model), weights(expected))


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
    with front.capture(got) as captured:
        got.train_on_batch(IDS[:8], LABELS[:8])
    with pytest.raises(TypeError, match="were read beside the layers that are captured"):
        captured.gradients()
    assert (weights(got)[0] != weights(tied(OneHot))[0]).any(1).all(), "the output layer names every row"


def test_activity_regularizer_takes_the_rows_of_the_batch(tmp_path: Path) -> None:
    options = {"activity_regularizer": keras.regularizers.L2(0.1)}
    rule = front.Stepped(optim.sgd(RATE, semantics="keras"))
    stock = made(OneHot, **options), keras.optimizers.SGD(RATE)
    got = assert_parity(tmp_path, (made(**options), rule), stock)
    without = weights(fitted(made(), front.Stepped(optim.sgd(RATE, semantics="keras"))))
    assert np.abs(got[0] - without[0]).max() > 1e-4


REGULARIZED = {
    "l2": ("l2", {"global_clipnorm": 0.05}),
    "l1": ("l1", {}),
    "both": (keras.regularizers.L1L2(l1=0.01, l2=0.01), {"gradient_accumulation_steps": 2}),
    "own": (lambda w: 0.1 * ops.sum(ops.square(w[1:])), {"loss_scale_factor": 4.0}),
}


@pytest.mark.repeats_where(lambda name: name != "l2")
@pytest.mark.parametrize("name", REGULARIZED)
def test_embeddings_regularizer_takes_the_whole_table(name: str, tmp_path: Path) -> None:
    regularizer, options = REGULARIZED[name]
    model = made(embeddings_regularizer=regularizer)
    stock = made(OneHot, embeddings_regularizer=regularizer), keras.optimizers.Adam(RATE, **options)
    got = assert_parity(tmp_path, (model, front.Stepped(optim.adam(RATE, **K), **options)), stock)
    rows = np.flatnonzero((got[0] != weights(made())[0]).any(1))
    assert rows.tolist() == list(range(name == "own", ROWS)), "rows that no batch names move, too"

    def captured() -> Any:
        with front.capture(model) as found:
            model.train_on_batch(IDS[:8], LABELS[:8])
        return found.gradients()

    with pytest.raises(TypeError, match=r"were read beside the layers|a layer with embeddings_regularizer"):
        captured()


def test_lazy_adam_moves_every_row_of_a_regularized_table() -> None:
    got = fitted(made(embeddings_regularizer="l2"), front.Stepped(optim.adam(RATE)), epochs=1)
    assert (weights(got)[0] != weights(made())[0]).any(1).all()


def test_a_regularizer_that_is_set_later_counts(tmp_path: Path) -> None:
    def late(m: Any) -> Any:
        m.get_layer("table")._embeddings.regularizer = keras.regularizers.L2(0.1)
        return m

    rule = front.Stepped(optim.sgd(RATE, semantics="keras"))
    stock = late(made(OneHot)), keras.optimizers.SGD(RATE)
    got = assert_parity(tmp_path, (late(made()), rule), stock)
    assert (got[0] != weights(made())[0]).any(1).all()


def test_frozen_layers_stay_and_large_ids_are_noticed() -> None:
    model = made()
    model.get_layer("table").trainable = False
    got = weights(fitted(model, front.Stepped(optim.adam(RATE))))
    assert_same_bits(got[:1], weights(made())[:1])
    ids, model = IDS.copy(), made()
    ids[0, 0] = ROWS
    model.compile(front.Stepped(optim.sgd(RATE)), loss="mse")
    if BACKEND == "jax":
        assert np.isnan(model.fit(ids, LABELS, verbose=0).history["loss"][0]), "as keras.ops.take on JAX"
    else:
        with pytest.raises(Exception, match=r"out of range|not in \[0, 30\)"):
            model.fit(ids, LABELS, verbose=0)


@pytest.mark.repeats
def test_negative_ids_count_from_the_end_and_constraints_hold() -> None:
    got = []
    for ids in (IDS, IDS - ROWS):
        model = made(embeddings_constraint=keras.constraints.MaxNorm(0.01))
        model.compile(front.Stepped(optim.adam(RATE)), loss="mse")
        model.fit(ids, LABELS, batch_size=BATCH, verbose=0, shuffle=False)
        got.append(weights(model))
    assert_same_bits(*got)
    assert np.linalg.norm(got[0][0], axis=1).max() < 0.0101


# ---------------------------------------------------------------------- sixteen bits
def scaled_fit(model: Any, optimizer: Any, scale: float, labels: Any = LABELS) -> Any:
    model.compile(
        keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=scale, dynamic_growth_steps=3), loss="mse"
    )
    model.fit(IDS, labels, batch_size=BATCH, epochs=1, verbose=0, shuffle=False)
    return model


@pytest.mark.repeats_where(lambda rule: rule != "adagrad")
@pytest.mark.parametrize("rule", ["adagrad", "adam"])
def test_dynamic_loss_scales(rule: str) -> None:
    theirs, ours = PAIRS[rule]
    got, expected = scaled_fit(made(), ours(), 1024.0), scaled_fit(made(OneHot), theirs(RATE), 1024.0)
    assert_same_bits(weights(got), weights(fitted(made(), ours(), epochs=1)))  # powers of two round nothing
    for part in ("step_counter", "dynamic_scale", "iterations"):
        assert float(getattr(got.optimizer, part)) == float(getattr(expected.optimizer, part)), part
    # too large a scale: no step is taken, and it is halved
    got = scaled_fit(made(), ours(global_clipnorm=1.0), 2.0**127, 1e3 * LABELS)
    assert_same_bits(weights(got), weights(made()))
    assert float(got.optimizer.dynamic_scale) == 2.0**123
    assert int(got.optimizer.iterations) == 0


def scaled_steps(inner: Any, value: float, compiled: bool) -> tuple[list[float], float]:
    """A table of zeros and the scale behind one step on two slices of row 1, each of this value."""
    table = keras.Variable(np.zeros((3, 1), np.float32))
    optimizer = front.LossScaleOptimizer(inner, initial_scale=2.0)
    optimizer.build([table])

    def gradient(values: Any) -> Any:
        indices = ops.convert_to_tensor(np.array([1, 1]))
        slices = islices.IndexedSlices(values, indices, (3, 1), validate=False)
        return slices if BACKEND == "jax" else islices.to_native(slices)  # JAX's own are another format

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

        stepped = isinstance(inner, front.Stepped)  # which XLA refuses
        tf.function(lambda x: optimizer.apply([gradient(x)], [table]), jit_compile=not stepped)(values)
    else:
        optimizer.apply([gradient(values)], [table])
    return ops.convert_to_numpy(table).ravel().tolist(), float(optimizer.dynamic_scale)


@pytest.mark.parametrize("compiled", [False] if BACKEND == "torch" else [False, True])
@pytest.mark.parametrize(
    "inner",
    [
        lambda: front.Stepped(optim.sgd(1.0)),
        lambda: front.SGD(1.0),
        lambda: front.SGD(1.0, global_clipnorm=1e38),
    ],
    ids=["stepped", "keras", "clip"],
)
def test_duplicates_that_overflow_together_take_no_step(inner: Callable[[], Any], compiled: bool) -> None:
    assert scaled_steps(inner(), 3e38, compiled) == ([0.0, 0.0, 0.0], 1.0)
    assert scaled_steps(inner(), 3.0, compiled) == ([0.0, -3.0, 0.0], 2.0)


def test_mixed_precision() -> None:
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        got = fitted(made(), front.Stepped(optim.adagrad(RATE), global_clipnorm=1.0), epochs=1)
    finally:
        keras.mixed_precision.set_global_policy("float32")
    assert type(got.optimizer) is front.LossScaleOptimizer
    assert weights(got)[0].dtype == np.float32
    assert int(got.optimizer.iterations) == 4
    moved = (weights(got)[0] != weights(made())[0]).any(1)
    assert 15 < moved.sum() < ROWS
    assert all(np.isfinite(w).all() for w in weights(got))


# ---------------------------------------------------------------------- what is kept, what is chosen
@pytest.mark.repeats
def test_a_saved_model_goes_on_to_the_bit(tmp_path: Path) -> None:
    def optimizer() -> Any:
        return front.Stepped(optim.adam(RATE), global_clipnorm=0.5, gradient_accumulation_steps=3)

    whole = fitted(made(), optimizer())  # 8 batches: 2 steps, and 2 batches that wait
    first = fitted(made(), optimizer(), epochs=1)  # 4 batches: one waits
    first.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded.get_layer("table")) is keras.layers.Embedding
    front.row_sparse(loaded).fit(IDS, LABELS, batch_size=BATCH, epochs=1, verbose=0, shuffle=False)
    assert_same_bits(weights(loaded), weights(whole))
    assert int(loaded.optimizer.iterations) == 2
    loaded.save_weights(tmp_path / "of.weights.h5")
    plain = made()
    plain.load_weights(tmp_path / "of.weights.h5")
    assert_same_bits(weights(plain), weights(loaded))


def test_a_store_without_micro_batches_begins_with_none() -> None:
    optimizer = fitted(made(), front.Stepped(optim.sgd(RATE), gradient_accumulation_steps=3), epochs=1).optimizer
    store: dict[str, Any] = {}
    optimizer.save_own_variables(store)
    assert any(store[name].any() for name in store if name.endswith("_values")), "one of 4 batches waits"
    optimizer.load_own_variables({name: x for name, x in store.items() if name.isdigit()})
    assert not any(total.save()[0].any() for total in optimizer._sums)


def test_a_pattern_that_matches_nothing_is_said() -> None:
    for pattern, found in (("embedding.*", False), (".*embeddings", True)):
        choice = keras.optimizers.OptimizerMap(front.Adam(RATE))
        choice[pattern] = front.Stepped(optim.sgd(RATE))
        optimizer = front.MultiOptimizer(choice)
        model = front.row_sparse(STOCK_MODELS["sequential"]())
        model(IDS[:1])
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            fitted(model, optimizer, epochs=1)
        said = [str(w.message) for w in seen if "OptimizerMap" in str(w.message)]
        assert len(said) == (not found), said
        if not found:
            assert "'embedding.*' matches no variable" in said[0]
            assert "/embeddings'" in said[0]
        assert len(choice[pattern]._trainable_variables) == found


def test_the_state_by_its_names(tmp_path: Path) -> None:
    scaled = keras.optimizers.LossScaleOptimizer(front.Stepped(optim.adam(RATE)))
    model = fitted(made(), scaled, run_eagerly=True)
    state = front.state_of(model.optimizer)
    assert sorted(state) == ["head/bias", "head/kernel", "table/embeddings"]
    assert {k: (x.shape, x.dtype.name) for k, x in state["table/embeddings"].items()} == {
        "step": ((1,), "int32"), "m": ((ROWS, WIDTH), "float32"), "v": ((ROWS, WIDTH), "float32")
    }  # fmt: skip
    assert state["table/embeddings"]["step"].tolist() == [8]
    ours, stock = front.Stepped(optim.adam(RATE, **K)), keras.optimizers.Adam(RATE)
    assert_parity(tmp_path, (made(), ours), (made(OneHot), stock))  # by the states, too
    assert {k: x.keys() for k, x in front.state_of(ours).items()} == {
        k: x.keys() for k, x in front.state_of(stock).items()
    }
    with pytest.raises(TypeError, match=r"optimizer: got .*Adafactor"):
        front.state_of(keras.optimizers.Adafactor(RATE))


# ---------------------------------------------------------------------- capture
def test_capture_sees_each_step_of_fit() -> None:
    model, seen = made(), []
    rule = front.Stepped(optim.sgd(RATE, semantics="keras"))
    model.compile(rule, loss=keras.losses.MeanSquaredError(reduction="sum"))
    with front.capture(model) as captured:

        def read(batch: int, logs: Any) -> None:
            (gradient,) = captured.gradients().values()
            (samples,) = captured.per_sample().values()
            seen.append((np.asarray(gradient.values), np.asarray(gradient.indices), np.asarray(samples.norms())))
            captured.clear()

        show = keras.callbacks.LambdaCallback(on_train_batch_end=read)
        model.fit(IDS, LABELS, batch_size=BATCH, shuffle=False, verbose=0, callbacks=[show])
    assert len(seen) == 4
    table, rule = weights(made())[0], optim.sgd(RATE, semantics="keras")
    state = rule.init(table)
    for k, (values, ids, norms) in enumerate(seen):
        np.testing.assert_array_equal(ids, IDS[8 * k : 8 * k + 8].ravel())
        assert norms.shape == (8,)
        table, state = rule.step(table, islices.IndexedSlices(values, ids, table.shape), state)
    assert_same_bits([weights(model)[0]], [table])
    model.fit(IDS, LABELS, batch_size=BATCH, verbose=0)
    assert not model.run_eagerly


def test_a_mean_has_no_gradients_per_sample() -> None:
    model = made()
    model.compile(front.Stepped(optim.sgd(RATE)), loss="mse")
    with front.capture(model) as captured:
        model.train_on_batch(IDS[:2], LABELS[:2])
    assert captured.gradients()
    with pytest.raises(
        ValueError, match=r"per_sample: .* of reduction='sum_over_batch_size'.*accepted is reduction='sum'"
    ):
        captured.per_sample()


@pytest.mark.parametrize("model", [lambda: keras.layers.Dense(1), lambda: 3], ids=["layer", "number"])
def test_capture_says_what_it_accepts(model: Any) -> None:
    with pytest.raises(TypeError, match=r"model: got .*; accepted are models that islices.backends.keras.row_sparse"):
        front.capture(model())


# ---------------------------------------------------------------------- what a backend alone has
@pytest.mark.skipif(BACKEND != "tensorflow", reason="of TensorFlow")
def test_a_compiled_step_is_traced_once() -> None:
    traced = []

    class Counted(front.Stepped):  # type: ignore[misc]
        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            traced.append(variable.name.removesuffix(":0"))
            super().update_step(gradient, variable, learning_rate)

    fitted(made(), Counted(optim.sgd(RATE)))
    assert sorted(traced) == ["head/bias", "head/kernel", "table/embeddings"]


@pytest.mark.skipif(BACKEND != "torch", reason="of torch")
def test_torchs_compiler_is_refused() -> None:
    with pytest.raises(ValueError, match="jit_compile: got True; accepted on torch"):
        fitted(made(), front.Stepped(optim.sgd(RATE)), jit_compile=True)


@pytest.mark.skipif(BACKEND != "jax", reason="of JAX")
def test_distributions_are_refused() -> None:
    keras.distribution.set_distribution(keras.distribution.DataParallel())
    try:
        with pytest.raises(ValueError, match=r"keras.distribution: got .*DataParallel; accepted .* is none"):
            fitted(made(), front.Stepped(optim.sgd(RATE)))
    finally:
        keras.distribution.set_distribution(None)


@pytest.mark.skipif(BACKEND != "jax", reason="of JAX")
@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: front.Stepped(optim.sgd(0.1)),
        lambda: front.Stepped(optim.adam(0.1)),
        lambda: front.Stepped(optim.adagrad(0.1), global_clipnorm=1.0),
        lambda: front.LossScaleOptimizer(front.Stepped(optim.adam(0.1))),
        lambda: front.Stepped(optim.adam(0.1), gradient_accumulation_steps=2),
    ],
    ids=["sgd", "adam", "clip", "loss scale", "micro-batches"],
)
def test_a_compiled_step_has_no_temporary_of_the_tables_size(optimizer: Any) -> None:
    import jax

    rows, x, y = 2**16, IDS[:8], LABELS[:8]
    layers = [keras.layers.Embedding(rows, 16), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)]
    model = front.row_sparse(keras.Sequential(layers))
    model.compile(optimizer(), loss="mse")
    model.train_on_batch(x, y)
    kinds = ("trainable_variables", "non_trainable_variables", "optimizer_variables", "metrics_variables")
    state = model._get_jax_state(**dict.fromkeys(kinds, True))
    memory = jax.jit(model.train_step, donate_argnums=0).lower(state, (x, y)).compile().memory_analysis()
    assert memory.temp_size_in_bytes < rows * 16 * 4 / 8
    assert memory.alias_size_in_bytes > rows * 16 * 4
