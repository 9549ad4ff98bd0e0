"""Find the changes between two reports, case by case.

From best to worst, the outcomes are pass, bound, deviation, unsupported, fail and harness error. A case is a regression
if its new outcome is worse than its old outcome; unsupported cases and declared deviations are no exceptions. A new
case that fails or is a harness error is also a regression. So is a run that crashes or hangs only in the new report.
A vanished case is a separate kind and as serious as a regression, because a case that does not run proves nothing.

Columns match if backend, variant and mode are the same. If a report has several columns of one backend, variant and
mode, NumPy, Python and the system must also be the same. Columns match even if
other versions differ; the comparison shows these versions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from islices.cli import UsageError
from islices.conformance.report.grid import Row, row_place
from islices.conformance.report.merging import refuse_other_vectors
from islices.conformance.report.runs import OUTCOMES, PROBLEMS, Run, columns

KINDS = ("regression", "vanished", "improvement", "new", "reason")
#: The fields of a run's header that are shown if they differ between the reports.
FACTS = ("version", "numpy", "python", "islices", "platform", "profile")

#: (backend, variant, mode, further facts if these three are not unique)
Key = tuple[str, ...]


@dataclass(frozen=True)
class ReportChange:
    """The change of one case in one column. ``old`` and ``new`` are the outcomes in the two reports; "" means that the
    report does not have the case."""

    kind: str
    column: str
    id: str
    group: str
    clause: str
    old: str
    new: str
    reason: str = ""


@dataclass
class Differences:
    changes: list[ReportChange] = field(default_factory=list)
    versions: list[str] = field(default_factory=list)
    """Texts such as "torch: version 2.12.0 -> 2.13.0", one for each pair of runs with different facts."""
    compared: int = 0

    def of_kind(self, kind: str) -> list[ReportChange]:
        return [change for change in self.changes if change.kind == kind]

    def counts(self) -> dict[str, int]:
        return {kind: len(self.of_kind(kind)) for kind in KINDS}

    @property
    def regressed(self) -> bool:
        return any(change.kind in ("regression", "vanished") for change in self.changes)

    def by_clause(self) -> dict[Row, Counter[str]]:
        table: dict[Row, Counter[str]] = {}
        for change in self.changes:
            table.setdefault(Row(change.group, change.clause), Counter())[change.kind] += 1
        return dict(sorted(table.items(), key=lambda item: row_place(item[0])))

    def as_json(self) -> dict[str, Any]:
        changes = [asdict(change) for change in self.changes]
        return {
            "regressed": self.regressed, "compared": self.compared, "counts": self.counts(),
            "versions": self.versions, "changes": changes,
        }  # fmt: skip


def compare(old: Sequence[Run], new: Sequence[Run], *, common: bool = False) -> Differences:
    """Return the changes between the runs of an old and a new report. With ``common``, compare only cases that are in
    both reports.

    Raise UsageError if the vectors or the specification differ and ``common`` is False. Raise UsageError also if
    ``common`` is True and no case is in both reports.
    """
    if not common:
        refuse_other_vectors([*old, *new], advice=", or compare what both have with --common")
    several = any(max(Counter(c.key for c in columns(runs)).values(), default=0) > 1 for runs in (old, new))
    before, after = _cases(old, several), _cases(new, several)
    found = Differences(versions=_versions(old, new, several))
    compared = {column[:2] for column, id in before.keys() & after.keys() if before[column, id]["clause"]}
    for column, id in dict.fromkeys([*before, *after]):
        x, y = before.get((column, id), {}), after.get((column, id), {})
        if common and not (x and y and column[:2] in compared):
            continue
        found.compared += bool(x and y and x["clause"])
        was, now = x.get("outcome", ""), y.get("outcome", "")
        reasons = x.get("reason", ""), y.get("reason", "")
        kind = _kind(was, now, *reasons)
        if kind:
            case = y or x
            label = " ".join(filter(None, column))
            reason = reasons[1] or reasons[0] or ("" if now else _befell(column, new))
            found.changes.append(ReportChange(kind, label, id, case["group"], case["clause"], was, now, reason))
    if common and not found.compared:
        raise UsageError("--common: the two reports have no case of a column in common")
    return found


def _cases(runs: Sequence[Run], several: bool) -> dict[tuple[Key, str], dict[str, Any]]:
    """Return {(column, id): case}. Each run that was not skipped also has a case "the run itself", in a column without
    a mode."""
    found: dict[tuple[Key, str], dict[str, Any]] = {}
    for column in columns(runs):
        run, more = column.run, _interpreter(column.run, several)
        for case in column.cases:
            found[(*column.key, *more), case["id"]] = case
        if not run.skipped:
            outcome = "harness error" if run.error else "pass"
            itself = {"group": "run", "clause": "", "outcome": outcome, "reason": run.error}
            found[(run.backend, run.variant, *more), "the run itself"] = itself
    return found


def _interpreter(run: Run, several: bool) -> Key:
    return (f"NumPy {run.fact('numpy')}", f"Python {run.fact('python')}", run.system) if several else ()


def _versions(old: Sequence[Run], new: Sequence[Run], several: bool) -> list[str]:
    before = {(run.backend, run.variant, *_interpreter(run, several)): run for run in old}
    lines = []
    for run in new:
        key = run.backend, run.variant, *_interpreter(run, several)
        was = before.get(key, run)
        changed = [f"{fact} {was.fact(fact)} -> {run.fact(fact)}" for fact in FACTS if was.fact(fact) != run.fact(fact)]
        if changed:
            lines.append(f"{' '.join(filter(None, key))}: {', '.join(changed)}")
    return lines


def _befell(column: Key, new: Sequence[Run]) -> str:
    """Return why the new report lacks a case of a column; "" if the reason is unknown."""
    runs = [run for run in new if (run.backend, run.variant) == column[:2]]
    reasons = [": ".join(run.befell) for run in runs if run.befell[0]]
    return "; ".join(reasons) if runs else "the new report has no such column"


def _kind(old: str, new: str, old_reason: str, new_reason: str) -> str:
    """Return the kind of a change, or "" if nothing changed."""
    if not new:
        return "vanished"
    if not old:
        return "regression" if new in PROBLEMS else "new"
    step = OUTCOMES.index(new) - OUTCOMES.index(old)
    if step:
        return "regression" if step > 0 else "improvement"
    return "reason" if old_reason != new_reason else ""
