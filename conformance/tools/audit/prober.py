"""Run the probes of a module in this process: ``python -m islices.conformance.tools.audit.prober MODULE WORDS FIRST``.

WORDS selects probes, and FIRST is the number of the first probe to run. The program prints two JSON lines per selected
probe. The second line is the finding. If the call ends the process, the first line serves as the finding. An isolated
probe runs only as the first probe of a process, and the process ends after this probe. In the last line, "next" is the
number of the next probe, or null if no probe is left.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import traceback
import warnings
from typing import Any

from islices.conformance.composite_operations import UnsupportedError
from islices.conformance.tools.audit import probes
from islices.conformance.tools.audit.findings import framework_of
from islices.conformance.tools.audit.probe import Probe, examine, text
from islices.conformance.workers import version_of


def main(module: str, words: str, first: int) -> int:
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")  # text that frameworks print goes to the error output
    os.dup2(2, 1)
    name = module.rpartition(".")[2]
    about: dict[str, Any] = {"number": name, "module": module, "version": version_of(framework_of(name))}

    def say(**found: Any) -> None:
        print(json.dumps({**about, **found}), file=channel, flush=True)

    with contextlib.suppress(ModuleNotFoundError):  # Windows
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # expected crashes write no core files
    warnings.simplefilter("ignore")
    table: list[Probe] = []
    try:
        table = importlib.import_module(module if "." in module else f"{probes.__name__}.{module}").PROBES
    except ModuleNotFoundError as missing:
        if str(missing.name).startswith("islices"):
            raise
        say(outcome="not run", got=f"{missing.name} is not installed")
    except UnsupportedError as missing:  # the framework is installed but cannot run here
        say(outcome="not run", got=str(missing))
    for k, probe in enumerate(table, 1):
        about |= {"number": f"{name}-{k}", **probe._asdict(), "expected": text(probe.expected)}
        del about["request"]
        about_it = f"{about['number']} {probe.call} {probe.claim} clause {probe.clause}"
        if k < first or words.lower() not in about_it.lower():
            continue
        if probe.isolated and k > first:
            say(next=k)
            return 0
        say(outcome="corrupts")
        try:
            say(**examine(probe))
        except Exception:  # a fault of the probe; the other probes still run
            say(outcome="broken", got=traceback.format_exc().strip()[-1500:])
        if probe.isolated:
            say(next=k + 1)
            return 0
    say(next=None)
    channel.close()
    os._exit(0)  # skip the interpreter's exit: a crash there counts only after an isolated probe


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
