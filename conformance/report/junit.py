"""The report as JUnit XML: a suite for each column, and one for each run that broke or was skipped as a whole.

A case that is declared unsupported or a deviation, or lies within a bound, is skipped with its reason; it is never a
pass.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from typing import Any

from islices.conformance.report.grid import RUN
from islices.conformance.report.runs import Column, Run, column_labels, columns, run_names

__all__ = ["junit"]

#: outcome -> the element that a testcase holds; a pass holds none
ELEMENTS = {
    "fail": "failure",
    "harness error": "error",
    "unsupported": "skipped",
    "deviation": "skipped",
    "bound": "skipped",
    "skipped": "skipped",
}
PROPERTIES = ("spec", "vectors", "islices", "version", "variant", "numpy", "python", "platform", "profile")


def junit(runs: Sequence[Run]) -> str:
    """The XML text, with its declaration."""
    root = ET.Element("testsuites")
    found = [column for column in columns(runs) if column.cases]
    for column, label in zip(found, column_labels(found), strict=True):
        _suite(root, column.run, " ".join(label), _classname(column), column.cases)
    for run, name in zip(runs, run_names(runs), strict=True):
        outcome, reason = run.befell
        if outcome:
            befell = {"id": RUN.title, "group": RUN.group, "outcome": outcome, "reason": reason}
            _suite(root, run, f"{name}: {RUN.title}", run.backend.replace(".", "_"), [befell])
    ET.indent(root, " ")
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, "unicode") + "\n"


def _classname(column: Column) -> str:
    """Dots part packages in the readers of these files."""
    return ".".join(part.replace(".", "_") for part in (column.run.backend, column.run.variant, column.mode) if part)


def _suite(root: ET.Element, run: Run, name: str, classname: str, cases: list[dict[str, Any]]) -> None:
    kinds = [ELEMENTS.get(case["outcome"]) for case in cases]
    attributes = {
        "name": name, "tests": str(len(cases)), "failures": str(kinds.count("failure")),
        "errors": str(kinds.count("error")), "skipped": str(kinds.count("skipped")),
        "time": f"{sum(case.get('seconds', 0) for case in cases):.6f}", "package": "islices.conformance",
        "id": str(len(root)), "hostname": "localhost",
    }  # fmt: skip
    if re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", run.fact("time"), re.ASCII):
        attributes["timestamp"] = run.fact("time")[:19]  # the schema of Ant's task has no place for a zone
    suite = ET.SubElement(root, "testsuite", attributes)
    properties = ET.SubElement(suite, "properties")
    for field in PROPERTIES:
        if run.header.get(field):
            ET.SubElement(properties, "property", name=field, value=run.fact(field))
    for case, kind in zip(cases, kinds, strict=True):
        place = {"name": case["id"], "classname": f"{classname}.{case['group']}"}
        element = ET.SubElement(suite, "testcase", place, time=f"{case.get('seconds', 0):.6f}")
        if kind:
            reason = case.get("reason", "")
            message = f"{case['outcome']}: {reason.partition(chr(10))[0]}"
            details = [f"{f}: {case[f]}" for f in ("call", "reason", "got", "expected", "issue") if case.get(f)]
            ET.SubElement(element, kind, message=message[:500], type=case["outcome"]).text = "\n".join(details)
    ET.SubElement(suite, "system-out")
    ET.SubElement(suite, "system-err")
