"""Run the suite's tests under pytest: select the cases that the options describe, and write the report as JSON lines.

The module `islices_pytest` defines the options, and registers this module if ``--islices-backend`` is given. Each test
of the suite calls the function that the fixture ``islices_verdict`` returns. This function decides the outcome.
With ``--islices-report``, each outcome becomes a line of the report.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy
import pytest

import islices
from islices.conformance.data import SPEC_VERSION, vectors_hash
from islices.conformance.deviations import find_deviation
from islices.conformance.new_backend import unwritten
from islices.conformance.selection import Item, Selection
from islices.conformance.variants import VARIANTS, Variant
from islices.conformance.verdicts import judge


def pytest_configure(config: pytest.Config) -> None:
    name = config.getoption("islices_backend", None)  # None if pytest uses the entry points of an older install
    if name:
        report = config.stash[_REPORT] = Report(config)
        report.phase(f"importing {name}")
        try:
            chosen(config).check()
            with islices.config.use_kernels(True):  # from here on, kernels also run on small cases
                islices.get_backend(name)
        except (ImportError, TypeError, ValueError) as error:
            raise pytest.UsageError(f"--islices-backend: {error}") from None
        for variant in chosen_variants(config):
            _check_environment(variant)
        report.phase("choosing cases")


def chosen(config: pytest.Config) -> Selection:
    given = config.option
    return Selection(
        given.islices_profile, given.islices_select, tuple(given.islices_clause), tuple(given.islices_group)
    )


def chosen_backend(config: pytest.Config) -> str:
    """Return the name in --islices-backend; raise UsageError without this option. The option has no default, so that
    nobody tests the wrong backend by accident."""
    name: str | None = config.getoption("islices_backend")
    if name is None:
        raise pytest.UsageError("the conformance suite needs --islices-backend NAME (islices backends lists them)")
    return name


def chosen_variants(config: pytest.Config) -> list[Variant]:
    """Return the variants in --islices-variant. Raise UsageError for an unknown name."""
    names = str(config.getoption("islices_variant")).split(",")
    for name in names:
        if name not in VARIANTS:
            raise pytest.UsageError(f"--islices-variant: got {name!r}; accepted are {', '.join(VARIANTS)}")
    return [VARIANTS[name] for name in names]


def _check_environment(variant: Variant) -> None:
    wrong = [f"{k}={v}" for k, v in variant.environment.items() if os.environ.get(k) != v]
    if wrong:  # too late to set: the libraries have already read the environment
        raise pytest.UsageError(f"--islices-variant: {variant.name!r} needs {' '.join(wrong)} in the environment")


def chosen_modes(config: pytest.Config, variant: Variant) -> list[str]:
    """Return the backend's modes that both the variant and --islices-modes allow. If the variant cannot run on this
    machine, return []."""
    backend = islices.get_backend(chosen_backend(config))
    given = config.getoption("islices_modes")
    modes = [] if variant.absent(backend) else variant.modes_of(backend)
    wanted = modes if given is None else given.split(",")
    return [mode for mode in modes if mode in wanted]


def parametrize(
    metafunc: pytest.Metafunc, find: Callable[[Selection, list[str]], list[Item]], runs: Callable[[Variant], bool]
) -> None:
    """Parametrize a test function that has the parameters (subject, mode, variant). `find(selection, modes)` returns
    the items. Skip variants for which `runs(variant)` is False."""
    selection, variants = chosen(metafunc.config), chosen_variants(metafunc.config)
    params = [
        pytest.param(
            item.subject, item.mode, variant, id=item.name + (f"+{k}" if k else ""),
            marks=pytest.mark.islices_case(id=item.id, clause=item.clause, group=item.group, mode=item.mode),
        )
        for k, variant in enumerate(variants)
        if runs(variant)
        for item in find(selection, chosen_modes(metafunc.config, variant))
    ]  # fmt: skip
    metafunc.parametrize(("subject", "mode", "variant"), params)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the cases by variant, and put mode host last within a variant. Mode host uses kernels that the process for
    NumPy compiles; while the other modes run, that process can finish compiling."""
    if _report_of(config) is not None:
        variants = chosen_variants(config)
        items.sort(key=lambda item: _place(item, variants))


def _place(item: pytest.Item, variants: list[Variant]) -> tuple[int, bool]:
    marker = _marker(item)
    return (variants.index(variant_of(item)), marker.kwargs["mode"] == "host") if marker else (0, False)


def _marker(item: pytest.Item) -> pytest.Mark | None:
    return item.get_closest_marker("islices_case")


def variant_of(item: pytest.Item) -> Variant:
    return item.callspec.params["variant"]  # type: ignore[attr-defined, no-any-return]


