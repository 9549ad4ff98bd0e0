"""Each record beside the classes of torch, Keras and optax that it names: their defaults, 25 steps by their own code.

With the suite's settings of the optimizer, as far as the framework has them, on dense gradients. A difference is
counted in units of eps * (the sum over the steps of |x| + |change|), element by element, of weights and state. What
frameworks do with sparse gradients, and which bits are equal, stands in tests/islices/optim/presets/.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from islices import optim
from islices.conformance.oracle_optim import OPTIMIZERS
from islices.optim.record import RECORDS

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
ROWS, DIM, STEPS = 13, 5, 25
Run = Callable[[Any, np.ndarray[Any, Any], list[np.ndarray[Any, Any]]], Iterator[list[np.ndarray[Any, Any]]]]
#: What is not as the framework's signature has it: its flag is another argument, or it is told per feature.
ELSEWHERE = {("optax", "adam", "amsgrad"), ("keras", "adamw", "amsgrad")}


# ---------------------------------------------------------------------- the frameworks' own, step by step
def by_torch(make: Any, start: Any, grads: Any) -> Iterator[list[np.ndarray[Any, Any]]]:
    torch = pytest.importorskip("torch")
    p = torch.nn.Parameter(torch.from_numpy(start.copy()))
    optimizer = make([p])
    for grad in grads:
        p.grad = torch.from_numpy(grad)
        optimizer.step()
        yield [
            np.asarray(x).copy()
            for x in (p.detach(), *optimizer.state[p].values())
            if x is not None and x.shape == p.shape
        ]


def by_keras(make: Any, start: Any, grads: Any) -> Iterator[list[np.ndarray[Any, Any]]]:
    keras = pytest.importorskip("keras")
    if keras.backend.backend() != "tensorflow":
        pytest.skip("Keras runs on another backend than TensorFlow")
    variable, optimizer = keras.Variable(start, dtype=start.dtype.name), make()
    for grad in grads:
        optimizer.apply([keras.ops.convert_to_tensor(grad)], [variable])
        yield [np.asarray(x).copy() for x in (variable, *optimizer.variables) if x.shape == variable.shape]


def by_optax(make: Any, start: Any, grads: Any) -> Iterator[list[np.ndarray[Any, Any]]]:
    jax, optax = pytest.importorskip("jax"), pytest.importorskip("optax")
    transformation, params = make(), jax.numpy.asarray(start)
    state = transformation.init(params)
    for grad in grads:
        updates, state = transformation.update(jax.numpy.asarray(grad), state, params)
        params = optax.apply_updates(params, updates)
        yield [np.asarray(x).copy() for x in (params, *jax.tree.leaves(state)) if x.shape == params.shape]


RUNS: dict[str, Run] = {"torch": by_torch, "keras": by_keras, "optax": by_optax}
PRESETS = [(name, semantics) for name, record in RECORDS.items() for semantics in RUNS if semantics in record.presets]


def class_of(name: str, semantics: str) -> Any:
    """The framework's class, or function, of dense gradients."""
    sources = RECORDS[name].presets[semantics].source.split(", ")
    module, _, attribute = sources[-1 if semantics == "torch" else 0].rpartition(".")
    return getattr(pytest.importorskip(module), attribute)


def arguments(name: str, semantics: str, hyper: dict[str, Any]) -> dict[str, Any]:
    """The hyperparameters by the framework's names."""
    spelled = RECORDS[name].spelled(semantics)
    given = {spelled[ours]: x for ours, x in hyper.items() if ours not in ("beta1", "beta2") or semantics != "torch"}
    if semantics == "torch" and "beta1" in RECORDS[name].arguments:
        known = {**RECORDS[name].presets["torch"].defaults, **hyper}
        given["betas"] = (known["beta1"], known["beta2"])
    return given


@pytest.mark.parametrize(("name", "semantics"), PRESETS)
def test_defaults_are_the_frameworks_own(name: str, semantics: str) -> None:
    theirs = inspect.signature(class_of(name, semantics)).parameters
    for ours, default in RECORDS[name].presets[semantics].defaults.items():
        argument, _, place = RECORDS[name].spelled(semantics)[ours].partition("[")
        if (semantics, name, ours) in ELSEWHERE:
            continue
        own = theirs[argument].default
        own = own[int(place[0])] if place else own
        assert default == (None if own is inspect.Parameter.empty else own or type(default)(0)), (ours, own)


