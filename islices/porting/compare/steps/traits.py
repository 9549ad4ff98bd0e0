"""Define the traits in which two recipes may differ, such as the learning rate. A `Trait` can copy its value from one
recipe to another.

To add a trait, add its record to `TRAITS`. The search and the report need no other change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from islices.porting.compare.steps.recipe import Recipe

#: Two numbers count as equal if their relative distance is at most this number. Some frameworks round bias corrections
#: to float32, which changes the estimated learning rate slightly.
CLOSE = 1e-4


@dataclass(frozen=True, eq=False)
class Trait:
    """One property of a recipe that affects its step.

    `name` is the name of the cause, which never changes. The function `of` returns a recipe's value of the trait. The
    function `take` gets two recipes, and returns the first recipe with the second recipe's value. The function `says`
    gets the recipes of a and b, and returns a sentence for the report. `weight` is the cost of the trait in the search,
    in units of explain.WEIGHT.
    """

    name: str
    of: Callable[[Recipe], Any]
    take: Callable[[Recipe, Recipe], Recipe]
    says: Callable[[Recipe, Recipe], str]
    weight: float = 1.0

    def differs(self, a: Recipe, b: Recipe) -> bool:
        """Return True if both recipes have the trait, and their values are different."""
        x, y = self.of(a), self.of(b)
        if x is None or y is None:
            return False
        if isinstance(x, float) and isinstance(y, float):
            return abs(x - y) > CLOSE * max(abs(x), abs(y))
        return bool(x != y)


def _setting(
    key: str, cause: str = "", title: str = "", words: Mapping[Any, str] | None = None, weight: float = 1.0
) -> Trait:
    """Make the trait for one setting of recipes. The setting is a number, a flag, or one of several words."""

    def of(r: Recipe) -> Any:
        value = r[key]
        return value if value is None or isinstance(value, (bool, str)) else float(value)

    def take(r: Recipe, other: Recipe) -> Recipe:
        return r if of(r) is None or of(other) is None else r.having(**{key: of(other)})

    def says(a: Recipe, b: Recipe) -> str:
        x, y = (words[v] if words else str(v) if isinstance(v, bool) else f"{v:.6g}" for v in (of(a), of(b)))
        return f"{title or key}: {{a}} {x}, {{b}} {y}"

    return Trait(cause or key, of, take, says, weight)


def _take_optimizer(r: Recipe, other: Recipe) -> Recipe:
    """Return the recipe `other` with r's setting "rows", weight decay and sign. If the formula of `other` does not
    support this setting of "rows", the result keeps the setting of `other`."""
    rows = r["rows"] if r["rows"] in other.formula.rows else other["rows"]
    taken = other.having(rows=rows, decay=r["decay"], up=r["up"])
    return taken.having(weight_decay=_decay(r)) if r["decay"] else taken


def _say_rate(a: Recipe, b: Recipe) -> str:
    x, y = a["lr"], b["lr"]
    return f"learning rate: {{a}} steps by {x:.6g}, {{b}} by {y:.6g} ({x / y:.6g} to 1)"


def _decay(r: Recipe) -> float:
    return float(r["weight_decay"] or 0.0)


def _say_decay(a: Recipe, b: Recipe) -> str:
    texts = {
        "": "has none", "coupled": "adds {0:.6g} times the table to the gradient (coupled: l2)",
        "decoupled": "takes {0:.6g} times the learning rate off the table (decoupled: AdamW)",
    }  # fmt: skip
    x, y = (texts[r["decay"]].format(_decay(r)) for r in (a, b))
    return f"weight decay: {{a}} {x}, {{b}} {y}"


def _say_formula(a: Recipe, b: Recipe) -> str:
    name, (x, y) = a["optimizer"], map(_epsilon_place, (a, b))
    if name == "adam" and x != y:
        return f"place of epsilon in {name}: {{a}} adds it {x}, {{b}} {y}"
    return f"formula of {name}: {{a}} computes as {a['semantics']} does, {{b}} as {b['semantics']}"


def _epsilon_place(r: Recipe) -> str:
    """Return a phrase that says where Adam adds epsilon."""
    semantics = r["semantics"]
    early = semantics in ("keras", "tensorflow", "mxnet") or (semantics == "torch" and r["rows"] == "touched")
    return "to the root before its bias is corrected" if early else "to the corrected root"


def _begins(r: Recipe) -> float | None:
    """Return the initial value of the sums of squares, or None for an optimizer that does not sum squares."""
    return float(r["initial_accumulator"] or 0.0) if r["optimizer"] in ("adagrad", "ftrl") else None


def _take_formula(r: Recipe, other: Recipe) -> Recipe:
    ours = {"initial_accumulator": 0.0, **r.settings}  # formulas without this setting start from zero
    kept = {k: v for k, v in ours.items() if k in other.settings or k == "weight_decay"}
    return replace(r, settings={**other.settings, **kept, "semantics": other["semantics"]})


ROWS = {"touched": "moves the rows that its gradient names alone", "all": "moves every row"}
DUPLICATES = {"sum": "sums duplicates before it squares them", "raw": "squares duplicates one by one"}
#: All traits, in the order of the report, except that the report puts "formula" last.
TRAITS: tuple[Trait, ...] = (
    Trait(
        "optimizer", lambda r: r["optimizer"], _take_optimizer,
        lambda a, b: f"optimizer: {{a}} steps as {a['optimizer']} does, {{b}} as {b['optimizer']}", 3.0,
    ),
    _setting("up", "sign", "sign", {True: "follows its gradient upwards", False: "follows it down"}, 2.0),
    replace(_setting("lr", "learning_rate"), says=_say_rate),
    _setting("rows", "lazy_step", "lazy against dense step", ROWS, 0.5),
    _setting("duplicates", "step_duplicates", "duplicates in the step", DUPLICATES),
    _setting("eps", "step_epsilon", "epsilon of the step"),
    Trait("formula", lambda r: r["semantics"], _take_formula, _say_formula, 0.25),
    Trait(
        "initial_accumulator", _begins, lambda r, other: r.having(initial_accumulator=_begins(other) or 0.0),
        lambda a, b: f"initial accumulator: {{a}} begins with {_begins(a):.6g}, {{b}} with {_begins(b):.6g}",
    ),
    Trait(
        "weight_decay", lambda r: (r["decay"], round(_decay(r), 12)) if r["decay"] else ("", 0.0),
        lambda r, other: r.having(weight_decay=_decay(other), decay=other["decay"]), _say_decay,
    ),
    *map(_setting, ("momentum", "nesterov", "beta1", "beta2", "rho", "amsgrad", "centered")),
)  # fmt: skip