class Report:
    """The writer of one process's report. The report contains one run per variant: a header, a line at the start and at
    the end of each case, and a footer."""

    def __init__(self, config: pytest.Config) -> None:
        path = config.getoption("islices_report")
        self.file = Path(path).open("w", encoding="utf-8") if path else None  # noqa: SIM115 (closed at the session's end)
        self.profile = chosen(config).profile
        self.phases = bool(config.getoption("islices_phases"))
        self.name = chosen_backend(config)
        self.waiting = chosen_variants(config)
        self.present: Variant | None = None
        self.totals: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()

    def write(self, kind: str, /, **fields: Any) -> None:
        if self.file is not None:
            self.file.write(json.dumps({"type": kind, **fields}) + "\n")
            self.file.flush()

    def phase(self, says: str) -> None:
        """Write a line about the current work to the report, where `islices conform` reads the line. Do nothing without
        --islices-phases."""
        if self.phases:
            self.write("phase", says=says)

    def reach(self, variant: Variant) -> None:
        """Begin the run of a variant, unless it is the current run. First end the current run, and write empty runs for
        the variants between that run and the new run."""
        while self.present is not variant:
            self.end(0)
            self.present = self.waiting.pop(0)
            self._header(self.present)

    def end(self, exit: int) -> None:
        """End the current run, and write its footer. If `exit`, pytest's exit status, is above 1, the footer's field
        "exit" contains this status. Otherwise, the field is 1 if a case failed or was a harness error, else 0."""
        if self.present is not None:
            failed = self.counts["fail"] + self.counts["harness error"]
            self.write("footer", counts=dict(self.counts), exit=exit if exit > 1 else int(failed > 0))
            self.present, self.counts = None, Counter()

    def close(self, exit: int) -> None:
        while self.waiting:
            self.reach(self.waiting[0])
        self.end(exit)
        if self.file is not None:
            self.file.close()

    def _header(self, variant: Variant) -> None:
        backend = islices.get_backend(self.name)
        self.write(
            "header", spec=SPEC_VERSION, vectors=vectors_hash(), islices=islices.__version__, backend=backend.name,
            variant=variant.label, says=variant.says, time=datetime.now(UTC).isoformat(timespec="seconds"),
            skipped=variant.absent(backend), version=backend.version(), devices=list(backend.devices()),
            numpy=numpy.__version__, python=platform.python_version(), platform=platform.platform(),
            profile=self.profile, total=self.totals[variant.name], planned=self.totals.total(),
            unwritten=unwritten(backend),
        )  # fmt: skip

    def outcome(self, outcome: str, /, **fields: Any) -> None:
        self.counts[outcome] += 1
        self.write("case", outcome=outcome, **fields)


_REPORT = pytest.StashKey[Report]()


def _report_of(config: pytest.Config) -> Report | None:
    return config.stash.get(_REPORT, None)


def pytest_collection_finish(session: pytest.Session) -> None:
    report = _report_of(session.config)
    if report is not None:
        report.totals.update(variant_of(item).name for item in session.items if _marker(item))
        report.reach(report.waiting[0])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    result = yield
    report, marker = _report_of(item.config), _marker(item)
    if report is None or marker is None:
        return result
    if (call.when == "setup" and result.failed) or (
        call.when == "call" and not getattr(item, "islices_reported", False)
    ):
        report.outcome("harness error", **marker.kwargs, seconds=call.duration, reason=str(result.longrepr)[-2000:])
    return result


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    report, marker = _report_of(item.config), _marker(item)
    if report is not None and marker is not None:
        report.reach(variant_of(item))
        report.write("start", id=marker.kwargs["id"], mode=marker.kwargs["mode"], clause=marker.kwargs["clause"])


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    report = _report_of(session.config)
    if report is not None:
        report.close(int(exitstatus))


@pytest.fixture
def islices_verdict(request: pytest.FixtureRequest) -> Any:
    """Return a function (attempt, **details) that calls `attempt` and records the outcome of the case. The function
    then passes, skips, xfails or fails the test.

    `attempt` must raise an exception unless the case passes (see `verdicts.judge`).
    """
    item, started, report = request.node, time.perf_counter(), _report_of(request.config)
    marked = item.get_closest_marker("islices_case").kwargs

    def conclude(attempt: Callable[[], None], **about: Any) -> None:
        backend = islices.get_backend(chosen_backend(request.config))
        outcome, details = judge(attempt, find_deviation(backend, marked["id"], marked["mode"]))
        details = {**about, **details}
        if report is not None:
            report.outcome(outcome, **marked, seconds=round(time.perf_counter() - started, 6), **details)
        item.islices_reported = True
        text = "\n".join(f"{name}: {value}" for name, value in details.items())
        if outcome == "unsupported":
            pytest.skip(text)
        if outcome == "deviation":
            pytest.xfail(text)
        if outcome != "pass":
            pytest.fail(f"{outcome}\n{text}", pytrace=False)

    return conclude