def settings() -> Iterator[Any]:
    for name, semantics in PRESETS:
        defaults = RECORDS[name].presets[semantics].defaults
        seen: list[dict[str, Any]] = []
        for label, (function, given) in OPTIMIZERS.items():
            hyper = {k: x for k, x in given.items() if k in defaults and (semantics, name, k) not in ELSEWHERE}
            if function == name and hyper not in seen:
                seen.append(hyper)
                yield pytest.param(name, semantics, hyper, id=f"{semantics}-{label}")


@pytest.mark.repeats_where(lambda dtype: dtype == "float64")
@pytest.mark.parametrize(("name", "semantics", "hyper"), list(settings()))
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.one_in(4)
def test_steps_are_the_frameworks_own(name: str, semantics: str, hyper: dict[str, Any], dtype: str) -> None:
    preset = RECORDS[name].presets[semantics]
    try:
        ours = getattr(optim, name)(**hyper, semantics=semantics, rows="all")
    except ValueError as refused:  # as the framework does
        with pytest.raises(ValueError, match=str(refused).partition(":")[0].capitalize()):
            next(RUNS[semantics](lambda *p: class_of(name, semantics)(*p, **arguments(name, semantics, hyper)),
                                 np.ones((1, 1), np.float32), [np.ones((1, 1), np.float32)]))  # fmt: skip
        return
    if semantics == "optax" and dtype == "float64":
        pytest.skip("JAX computes in float32 without x64")
    rng = np.random.default_rng(0)
    start = rng.standard_normal((ROWS, DIM)).astype(dtype)
    grads = [rng.standard_normal((ROWS, DIM)).astype(dtype) * (rng.random((ROWS, 1)) < 0.7) for _ in range(STEPS)]
    cls = class_of(name, semantics)
    steps = RUNS[semantics](lambda *p: cls(*p, **arguments(name, semantics, hyper)), start, grads)
    table, state = start.copy(), ours.init(start)
    names, last, sizes = ["w", *(k for k in state if k != "step")], {}, {}
    for grad, theirs in zip(grads, steps, strict=True):
        table, state = ours.step(table, grad, state)
        for key in names:
            x = table if key == "w" else state[key]
            sizes[key] = sizes.get(key, 0) + np.abs(x) + np.abs(x - last.get(key, 0 * x))
            last[key] = x.copy()
            units = [np.max(np.abs(x - y) / (np.finfo(dtype).eps * np.maximum(sizes[key], 1e-30))) for y in theirs]
            found = units[0] if key == "w" else min(units)
            assert found <= preset.within, f"{key}: {found} units"
    assert not np.array_equal(table, start), "nothing moved"


# ---------------------------------------------------------------------- the torch front
@pytest.mark.parametrize("name", [name for name, record in RECORDS.items() if "torch" in record.presets])
def test_states_go_to_torchs_class_and_back(name: str) -> None:
    torch = pytest.importorskip("torch")
    from islices.backends.torch import optim as front

    title, generator = RECORDS[name].title, torch.Generator().manual_seed(0)
    start = torch.randn(ROWS, DIM, generator=generator)
    grads = torch.randn(8, ROWS, DIM, generator=generator)

    def steps(optimizer: Any, parameter: Any, which: range) -> None:
        for k in which:
            parameter.grad = grads[k].clone()
            optimizer.step()

    def made(cls: Any, **options: Any) -> tuple[Any, Any]:
        p = torch.nn.Parameter(start.clone())
        return cls([p], lr=0.01, **options), p

    ours, theirs = getattr(front, title), getattr(torch.optim, title)
    reference, expected = made(theirs)
    steps(reference, expected, range(8))
    for first, second in ((ours, theirs), (theirs, ours)):
        options = [{"semantics": "torch"} if cls is ours else {} for cls in (first, second)]
        begun, p = made(first, **options[0])
        steps(begun, p, range(4))
        going_on, q = made(second, **options[1])
        going_on.load_state_dict(begun.state_dict())
        with torch.no_grad():
            q.copy_(p)
        steps(going_on, q, range(4, 8))
        torch.testing.assert_close(q, expected, rtol=1e-5, atol=1e-6)
