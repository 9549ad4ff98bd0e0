"""Why two backends came too far apart: what they had at that step, handed to `islices.diff`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import islices
from islices.conformance.tools.parity.rounding import EPS, Rounded
from islices.conformance.tools.parity.run import Stop
from islices.conformance.tools.parity.text import PADDING
from islices.conformance.tools.parity.training import Recipe

__all__ = ["explain"]


def explain(stop: Stop, recipe: Recipe) -> Any:
    """The difference of the first that differs: gradients, clipped gradients, parameters after the step, state.

    Own gradients agree where they are within twice the error of the one by hand (`Rounded`); recorded ones to the bit.
    """
    context: dict[str, Any] = {"names": stop.names, "max_norm": recipe.max_norm, "padding_idx": PADDING}
    context |= {"batch_size": recipe.model.batch_size, "tokens": stop.tokens}
    raw = stop.gradients[0]
    for (a, b), by_hand, before in ((stop.gradients, stop.by_hand, None), (stop.clipped, stop.clipped_by_hand, raw)):
        found = islices.diff(a, b, before=before, **context)
        if not found.equal and not (by_hand and _agree(a, b, by_hand)):
            return found
    tables = islices.diff(stop.after[0], _second_from_first(stop), before=stop.before[0], grad=raw, **context)
    return islices.diff(*stop.states, names=stop.names) if tables.equal else tables


def _second_from_first(stop: Stop) -> dict[str, Any]:
    """The second backend's step, taken from where the first one stood: what they were apart before is no cause."""
    start, (before, after) = stop.before[0], (stop.before[1], stop.after[1])
    moved = {name: after[name].astype(np.float64) - before[name] for name in after}
    return {name: np.where(x == 0, start[name], start[name] + x).astype(np.float32) for name, x in moved.items()}


def _agree(a: Mapping[str, Any], b: Mapping[str, Any], by_hand: Mapping[str, Rounded]) -> bool:
    apart = {name: np.abs(_dense(a[name]) - _dense(b[name])) for name in a}
    return all((x <= 2 * EPS * by_hand[name].error).all() for name, x in apart.items())


def _dense(x: Any) -> Any:
    return islices.get_backend(x).to_numpy(islices.to_dense(x)).astype(np.float64)
