"""Define `diff`, which reports where and why two gradients or two tables differ, even if they come from different
frameworks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from islices.core.arguments import is_real, show, whole_number
from islices.core.host import quiet
from islices.core.registry import describe
from islices.norms.limits import check_max_norm
from islices.porting.compare.comparison import Comparison, Context, Whole
from islices.porting.compare.explanation import Explanation, name_sides
from islices.porting.compare.measure import TensorDifference, measure
from islices.porting.compare.pairing import Both, leaves_beside, read_both
from islices.porting.compare.search import Explained, explain
from islices.porting.compare.show import draw, report
from islices.porting.reports import Reported


@dataclass(frozen=True, eq=False)
class Difference(Reported):
    """The result of `diff`. str() returns the report.

    Attributes
    ----------
    equal : bool
        True if both sides have the same tensors with the same bits (SPEC clause 22).
    tensors : tuple of TensorDifference
        The measured differences of the tensors that both sides have.
    causes : tuple of Explanation
        The explanations of the difference, with the most specific first. An explanation consists of one cause, or of
        several causes that act together. If these causes are undone, the sides agree to the bit or within an allowance
        for rounding. The tuple is empty if the sides are equal, or if no known cause explains the difference.
    only_a, only_b : tuple of str
        The names of the tensors that only one side has.
    names : (str, str)
        The names of the sides.
    rounding : bool
        True if the sides differ, but not by more than the bound on rounding.
    arithmetic : float or None
        The largest quotient of an element's difference and the largest absolute value in its tensor. The attribute is a
        number only if rounding does not explain the difference, but the different order of computation in two models
        does.
    notes : tuple of str
        Remarks for the reader, for example that tensors are paired by position.
    frameworks : (str, str)
        The frameworks of the two recordings that `parity` compares; "" for a side whose framework is unknown.
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

    def report(self, *, verbose: bool = False) -> str:
        """Return the report as plain text: the verdict, the causes, the code that fixes them, and measured differences.

        Parameters
        ----------
        verbose : bool
            If True, list all tensors that differ or have notes, and the first rows that differ or that only one side
            has. If False, list at most two of these tensors, without rows.

        Returns
        -------
        str
        """
        return report(self, verbose=verbose)

    def _figure(self) -> Any:
        return draw(self)


def diff(
    a: Any,
    b: Any,
    *,
    names: Sequence[str] = ("a", "b"),
    before: Any = None,
    max_norm: float | None = None,
    padding_idx: int | None = None,
    batch_size: int | None = None,
    tokens: int | None = None,
    pair: Mapping[str, str] | None = None,
    tables: Any = None,
) -> Difference:
    """Compare two gradients, or two tables, and report why they differ.

    Parameters
    ----------
    a, b : sparse gradient, dense array, Table, None, or a list, tuple or dict of them, nested
        The two sides may come from different frameworks. `diff` pairs leaves by name; a name consists of keys and
        positions, joined by dots. If two trees have no common name but equally many leaves, `diff` pairs the leaves by
        position.
    names : (str, str)
        The names of the sides in the report.
    before : tree like a, optional
        The gradient before clipping; both sides were computed from this gradient. If possible, pass the gradient before
        its duplicates are summed.
    max_norm : float, optional
        The limit to which at least one side was clipped, or should have been clipped.
    padding_idx : int, optional
        The row number of the padding row. A negative number counts from the end.
    batch_size, tokens : int, optional
        The number of samples and the number of tokens. A loss that is a mean may divide by one of these numbers.
    pair : mapping of str to str, optional
        A mapping of names in a to names in b, for tensors with different names.
    tables : tree like a, optional
        The tables to which the gradients belong. `diff` needs the tables to find a regularizer, which adds a multiple
        of a table to the gradient.

    Returns
    -------
    Difference

    Raises
    ------
    TypeError, ValueError, IndexError
        A leaf has no known framework, a sparse gradient or an option is invalid, or a name does not exist.

    Notes
    -----
    `diff` sums duplicates before it compares gradients (SPEC clause 4). `diff` reports a cause, or two
    causes together, only if undoing them makes the sides equal, to the bit or within an allowance for rounding. More
    elements must agree than would agree by chance (SPEC clause 22). To compare tables after optimizer steps, use
    `islices.parity`.

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
    counts = {"padding_idx": padding_idx, "batch_size": batch_size, "tokens": tokens}
    limit = None if max_norm is None else check_max_norm(max_norm)
    context = Context(limit, *(_check_count(value, argument) for argument, value in counts.items()))
    called, both = side_names(names), read_both(a, b, pair)
    raw, held = (leaves_beside(tree, both, name) for tree, name in ((before, "before"), (tables, "tables")))

    def explained(chosen: Sequence[int]) -> Explained:
        source = (Whole.of(*both.stored[k], context, raw[k], held[k]) for k in chosen)
        return explain(Comparison.of(tuple(source), context))

    return compared(both, called, explained)


def compared(both: Both, called: tuple[str, str], explained: Callable[[Sequence[int]], Explained]) -> Difference:
    """Measure the differences of all tensors, and explain them.

    `called` contains the names of the sides. The function `explained` gets the positions of the tensors to explain: all
    tensors, except equal tensors of whole numbers.
    """
    tensors = tuple(measure(x, y) for x, y in both.stored)
    tensors = tuple(replace(t, notes=tuple(name_sides(note, called) for note in t.notes)) for t in tensors)
    equal = all(t.equal for t in tensors) and not both.only_a and not both.only_b
    chosen = [k for k, t in enumerate(tensors) if not (t.equal and t.whole)]
    found: Explained = (), False, None
    beyond = any(x.beyond_float64 for k in chosen for x in both.stored[k])
    if not beyond and not all(t.equal or t.shapes_alone for t in tensors):
        with quiet():
            found = explained(chosen)
    causes = tuple(
        replace(e, causes=tuple(replace(c, text=name_sides(c.text, called)) for c in e.causes)) for e in found[0]
    )
    rounding = found[1] and all(t.same_shape for t in tensors)
    return Difference(equal, tensors, causes, both.only_a, both.only_b, called, rounding, found[2], both.notes)


# ---------------------------------------------------------------------- options
def side_names(names: Any) -> tuple[str, str]:
    """Return the names of the sides as a tuple. Raise TypeError unless `names` is a list or tuple of two strings."""
    if not isinstance(names, (list, tuple)) or len(names) != 2 or not all(isinstance(name, str) for name in names):
        raise TypeError(f"names: got {show(names)}; accepted are two strings")
    return names[0], names[1]


def _check_count(value: Any, argument: str) -> int | None:
    if value is None:
        return None
    number = whole_number(value) if is_real(value) else None
    if number is None:
        raise TypeError(f"{argument}: got {describe(value)}; accepted is an int or None")
    if argument != "padding_idx" and number < 1:
        raise ValueError(f"{argument}: got {show(value)}; accepted is an int >= 1")
    return number
