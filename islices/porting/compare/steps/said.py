"""Descriptions of what took a step, as recordings hold them: certain where the description makes the step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import islices.optim  # noqa: F401  # its records
from islices.core.arguments import is_real
from islices.optim.record import RECORDS
from islices.porting.compare.steps.recipe import NO_DECAY, Recipe

__all__ = ["NOTHING", "SKIPPED", "Said", "said_by"]

#: AdamW is Adam with a decay of another kind.
SKIPPED = ("adamw",)
#: Bits against a recipe for each word of the description that it contradicts.
UNSAID = 6.0


class Said(NamedTuple):
    """A description of what took a step; "" where it says nothing.

    numbers: its hyperparameters. other: the class of an optimizer that `islices.optim` does not have.
    """

    semantics: str = ""
    rows: str = ""
    name: str = ""
    numbers: tuple[tuple[str, Any], ...] = ()
    other: str = ""

    def against(self, r: Recipe) -> float:
        """Return the bits that it speaks against a recipe."""
        pairs = ((self.semantics, r.semantics), (self.formula, r.name), (self.rows, r.rows))
        return UNSAID * sum(word not in ("", other) for word, other in pairs)

    @property
    def formula(self) -> str:
        """The optimizer by the name that recipes have, decay aside."""
        return "adam" if self.name in SKIPPED else self.name

    def recipes(self) -> Sequence[Recipe]:
        """Return what it describes in full: with the decay as either kind, where a formula has it within."""
        given, record = dict(self.numbers), RECORDS.get(self.name)
        preset = None if record is None else record.presets.get(self.semantics)
        if preset is None or "lr" not in given or not self.rows or given.get("lr_decay"):
            return ()
        up, duplicates = bool(given.pop("maximize", False)), str(given.pop("duplicates", "sum"))
        if not all(isinstance(x, bool) or is_real(x) for x in given.values()):
            return ()
        hyper = {k: v for k, v in {**preset.defaults, **given}.items() if k not in NO_DECAY}
        plain = Recipe(self.formula, self.semantics, self.rows, duplicates, tuple(hyper.items()), up=up)
        decay = given.get("weight_decay")
        if not decay:
            return (plain,)
        kinds = ("decoupled",) if self.name in SKIPPED else ("coupled", "decoupled")
        return [replace(plain.having(weight_decay=float(decay)), decay=kind) for kind in kinds]


NOTHING = Said()


def said_by(description: Mapping[str, Any] | None) -> Said:
    """Read a description, as `islices.Recorder.step` takes one."""
    given = dict(description or {})
    words = {k: str(given.pop(k, "")) for k in ("semantics", "rows", "name")}
    other = str(given.pop("class", ""))
    return Said(**words, other=other, numbers=tuple(given.items()))
