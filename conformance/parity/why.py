"""Why two backends came too far apart: what they had at that step, handed to `islices.diff`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import islices
from islices.conformance.parity.rounding import EPS, Rounded
from islices.conformance.parity.run import Stop
from islices.conformance.parity.text import PADDING
from islices.conformance.parity.training import Recipe

__all__ = ["explain"]

#: Roundings that `islices.diff` allows a row of two slots: (2 + 8) eps of the sum of their sizes (SPEC clause 22).
ALLOWED = 10.0


def explain(stop: Stop, recipe: Recipe) -> Any:
    """The difference of the two backends' gradients; of their parameters after the step where the gradients agree.

    Own gradients agree where they are within twice the error of the one by hand (`Rounded`); recorded ones to the bit.
    """
    context: dict[str, Any] = {"names": stop.names, "max_norm": recipe.max_norm, "padding_idx": PADDING}
    context |= {"batch_size": recipe.model.batch_size, "tokens": stop.tokens}
    a, b = stop.gradients
    found = islices.diff(a, b, **context)
    if found.equal or (stop.by_hand and _agree(a, b, stop.by_hand)):
        tables = islices.diff(stop.after[0], _second_from_first(stop), before=stop.before[0], grad=a, **context)
        return islices.diff(*stop.states, names=stop.names) if tables.equal else tables
    if found.causes or not stop.by_hand:
        return found
    # the last digits of two autodiffs are no cause, and would hide one: tell how far they may be apart
    again = islices.diff(islices.coalesce(a), islices.coalesce(b), before=_terms(a, stop.by_hand), **context)
    return again if again.causes else found


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


def _terms(a: Mapping[str, Any], by_hand: Mapping[str, Rounded]) -> dict[str, Any]:
    """The gradient by hand as two slots a row, so large that rounding them moves it as far as its error says."""

    def slots(x: Any, hand: Rounded) -> Any:
        if not isinstance(islices.convert(x, "numpy"), islices.IndexedSlices):
            return hand.value
        ids = np.unique(np.array(islices.convert(x, "numpy").indices))
        value, size = hand.value[ids], hand.error[ids] / ALLOWED
        return islices.IndexedSlices(
            np.concatenate([value + size, -size]), np.concatenate([ids, ids]), hand.value.shape
        )

    return {name: slots(x, by_hand[name]) for name, x in a.items()}
