"""islices against each framework's own calls, as ratios in one run: ``python -m islices.conformance.bench``.

Machines, loads and frameworks differ, so a time alone says little. Every round here runs all the ways to do one thing
one after the other, in a rotating order, and what is compared are medians over the rounds of the ratios within a
round. Each backend runs in a process of its own. A framework's own calls stand in `islices.conformance.native`.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib.util
import itertools
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any

import numpy as np

import islices
from islices import IndexedSlices, clip_by_global_norm, coalesce, execution, get_backend, list_backends, to_dense
from islices.conformance import bench_embedding, bench_updates
from islices.conformance.bench_rounds import figures, markdown, measure, ratio, zipf_ids

__all__ = ["main"]

PARTS = ("import", "operations", "gradient", "samples", "updates")
OPERATIONS = ("coalesce", "to_dense", "clip_by_global_norm")
IMPORT_ROUNDS = 11
IMPORT = "import time; t = time.perf_counter(); import {}; print(time.perf_counter() - t)"

EPILOG = """\
What is measured
  import      `import islices` (which imports NumPy) against `import numpy`, each in fresh interpreters, bytecode cached
  operations  from a framework's arrays of values and indices to a result that is computed:
                host     islices as it runs by default, in NumPy on views of the framework's memory
                native   islices by the framework's own operations (execution("native"))
                own      the fastest of what a user of the framework writes without islices
              A ratio below 1 means that islices is faster. "copy" is a copy of the values, the least any could take.
  gradient    value_and_grad of sum(lookup(table, ids) * upstream), eager and compiled, for tables of 1e5 to 1e8 rows
              (of 4 float32: 1.6 GB), and the growth of memory meanwhile, beside the framework's own sparse way and its
              dense gradient (to 1e7 rows). "floor" is a copy of the rows in and of their gradient out.
  samples     norms and clipped sum of 64 samples' gradients by one backward pass, against 64 backward passes and, in
              torch and JAX, against vmap(grad) by the gathered rows
  updates     scatter_add and a step of sgd, adagrad, adam and rowwise_adagrad on the rows that an uncoalesced gradient
              names, eager and compiled, of 65,536 slices and of 64, beside the framework's own optimizers and formulas
              by hand, and "floor", a copy of as many bytes as must be read and written; and the same step on a table
              of 1e5 and of 1e8 rows (of 4 float32; adam holds three of 1.6 GB)

Own calls with a remark do less: they do not sum duplicates, or not in order of occurrence, or leave rows unsorted.
islices does all three, so where such a call is fastest, a second line has the fastest without a remark. Indices
follow Zipf's law with exponent 1.1: a few rows occur very often.

examples
  python -m islices.conformance.bench                            every backend installed, about five minutes
  python -m islices.conformance.bench --backend torch            one of them (repeat the option for more)
  python -m islices.conformance.bench --part samples             one of the tables (repeat the option for more)
  python -m islices.conformance.bench --slices 64 --dim 16 --rows 1000 --repeat 200    small calls: the overhead
  python -m islices.conformance.bench --json bench.json          the figures for a program to read
exit codes
  0  measured and printed     2  an argument that is not accepted, or a backend that could not be measured
"""


# ---------------------------------------------------------------------- one backend, in a process of its own
def does_less(label: str) -> bool:
    """Whether an own call's label ends in a remark: "(duplicates not summed)"."""
    return " (" in label


def worker(name: str, rows: int, slices: int, dim: int, repeat: int) -> None:
    """Measure one backend and write what is found as JSON lines, one for each operation."""
    B = get_backend(name)
    native = importlib.import_module(f"islices.conformance.native.{name}")
    values = np.random.default_rng(1).standard_normal((slices, dim), np.float32)
    # each framework's own choice of index type
    indices = zipf_ids(slices, rows).astype(np.int32 if name == "jax" else np.int64)
    v, i = B.asarray(values), B.asarray(indices)
    max_norm = float(np.linalg.norm(values)) / 2  # below the gradient's norm: there is something to clip
    own = native.own_calls(values, indices, rows, max_norm)
    functions: dict[str, Callable[[IndexedSlices], Any]] = {
        "coalesce": coalesce,
        "to_dense": to_dense,
        "clip_by_global_norm": lambda s: clip_by_global_norm([s], max_norm),
    }
    target = np.empty_like(values)

    def way(operation: str, mode: str) -> Callable[[], Any]:
        def call() -> Any:
            with execution(mode):
                result = functions[operation](IndexedSlices(v, i, (rows, dim)))
            native.block(result)
            return result

        return call

    for operation in OPERATIONS:
        modes = ("host",) if B.host_only else ("host", "native")
        ways: dict[str, Callable[[], Any]] = {mode: way(operation, mode) for mode in modes}
        ways["copy"] = lambda: np.copyto(target, values)
        times = measure(ways | own.get(operation, {}), repeat)
        labels = sorted(own.get(operation, ()), key=lambda label: median(times[label]))
        # the fastest, and if that does less than islices (its label says so), the fastest that does the same
        same = [label for label in labels if not does_less(label)]
        record = {
            "backend": name,
            "version": B.version(),
            "operation": operation,
            "milliseconds": {label: median(times[label]) for label in times},
            "own": list(dict.fromkeys(labels[:1] + same[:1])),
            "ratios": {label: {mode: ratio(times[mode], times[label]) for mode in modes} for label in labels},
        }
        print(json.dumps(record), flush=True)


