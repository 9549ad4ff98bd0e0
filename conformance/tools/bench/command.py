"""`islices bench`: which cases, each backend in a process of its own, and what is written."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any

from islices.cli import Command, UsageError
from islices.conformance.outputs import check_backends, check_picture, check_writable, write
from islices.conformance.progress import bar
from islices.conformance.tools.bench import results
from islices.conformance.tools.bench.cases import AXES, OPERATIONS, Benchmark, cross, default_cases
from islices.conformance.tools.bench.compare import changes
from islices.conformance.tools.bench.imports import import_times
from islices.conformance.tools.bench.keras_fit import BACKENDS as KERAS_BACKENDS
from islices.conformance.tools.bench.keras_fit import CASES as KERAS_CASES
from islices.conformance.tools.bench.limit import OPTIMIZERS
from islices.conformance.tools.bench.plot import draw
from islices.conformance.tools.bench.report import show, tables
from islices.conformance.tools.bench.steps.model import cases_of
from islices.conformance.tools.bench.worker import PARTS
from islices.registry import list_backends

__all__ = ["COMMAND"]

DEFAULT_PARTS = ("import", "operations", "small", "updates", "memory")
#: Table sizes of the part "gradient"; frameworks that have its two parts.
GRADIENT_ROWS = (10**5, 10**6, 10**7, 10**8)
EMBEDDINGS = ("torch", "tensorflow", "jax", "mxnet")

#: Seconds without a finding after which a process counts as hung.
PATIENCE = 900

EPILOG = """\
parts
  operations  coalesce, clip_by_global_norm, norm, to_dense and scatter_add, from a framework's arrays of values and
              indices (validated) to a result that is computed
  small       coalesce, clip and an SGD step on 64 x 16: what a call costs
  updates     a step of sgd, adagrad, rowwise_adagrad and adam on the rows that an uncoalesced gradient names, beside
              torch.optim, FBGEMM, Keras, MXNet's lazy updates, JAX's donated scatter, and formulas by hand
  memory      what a call needs at its peak beside its inputs
  import      `import islices` against `import numpy`
and only when asked for
  step        whole training steps: lookup, loss, gradient, clipping, optimizer, eager and compiled, beside what is
              written by hand, the frameworks' optimizers and FBGEMM's; on torch also 26 tables; up to 12 GB of memory
  gradient    value_and_grad of a lookup while the table grows to 1e8 rows
  samples     norms and clipped sum of 64 samples' gradients
  growth      an optimizer's step on tables of 1e5 and of 1e8 rows
  keras       model.fit of stock Keras and by rows, on Keras's backends: tensorflow, torch, jax; up to 3 GB of memory

columns
  islices     as it runs by default; "kernels off" in NumPy alone; "framework" by its own operations;
              "compiled" inside tf.function or jax.jit
  own         the fastest that the framework's users can write without islices, for the same result: duplicates summed,
              rows ascending where islices sorts them. A way that does less ends in a remark in brackets, and stands in
              a second line where it is the fastest.
  islices / own      below 1 islices is faster; the median of the ratios within a round
  limit       the bytes that must move (every input read once, every output written once) at the speed at which as many
              threads copy memory, measured beside each case
  scipy       csr.T @ v, where SciPy is installed

  In the tables of the part step a line is a way. x copy: its time by that of a copy of the bytes that the step must
  move. x own: how many times as fast as the fastest own way of the same step. Losses are compared before.

examples
  islices bench                                           the default set, some minutes for five backends
  islices bench -b torch --json run.json --plot run.png   one backend; figures and a picture for later
  islices bench --part operations --operation coalesce --slices 1024 --slices 65536 --dim 64
  islices bench --part updates --threads 1                on one core
  islices bench --part step -b torch --repeat 15          whole steps on torch, some minutes
  islices bench --full -b numpy                           every size, length, distribution and type: hours
  islices bench --read run.json --markdown                the tables of an earlier run again
  islices bench --compare old.json new.json               what became faster or slower

exit codes: 0 measured, 2 usage, 3 something could not be measured
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    several: dict[str, Any] = {"action": "append"}
    add = parser.add_argument
    add("-b", "--backend", metavar="NAME", help="only this backend (may be repeated)", **several)
    add("--part", choices=("import", *PARTS), help="only this part (may be repeated)", **several)
    add("--full", action="store_true", help="every combination of the options below; every optimizer")
    add("--operation", choices=OPERATIONS, help="only this operation (may be repeated, like all up to --index-dtype)",
        **several)  # fmt: skip
    add("--slices", type=_positive, metavar="N", help="stored rows of the gradient", **several)
    add("--dim", type=_positive, metavar="D", help="elements of a row", **several)
    add("--distribution", choices=AXES["distribution"], help="how ids are drawn (zipf: exponent 1.1)", **several)
    add("--dtype", choices=AXES["dtype"], help="of values", **several)
    add("--index-dtype", choices=AXES["index_dtype"], help="of indices", **several)
    add("--repeat", type=_positive, default=5, metavar="N", help="rounds of each case, at least (%(default)s)")
    add("--seconds", type=float, default=0.5, metavar="S", help="rounds go on until so long (%(default)s)")
    add("--threads", type=_positive, metavar="N", help="of islices; the frameworks get as many cores (all)")
    add("--json", metavar="PATH", help="write the run to PATH (- for stdout)")
    add("--markdown", action="store_true", help="tables in Markdown on a terminal too")
    add("--plot", metavar="FILE.png", help="draw islices / own against the number of slices (needs matplotlib)")
    add("--read", metavar="RUN.json", help="measure nothing: show and plot an earlier run")
    add("--compare", nargs=2, metavar=("OLD.json", "NEW.json"), help="measure nothing: what changed between two runs")


