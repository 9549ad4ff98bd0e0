"""Why two sides differ: causes tried one by one, then two at a time; those that make the sides equal are named.

A single cause that explains is preferred to two; where several explain, all are named, the most specific first. What a
more specific cause has explained is not said again by one that would explain more (`SUBSUMED`). Tensors are explained
together: one factor for all of them, one shift, one padding row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations

from islices.compare.case import Case, Proposal
from islices.compare.evidence import agrees
from islices.compare.explanation import STRICT, Explanation, evidence_of, paired_sides, said, samples
from islices.compare.multiples import constant_factor, named_factors, two_factors
from islices.compare.structure import STRUCTURAL

__all__ = ["explain", "proposals", "within_rounding"]

#: The more general cause -> those that, where they explain, leave it nothing to say.
SUBSUMED = {
    "permuted": {"off_by_one"}, "zero_rows": {"mask"}, "padding": {"lazy_step"}, "clipped": {"duplicates"},
    "rounded": {"dtype"},
}  # fmt: skip
#: Rows are dropped, here some and there others.
DROPS = {"padding", "mask", "zero_rows", "lazy_step"}


def explain(case: Case, proposed: Sequence[Proposal]) -> tuple[Explanation, ...]:
    """The explanations, the most specific first; none where nothing known makes the sides equal.

    Parameters
    ----------
    case : Case
    proposed : sequence of Proposal
        What `proposals` finds for it, whichever its slack.

    Returns
    -------
    tuple of Explanation
    """
    if not case.a:
        return ()
    near = within_rounding(case)  # then what is not exact explains nothing
    singles = [[p] for p in proposed]
    found = [e for chain in singles if (e := _chain(case, chain))]
    if not near:
        found += named_factors(case, case, [])
    if not found and not near:
        found = two_factors(case) or constant_factor(case, case, [])
    if not found:
        found = _pairs(case, singles)
    fewest = min((len(e.causes) for e in found), default=0)
    return _without_subsumed([e for e in found if (e.exact or not near) and len(e.causes) == fewest])


def within_rounding(case: Case) -> bool:
    """Whether the sides agree as they are, within the bound on rounding."""
    if not all(agrees(pair, exact=False) for pair in samples(case)):
        return False
    pairs = paired_sides(case)
    return pairs is not None and all(agrees(p, exact=False) for p in pairs)


# ---------------------------------------------------------------------- causes that change rows
def _proposals(case: Case, used: set[tuple[str, int]]) -> Iterator[Proposal]:
    for cause in STRUCTURAL:
        for which in (0,) if cause.sides == "a" else (1, 0):
            if (cause.name, which) not in used:
                proposed = list(cause.propose(case, which))
                yield from proposed
                if proposed and cause.sides == "either":
                    break


def proposals(case: Case) -> list[Proposal]:
    """Each cause that changes rows alone, where there is anything to change."""
    return list(_proposals(case, set()))


def _pairs(case: Case, singles: list[list[Proposal]]) -> list[Explanation]:
    found: list[Explanation] = []
    seen: set[frozenset[tuple[str, int]]] = set()
    constants: list[Explanation] = []
    for (first,) in singles:
        after = case.with_side(first.which, first.rows)
        found += named_factors(case, after, [first])
        if not found:
            constants += constant_factor(case, after, [first])
        # what changes values on both sides undoes itself; rows may be dropped from both
        used = {first.key} if first.name in DROPS else {(first.name, 0), (first.name, 1)}
        for second in _proposals(after, used):
            keys = frozenset((first.key, second.key))
            if keys not in seen and (e := _chain(case, [first, second])):
                seen.add(keys)
                found.append(e)
    return found or constants


def _chain(case: Case, chain: Sequence[Proposal]) -> Explanation | None:
    """The explanation, if the proposals one after the other make the sides equal and enough speaks for each."""
    after = case
    for p in chain:
        after = after.with_side(p.which, p.rows)
    if not all(agrees(pair, exact=False) for pair in samples(after)):
        return None
    pairs = paired_sides(after)
    if pairs is None:
        return None
    exact = all(p.exact for p in chain) and all(agrees(p, exact=True) for p in pairs)
    if not exact and (any(p.name in STRICT for p in chain) or not all(agrees(p, exact=False) for p in pairs)):
        return None
    total = evidence_of(case, chain, after, pairs, exact)
    if total is None:
        return None
    return Explanation(tuple(map(said, chain)), exact, round(total, 1), 0.0 if exact else case.slack)


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
    return any(
        any(s in SUBSUMED.get(g, ()) for s, g in zip(order, e.names, strict=True))
        and all(s == g or s in SUBSUMED.get(g, ()) for s, g in zip(order, e.names, strict=True))
        for order in permutations(specific.names)
    )
