"""Test which steps and results the judge accepts, which values it judges, and what it reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import islices
from islices import cli
from islices.conformance import judge

single = np.float32


def sgd(w: Any, g: Any, state: Any, t: int, *, lr: float) -> Any:
    return w - single(lr) * g


def adagrad(w: Any, g: Any, state: Any, t: int, *, lr: float, eps: float) -> Any:
    """Take a step of FBGEMM's Adagrad, which sums duplicates first."""
    rows, places = np.unique(g.indices, return_inverse=True)
    total = np.zeros((len(rows), w.shape[1]), np.float32)
    np.add.at(total, places, g.values)
    state["accumulator"][rows] += total * total
    w[rows] -= single(lr) * total / (np.sqrt(state["accumulator"][rows]) + single(eps))


# ---------------------------------------------------------------------- results of a step
def in_place(w: Any, g: Any, state: Any, t: int, *, lr: float) -> None:
    w -= single(lr) * g


def with_state(w: Any, g: Any, state: Any, t: int, *, lr: float) -> Any:
    return w - single(lr) * g, state


def in_float64(w: Any, g: Any, state: Any, t: int, **options: Any) -> Any:
    if options["momentum"]:
        raise NotImplementedError("no momentum")
    g = g + options["weight_decay"] * w
    return (w.astype(np.float64) - options["lr"] * g).astype(np.float32)


@pytest.mark.parametrize("step", [sgd, in_place, with_state])
def test_a_step_gives_its_weights_in_any_form(step: Any) -> None:
    found = judge(step, "torch.SGD")
    assert (found.passed, found.grade, found.cause) == (True, 1, None)
    assert found.unsupported.keys() == {
        "momentum and schedule", "nesterov", "dampening", "decay", "decay and momentum"
    }  # fmt: skip
    assert {s.array for s in found.scores} == {"weights"}


def test_what_raises_notimplementederror_is_unsupported() -> None:
    found = judge(in_float64, "torch.SGD")
    assert found.grade == 1
    assert found.unsupported["nesterov"] == "no momentum"
    assert {s.trajectory for s in found.scores} == {"sizes", "decay", "vast"}


def test_rows_and_states_are_judged() -> None:
    found = judge(adagrad, "fbgemm.EXACT_ADAGRAD")
    assert found.grade == 1, str(found)
    assert {s.array for s in found.scores} == {"weights", "accumulator"}
    assert found.unjudged == ()


def test_a_state_that_nobody_touches_is_not_judged() -> None:
    def step(w: Any, g: Any, state: Any, t: int, *, lr: float, eps: float) -> Any:
        own = {"accumulator": state.setdefault("own", np.zeros_like(w))}
        adagrad(w, g, own, t, lr=lr, eps=eps)

    found = judge(step, "fbgemm.EXACT_ADAGRAD")
    assert found.passed
    assert found.unjudged == ("accumulator",)
    assert "Not judged" in str(found)


def test_rows_that_nothing_names_keep_their_bits() -> None:
    def step(w: Any, g: Any, state: Any, t: int, **options: Any) -> Any:
        adagrad(w, g, state, t, lr=options["lr"], eps=options["eps"])
        return w * single(1 + 2**-23)

    assert not judge(step, "fbgemm.EXACT_ADAGRAD").passed


def test_nan_is_outside() -> None:
    found = judge(lambda w, g, state, t, **options: w * single("nan"), "sparsecore.sgd")
    assert found.grade is None
    assert all(s.by_grade == (np.inf, np.inf) for s in found.scores)


