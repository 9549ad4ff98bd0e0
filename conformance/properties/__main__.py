"""Look for counterexamples: ``python -m islices.conformance.properties``.

Every law on every installed backend, each in a process of its own, and the calls of every law on all of them in one,
whose results must have the same bits. What breaks a law is shrunk and printed as code to paste into Python.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from importlib import resources

import islices
from islices.conformance.progress import bar, bars

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    settings = tomllib.loads((resources.files("islices.conformance") / "soak.toml").read_text("utf-8"))["properties"]
    parser = argparse.ArgumentParser(
        prog="python -m islices.conformance.properties", description=(__doc__ or "").split("\n")[0],
        epilog="exit codes: 0 all laws hold, 1 a counterexample was found, 2 usage, 3 a process broke",
    )  # fmt: skip
    parser.add_argument("-b", "--backend", action="append", metavar="NAME", help="only this backend (may be repeated)")
    parser.add_argument("-k", default="", metavar="TEXT", help="only laws whose name contains TEXT")
    parser.add_argument("--examples", type=int, default=settings["examples"], help="a law and mode (%(default)s)")
    parser.add_argument("--traced", type=int, default=settings["traced"], help="examples in traced code (%(default)s)")
    parser.add_argument("--seed", type=int, default=settings["seed"], help="what they are drawn from (%(default)s)")
    parser.add_argument("--here", choices=("laws", "differential"), help="in this process")
    options = parser.parse_args(argv)
    if importlib.util.find_spec("hypothesis") is None:
        parser.error('needs hypothesis: pip install "islices[conformance]"')
    names = options.backend or islices.list_backends()
    unknown = set(names) - set(islices.list_backends())
    if unknown:
        parser.error(f"--backend: got {', '.join(sorted(unknown))}; installed are {', '.join(islices.list_backends())}")
    if min(options.examples, options.traced) < 0:
        parser.error(f"--examples, --traced: got {min(options.examples, options.traced)}; accepted is 0 or more")
    if options.here:
        return (laws if options.here == "laws" else differential)(names, options)
    own = [sys.executable, "-m", "islices.conformance.properties", "--examples", str(options.examples)]
    own += ["--traced", str(options.traced), "--seed", str(options.seed), "-k", options.k]
    runs = [["--here", "laws", "-b", name] for name in names]
    runs += [["--here", "differential", *(word for name in names for word in ("-b", name))]]
    codes = [subprocess.run([*own, *run], check=False).returncode for run in runs]
    return 3 if any(code not in (0, 1) for code in codes) else max(codes)


def laws(names: Sequence[str], options: argparse.Namespace) -> int:
    """Every law in every mode of the backends."""
    from islices.conformance.properties.running import LAWS, break_law, columns

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
                    print(counterexample.script, flush=True)
    print(
        f"{', '.join(names)}: {tried} laws and modes, {found} broken ({time.monotonic() - started:.0f} s)", flush=True
    )
    return int(found > 0)


def differential(names: Sequence[str], options: argparse.Namespace) -> int:
    """The calls of every law on all the backends; the first, NumPy where it is among them, is what others equal."""
    from islices.conformance.properties.running import LAWS, columns, compare_columns

    with bar(f"importing {', '.join(names)}", 1):
        places = sorted(columns(names), key=lambda place: place[0].name != "numpy")
    chosen = [law for law in LAWS.values() if options.k in law.name]
    found, started = 0, time.monotonic()
    if len(places) > 1:
        with bars(["differential"], len(chosen)) as advance:
            for k, law in enumerate(chosen):
                advance("differential", k)
                counterexample = compare_columns(law, places, options.examples, options.seed)
                if counterexample:
                    found += 1
                    print(counterexample.script, flush=True)
    where = ", ".join(f"{backend.name} {mode}" for backend, mode in places)
    seconds = time.monotonic() - started
    print(f"{where}: the calls of {len(chosen)} laws, {found} differ ({seconds:.0f} s)", flush=True)
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
