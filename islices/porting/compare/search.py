"""Why two sides differ: causes tried one by one, then two at a time; those that make the sides equal are named.

A single cause that explains is preferred to two; where several explain, all are named, the most specific first. What a
more specific cause has explained is not said again by one that it subsumes. Tensors are explained together: one factor
for all of them, one shift, one padding row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations

from islices.porting.compare.cause import Proposal
from islices.porting.compare.causes import CAUSES
from islices.porting.compare.comparison import Comparison
from islices.porting.compare.explanation import Explanation, said
from islices.porting.compare.factors import fitted_factors, named_factors, two_factors
from islices.porting.compare.survey import agree, within_rounding

__all__ = ["explain", "proposals"]


def explain(both: Comparison, proposed: Sequence[Proposal]) -> tuple[Explanation, ...]:
    """The explanations, the most specific first; none where nothing known makes the sides equal.

    Parameters
    ----------
    both : Comparison
    proposed : sequence of Proposal
        What `proposals` finds for it, whichever its slack.

    Returns
    -------
    tuple of Explanation
    """
    if not both.a:
        return ()
    near = within_rounding(both)  # then what is not exact explains nothing
    found: list[Explanation] = []
    exact: set[tuple[str, int]] = set()  # what explains to the bit need not be said with other numbers
    for p in proposed:
        if e := _chain(both, [p], exactly=near or p.key in exact):
            found.append(e)
            exact |= {p.key} if e.exact else set()
    if not near:
        found += named_factors(both, both, [])
    if not found and not near:
        found = two_factors(both) or fitted_factors(both, both, [])
    if not found:
        found = _pairs(both, proposed, exactly=near)
    fewest = min((len(e.causes) for e in found), default=0)
    return _without_subsumed([e for e in found if (e.exact or not near) and len(e.causes) == fewest])


# ---------------------------------------------------------------------- causes that change rows
def _proposals(both: Comparison, used: set[tuple[str, int]], *, another: bool) -> Iterator[Proposal]:
    for cause in CAUSES.values():
        if cause.propose is None or not cause.applies(both, another=another):
            continue
        exact = cause.exact == "always" or (cause.exact == "gradients" and not both.steps)
        for which in (0,) if cause.sides == "a" else (1, 0):
            if (cause.name, which) not in used:
                changes = cause.propose(both, which)
                proposed = [Proposal(cause, which, x, exact) for x in changes if both.whole is None or x.again]
                yield from proposed
                if proposed and cause.sides == "either":
                    break


def proposals(both: Comparison) -> list[Proposal]:
    """Each cause that changes rows alone, where there is anything to change."""
    return list(_proposals(both, set(), another=False))


def _pairs(both: Comparison, proposed: Sequence[Proposal], *, exactly: bool) -> list[Explanation]:
    found: list[Explanation] = []
    seen: set[frozenset[tuple[str, int]]] = set()
    constants: list[Explanation] = []
    for first in proposed:
        after = first.after(both)
        if not exactly:
            found += named_factors(both, after, [first])
            if not found:
                constants += fitted_factors(both, after, [first])
        # what changes values on both sides undoes itself; rows may be dropped from both
        used = {first.key} if first.cause.drops else {(first.cause.name, 0), (first.cause.name, 1)}
        for second in _proposals(after, used, another=True):
            keys = frozenset((first.key, second.key))
            if keys not in seen and (e := _chain(after, [first, second], exactly=exactly)):
                seen.add(keys)
                found.append(e)
    return found or constants


def _chain(before: Comparison, chain: Sequence[Proposal], *, exactly: bool) -> Explanation | None:
    """The explanation, if the proposals make the sides equal and enough speaks for each; before: the last of them."""
    seen = agree(chain[-1].after(before), chain, exactly=exactly)
    if seen is None or (least := seen.least) is None:
        return None
    return Explanation(tuple(map(said, chain)), seen.exact, round(least, 1), 0.0 if seen.exact else before.slack)


# ---------------------------------------------------------------------- which to name
def _without_subsumed(found: Sequence[Explanation]) -> tuple[Explanation, ...]:
    out: list[Explanation] = []
    for e in found:
        said = any(set(e.names) == set(o.names) and e.names != o.names for o in out)
        if not said and not any(_subsumes(other, e) for other in found):
            out.append(e)
    return tuple(out)


def _subsumes(specific: Explanation, e: Explanation) -> bool:
    """Whether e only says more generally what another says."""
    if len(specific.causes) != len(e.causes) or specific is e:
        return False
    for order in permutations(specific.names):
        less = [g in CAUSES[s].subsumes for s, g in zip(order, e.names, strict=True)]
        if any(less) and all(is_less or s == g for is_less, s, g in zip(less, order, e.names, strict=True)):
            return True
    return False