# ---------------------------------------------------------------------- all of them
def import_times(step: Callable[[str], None]) -> dict[str, float]:
    """Median seconds of `import numpy` and of `import islices`, and the median of their ratios."""
    with tempfile.TemporaryDirectory() as folder:
        # bytecode may be written somewhere, as it is where packages are installed by pip
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = folder
        found: dict[str, list[float]] = {"numpy": [], "islices": []}
        for turn in range(-1, IMPORT_ROUNDS):
            for module in found:
                out = _run([sys.executable, "-c", IMPORT.format(module)], environment)
                if turn >= 0:
                    found[module].append(float(out))
            step("import")
    return {
        "numpy": median(found["numpy"]),
        "islices": median(found["islices"]),
        "ratio": ratio(found["islices"], found["numpy"]),
    }


def _run(command: Sequence[str], environment: dict[str, str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise RuntimeError(_reason(done.stderr, done.returncode))
    return done.stdout


def _reason(text: str, code: int) -> str:
    return (text.strip().splitlines() or [f"exit code {code}"])[-1]


def commands(part: str, name: str, options: argparse.Namespace) -> list[list[str]]:
    """The processes that measure a part for one backend, as arguments of the interpreter."""
    repeat = ["--repeat", str(options.repeat)]
    if part == "operations":
        command = ["islices.conformance.bench", "--worker", name, *repeat]
        return [command + [x for k in ("rows", "slices", "dim") for x in (f"--{k}", str(getattr(options, k)))]]
    if part == "updates":
        command = ["islices.conformance.bench_updates", "--worker", name, *repeat]
        return [command, [*command, "--growth"]] if name in bench_updates.FRAMEWORKS else []
    if name not in bench_embedding.FRAMEWORKS:
        return []
    command = ["islices.conformance.bench_embedding", "--worker", name, *repeat]
    return [[*command, "--rows", str(n)] for n in bench_embedding.ROWS] if part == "gradient" else [command]


def records_of(arguments: Sequence[str]) -> Iterator[dict[str, Any]]:
    """What one such process finds, as it writes it."""
    command = [sys.executable, "-m", *arguments]
    environment = {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ}
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment) as process,
    ):
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if line.startswith('{"backend"'):  # frameworks may have something to say as well
                    yield json.loads(line)
        finally:
            if process.poll() is None and sys.exc_info()[0] is not None:
                process.kill()
        code = process.wait()
        if code:
            errors.seek(0)
            raise RuntimeError(_reason(errors.read(), code))


