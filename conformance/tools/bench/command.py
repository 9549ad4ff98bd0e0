"""Define `islices bench`: select the cases, run the measuring processes, and write the results."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator

from islices.cli import Command, UsageError
from islices.conformance.outputs import check_backends, check_writable, print_text, write
from islices.conformance.progress import bar
from islices.conformance.tools.bench import frameworks, results, small
from islices.conformance.tools.bench.benchmarks import AXES, cross, default_cases
from islices.conformance.tools.bench.rates import OPTIMIZERS
from islices.conformance.tools.bench.report import markdown, tables
from islices.conformance.tools.bench.rounds import Record
from islices.conformance.tools.bench.step import cases_of
from islices.core.registry import list_backends
from islices.kernels.threads import cores

PARTS = ("operations", "small", "updates", "embedding", "step")
DEFAULT_PARTS = PARTS[:3]

#: The seconds after which a measuring process counts as hung.
PATIENCE = 3600

EPILOG = """\
parts
  operations  coalesce, clip_by_global_norm, norm and to_dense, from a framework's arrays of values and indices
              to a computed result; the input is validated
  small       coalesce, clip and an SGD step on 64 x 16: what a call costs
  updates     a step of sgd, adagrad, rowwise_adagrad and adam on the rows of an uncoalesced gradient, next to
              torch.optim, JAX's donated scatter, and formulas by hand
only if --part names them (NumPy has neither)
  embedding   value_and_grad of a lookup on 1e5 and on 1e8 rows; up to 5 GB of memory
  step        whole training steps: lookup, loss, gradient, clipping, optimizer, eager and compiled, next to formulas by
              hand, the frameworks' optimizers and FBGEMM's; on torch also 26 tables; up to 12 GB of memory

columns
  program     islices as it runs by default (with ISLICES_KERNELS=0: only NumPy); "compiled": inside tf.function,
              jax.jit or torch.compile. The others are what the framework's users write without islices for the same
              result: duplicates summed, rows ascending where islices sorts them. A program with a remark in brackets
              does less than the others.
  ms          the median; the fastest program comes first
  x copy      the time divided by the time of a copy, by as many threads, of the bytes that must move: each input is
              read once, each output written once. The copy is measured next to each case.
  x other     how many times as fast as the fastest program without islices: above 1 is faster. The median of the
              ratios within a round.

examples
  islices bench                                           the default set, some minutes for five backends
  islices bench -b torch --json run.json                  one backend, written to a file
  islices bench --part operations --operation coalesce --slices 1024 --slices 65536 --dim 64
  islices bench --part updates --threads 1                on one core
  islices bench --part step -b torch --repeat 15          whole steps on torch, some minutes
  islices bench --read run.json                           the tables of an earlier run again

exit codes: 0 measured, 2 usage error, 3 something could not be measured
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    several: Record = {"action": "append"}
    add = parser.add_argument
    add("-b", "--backend", metavar="NAME", help="only this backend (may be repeated)", **several)
    add("--part", choices=PARTS, help="only this part (may be repeated)", **several)
    add("--operation", choices=AXES["operation"], help="only this operation (may be repeated, like the next three)",
        **several)  # fmt: skip
    add("--slices", type=_positive, metavar="N", help="stored rows of the gradient", **several)
    add("--dim", type=_positive, metavar="D", help="elements of a row", **several)
    add("--distribution", choices=AXES["distribution"], help="how ids are drawn (zipf: exponent 1.1)", **several)
    add(
        "--repeat", type=_positive, default=5, metavar="N", help="the least number of rounds of each case (%(default)s)"
    )
    add(
        "--seconds", type=float, default=0.5, metavar="S", help="the least number of seconds of each case (%(default)s)"
    )
    add(
        "--threads",
        type=_positive,
        metavar="N",
        help="the number of threads of islices, and of cores of the frameworks (all)",
    )
    add("--json", metavar="PATH", help="write the run to PATH (- for stdout)")
    add("--read", metavar="RUN.json", help="measure nothing: show an earlier run")


