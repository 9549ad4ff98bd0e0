"""What a recording says has taken a step: a description, which is likely, and certain where it makes the step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import islices.optim  # noqa: F401  # its records
from islices.arguments import is_real
from islices.compare.steps.recipe import NO_DECAY, Recipe
from islices.optim.record import RECORDS

__all__ = ["NOTHING", "SKIPPED", "Said", "said_by"]

#: AdamW is Adam with a decay of another kind.
SKIPPED = ("adamw",)
#: Bits that speak against what is not as it is said to be, for each thing that is not.
UNSAID = 6.0


class Said(NamedTuple):
    """What is said to have taken a step; "" where nothing is.

    numbers: the hyperparameters that are said too. other: the class of an optimizer that `islices.optim` does not have.
    assumed: nobody says so; a framework's own optimizers are as likely.
    """

    semantics: str = ""
    rows: str = ""
    name: str = ""
    numbers: tuple[tuple[str, Any], ...] = ()
    other: str = ""
    assumed: bool = False

    def against(self, r: Recipe) -> float:
        """Bits that it speaks against a recipe."""
        return UNSAID * (self.names_another(r) + (self.rows not in ("", r.rows)))

    def names_another(self, r: Recipe) -> int:
        """In how many of optimizer and semantics a recipe is not what is said."""
        return (self.semantics not in ("", r.semantics)) + (self.formula not in ("", r.name))

    @property
    def formula(self) -> str:
        """The optimizer by the name that recipes have, decay aside."""
        return "adam" if self.name in SKIPPED else self.name

    @property
    def claim(self) -> str:
        """In words."""
        return " of ".join(filter(None, (self.name, self.semantics)))

    def recipes(self) -> Sequence[Recipe]:
        """What it says, where it says all that decides a step: with the decay as either kind, where a formula has it
        within."""
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
    """What a description says, as `islices.Recorder.step` takes one."""
    given = dict(description or {})
    words = {k: str(given.pop(k, "")) for k in ("semantics", "rows", "name")}
    other, assumed = str(given.pop("class", "")), bool(given.pop("assumed", False))
    return Said(**words, other=other, assumed=assumed, numbers=tuple(given.items()))
