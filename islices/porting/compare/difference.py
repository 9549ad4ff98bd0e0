"""`diff`: two gradients, or two tables, of whichever frameworks: where they differ, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from islices.core.arguments import is_real, show, whole_number
from islices.core.host import quiet
from islices.core.registry import describe
from islices.norms.limits import check_max_norm
from islices.porting.compare.comparison import Context
from islices.porting.compare.explanation import Explanation, name_sides
from islices.porting.compare.measure import TensorDifference, measure
from islices.porting.compare.pairing import Both, leaves_beside, read_both, states_beside
from islices.porting.compare.picture import draw
from islices.porting.compare.show import as_json, report
from islices.porting.compare.steps.given import Given, steps_differ
from islices.porting.compare.steps.said import said_by
from islices.porting.compare.why import Leaves, why

__all__ = ["STATES_HINT", "Difference", "compare_clipped", "compare_steps", "diff", "side_names"]

STATES_HINT = "hint: steps were taken for first ones; states= (--states) lets later ones be explained"


@dataclass(frozen=True, eq=False)
class Difference:
    """What `diff` found; str() is the report.

    Attributes
    ----------
    equal : bool
        Every tensor is on both sides, with the same bits (SPEC clause 22).
    tensors : tuple of TensorDifference
        One for each tensor that both sides have.
    causes : tuple of Explanation
        What makes the sides equal, the most specific first: each one cause, or two that act together. Empty where the
        sides are equal, and where nothing known explains the difference.
    only_a, only_b : tuple of str
        Tensors that one side alone has.
    names : (str, str)
        What the sides are called.
    rounding : bool
        The sides differ by no more than the bound on rounding.
    arithmetic : float or None
        The sides differ by more than that, but by no more than the arithmetic of two models may: by this part of a
        tensor's largest |value|.
    notes : tuple of str
    frameworks : (str, str)
        Both sides'; "" where a side's arrays say it.
    """

    equal: bool
    tensors: tuple[TensorDifference, ...]
    causes: tuple[Explanation, ...]
    only_a: tuple[str, ...] = ()
    only_b: tuple[str, ...] = ()
    names: tuple[str, str] = ("a", "b")
    rounding: bool = False
    arithmetic: float | None = None
    notes: tuple[str, ...] = ()
    frameworks: tuple[str, str] = ("", "")

    def __str__(self) -> str:
        return report(self)

    def report(self, *, verbose: bool = False) -> str:
        """The report: the verdict, why, what mends it, and where.

        Parameters
        ----------
        verbose : bool
            Every tensor, with the rows that differ.

        Returns
        -------
        str
        """
        return report(self, verbose=verbose)

    def __bool__(self) -> bool:
        raise TypeError("the truth value of a Difference is ambiguous: say .equal")

    def to_json(self) -> dict[str, Any]:
        """Everything as a dict that json.dumps takes; its keys are described in docs/diff.md."""
        return as_json(self)

    def plot(self, path: Any) -> None:
        """Write a picture of the rows that differ; the suffix says the format. Needs matplotlib (extra `plot`).

        Parameters
        ----------
        path : str or path-like

        Raises
        ------
        ModuleNotFoundError
            matplotlib is not installed; the message gives the line that installs it.
        ValueError
            matplotlib does not write files of that suffix.
        """
        draw(self, path)


def diff(
    a: Any,
    b: Any,
    *,
    names: Sequence[str] = ("a", "b"),
    before: Any = None,
    grad: Any = None,
    max_norm: float | None = None,
    padding_idx: int | None = None,
    batch_size: int | None = None,
    tokens: int | None = None,
    pair: Mapping[str, str] | None = None,
    only: str | None = None,
    tables: Any = None,
    states: Any = None,
) -> Difference:
    """Compare two gradients, or two tables, and say why they differ.

    Parameters
    ----------
    a, b : sparse gradient, dense array, None, or a list, tuple or dict of them, nested
        Of any framework, of two different ones too. Leaves are paired by name (keys and positions, joined by dots);
        two trees without a common name are paired by position where their shapes agree.
    names : (str, str)
        What the report calls the sides.
    before : tree like a, optional
        What both were computed from: the raw gradient before clipping (uncoalesced is best: duplicates show), or the
        tables before a step where a and b are tables.
    grad : tree like a, optional
        For tables: the step's gradients, whose rows a lazy optimizer moves.
    max_norm : float, optional
        The limit that either side was, or should have been, clipped to.
    padding_idx : int, optional
        The padding row; negative counts from the end.
    batch_size, tokens : int, optional
        Numbers that a mean may have divided by.
    pair : mapping of str to str, optional
        Names in a -> names in b, for tensors that are called differently.
    only : str, optional
        Compare this tensor (of a) alone.
    tables : tree like a, optional
        For gradients: the tables that they are of, which a regulariser adds to them.
    states : dict of str to dict, or a tuple of two, of a and of b; optional
        For tables: each table's state before the step, its arrays by islices' names or the framework's, and "step", the
        steps taken before. Without it the step is taken for the first.

    Returns
    -------
    Difference

    Raises
    ------
    TypeError, ValueError
        A leaf of no known framework; names that do not exist; options that are no such numbers.

    Notes
    -----
    Gradients are compared as what they denote: by coalesced rows (SPEC clause 4). A cause is named only if it makes the
    sides equal, to the bit or within a stated bound on rounding, on more elements than would agree by chance (SPEC
    clause 22).

    Examples
    --------
    >>> import numpy as np
    >>> from islices import IndexedSlices
    >>> rows = np.array([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]], np.float32)
    >>> kept = IndexedSlices(rows, np.array([0, 2, 5]), (6, 2))
    >>> dropped = IndexedSlices(rows[1:], np.array([2, 5]), (6, 2))
    >>> found = diff(kept, dropped, padding_idx=0)
    >>> found.equal, [cause.names for cause in found.causes]
    (False, [('padding',)])
    """
    called = side_names(names)
    context = _context(called, max_norm, padding_idx, batch_size, tokens)
    both = read_both(a, b, pair, only)
    extra = [
        leaves_beside(tree, both.pairs, argument)
        for tree, argument in ((before, "before"), (grad, "grad"), (tables, "tables"))
    ]
    started, named, held = extra
    sides = None
    if started is not None and named is not None:
        sa, sb = states if isinstance(states, tuple) and len(states) == 2 else (states, states)
        given = [states_beside(tree, both.pairs, argument) for tree, argument in ((sa, "states"), (sb, "states"))]
        sides = [Given(started, named, state) for state in given]
    return _compared(both, called, context, Also(started, named, held), sides)


def compare_steps(a: Any, b: Any, *, names: Sequence[str], padding_idx: int | None) -> Difference:
    """`islices.porting.compare.explain_steps`."""
    called = side_names(names)
    both = read_both(a.after, b.after, None, None)
    sides = []
    for side, x in (("a", a), ("b", b)):
        before, gradient = (leaves_beside(getattr(x, n), both.pairs, f"{side}.{n}") for n in ("before", "gradient"))
        if before is None or gradient is None:
            raise ValueError(f"{side}: got a Step without before or gradient; accepted is one with both")
        state, after = (states_beside(getattr(x, n), both.pairs, f"{side}.{n}") for n in ("state", "state_after"))
        sides.append(Given(before, gradient, state, after, said_by(x.optimizer)))
    return _compared(both, called, _context(called, None, padding_idx), Also(), sides)


def compare_clipped(a: Any, b: Any, raw: Any, names: Sequence[str], **said: Any) -> Difference:
    """What `diff` finds of gradients of which the raw one is known; said: its options that numbers are."""
    called = side_names(names)
    both = read_both(a, b, None, None)
    also = Also(leaves_beside(raw, both.pairs, "before"))
    return _compared(both, called, _context(called, **said), also, None, gradients=True)


class Also(NamedTuple):
    """What both sides share: before, the gradients of a step, and the tables; a leaf for each pair."""

    before: Leaves = None
    grad: Leaves = None
    tables: Leaves = None

    def some(self, told: Sequence[int]) -> Also:
        return Also(*(None if x is None else [x[k] for k in told] for x in self))


def _compared(
    both: Both,
    called: tuple[str, str],
    context: Context,
    also: Also,
    sides: Sequence[Given] | None,
    *,
    gradients: bool = False,
) -> Difference:
    stored = both.stored
    tensors = tuple(measure(x, y) for x, y in stored)
    tensors = tuple(replace(t, notes=tuple(name_sides(note, called) for note in t.notes)) for t in tensors)
    equal = all(t.equal for t in tensors) and not both.only_a and not both.only_b
    causes: tuple[Explanation, ...] = ()
    rounding, arithmetic = False, None
    if not all(t.equal or t.shapes_alone for t in tensors):
        with quiet():
            told = [k for k, t in enumerate(tensors) if not (t.equal and t.whole)] or range(len(tensors))
            one = False  # one step from one start
            if sides is not None:
                known = steps_differ([stored[k] for k in told], [side.some(told) for side in sides])
                causes, one = known or (), known is None and sides[0].begins_as(sides[1])
            rounding = one
            if not causes and not one:
                some = also.some(told)
                starts = [side.some(told).before for side in sides or ()]
                if sides is None and not gradients and some.before is not None:
                    starts = [some.before, some.before]
                causes, rounding, arithmetic = why(
                    [stored[k] for k in told], some.before, some.grad, some.tables, context, starts
                )
    causes = tuple(
        replace(e, causes=tuple(replace(c, text=name_sides(c.text, called)) for c in e.causes)) for e in causes
    )
    rounding = rounding and all(t.same_shape for t in tensors)
    notes = (*both.notes, *_hints(tensors, causes, called, also), *_hints_of_steps(causes, sides))
    return Difference(equal, tensors, causes, both.only_a, both.only_b, called, rounding, arithmetic, notes)


def _hints(
    tensors: Sequence[TensorDifference],
    causes: Sequence[Explanation],
    called: tuple[str, str],
    also: Also,
) -> Iterator[str]:
    """What would let more be explained, where nothing is."""
    if causes:
        return
    for t in tensors:
        dense = [kind.endswith("dense") for kind in t.kinds]
        alone = (t.only_b if dense[1] else t.only_a).count
        if also.tables is None and dense[0] != dense[1] and alone:
            yield (
                f"hint: {t.name or 'the tensor'} is dense in {called[dense.index(True)]} alone, with {alone:,} rows "
                "that the other has not: a regulariser does that; tables= (--tables) lets it be tried"
            )
            break


def _hints_of_steps(causes: Sequence[Explanation], sides: Sequence[Given] | None) -> Iterator[str]:
    """Yield the hint that states would let unexplained steps be explained."""
    explained = any("step" in c.details for e in causes for c in e.causes)
    if sides is not None and not explained and any(not any(side.state) for side in sides):
        yield STATES_HINT


# ---------------------------------------------------------------------- options
def side_names(names: Any) -> tuple[str, str]:
    """What the report calls the sides; TypeError for anything but two strings."""
    if not isinstance(names, (list, tuple)) or len(names) != 2 or not all(isinstance(name, str) for name in names):
        raise TypeError(f"names: got {show(names)}; accepted are two strings")
    return names[0], names[1]


def _context(
    names: tuple[str, str],
    max_norm: Any = None,
    padding_idx: Any = None,
    batch_size: Any = None,
    tokens: Any = None,
) -> Context:
    limit = None if max_norm is None else check_max_norm(max_norm)
    given = {"padding_idx": padding_idx, "batch_size": batch_size, "tokens": tokens}
    for argument, value in given.items():
        if value is None:
            continue
        if not is_real(value) or whole_number(value) is None:
            raise TypeError(f"{argument}: got {describe(value)}; accepted is an int or None")
        if argument != "padding_idx" and value < 1:
            raise ValueError(f"{argument}: got {show(value)}; accepted is an int >= 1")
    counts = [None if n is None else int(n) for n in given.values()]
    return Context(names, limit, *counts)
