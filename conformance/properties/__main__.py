"""Look for counterexamples: ``python -m islices.conformance.properties laws``, ``hostile`` or ``files``.

By default, ``laws`` tries every law on every installed backend, with one process per backend. ``hostile`` makes calls
with hostile arguments, and ``files`` loads hostile files. Hypothesis shrinks the counterexamples.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import islices
from islices.conformance.progress import bar, bars


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m islices.conformance.properties", description=(__doc__ or "").split("\n")[0],
        epilog="exit codes: 0 nothing found, 1 a counterexample was found, 2 usage, 3 a process broke",
    )  # fmt: skip
    add = parser.add_argument
    add("part", choices=PARTS, help="what to look for")
    add("-b", "--backend", action="append", metavar="NAME", help="only this backend (may be repeated)")
    add("-k", default="", metavar="TEXT", help="only laws whose name contains TEXT")
    add("--examples", type=int, help="a law and mode, or hostile calls of a backend")
    add("--traced", type=int, help="examples in traced code")
    add("--seed", type=int, help="what they are drawn from")
    add("--here", metavar="LOG", help="in this process; the hostile call in progress goes to LOG")
    options = parser.parse_args(argv)
    if importlib.util.find_spec("hypothesis") is None:
        parser.error('needs hypothesis: pip install "islices[conformance]"')
    settings = tomllib.loads((resources.files("islices.conformance") / "soak.toml").read_text("utf-8"))
    for name, default in settings.get(options.part, settings["laws"]).items():
        if getattr(options, name) is None:
            setattr(options, name, default)
    names = options.backend or islices.list_backends()
    unknown = set(names) - set(islices.list_backends())
    if unknown:
        parser.error(f"--backend: got {', '.join(sorted(unknown))}; installed are {', '.join(islices.list_backends())}")
    if min(options.examples, options.traced or 0) < 0:
        parser.error(f"--examples, --traced: got {min(options.examples, options.traced or 0)}; accepted is 0 or more")
    if options.here is not None:
        return PARTS[options.part](names, options)
    runs = [[options.part, "-b", name] for name in names] if options.part != "files" else [["files"]]
    return max(_in_a_process(run, options) for run in runs)


def _in_a_process(run: list[str], options: argparse.Namespace) -> int:
    """Run a part in a separate process and return the exit code. If the exit code is neither 0 nor 1, as after a crash,
    print the last noted call of the process and return 3."""
    command = [sys.executable, "-m", "islices.conformance.properties", *run, "-k", options.k]
    command += [f"--{name}={value}" for name in SETTINGS if (value := getattr(options, name)) is not None]
    with tempfile.TemporaryDirectory(prefix="islices-properties-") as folder:
        log = Path(folder, "call")
        code = subprocess.run([*command, "--here", str(log)], check=False).returncode
        if code in (0, 1):
            return code
        call = log.read_text("utf-8") if log.exists() else "its first call"
        print(f"{run[0]}: the process ended (exit {code}) at {call}", flush=True)
    return 3


def laws(names: Sequence[str], options: argparse.Namespace) -> int:
    """Try the laws in every mode of the backends. Return 1 if a law is broken, else 0."""
    from islices.conformance.properties.laws import LAWS
    from islices.conformance.properties.running import break_law, columns

    found, tried, started = 0, 0, time.monotonic()
    with bar(f"importing {', '.join(names)}", 1):
        places = columns(names, ("host", "framework", "traced"))
    chosen = [law for law in LAWS.values() if options.k in law.name]
    labels = {place: f"{place[0].name} {place[1]}" for place in places}
    with bars(list(labels.values()), len(chosen)) as advance:
        for place in places:
            backend, mode = place
            backend.forget_compiled()
            for k, law in enumerate(chosen):
                advance(labels[place], k)
                count = options.examples if mode != "traced" else options.traced * law.traced
                if not count:
                    continue
                tried += 1
                counterexample = break_law(law, backend, mode, count, options.seed)
                if counterexample:
                    found += 1
                    print(counterexample, flush=True)
    print(
        f"{', '.join(names)}: {tried} laws and modes, {found} broken ({time.monotonic() - started:.0f} s)", flush=True
    )
    return int(found > 0)


def hostile(names: Sequence[str], options: argparse.Namespace) -> int:
    """Attack each backend with hostile calls, until one of the backend's calls breaks a promise. Return 1 if a promise
    was broken, else 0."""
    from islices.conformance.properties.hostile import attack

    found = 0
    for name in names:
        started = time.monotonic()
        came, problem = attack(islices.get_backend(name), options.examples, options.seed, log=Path(options.here))
        found |= _tell(f"{name}: {came.total()} hostile calls", started, came, problem)
    return found


def files(names: Sequence[str], options: argparse.Namespace) -> int:
    """Load hostile files, until a file breaks a promise. Return 1 if a promise was broken, else 0."""
    from islices.conformance.properties.files import attack, limit_memory

    started = time.monotonic()
    limit_memory()
    came, problem = attack(options.examples, options.seed, Path(options.here))
    return _tell(f"{came.total()} files", started, came, problem)


def _tell(subject: str, started: float, came: Counter[str], problem: str) -> int:
    """Print the counts of outcomes and the broken promise. Return 1 if there is a broken promise, else 0."""
    counts = ", ".join(f"{n} {word}" for word, n in came.most_common())
    print(f"{subject} in {time.monotonic() - started:.0f} s: {counts}\n{problem}", flush=True)
    return int(bool(problem))


PARTS = {"laws": laws, "hostile": hostile, "files": files}
SETTINGS = ("examples", "traced", "seed")

if __name__ == "__main__":
    sys.exit(main())
