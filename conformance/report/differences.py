"""What changed between two reports, case by case.

Outcomes are ordered pass > bound > deviation > unsupported > fail > harness error, and a case that moves to the right
is a regression, whichever step it takes: what was supported is not any more, or a failure was declared away. So is a
new case that fails, and a run that breaks. A case that vanished is a class of its own, and counts as much: what is no
longer asked proves nothing. Columns belong together by backend, variant and mode; versions may differ, and are shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from islices.cli import UsageError
from islices.conformance.report.grid import Row, row_place
from islices.conformance.report.merging import refuse_other_vectors
from islices.conformance.report.runs import OUTCOMES, PROBLEMS, Column, Run, column_labels, columns, run_names

__all__ = ["KINDS", "Change", "Differences", "compare"]

KINDS = ("regression", "vanished", "improvement", "new", "reason")
#: What of two columns' headers is shown where it differs.
FACTS = ("version", "numpy", "python", "islices", "platform", "profile")
#: How columns of one key are told apart where a report has several of them, strictest first.
TELLING: tuple[Callable[[Column], Any], ...] = (
    lambda c: (c.key, c.run.version, c.run.fact("numpy"), c.run.fact("python"), c.run.system),
    lambda c: (c.key, c.run.version, c.run.fact("numpy"), c.run.fact("python")),
    lambda c: (c.key, c.run.fact("numpy"), c.run.fact("python")),
    lambda c: (c.key, c.run.fact("python")),
    lambda c: c.key,
)


@dataclass(frozen=True)
class Change:
    """One case of one column; ``old`` and ``new`` are outcomes, empty where a report has no such case."""

    kind: str
    column: str
    id: str
    group: str
    clause: str
    old: str
    new: str
    reason: str = ""
    cases: int = 1
    """How many cases it stands for: a whole column may come or go."""


@dataclass
class Differences:
    changes: list[Change] = field(default_factory=list)
    versions: list[str] = field(default_factory=list)
    """ "torch@2.13.0: version 2.12.0 -> 2.13.0", for each pair of runs that have such a change."""
    compared: int = 0

    def of_kind(self, kind: str) -> list[Change]:
        return [change for change in self.changes if change.kind == kind]

    def counts(self) -> dict[str, int]:
        return {kind: sum(change.cases for change in self.of_kind(kind)) for kind in KINDS}

    @property
    def regressed(self) -> bool:
        return any(change.kind in ("regression", "vanished") for change in self.changes)

    def by_clause(self) -> dict[Row, Counter[str]]:
        table: dict[Row, Counter[str]] = {}
        for change in self.changes:
            table.setdefault(Row(change.group, change.clause), Counter())[change.kind] += change.cases
        return dict(sorted(table.items(), key=lambda item: row_place(item[0])))

    def as_json(self) -> dict[str, Any]:
        changes = [asdict(change) for change in self.changes]
        return {
            "regressed": self.regressed, "compared": self.compared, "counts": self.counts(),
            "versions": self.versions, "changes": changes,
        }  # fmt: skip


def compare(old: Sequence[Run], new: Sequence[Run], *, common: bool = False) -> Differences:
    """What changed from old to new.

    Parameters
    ----------
    old, new : sequence of Run
        Each the runs of a report, or of several that were joined.
    common : bool
        Look only at columns and cases that both have; then the vectors may differ.

    Raises
    ------
    UsageError
        The vectors or the spec differ and ``common`` is not set, or there is nothing in common.
    """
    if not common:
        refuse_other_vectors([*old, *new], advice=", or compare what both have with --common")
    before, after = columns(old), columns(new)
    pairs = _pairs(before, after)
    found = Differences()
    labels = {
        id(c): " ".join(lines) for side in (before, after) for c, lines in zip(side, column_labels(side), strict=True)
    }
    names = {id(run): name for run, name in zip(new, run_names(new), strict=True)}
    for x, y in {(id(a.run), id(b.run)): (a.run, b.run) for a, b in pairs}.values():
        found.versions += _facts(names[id(y)], x, y)
        found.changes += _runs(names[id(y)], x, y)
    for a, b in pairs:
        label = labels[id(b)]
        found.compared += len({case["id"] for case in a.cases} & {case["id"] for case in b.cases})
        found.changes += _cases(label, a, b, common)
    if common:
        if not found.compared:
            raise UsageError("--common: the two reports have no case of a column in common")
        return found
    paired = {id(column) for pair in pairs for column in pair}
    for column in before:
        if id(column) not in paired:
            found.changes += _gone(labels[id(column)], column, new)
    for column in after:
        if id(column) not in paired:
            found.changes += _came(labels[id(column)], column)
    return found


def _pairs(before: list[Column], after: list[Column]) -> list[tuple[Column, Column]]:
    """Columns that belong together: those that are one of a kind on both sides, by ever weaker kinds."""
    pairs: dict[int, tuple[Column, Column]] = {}
    left, right = list(before), list(after)
    for kind in TELLING:
        ours, theirs = _alone(left, kind), _alone(right, kind)
        for key in ours.keys() & theirs.keys():
            pairs[after.index(theirs[key])] = (ours[key], theirs[key])
            left.remove(ours[key])
            right.remove(theirs[key])
    return [pairs[k] for k in sorted(pairs)]


def _alone(found: list[Column], kind: Callable[[Column], Any]) -> dict[Any, Column]:
    many = Counter(map(kind, found))
    return {kind(column): column for column in found if many[kind(column)] == 1}


# ---------------------------------------------------------------------- changes
def _facts(label: str, a: Run, b: Run) -> list[str]:
    changed = [f"{fact} {a.fact(fact)} -> {b.fact(fact)}" for fact in FACTS if a.fact(fact) != b.fact(fact)]
    return [f"{label}: {', '.join(changed)}"] if changed else []


def _runs(label: str, a: Run, b: Run) -> list[Change]:
    """What befell the runs as a whole; said once, not for each mode."""
    old, new = ("harness error" if run.error else "pass" for run in (a, b))
    kind = _kind(old, new, a.error, b.error)
    return [_of_run(kind, label, old, new, b.error)] if kind else []


def _of_run(kind: str, label: str, old: str, new: str, reason: str, cases: int = 1) -> Change:
    return Change(kind, label, "the run itself", "run", "", old, new, reason, cases)


def _cases(label: str, a: Column, b: Column, common: bool) -> Iterator[Change]:
    ours, theirs = ({case["id"]: case for case in column.cases} for column in (a, b))
    for key in dict.fromkeys([*ours, *theirs]):
        x, y = ours.get(key, {}), theirs.get(key, {})
        if common and not (x and y):
            continue
        old, new = x.get("outcome", ""), y.get("outcome", "")
        reasons = x.get("reason", ""), y.get("reason", "")
        kind = _kind(old, new, *reasons)
        if kind:
            case = y or x
            yield Change(kind, label, key, case["group"], case["clause"], old, new, reasons[1] or reasons[0])


def _kind(old: str, new: str, old_reason: str, new_reason: str) -> str:
    """Which change this is; "" if it is none."""
    if not new:
        return "vanished"
    if not old:
        return "regression" if new in PROBLEMS else "new"
    step = OUTCOMES.index(new) - OUTCOMES.index(old)
    if step:
        return "regression" if step > 0 else "improvement"
    return "reason" if old_reason != new_reason else ""


def _gone(label: str, column: Column, new: Sequence[Run]) -> list[Change]:
    """A column that only the old report has, with what the new one says of its backend."""
    if not column.cases:
        return []  # it was skipped or broken before, nothing is lost
    now = [run for run in new if (run.backend, run.variant) == column.key[:2]]
    reasons = [": ".join(run.befell) for run in now if run.befell[0]]
    reason = "; ".join(reasons) or "the new report has no such column"
    return [_of_run("vanished", label, f"{len(column.cases)} cases", "", reason, len(column.cases))]


def _came(label: str, column: Column) -> list[Change]:
    """A column that only the new report has: its problems one by one, the rest as one."""
    bad = [case for case in column.cases if case["outcome"] in PROBLEMS]
    changes = [
        Change(
            "regression", label, case["id"], case["group"], case["clause"], "", case["outcome"], case.get("reason", "")
        )
        for case in bad
    ]
    if column.run.error:
        changes.insert(0, _of_run("regression", label, "", "harness error", column.run.error))
    good = len(column.cases) - len(bad)
    return [*changes, _of_run("new", label, "", f"{good} cases", "", good)] if good else changes