# ---------------------------------------------------------------------- calls that raise
@pytest.mark.parametrize(
    ("step", "formula", "error", "says"),
    [
        (sgd, "torch.Adamw", ValueError, r"got 'torch\.Adamw'; did you mean .*torch\.AdamW"),
        (sgd, "zzz", ValueError, r"accepted are torch\.Adam, "),
        (sgd, 3, TypeError, "formula: got int"),
        (3, "torch.SGD", TypeError, "step: got int; accepted is a callable"),
        (lambda w, g, s, t, **o: w[:1], "torch.SGD", ValueError, r"weights: got float32\[1, 8\]; accepted is"),
        (lambda w, g, s, t, **o: w > 0, "torch.SGD", ValueError, r"weights: got bool"),
        (lambda w, g, s, t, **o: (w, w), "torch.SGD", ValueError, "accepted are None, weights, "),
        (lambda w, g, s, t, **o: "w", "torch.SGD", ValueError, "weights: got <U1"),
        (lambda w, g, s, t, **o: w.astype("f2"), "torch.SGD", ValueError, r"weights: got float16.*accepted is float32"),
        (lambda w, g, s: w, "optax.sgd", TypeError, r"takes 3 arguments by place; accepted is step\(weights, grad, "),
        (lambda w, g, m, v, t: w, "optax.sgd", TypeError, r"it asks for t; accepted is .*\*, lr, momentum, nesterov\)"),
        (lambda w, g, s, t, *, learning_rate, b=1: w, "optax.sgd", TypeError, "it asks for learning_rate; accepted"),
    ],
)
def test_what_cannot_be_judged_is_told(step: Any, formula: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        judge(step, formula)


def test_gradients_and_weights_are_the_steps_own() -> None:
    """Check that a step may overwrite its arguments. The judgement of the next call stays the same."""

    def step(w: Any, g: Any, state: Any, t: int, *, lr: float) -> Any:
        if isinstance(g, islices.IndexedSlices):
            np.subtract.at(w, g.indices, single(lr) * g.values)
            g.values[:] = 7.0
        else:
            w -= single(lr) * g
            g[:] = 7.0

    for formula in ("sparsecore.sgd", "tensorflow.GradientDescent"):
        assert judge(step, formula) == judge(step, formula)


# ---------------------------------------------------------------------- fixture and command
def test_the_fixture(islices_judge: Any) -> None:
    assert islices_judge(sgd, "torch.SGD", grade=1).grade == 1
    with pytest.raises(pytest.fail.Exception, match=r"torch\.SGD: outside the bound"):
        islices_judge(lambda w, g, s, t, **o: w, "torch.SGD")


SOURCE = """
import numpy as np
def right(w, g, state, t, *, lr):
    return w - np.float32(lr) * g
def wrong(w, g, state, t, *, lr):
    return w + np.float32(lr) * g
def broken(w, g, state, t, **options):
    raise RuntimeError("mine")
def theirs(w, g, state, t, *, lr):
    state["exp_avg"] += g
def leaves(w, g, state, t, *, lr):
    import sys
    sys.exit()
number = 3
"""


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--formula", "torch.SGD", "{}:right"], 0, "torch.SGD: within the bound, grade 1"),
        (["--formula", "torch.SGD", "{}:wrong"], 1, "torch.SGD: outside the bound"),
        (["--formula", "torch.SGD", "{}:broken"], 3, "RuntimeError: mine"),
        (["--formula", "torch.SGD", "{}:leaves"], 3, "torch.SGD, trajectory 'sizes', step 1"),
        (["--formula", "torch.SGD", "{}:theirs"], 3, "the state begins with momentum"),
        (["--list", "--formula", "fbgemm.EXACT_ROWWISE_ADAGRAD"], 0, "state: accumulator of shape (rows, 1)"),
        (
            ["--formula", "torch.SGD", "{}:number"],
            2,
            "got 'number'; accepted is a function of it: right, wrong, broken",
        ),
        (["--formula", "torch.SGDs", "{}:right"], 2, "did you mean torch.SGD"),
        (["--formula", "torch.SGD", "nowhere.py:right"], 2, "nowhere.py: no such file"),
        (["{}:right"], 2, "kernel.py:right without --formula NAME; `islices judge --list` shows the names"),
    ],
)
def test_the_command(tmp_path: Path, capsys: Any, arguments: list[str], code: int, says: str) -> None:
    file = tmp_path / "kernel.py"
    file.write_text(SOURCE, "utf-8")
    assert cli.main(["judge", *(x.format(file) for x in arguments)]) == code
    out, err = capsys.readouterr()
    assert says in out + err
    assert "\x1b" not in out


def test_where_a_mistake_begins_is_told_and_where_it_leads() -> None:
    def step(w: Any, g: Any, state: Any, t: int, *, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float) -> Any:  # noqa: E501  # fmt: skip
        joined = g + single(weight_decay) * w
        m = state["m"] = single(beta1) * state["m"] + single(1 - beta1) * joined
        v = state["v"] = single(beta2) * state["v"] + single(1 - beta2) * g * g
        return w - single(lr) * (m / single(1 - beta1**t)) / (np.sqrt(v / single(1 - beta2**t)) + single(eps))

    with np.errstate(all="ignore"):
        found = judge(step, "torch.Adam")
    assert found.cause == "decay joined to the gradient, but not to its squares"
    assert "First: v[" in str(found)
    assert "after step 1 of 'decay'" in str(found)
