"""`diff`: two gradients, or two tables, of whichever frameworks: where they differ, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

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
from islices.porting.compare.steps.explain import steps_differ
from islices.porting.compare.steps.side import Given
from islices.porting.compare.stored import Stored
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
    context = _context(names, max_norm, padding_idx, batch_size, tokens)
    both = read_both(a, b, pair)
    started, named, held = (
        leaves_beside(tree, both.pairs, argument)
        for tree, argument in ((before, "before"), (grad, "grad"), (tables, "tables"))
    )
    sides: list[Given] = []
    if started is not None and named is not None:
        of = states if isinstance(states, tuple) and len(states) == 2 else (states, states)
        none = [None] * len(both.pairs)
        sides = [Given(started, named, states_beside(tree, both.pairs, "states"), none) for tree in of]
    starts = [started, started] if started is not None else []
    return _compared(both, context, sides, starts, before=started, grad=named, tables=held)


def compare_steps(a: Any, b: Any, *, names: Sequence[str], padding_idx: int | None) -> Difference:
    """`islices.porting.compare.explain_steps`."""
    context = _context(names, padding_idx=padding_idx)
    both = read_both(a.after, b.after)
    sides = []
    for side, x in (("a", a), ("b", b)):
        before, gradient = (leaves_beside(getattr(x, n), both.pairs, f"{side}.{n}") for n in ("before", "gradient"))
        if before is None or gradient is None:
            raise ValueError(f"{side}: got a Step without before or gradient; accepted is one with both")
        state, after = (states_beside(getattr(x, n), both.pairs, f"{side}.{n}") for n in ("state", "state_after"))
        sides.append(Given(before, gradient, state, after, x.optimizer))
    return _compared(both, context, sides, [side.before for side in sides])


def compare_clipped(a: Any, b: Any, raw: Any, names: Sequence[str], **said: Any) -> Difference:
    """Compare gradients of which the raw one is known; said: the options of `diff` that are numbers."""
    both = read_both(a, b)
    return _compared(both, _context(names, **said), [], [], before=leaves_beside(raw, both.pairs, "before"))


def _compared(
    both: Both, context: Context, sides: Sequence[Given], starts: Sequence[Sequence[Stored | None]], **also: Leaves
) -> Difference:
    """Measure, then explain.

    sides: what each side's step began with. starts: the tables that the sides were before. also: what `why` takes.
    """
    stored, called = both.stored, context.named
    tensors = tuple(measure(x, y) for x, y in stored)
    tensors = tuple(replace(t, notes=tuple(name_sides(note, called) for note in t.notes)) for t in tensors)
    equal = all(t.equal for t in tensors) and not both.only_a and not both.only_b
    causes: tuple[Explanation, ...] | None = ()
    rounding, arithmetic = False, None
    if not all(t.equal or t.shapes_alone for t in tensors):
        with quiet():
            told = [k for k, t in enumerate(tensors) if not (t.equal and t.whole)] or range(len(tensors))
            some = [stored[k] for k in told]
            causes = steps_differ(some, [side.some(told) for side in sides]) if sides else ()
            rounding = causes is None and sides[0].before is sides[1].before  # one step from one start
            if not causes and not rounding:
                leaves = {name: None if x is None else [x[k] for k in told] for name, x in also.items()}
                began = [[x[k] for k in told] for x in starts]
                causes, rounding, arithmetic = why(some, context, began, **leaves)
    causes = tuple(
        replace(e, causes=tuple(replace(c, text=name_sides(c.text, called)) for c in e.causes)) for e in causes or ()
    )
    rounding = rounding and all(t.same_shape for t in tensors)
    notes = (*both.notes, *_hints_of_steps(causes, sides))
    return Difference(equal, tensors, causes, both.only_a, both.only_b, called, rounding, arithmetic, notes)


def _hints_of_steps(causes: Sequence[Explanation], sides: Sequence[Given]) -> Iterator[str]:
    """Yield the hint that states would let unexplained steps be explained."""
    explained = any("step" in c.details for e in causes for c in e.causes)
    if not explained and any(not any(side.state) for side in sides):
        yield STATES_HINT


# ---------------------------------------------------------------------- options
def side_names(names: Any) -> tuple[str, str]:
    """What the report calls the sides; TypeError for anything but two strings."""
    if not isinstance(names, (list, tuple)) or len(names) != 2 or not all(isinstance(name, str) for name in names):
        raise TypeError(f"names: got {show(names)}; accepted are two strings")
    return names[0], names[1]


def _context(
    names: Sequence[str],
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
    return Context(side_names(names), limit, *counts)