def _positive(text: str) -> int:
    try:
        number = int(text.replace(",", "").replace("_", ""))
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"got {text}; accepted is a number of at least 1")
    return number


def bench(options: argparse.Namespace) -> int:
    """Measure, or read, and show."""
    if options.compare:
        show(changes(*map(results.read_run, options.compare)), options)
        return 0
    if options.plot:
        check_picture("--plot", options.plot)
    run = results.read_run(options.read) if options.read else _measured(options)
    if options.json:
        write("--json", options.json, json.dumps(run, indent=1) + "\n")
    show(tables(run), options)
    if options.plot:
        draw(run, options.plot)
    for failure in run["failures"]:
        print(f"islices bench: could not measure {failure}", file=sys.stderr)
    return 3 if run["failures"] else 0


COMMAND = Command("measure islices against each framework's own operations, as ratios in one run", arguments, bench)


# ---------------------------------------------------------------------- what is measured
def _measured(options: argparse.Namespace) -> dict[str, Any]:
    if options.json not in (None, "-"):
        check_writable("--json", options.json)
    names, cases = _backends(options.backend), _cases(options)
    parts, optimizers = options.part or DEFAULT_PARTS, tuple(OPTIMIZERS)[: None if options.full else 4]
    threads = options.threads or results.cores()
    run = results.new_run(threads)
    given = {"threads": threads, "repeat": options.repeat, "seconds": options.seconds}
    jobs = [
        job | given
        for part in parts
        if part != "import"
        for name in names
        for job in _jobs(part, name, cases, optimizers)
    ]
    started = time.monotonic()
    with bar("", sum(job.pop("steps") for job in jobs) + ("import" in parts)) as step:
        if "import" in parts:
            step.tell("importing each framework in a fresh Python")
            run["import"] = import_times()
            step("imported")
        for job in jobs:
            what = f"{job['backend']} {job['part']}"
            step.tell(f"{what}: starting Python, importing {job['backend']}")
            try:
                for record in _records(job):
                    run["records"].append(record)
                    run["versions"][record["backend"]] = record["version"]
                    if "error" in record:
                        run["failures"].append(f"{job['backend']} {Benchmark(**record['case'])}: {record['error']}")
                    step(f"{what}, after {record['case']['operation']}" if "case" in record else what)
            except RuntimeError as error:
                run["failures"].append(f"{what}: {error}")
    run["seconds"] = time.monotonic() - started
    return run


def _backends(wanted: list[str] | None) -> list[str]:
    known = [name for name in list_backends() if importlib.util.find_spec(f"islices.conformance.own_calls.{name}")]
    check_backends(wanted, known)
    return list(dict.fromkeys(wanted or known))


def _cases(options: argparse.Namespace) -> list[Benchmark]:
    given = {axis: getattr(options, axis) for axis in AXES if getattr(options, axis)}
    if options.full or given.keys() - {"operation"}:
        cases = cross(given, full=options.full)
    else:
        cases = [case for case in default_cases() if case.operation in given.get("operation", OPERATIONS)]
    if not cases:
        raise UsageError(
            "no case is left: to_dense has tables of 65,536 rows, scatter_add of at most 67,108,864 elements"
        )
    return cases


def _jobs(part: str, name: str, cases: list[Benchmark], optimizers: tuple[str, ...]) -> list[dict[str, Any]]:
    """The processes that measure a part for one backend, and how many records each is expected to find."""
    job = {"part": part, "backend": name}
    if part == "operations":
        return [job | {"cases": cases, "steps": len(cases)}]
    if part == "gradient":
        return [job | {"rows": rows, "steps": 1} for rows in GRADIENT_ROWS if name in EMBEDDINGS]
    if part == "samples":
        return [job | {"steps": 1}] if name in EMBEDDINGS else []
    if part == "step":
        # NumPy differentiates nothing; a process a case, for its tables take gigabytes
        return [job | {"case": case, "steps": 1} for case in cases_of(name) if name in EMBEDDINGS]
    if part == "keras":
        return [job | {"steps": len(KERAS_CASES)}] if name in KERAS_BACKENDS else []
    if part == "updates":
        return [job | {"optimizers": optimizers, "steps": len(optimizers)}]
    return [job | {"steps": {"small": 3, "memory": 3, "growth": 6}[part]}]


def _records(job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What one process finds, as it writes it. RuntimeError if it ends badly."""
    command = [sys.executable, "-m", "islices.conformance.tools.bench.worker", json.dumps(job)]
    environment = {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ}
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, encoding="utf-8", env=environment) as process,
    ):
        try:
            while line := _next_line(process):
                if line.startswith('{"backend"'):  # frameworks may have something to say as well
                    yield json.loads(line)
        except BaseException:
            process.kill()
            raise
        if process.wait():
            errors.seek(0)
            said = errors.read().strip().splitlines()
            why = said[-1] if said else "no message"
            raise RuntimeError(f"{why} (exit code {process.returncode})")


def _next_line(process: subprocess.Popen[str]) -> str:
    """What the process writes next, "" at its end; one that hangs is ended."""
    assert process.stdout is not None
    watch = threading.Timer(PATIENCE, process.kill)
    watch.start()
    try:
        return process.stdout.readline()
    finally:
        watch.cancel()
