"""The traits in which two recipes may differ, by name; one recipe can copy a `Trait` from another.

To add a trait, add its record: search and report read only the record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

from islices.porting.compare.steps.recipe import Recipe

#: Learning rates nearer than this, relatively, are one: a semantics that rounds its corrections to float32 moves them.
CLOSE = 1e-4


@dataclass(frozen=True, eq=False)
class Trait:
    """One property of a recipe that affects its step.

    name: the cause's name, which programs read. of: a recipe -> its value. take: (recipe, other) -> the recipe with the
    other's value. says: (a, b, value of a, value of b) -> the sentence. weight: the cost that makes the search prefer
    other explanations.
    """

    name: str
    of: Callable[[Recipe], Any]
    take: Callable[[Recipe, Recipe], Recipe]
    says: Callable[[Recipe, Recipe], str]
    weight: float = 1.0

    def differs(self, a: Recipe, b: Recipe) -> bool:
        """Return True if two recipes have different values of the trait."""
        x, y = self.of(a), self.of(b)
        if x is None or y is None:
            return False
        if isinstance(x, float) and isinstance(y, float):
            return abs(x - y) > CLOSE * max(abs(x), abs(y))
        return bool(x != y)


def _number(name: str, cause: str = "", title: str = "") -> Trait:
    """Return the trait of a hyperparameter, which is a number or a flag."""

    def take(r: Recipe, other: Recipe) -> Recipe:
        return r if of(r) is None or of(other) is None else r.having(**{name: of(other)})

    def of(r: Recipe) -> Any:
        value = r.hyper.get(name)
        return value if value is None or isinstance(value, bool) else float(value)

    def says(a: Recipe, b: Recipe) -> str:
        x, y = (str(v) if isinstance(v, bool) else f"{v:.6g}" for v in (of(a), of(b)))
        return f"{title or name}: {{a}} {x}, {{b}} {y}"

    return Trait(cause or name, of, take, says)


def _choice(field: str, cause: str, title: str, texts: Mapping[Any, str], weight: float = 1.0) -> Trait:
    def says(a: Recipe, b: Recipe) -> str:
        return f"{title}: {{a}} {texts[getattr(a, field)]}, {{b}} {texts[getattr(b, field)]}"

    def take(r: Recipe, other: Recipe) -> Recipe:
        return replace(r, **{field: getattr(other, field)})

    return Trait(cause, attrgetter(field), take, says, weight)


def _optimizer(r: Recipe, other: Recipe) -> Recipe:
    """Return r with the other recipe's formula and numbers. Settings that do not belong to a formula stay."""
    taken = replace(other, rows=r.rows if r.rows in other.formula.rows else other.rows, decay=r.decay, up=r.up)
    return taken.having(weight_decay=_decay(r)) if r.decay else taken


def _say_rate(a: Recipe, b: Recipe) -> str:
    x, y = a.hyper["lr"], b.hyper["lr"]
    return f"learning rate: {{a}} steps by {x:.6g}, {{b}} by {y:.6g} ({x / y:.6g} to 1)"


def _decay(r: Recipe) -> float:
    return float(r.hyper.get("weight_decay", 0.0))


def _say_decay(a: Recipe, b: Recipe) -> str:
    texts = {
        "": "has none", "coupled": "adds {0:.6g} times the table to the gradient (coupled: l2)",
        "decoupled": "takes {0:.6g} times the learning rate off the table (decoupled: AdamW)",
    }  # fmt: skip
    parts = (texts[x.decay].format(_decay(x)) for x in (a, b))
    return "weight decay: " + ", ".join(f"{{{side}}} {text}" for side, text in zip("ab", parts, strict=True))


def _take_decay(r: Recipe, other: Recipe) -> Recipe:
    return replace(r.having(weight_decay=_decay(other)), decay=other.decay)


def _say_formula(a: Recipe, b: Recipe) -> str:
    places = [_epsilon_place(r) for r in (a, b)]
    if a.name == "adam" and places[0] != places[1]:
        return f"place of epsilon in {a.name}: {{a}} adds it {places[0]}, {{b}} {places[1]}"
    return f"formula of {a.name}: {{a}} computes as {a.semantics} does, {{b}} as {b.semantics}"


def _epsilon_place(r: Recipe) -> str:
    """Return the place where Adam adds epsilon, in words."""
    early = r.semantics in ("keras", "tensorflow", "mxnet") or (r.semantics == "torch" and r.rows == "touched")
    return "to the root before its bias is corrected" if early else "to the corrected root"


def _begins(r: Recipe) -> float | None:
    """Return the initial value of sums of squares; None for optimizers without them."""
    if r.name not in ("adagrad", "ftrl"):
        return None
    return float(r.hyper.get("initial_accumulator", 0.0))


def _take_formula(r: Recipe, other: Recipe) -> Recipe:
    known = other.hyper
    hyper = {**known, **{k: v for k, v in r.hyper.items() if k in known or k == "weight_decay"}}
    if "initial_accumulator" in known and "initial_accumulator" not in r.hyper:  # of formulas that always begin with 0
        hyper["initial_accumulator"] = _begins(r) or 0.0
    return replace(r, semantics=other.semantics, hyper=hyper)


ROWS = {"touched": "moves the rows that its gradient names alone", "all": "moves every row"}
DUPLICATES = {"sum": "sums duplicates before it squares them", "raw": "squares duplicates one by one"}
#: The plainest first.
TRAITS: tuple[Trait, ...] = (
    Trait(
        "optimizer", attrgetter("name"), _optimizer,
        lambda a, b: f"optimizer: {{a}} steps as {a.name} does, {{b}} as {b.name}", 3.0,
    ),
    _choice("up", "sign", "sign", {True: "follows its gradient upwards", False: "follows it down"}, 2.0),
    replace(_number("lr", "learning_rate"), says=_say_rate),
    _choice("rows", "lazy_step", "lazy against dense step", ROWS, 0.5),
    _choice("duplicates", "step_duplicates", "duplicates in the step", DUPLICATES),
    _number("eps", "step_epsilon", "epsilon of the step"),
    Trait("formula", attrgetter("semantics"), _take_formula, _say_formula, 0.25),
    Trait(
        "initial_accumulator", _begins,
        lambda r, other: r.having(initial_accumulator=_begins(other) or 0.0),
        lambda a, b: f"initial accumulator: {{a}} begins with {_begins(a):.6g}, {{b}} with {_begins(b):.6g}",
    ),
    Trait("weight_decay", lambda r: (r.decay, round(_decay(r), 12)) if r.decay else ("", 0.0), _take_decay, _say_decay),
    *map(_number, ("momentum", "nesterov", "beta1", "beta2", "rho", "amsgrad", "centered")),
)  # fmt: skip