@contextlib.contextmanager
def progress(total: int) -> Iterator[Callable[[str], None]]:
    """A function to call, with what has been measured, after each step; it draws on stderr if that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda what: None
        return
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ImportError:
        count = itertools.count(1)
        yield lambda what: print(f"\r{next(count)}/{total} {what:<40}", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
        return
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda what: bar.update(task, advance=1, description=what)


def report(found: dict[str, Any]) -> str:
    """What has been measured, as Markdown."""
    machine, size, imports = found["machine"], found["size"], found["import"]
    lines = [
        f"{found['date']}, {machine['system']}, {machine['cores']} cores, Python {machine['python']}, "
        f"NumPy {machine['numpy']}, islices {found['islices']}; median of {size['repeat']} rounds",
    ]
    if imports:
        lines += [
            "",
            f"import islices {imports['islices'] * 1e3:.0f} ms, import numpy {imports['numpy'] * 1e3:.0f} ms, "
            f"ratio {imports['ratio']:.2f}",
        ]
    heads = ("backend", "operation", "host ms", "native ms", "copy ms", "fastest own call", "own ms", "host / own",
             "native / own")  # fmt: skip
    if found["results"]:
        table = [_cells(record, own) for record in found["results"] for own in record["own"] or [None]]
        title = (
            f"operations: {size['rows']:,} x {size['dim']} float32, {size['slices']:,} Zipf(1.1) ids "
            f"({size['distinct']:,} distinct)"
        )
        lines += ["", title, "", *markdown(heads, table, {2, 3, 4, 6, 7, 8})]
    if found["gradient"]:
        lines += bench_embedding.gradient_table(found["gradient"])
    if found["samples"]:
        lines += bench_embedding.samples_table(found["samples"])
    if found["updates"]:
        lines += bench_updates.steps_table(found["updates"]) + bench_updates.growth_table(found["updates"])
    return "\n".join(lines)


def _cells(record: dict[str, Any], own: str | None) -> list[str]:
    times, ratios = record["milliseconds"], record["ratios"].get(own, {})
    if own in record["own"][1:]:  # a second line for the same measurement
        head = ["", "", "", "", ""]
    else:
        head = [f"{record['backend']} {record['version']}", record["operation"]]
        head += [figures(times.get(key)) for key in ("host", "native", "copy")]
    ends = [f"{ratios[mode]:.2f}" if mode in ratios else "-" for mode in ("host", "native")]
    return [*head, own or "-", figures(times.get(own)), *ends]


# ---------------------------------------------------------------------- the command
def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m islices.conformance.bench",
        description="Measure islices against each installed framework's own calls.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--backend", action="append", metavar="NAME", help="measure this backend only; may be repeated")
    add("--part", action="append", choices=PARTS, help="measure this part only; may be repeated")
    add("--rows", type=_positive, default=1_000_000, metavar="N", help="rows of the table (%(default)s)")
    add("--slices", type=_positive, default=131_072, metavar="N", help="stored rows of the gradient (%(default)s)")
    add("--dim", type=_positive, default=64, metavar="N", help="elements of a row (%(default)s)")
    add("--repeat", type=_positive, default=7, metavar="N", help="rounds that count (%(default)s)")
    add("--json", metavar="PATH", help="write the figures to PATH as well")
    add("--no-import", action="store_true", help="leave the import times out")
    add("--worker", help=argparse.SUPPRESS)
    return parser


def _positive(text: str) -> int:
    number = int(text.replace("_", ""))
    if number < 1:
        raise argparse.ArgumentTypeError(f"got {text}; accepted is a number of at least 1")
    return number


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.worker:
        worker(options.worker, options.rows, options.slices, options.dim, options.repeat)
        os._exit(0)  # not by way of the interpreter's end, where MXNet's threads sometimes abort the process
    installed = [name for name in list_backends() if importlib.util.find_spec(f"islices.conformance.native.{name}")]
    names = list(dict.fromkeys(options.backend or installed))
    for name in names:
        if name not in installed:
            parser.error(f"--backend: got {name!r}; accepted are those installed: {', '.join(installed)}")
    failures: list[str] = []
    found: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "islices": islices.__version__,
        "machine": {
            "system": f"{platform.system()} {platform.machine()}",
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "python": platform.python_version(),
            "numpy": np.__version__,
        },
        "size": {k: getattr(options, k) for k in ("rows", "slices", "dim", "repeat")}
        | {"distinct": len(np.unique(zipf_ids(options.slices, options.rows)))},
        "import": None,
        "results": [],
        "gradient": [],
        "samples": [],
        "updates": [],
    }
    parts = [part for part in options.part or PARTS if not (part == "import" and options.no_import)]
    todo = [(part, c) for part in parts if part != "import" for name in names for c in commands(part, name, options)]
    total = sum(len(OPERATIONS) if part == "operations" else 1 for part, _ in todo)
    total += IMPORT_ROUNDS + 1 if "import" in parts else 0
    try:  # before anything is measured
        out = open(options.json, "w", encoding="utf-8") if options.json else None  # noqa: SIM115 (closed below)
    except OSError as error:
        parser.error(f"--json: {error}")
    with out or contextlib.nullcontext(), progress(total) as step:
        if "import" in parts:
            try:
                found["import"] = import_times(step)
            except RuntimeError as error:
                failures.append(f"import: {error}")
        for part, command in todo:
            name = command[command.index("--worker") + 1]
            try:
                for record in records_of(command):
                    found["results" if part == "operations" else part].append(record)
                    if part == "operations":
                        step(f"{name} {record['operation']}")
            except RuntimeError as error:
                failures.append(f"{name} {part}: {error}")
            if part != "operations":
                step(f"{name} {part}")
        if out:
            json.dump(found, out, indent=1)
            out.write("\n")
    print(report(found))
    for failure in failures:
        print(f"could not measure {failure}", file=sys.stderr)
    return 2 if failures else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(2)