def _positive(text: str) -> int:
    try:
        number = int(text.replace(",", "").replace("_", ""))
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"got {text}; accepted is a number of at least 1")
    return number


def bench(options: argparse.Namespace) -> int:
    """Measure a run, or read a saved run, and show it. Return 3 if a measurement failed, else 0."""
    run = results.read_run(options.read) if options.read else _measured(options)
    if options.json:
        write("--json", options.json, json.dumps(run, indent=1) + "\n")
    if options.json != "-":
        print_text("\n\n".join("\n".join(markdown(table)) for table in tables(run)))
    for failure in run["failures"]:
        print(f"islices bench: could not measure {failure}", file=sys.stderr)
    return 3 if run["failures"] else 0


COMMAND = Command(
    "compare the speed of islices with each framework's operations, as ratios in one run", arguments, bench
)


# ---------------------------------------------------------------------- what is measured
def _measured(options: argparse.Namespace) -> Record:
    if options.json not in (None, "-"):
        check_writable("--json", options.json)
    threads = options.threads or cores()
    run = results.new_run(threads)
    given = {"threads": threads, "repeat": options.repeat, "seconds": options.seconds}
    jobs = [job | given for job in _jobs(options)]
    started = time.monotonic()
    with bar("", sum(job.pop("records") for job in jobs)) as step:
        for job in jobs:
            subject = f"{job['backend']} {job['part']}"
            step.tell(f"{subject}: starting Python, importing {job['backend']}")
            try:
                for record in _records(job):
                    run["records"].append(record)
                    run["versions"][record["backend"]] = record["version"]
                    if "error" in record:
                        run["failures"].append(f"{subject} {record['operation']}: {record['error']}")
                    step(f"{subject}, after {record['operation']}")
            except RuntimeError as error:
                run["failures"].append(f"{subject}: {error}")
    run["seconds"] = time.monotonic() - started
    return run


def _jobs(options: argparse.Namespace) -> Iterator[Record]:
    """Yield a job for each measuring process. "records" in a job is the number of records that the process should
    print."""
    known = [name for name in list_backends() if importlib.util.find_spec(f"{frameworks.__name__}.{name}")]
    check_backends(options.backend, known)
    given = {axis: getattr(options, axis) for axis in AXES if getattr(options, axis)}
    cases = cross(given) if given else default_cases()
    if not cases:
        raise UsageError('no case is left: the ids of "unique" are at most as many as the rows, 65,536 of to_dense')
    for part in dict.fromkeys(options.part or DEFAULT_PARTS):
        for name in dict.fromkeys(options.backend or known):
            job = {"part": part, "backend": name}
            if part == "operations":
                yield job | {"cases": cases, "records": len(cases)}
            elif part == "small":
                yield job | {"records": len(small.OPERATIONS)}
            elif part == "updates":
                yield job | {"optimizers": list(OPTIMIZERS), "records": len(OPTIMIZERS)}
            elif name == "numpy":  # NumPy cannot differentiate
                continue
            elif part == "embedding":
                yield job | {"records": 2}
            else:  # one process per case, because its tables need gigabytes
                yield from (job | {"case": case, "records": 1} for case in cases_of(name))


def _records(job: Record) -> list[Record]:
    """Run the process of a job and return its records. Raise RuntimeError if the process fails or hangs."""
    command = [sys.executable, "-m", "islices.conformance.tools.bench.measuring", json.dumps(job)]
    environment = {"TF_CPP_MIN_LOG_LEVEL": "3", "ISLICES_KERNELS": "1", **os.environ}
    try:
        done = subprocess.run(
            command, capture_output=True, encoding="utf-8", errors="replace", env=environment, timeout=PATIENCE
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"no end within {PATIENCE} s") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise RuntimeError(f"{lines[-1]} (exit code {done.returncode})")
    # frameworks may print other lines
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"backend"')]
