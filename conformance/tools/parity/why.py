"""Why two backends came too far apart: what they had at that step, explained as `islices.parity` explains any."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import islices
from islices.conformance.tools.parity.rounding import EPS, Rounded
from islices.conformance.tools.parity.run import Stop
from islices.conformance.tools.parity.text import PADDING
from islices.conformance.tools.parity.training import Recipe
from islices.trajectory.steps import Step, host_leaves
from islices.trajectory.why import Known
from islices.trajectory.why import explain as explain_position

__all__ = ["explain"]


def explain(stop: Stop, recipe: Recipe) -> Any:
    """The difference of the first that differs: gradients, clipped gradients, parameters after the step, state.

    Own gradients agree where they are within twice the error of the one by hand (`Rounded`); recorded ones to the bit.
    """
    known = Known(stop.names, recipe.max_norm, PADDING, recipe.model.batch_size, stop.tokens)
    position, (a, b) = _position(stop), _steps(stop)
    tensor = stop.table
    if position == "state":
        states = a.trees["state_after"], b.trees["state_after"]
        tensor = next(name for name in states[0] if not islices.diff(states[0][name], states[1][name]).equal)
    return explain_position(position, tensor, a, b, {}, known)[0]


def _position(stop: Stop) -> str:
    for position, (a, b), by_hand in (
        ("gradients", stop.gradients, stop.by_hand),
        ("clipped", stop.clipped, stop.clipped_by_hand),
    ):
        if not islices.diff(a, b).equal and not (by_hand and _agree(a, b, by_hand)):
            return position
    same = all(islices.diff(stop.after[0][name], stop.after[1][name]).equal for name in stop.after[0])
    return "state" if same else "step"


def _steps(stop: Stop) -> tuple[Step, Step]:
    """Both sides' step, as recordings have them."""
    made = []
    for k in (0, 1):
        states = {name.replace("/", "."): x for name, x in stop.states[k].items()}
        has = {
            "tables": stop.before[k], "gradients": stop.gradients[k], "clipped": stop.clipped[k],
            "tables_after": stop.after[k], "state_after": states,
        }  # fmt: skip
        made.append(Step(stop.step, {name: host_leaves(tree, name) for name, tree in has.items()}))
    return made[0], made[1]


def _agree(a: Mapping[str, Any], b: Mapping[str, Any], by_hand: Mapping[str, Rounded]) -> bool:
    apart = {name: abs(_dense(a[name]) - _dense(b[name])) for name in a}
    return all((x <= 2 * EPS * by_hand[name].error).all() for name, x in apart.items())


def _dense(x: Any) -> Any:
    return islices.get_backend(x).to_numpy(islices.to_dense(x)).astype(float)
