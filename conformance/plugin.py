"""The suite's pytest options, and its report as JSON lines.

Loaded by pytest wherever islices is installed (entry point pytest11), so that it imports no more than it needs then.
A test of the suite takes the fixture ``verdict`` and reports through it; what it reports is written, a line a case,
to the file that --islices-report names.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
import pytest

import islices
from islices.conformance.data import SPEC_VERSION, vectors_hash
from islices.conformance.report.runs import OUTCOMES
from islices.modes import present_mode
from islices.registry import outdated

if TYPE_CHECKING:
    from islices.conformance.variants import Variant

__all__ = ["chosen_backend", "chosen_modes", "chosen_variant"]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("islices", "islices conformance suite")
    group.addoption("--islices-backend", metavar="NAME", help="backend to run the conformance suite on")
    group.addoption("--islices-modes", metavar="MODES", help="of host,framework,traced; default: all")
    group.addoption(
        "--islices-variant", metavar="NAME", default="standard", help="setting to run under; default: standard"
    )
    group.addoption("--islices-full", action="store_true", help="run every case, not only the default profile")
    group.addoption("--islices-report", metavar="PATH", help="write one JSON line a case to PATH")
    group.addoption("--islices-phases", action="store_true", help="say in the report, too, what goes on before a case")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "islices_case(id, clause, mode): a case of the conformance suite")
    name = config.getoption("islices_backend")
    if name:
        _check_environment(chosen_variant(config))
        report = config.stash[_REPORT] = Report(config)
        report.phase(f"importing {name}")
        try:
            islices.get_backend(name)
        except (ImportError, TypeError, ValueError) as error:
            raise pytest.UsageError(f"--islices-backend: {error}") from None
        report.phase("choosing cases")


def chosen_backend(config: pytest.Config) -> str:
    """The name --islices-backend gave; the suite has no default, so that nobody tests the wrong one."""
    name: str | None = config.getoption("islices_backend")
    if name is None:
        raise pytest.UsageError("the conformance suite needs --islices-backend NAME (islices backends lists them)")
    return name


def chosen_variant(config: pytest.Config) -> Variant:
    """The variant --islices-variant names."""
    from islices.conformance.variants import VARIANTS

    name = config.getoption("islices_variant")
    if name not in VARIANTS:
        raise pytest.UsageError(f"--islices-variant: got {name!r}; accepted are {', '.join(VARIANTS)}")
    return VARIANTS[name]


def _check_environment(variant: Variant) -> None:
    wrong = [f"{k}={v}" for k, v in variant.environment.items() if os.environ.get(k) != v]
    if wrong:  # what reads it has read it by now
        raise pytest.UsageError(f"--islices-variant: {variant.name!r} needs {' '.join(wrong)} in the environment")


def chosen_modes(config: pytest.Config) -> list[str]:
    """The modes to run: the backend's, as far as the variant and --islices-modes leave them; none where the variant
    cannot run here."""
    backend, variant = islices.get_backend(chosen_backend(config)), chosen_variant(config)
    given = config.getoption("islices_modes")
    modes = [] if variant.absent(backend) else variant.modes_of(backend)
    wanted = modes if given is None else [present_mode(mode, "--islices-modes native") for mode in given.split(",")]
    return [mode for mode in modes if mode in wanted]


class Report:
    """The JSON lines of one run: header, a line when a case starts and one when it ends, footer."""

    def __init__(self, config: pytest.Config) -> None:
        path = config.getoption("islices_report")
        self.file = Path(path).open("w", encoding="utf-8") if path else None  # noqa: SIM115 (closed at the session's end)
        self.counts: Counter[str] = Counter()
        self.full = bool(config.getoption("islices_full"))
        self.phases = bool(config.getoption("islices_phases"))

    def write(self, kind: str, /, **fields: Any) -> None:
        if self.file is not None:
            self.file.write(json.dumps({"type": kind, **fields}) + "\n")
            self.file.flush()

    def phase(self, says: str) -> None:
        """What the process does from now on, for whoever waits for it (`islices conform`)."""
        if self.phases:
            self.write("phase", says=says)

    def header(self, backend: Any, variant: Variant, total: int) -> None:
        from islices.conformance.new_backend import unwritten

        self.write(
            "header", spec=SPEC_VERSION, vectors=vectors_hash(), islices=islices.__version__, backend=backend.name,
            variant=variant.label, says=variant.says, time=datetime.now(UTC).isoformat(timespec="seconds"),
            skipped=variant.absent(backend), version=backend.version(), devices=list(backend.devices()),
            numpy=numpy.__version__, python=platform.python_version(), platform=platform.platform(),
            profile="full" if self.full else "default", total=total, unwritten=unwritten(backend),
            outdated=outdated(backend),
        )  # fmt: skip

    def outcome(self, outcome: str, /, **fields: Any) -> None:
        self.counts[outcome] += 1
        self.write("case", outcome=outcome, **fields)


_REPORT = pytest.StashKey[Report]()


def pytest_collection_finish(session: pytest.Session) -> None:
    report = session.config.stash.get(_REPORT, None)
    if report is not None:
        backend = islices.get_backend(session.config.getoption("islices_backend"))
        total = sum(item.get_closest_marker("islices_case") is not None for item in session.items)
        report.header(backend, chosen_variant(session.config), total)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    result = yield
    report = item.config.stash.get(_REPORT, None)
    marker = item.get_closest_marker("islices_case")
    if report is None or marker is None:
        return result
    if (call.when == "setup" and result.failed) or (
        call.when == "call" and not getattr(item, "islices_reported", False)
    ):
        report.outcome("harness error", **marker.kwargs, seconds=call.duration, reason=str(result.longrepr)[-2000:])
    return result


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    report = item.config.stash.get(_REPORT, None)
    marker = item.get_closest_marker("islices_case")
    if report is not None and marker is not None:
        report.write("start", **marker.kwargs)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    report = session.config.stash.get(_REPORT, None)
    if report is not None:
        report.write("footer", counts=dict(report.counts), exit=int(exitstatus))
        if report.file is not None:
            report.file.close()


@pytest.fixture
def verdict(request: pytest.FixtureRequest) -> Any:
    """verdict(outcome, **details): record what came of the case, and end the test accordingly."""
    return Verdict(request)


class Verdict:
    def __init__(self, request: pytest.FixtureRequest) -> None:
        self.item = request.node
        self.report = request.config.stash.get(_REPORT, None)
        self.marker = request.node.get_closest_marker("islices_case")
        self.started = time.perf_counter()

    def __call__(self, outcome: str, **details: Any) -> None:
        if outcome not in OUTCOMES:
            raise ValueError(f"outcome: got {outcome!r}; accepted are {', '.join(OUTCOMES)}")
        if self.report is not None:
            seconds = round(time.perf_counter() - self.started, 6)
            self.report.outcome(outcome, **self.marker.kwargs, seconds=seconds, **details)
        self.item.islices_reported = True
        text = "\n".join(f"{name}: {value}" for name, value in details.items())
        if outcome == "unsupported":
            pytest.skip(text)
        if outcome == "deviation":
            pytest.xfail(text)
        if outcome != "pass":
            pytest.fail(f"{outcome}\n{text}", pytrace=False)
