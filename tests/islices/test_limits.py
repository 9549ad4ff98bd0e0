"""max_norm, lo and hi as 0-d arrays: the bits of the number they hold, checked where known, with a gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gradient_tapes import FRAMEWORKS, MODES, Tape, read

import islices
from islices.clip_formulas import BY_GLOBAL_NORM, BY_NORM

X = np.array([[3, 4], [1, 0]], np.float32)


def slices(x: Any) -> Any:
    return islices.IndexedSlices(x, np.array([1, 1]), (3, 2))


def samples(x: Any) -> Any:
    return islices.per_sample(x, np.array([0, 1]), 3)


#: name -> (call of an array and a limit, factors): what each element is multiplied by, as a function of its norm.
CLIPS: dict[str, Callable[[Any, Any], Any]] = {
    "clip_by_norm": lambda x, m: islices.clip_by_norm(x, m),
    "clip_by_norm, slices": lambda x, m: islices.clip_by_norm(slices(x), m).values,
    "clip_by_row_norm": lambda x, m: islices.clip_by_row_norm(x, m),
    "clip_by_row_norm, slices": lambda x, m: islices.clip_by_row_norm(slices(x), m).values,
    "clip_by_global_norm": lambda x, m: islices.clip_by_global_norm([x, slices(x)], m)[0][1].values,
    "clip_per_sample": lambda x, m: islices.clip_per_sample([samples(x), x], m)[0][1],
    "PerSample.clip": lambda x, m: samples(x).clip(m).values,
    **{
        f"global, {name}": lambda x, m, name=name: islices.clip_by_global_norm([x], m, semantics=name)[0][0]
        for name in BY_GLOBAL_NORM
    },
    **{f"by norm, {name}": lambda x, m, name=name: islices.clip_by_norm(x, m, semantics=name) for name in BY_NORM},
}
ROWS = np.array([[5.0], [1.0]])
#: the norms that decide about each element
NORMS = {
    "clip_by_norm, slices": np.sqrt(32.0),
    "clip_by_row_norm": ROWS,
    "clip_by_row_norm, slices": np.sqrt(32.0),
    "clip_by_global_norm": np.sqrt(58.0),
    "clip_per_sample": ROWS * np.sqrt(2.0),
    "PerSample.clip": ROWS,
}


@pytest.mark.repeats_where(lambda framework, mode, limit: limit != 1.25 and (framework == "jax" or mode != "eager"))
@pytest.mark.parametrize(("framework", "mode"), MODES)
@pytest.mark.parametrize("limit", [1.25, 9.0, 0.0])
@pytest.mark.one_in(3)
def test_an_array_clips_as_its_number_and_has_a_gradient(framework: str, mode: str, limit: float) -> None:
    tape = Tape(framework, mode)
    names = [name for name in CLIPS if mode != "compiled" or framework != "jax" or not name.startswith("by norm")]
    most, g = np.array([limit], np.float32), np.array([[1, -2], [3, 1]], np.float32)
    for name in names:
        clip = CLIPS[name]
        with tape.running():
            run = tape.backend.trace(clip) if mode == "compiled" else clip
            got = read(tape.backend, run(tape.array(X), tape.array(most)))
        np.testing.assert_array_equal(got, clip(X, limit), err_msg=name)
        (gradient,) = tape.gradients(lambda m, f=clip: tape.weighted([(f(tape.array(X), m), tape.array(g))]), most)
        norms = NORMS.get(name, np.sqrt(26.0))
        slack = 1e-6 if "torch" in name else 1e-8 if "mxnet" in name else 0.0
        want = float((g * X / (norms + slack) * (norms > limit)).sum())
        np.testing.assert_allclose(gradient, want, rtol=0, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_known_numbers_are_checked(framework: str) -> None:
    B = islices.get_backend(framework)
    x = B.asarray(X)
    for bad, error, text in (
        (np.array([-1.0]), ValueError, "max_norm: got -1.0"),
        (np.array([np.nan]), ValueError, "max_norm: got nan"),
        (np.ones(2, np.float32), TypeError, "max_norm"),
    ):
        for clip in (islices.clip_by_norm, islices.clip_by_row_norm, islices.clip_by_global_norm):
            with B.wide_types(), pytest.raises(error, match=text):
                clip(x, B.asarray(bad))
    lo, hi = (B.asarray(np.array([v], np.float32)) for v in (1.0, -1.0))
    with pytest.raises(ValueError, match="lo and hi"):
        islices.clip_by_value(x, lo, hi)
    with pytest.raises(ValueError, match="densify first"):
        islices.clip_by_value(slices(x), lo, 2.0)


@pytest.mark.parametrize("framework", [name for name, mode in MODES if mode == "compiled"])
def test_traced_limits_that_are_no_limits(framework: str) -> None:
    tape = Tape(framework, "compiled")
    with tape.running():
        clip = tape.backend.trace(lambda x, m: islices.clip_by_norm(x, m))
        negative, nan = (read(tape.backend, clip(tape.array(X), tape.array(np.float32([v])))) for v in (-1, np.nan))
        np.testing.assert_array_equal(negative, 0 * X)
        assert np.isnan(nan).all()
        limited = tape.backend.trace(lambda x, lo, hi: islices.clip_by_value(x, lo, hi))
        got = read(tape.backend, limited(*(tape.array(v) for v in (X, np.float32([2]), np.float32([1])))))
        np.testing.assert_array_equal(got, np.ones_like(X))


@pytest.mark.parametrize(("framework", "mode"), MODES)
def test_bounds_have_a_gradient(framework: str, mode: str) -> None:
    tape = Tape(framework, mode)
    x, g = np.array([[-3, 2], [1, 4]], np.float32), np.array([[1, -2], [3, 5]], np.float32)

    def loss(x: Any, lo: Any, hi: Any) -> Any:
        return tape.weighted([(islices.clip_by_value(x, lo, hi), tape.array(g))])

    by_x, by_lo, by_hi = tape.gradients(loss, x, np.float32([-1]), np.float32([2]))
    np.testing.assert_array_equal(by_x, [[0, -2], [3, 0]])
    assert (by_lo, by_hi) == ([1], [5])


def test_torchs_front_takes_a_tensor() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from islices.backends.torch import clip_grad_norm_

    a, b = (torch.nn.Parameter(torch.tensor([1.0])) for _ in range(2))
    a.grad, b.grad = torch.tensor([8.0]), torch.tensor([8.0])
    limit = torch.tensor(2.0, requires_grad=True)
    assert clip_grad_norm_([a], limit) == clip_grad_norm_([b], 2.0)
    assert torch.equal(a.grad, b.grad)
    assert not a.grad.requires_grad, "as torch's own, it records nothing"


def test_optaxs_front_takes_a_traced_limit() -> None:
    pytest.importorskip("optax", reason="optax is not installed")
    import jax
    import jax.numpy as jnp

    from islices.backends.jax import optax as front

    def step(limit: Any, x: Any) -> Any:
        how = front.clip_by_global_norm(limit)
        return how.update(x, how.init(x))[0].sum()

    by_limit = jax.jit(jax.grad(step))(jnp.float32(1.25), jnp.asarray(X))
    np.testing.assert_allclose(by_limit, X.sum() / np.sqrt(26.0), rtol=1e-6)
