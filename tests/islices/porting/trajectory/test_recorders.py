"""Test recorders in the frameworks' loops, and the transfer of states between optimizers of different frameworks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import islices

IDS = np.array([[5, 3], [7, 3], [0, 9], [3, 3]])
START = (np.arange(48, dtype=np.float32).reshape(12, 4) - 24) / 48
STEPS = 4


def check_runs(folder: Path) -> None:
    """Check that run a has all positions, and that run b, which has another learning rate, differs from step 1 on."""
    found = islices.parity(folder / "a", folder / "a")
    assert found.equal
    assert found.same_bits == STEPS
    assert found.notes == ()
    assert {"batch", "outputs", "loss", "gradients", "clipped", "step"} <= set(found.steps[-1].positions)
    found = islices.parity(folder / "a", folder / "b")
    assert (found.stop.step, found.stop.position) == (1, "step"), str(found)
    assert found.notes == ()


# ---------------------------------------------------------------------- torch
def torch_run(folder: Path, make: Callable[..., Any], *, sparse: bool, clip: float = 0.0, **options: Any) -> None:
    import torch

    from islices.backends.torch import TorchRecorder, clip_grad_norm_

    layer = torch.nn.Embedding.from_pretrained(torch.tensor(START), freeze=False, sparse=sparse)
    optimizer = make(layer.parameters())
    with TorchRecorder(folder, layer, optimizer, **options) as recorder:
        for k in range(STEPS):
            optimizer.zero_grad()
            loss = (layer(torch.tensor(IDS[: 2 + k % 3])) - 1).square().sum()
            loss.backward()
            if clip:
                clip_grad_norm_(layer.parameters(), clip)
            recorder.add(loss=loss)
            optimizer.step()


@pytest.mark.parametrize(("name", "sparse"), [("SGD", True), ("SparseAdam", True), ("RMSprop", False)])
def test_torch_recorder_knows_the_formula(name: str, sparse: bool, tmp_path: Path) -> None:
    """Check that the recorder's hooks describe torch's optimizer and record each position."""
    torch = pytest.importorskip("torch")
    options = {"lr": 0.1, **({"momentum": 0.5, "centered": True} if name == "RMSprop" else {})}
    make = getattr(torch.optim, name)
    torch_run(tmp_path / "a", lambda p: make(p, **options), sparse=sparse, clip=0.5)
    torch_run(tmp_path / "b", lambda p: make(p, **{**options, "lr": 0.1001}), sparse=sparse, clip=0.5)
    check_runs(tmp_path)


def test_torch_recorder_counts_and_lets_go(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from islices.backends.torch import TorchRecorder

    torch_run(tmp_path / "a", lambda p: torch.optim.SGD(p, lr=0.1), sparse=True, every=2)
    assert [p.name for p in sorted((tmp_path / "a").glob("step*"))] == [
        f"step-0000000{k}.safetensors" for k in (1, 2, 4)
    ]
    layer = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(layer.parameters())
    with TorchRecorder(tmp_path / "b", layer, optimizer):
        pass
    layer(torch.ones(1, 1)).sum().backward()
    optimizer.step()
    assert not list((tmp_path / "b").glob("step*"))
    with TorchRecorder(tmp_path / "b", layer, optimizer) as recorder:
        recorder.add(optimizer={"class": "mine"})
        optimizer.step()
    # what the user adds takes precedence
    found = islices.files.read_metadata(tmp_path / "b/step-00000001.safetensors")["optimizer"]
    assert found == '{"": {"class": "mine"}}'
    with pytest.raises(TypeError, match=r"model: got .* accepted is a torch.nn.Module"):
        TorchRecorder(tmp_path / "c", 3, optimizer)
    with pytest.raises(ValueError, match="accepted are the model's own"):
        TorchRecorder(tmp_path / "c", torch.nn.Linear(1, 1), optimizer)
    assert not (tmp_path / "c").exists()


# ---------------------------------------------------------------------- states
STATES = {
    "SGD": {"lr": 0.1, "momentum": 0.9},
    "RMSprop": {"lr": 0.1, "momentum": 0.9, "centered": True},
    "SparseAdam": {"lr": 0.1},
}


@pytest.mark.parametrize("name", STATES)
def test_torch_goes_on_from_named_arrays(name: str, tmp_path: Path) -> None:
    """Check that three steps, a saved file, and two steps of a new optimizer give the bits of five steps."""
    torch = pytest.importorskip("torch")
    from islices.backends.torch import start_from, state_of

    make, sparse = getattr(torch.optim, name), name == "SparseAdam"

    def steps(layer: Any, optimizer: Any, some: range) -> None:
        for k in some:
            optimizer.zero_grad()
            (layer(torch.tensor(IDS[k % 4])) - 1).square().sum().backward()
            optimizer.step()

    def layer_from(x: Any) -> Any:
        return torch.nn.Embedding.from_pretrained(torch.tensor(x), freeze=False, sparse=sparse)

    whole = layer_from(START)
    steps(whole, make(whole.parameters(), **STATES[name]), range(5))
    first = layer_from(START)
    optimizer = make(first.parameters(), **STATES[name])
    steps(first, optimizer, range(3))
    islices.save(tmp_path / "state.safetensors", state_of(optimizer, first))
    second = layer_from(first.weight.detach().numpy())
    optimizer = make(second.parameters(), **STATES[name])
    states = islices.load(tmp_path / "state.safetensors")
    if name == "SGD":
        assert "step" not in states["weight"], "torch's SGD counts no steps"
        states["weight"]["step"] = np.array([3])
    start_from(optimizer, second, states, semantics="torch")
    steps(second, optimizer, range(3, 5))
    assert torch.equal(whole.weight, second.weight)


@pytest.mark.parametrize("name", ["adam", "sgd", "from_optim"])
def test_optax_goes_on_from_named_arrays(name: str) -> None:
    jax = pytest.importorskip("jax")
    optax = pytest.importorskip("optax")
    from islices.backends.jax.optax import from_optim, start_from, state_of

    options = {"momentum": 0.9} if name == "sgd" else {}
    own = from_optim(islices.optim.rowwise_adagrad(0.1))
    stepped = own if name == "from_optim" else getattr(optax, name)(0.1, **options)
    tx = optax.chain(optax.clip_by_global_norm(1.0), stepped)
    params = {"a": jax.numpy.asarray(START), "b": [jax.numpy.ones(3)]}

    def steps(params: Any, state: Any, count: int) -> tuple[Any, Any]:
        for _ in range(count):
            updates, state = tx.update(jax.tree.map(lambda x: x - 1, params), state, params)
            params = optax.apply_updates(params, updates)
        return params, state

    whole, _ = steps(params, tx.init(params), 5)
    half, state = steps(params, tx.init(params), 3)
    named = {k: {n: np.asarray(x) for n, x in arrays.items()} for k, arrays in state_of(state, half).items()}
    assert set(named) == {"a", "b.0"}
    again = start_from(tx.init(half), half, named, semantics="optax")
    assert jax.tree.structure(again) == jax.tree.structure(state)
    done, _ = steps(half, again, 2)
    assert all(map(np.array_equal, jax.tree.leaves(whole), jax.tree.leaves(done)))
    with pytest.raises(ValueError, match=r"states: got no 'b.0'; accepted are 'a', 'b.0'"):
        start_from(tx.init(half), half, {"a": named["a"]})
    array = next(key for key in named["a"] if key != "step")
    narrow = {"a": {**named["a"], array: named["a"][array][:5]}, "b.0": named["b.0"]}
    with pytest.raises(ValueError, match=rf"states\['a'\]\['{array}'\]: got shape \(5.*accepted for .* is \(12"):
        start_from(tx.init(half), half, narrow)


@pytest.mark.parametrize("semantics", ["torch", "keras"])
def test_momentum_goes_on_in_terms_of_the_other(semantics: str) -> None:
    """Check that torch and optax continue a trajectory from the momentum of torch or Keras."""
    torch, optax, jnp = pytest.importorskip("torch"), pytest.importorskip("optax"), pytest.importorskip("jax.numpy")
    from islices.backends.jax.optax import start_from as start_optax
    from islices.backends.torch import optim as torch_rows
    from islices.backends.torch import start_from as start_torch

    step = islices.optim.sgd(0.1, momentum=0.9, semantics=semantics, rows="all")
    gradients = np.random.default_rng(3).standard_normal((5, *START.shape)).astype(np.float32)
    table, state = START.copy(), step.init(START)
    for g in gradients[:3]:
        table, state = step.step(table, g, state)
    held, begun = {k: x.copy() for k, x in state.items()}, table.copy()
    held["step"] = np.array([3])
    for g in gradients[3:]:
        table, state = step.step(table, g, state)

    for make in (torch.optim.SGD, partial(torch_rows.SGD, semantics="keras", rows="all")):
        p = torch.nn.Parameter(torch.tensor(begun))
        optimizer = make([p], lr=0.1, momentum=0.9)
        start_torch(optimizer, {"w": p}, {"w": held}, semantics=semantics)
        for g in gradients[3:]:
            p.grad = torch.tensor(g)
            optimizer.step()
        np.testing.assert_allclose(p.detach().numpy(), table, rtol=1e-3, atol=1e-5)

    tx = optax.sgd(0.1, momentum=0.9)
    w = jnp.asarray(begun)
    after = start_optax(tx.init({"w": w}), {"w": w}, {"w": held}, semantics=semantics, learning_rate=0.1)
    for g in gradients[3:]:
        updates, after = tx.update({"w": jnp.asarray(g)}, after, {"w": w})
        w = optax.apply_updates({"w": w}, updates)["w"]
    np.testing.assert_allclose(np.asarray(w), table, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"none": {}}, r"states: got 'none'; accepted are parameters that the optimizer steps: 'weight'"),
        ({"weight": {"step": 1, "m": START}}, r"states\['weight'\]: got no 'v'; accepted are 'step', 'm', 'v'"),
        ({"weight": {"step": 1, "m": START, "v": START[:2]}}, r"v: got shape \(2, 4\); accepted .* \(12, 4\)"),
        ({"weight": {"step": 2.5, "m": START, "v": START}}, r"step: got float"),
    ],
)
def test_states_that_do_not_fit(given: Any, message: str) -> None:
    torch = pytest.importorskip("torch")
    from islices.backends.torch import start_from

    layer = torch.nn.Embedding(12, 4)
    optimizer = torch.optim.Adam(layer.parameters())
    with pytest.raises((TypeError, ValueError), match=message):
        start_from(optimizer, layer, given)
    assert not optimizer.state


# ---------------------------------------------------------------------- from Keras
def keras_run(optimizer: Any, steps: int, folder: Path | None = None) -> Any:
    """Train an embedding with model.fit for `steps` batches, each with two rows of ids, and return the model."""
    import keras

    model = keras.Sequential([keras.layers.Embedding(12, 4, name="words")])
    model(IDS)
    model.set_weights([START])
    model.compile(optimizer, lambda y, out: keras.ops.sum(keras.ops.square(out - 1), axis=-1))
    callbacks = []
    if folder is not None:
        from islices.backends.keras import KerasRecorder

        callbacks = [KerasRecorder(folder)]
    x = np.tile(IDS, (4, 1))[: 2 * steps]
    model.fit(x, np.ones((len(x), 2, 1)), batch_size=2, shuffle=False, verbose=0, callbacks=callbacks)
    return model


KERAS = {"learning_rate": 0.1, "global_clipnorm": 0.5}


def test_keras_recorder(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    import keras

    kind = keras.optimizers.SGD
    model = keras_run(kind(**KERAS), STEPS, tmp_path / "a")
    plain = keras_run(kind(**KERAS), STEPS)
    assert np.abs(model.get_weights()[0] - plain.get_weights()[0]).max() < 1e-6, "recording changes nothing"
    assert not model.run_eagerly
    assert "train_step" not in vars(model)
    keras_run(kind(**{**KERAS, "learning_rate": 0.1001}), STEPS, tmp_path / "b")
    check_runs(tmp_path)


# ---------------------------------------------------------------------- JAX
def test_optax_recorded(tmp_path: Path) -> None:
    jax = pytest.importorskip("jax")
    optax = pytest.importorskip("optax")
    import islices.backends.jax.optax as sparse_optax
    from islices.backends.jax.recorder import JaxRecorder

    def run(folder: Path, rate: float) -> None:
        recorder = JaxRecorder(folder)
        tx = sparse_optax.recorded(sparse_optax.on_rows(optax.adam(rate)), recorder)
        params = {"t": islices.Table(jax.numpy.asarray(START))}
        state = tx.init(params)

        def loss(params: Any, ids: Any) -> Any:
            return ((islices.lookup(params["t"], ids) - 1) ** 2).sum()

        def step(params: Any, state: Any, ids: Any) -> Any:
            value, grads = islices.value_and_grad(loss)(params, ids)
            recorder.add(loss=value, batch=ids)
            updates, state = tx.update(grads, state, params)
            return sparse_optax.apply_updates(params, updates), state

        step = jax.jit(step)
        for k in range(STEPS):
            params, state = step(params, state, jax.numpy.asarray(IDS[k]))
        jax.effects_barrier()
        recorder.step(tables=params)

    run(tmp_path / "a", 0.1)
    run(tmp_path / "b", 0.1)
    found = islices.parity(tmp_path / "a", tmp_path / "b", optimizer=None)
    assert found.equal
    assert len(found.steps) == STEPS + 1
    assert set(found.steps[0].positions) == {"batch", "start", "loss", "gradients", "step", "state"}
    run(tmp_path / "c", 0.11)
    found = islices.parity(tmp_path / "a", tmp_path / "c")
    assert (found.stop.step, found.stop.position) == (1, "step")
