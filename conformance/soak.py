"""Long runs: random cases, drawn by seed, against the oracle on every backend (`make soak`).

``python -m islices.conformance.soak`` reads the seeds and counts of soak.toml. Each backend runs in its own process. A
difference prints the seed, the number of the case and the call, so that it can be run again and become a golden case.
"""

from __future__ import annotations

import argparse
import math
import random
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from importlib import resources
from typing import Any

import islices
from islices.conformance.data import Array, Case, Slices
from islices.conformance.execute import difference, forget_compiled, run_case
from islices.conformance.generate import factors, number
from islices.conformance.generate_optim import state_of
from islices.conformance.operations import UnsupportedError
from islices.conformance.oracle import FORMATS, SCATTER
from islices.conformance.oracle_optim import OPTIMIZERS
from islices.conformance.oracles import ORACLES
from islices.conformance.progress import bar

__all__ = ["main", "random_case"]

TRACED_SHARE = 10
#: Few shapes, because compilers compile each: (slices, row shape).
SHAPES = ((0, (3,)), (1, (3,)), (17, (3,)), (40, (3,)), (40, ()), (17, (2, 2)))
ROWS = 12


def random_slices(rng: random.Random, dtype: str, n: int, row_shape: tuple[int, ...], index_type: str) -> Slices:
    spread = rng.choice((1, 3, ROWS))
    ids = [rng.randrange(spread) for _ in range(n)]
    width = math.prod(row_shape)
    data = [number(rng, dtype) for _ in range(n * width)]
    if n > 1 and rng.random() < 0.3:  # a row that cancels
        data[width : 2 * width] = [-v for v in data[:width]]
        ids[1] = ids[0]
    if rng.random() < 0.3:
        ids.sort()
    return Slices(Array(dtype, (n, *row_shape), data), Array(index_type, (n,), ids), (ROWS, *row_shape))


def random_case(rng: random.Random, name: str) -> Case:
    dtype, index_type = rng.choice(list(FORMATS)), rng.choice(("int32", "int64"))
    n, row_shape = rng.choice(SHAPES)
    s = random_slices(rng, dtype, n, row_shape, index_type)
    dense = Array(dtype, (ROWS, *row_shape), [number(rng, dtype) for _ in range(ROWS * math.prod(row_shape))])
    limit = rng.choice((0.0, 0.7, 3.0, 11.0, 1e6))
    makers: dict[str, Callable[..., tuple[list[Any], dict[str, Any]]]] = {
        "coalesce": lambda: ([s], {}),
        "to_dense": lambda: ([s], {}),
        "scale": lambda: ([s, rng.choice((0.3, -1.0, 1 / 3, 7.0))], {}),
        "add": lambda: ([s, rng.choice((dense, random_slices(rng, dtype, n, row_shape, index_type)))], {}),
        "norm": lambda: ([s], {"ord": rng.choice((1, 2, "inf"))}),
        "global_norm": lambda: ([[s, dense, None]], {}),
        "clip_by_value": lambda: ([s, -rng.choice((0.0, 0.9, 4.0)), rng.choice((0.0, 1.1, 5.0))], {}),
        "clip_by_norm": lambda: ([s, limit], {}),
        "clip_by_row_norm": lambda: ([s, limit], {}),
        "clip_by_global_norm": lambda: ([[s, None, {"d": dense}], limit], {}),
        "keep_rows": lambda: ([s, Array("int64", (3,), [rng.randrange(ROWS) for _ in range(3)])], {}),
        "drop_padding": lambda: ([s, rng.randrange(-ROWS, ROWS)], {}),
        "scale_by_frequency": lambda: ([s], {}),
        "embedding_grad": lambda: ([s.values, s.indices, ROWS], {"padding_idx": rng.choice((None, 0, -1))}),
        **{f"scatter_{op}": lambda op=op: ([dense, factors(s) if op in ("mul", "div") else s], {}) for op in SCATTER},
        "optimizer_steps": lambda: random_steps(rng, dense, s),
        "renorm_rows": lambda: ([dense, s.indices, limit], {}),
        "lookup": lambda: random_bags(rng, dtype, index_type, dense)[0],
        "lookup_gradient": lambda: random_bags(rng, dtype, index_type, dense)[1],
        "per_sample_norms": lambda: (random_samples(rng, dtype, index_type), {"padding_idx": rng.choice((None, 1))}),
        "per_sample_to_dense": lambda: (random_samples(rng, dtype, index_type), {}),
        "per_sample_clip_sum": lambda: ([*random_samples(rng, dtype, index_type), limit], {}),
    }
    op = rng.choice(sorted(makers))
    args, kwargs = makers[op]()
    return Case(name, "17", op, args, kwargs, ORACLES[op](*args, **kwargs))


Call = tuple[list[Any], dict[str, Any]]


def random_bags(rng: random.Random, dtype: str, index_type: str, table: Array) -> tuple[Call, Call]:
    """(a lookup of bags, its gradient): along the last axis or at offsets, with what options there are."""
    row_shape = table.shape[1:]
    spread = rng.choice((2, ROWS))
    ids = Array(index_type, (4, 5), [rng.randrange(spread) for _ in range(20)])
    options: dict[str, Any] = {"combiner": rng.choice(("sum", "mean", "sqrtn", "max"))}
    if rng.random() < 0.5:
        options["padding_idx"] = rng.choice((0, 1, -1))
    if rng.random() < 0.5:
        starts = sorted(rng.randrange(21) for _ in range(3))
        ids = Array(index_type, (20,), ids.data)
        options["offsets"] = Array(rng.choice(("int32", "int64")), (4,), [0, *starts])
        options["include_last_offset"] = last = rng.random() < 0.3
        if last:
            options["offsets"] = Array("int64", (5,), [0, *starts, rng.randrange(starts[-1], 21)])
    if rng.random() < 0.3:
        options["invalid"] = "drop"
        ids = Array(index_type, ids.shape, [-1 if rng.random() < 0.2 else i for i in ids.data])
    if rng.random() < 0.2:
        options["max_norm"] = rng.choice((0.0, 0.7, 3.0, 1e6))
    if rng.random() < 0.5:
        options["mask"] = Array("bool", ids.shape, [rng.random() < 0.7 for _ in range(20)])
    if options["combiner"] != "max" and rng.random() < 0.5:
        options["weights"] = Array(dtype, ids.shape, [number(rng, dtype) for _ in range(20)])
    upstream = Array(dtype, (4, *row_shape), [number(rng, dtype) for _ in range(4 * math.prod(row_shape))])
    if "offsets" in options and rng.random() < 0.3:  # the same bags by their lengths
        starts = options.pop("offsets").data
        ends = starts[1:] if options.pop("include_last_offset") else [*starts[1:], 20]
        ids = (ids, Array(index_type, (4,), [b - a for a, b in zip(starts, ends, strict=False)]))  # type: ignore[assignment]
    return ([table, ids], options), ([table, ids, upstream], options)


def random_steps(rng: random.Random, table: Array, grad: Slices) -> Call:
    """One step of some optimizer from some state."""
    name, hyper = rng.choice(list(OPTIMIZERS.values()))
    options: dict[str, Any] = {"rows": rng.choice(("touched", "all")), "maximize": rng.random() < 0.2}
    if rng.random() < 0.3:
        options["frozen"] = [rng.randrange(ROWS) for _ in range(3)]
    state = state_of(name, hyper, table, rng.choice((0, 3, 10 ** rng.randrange(9))), str(rng.random()))
    return [name, hyper, table, [grad]], {"state": state, **options}


def random_samples(rng: random.Random, dtype: str, index_type: str) -> list[Any]:
    spread = rng.choice((2, ROWS))
    ids = Array(index_type, (4, 5), [rng.randrange(spread) for _ in range(20)])
    upstream = Array(dtype, (4, 5, 3), [number(rng, dtype) for _ in range(60)])
    if rng.random() < 0.3:  # within a sample, a row that cancels
        upstream.data[3:6] = [-v for v in upstream.data[:3]]
        ids.data[1] = ids.data[0]
    return [upstream, ids, ROWS]


def soak(backend_name: str, seeds: list[int], cases: int) -> int:
    """Run every seed in every mode of one backend; returns how many cases differed."""
    with bar(f"importing {backend_name}", 1):
        backend = islices.get_backend(backend_name)
        modes = backend.modes()
    bad = 0
    for mode in modes:
        count = cases // TRACED_SHARE if mode == "traced" else cases
        forget_compiled(backend)
        started, unsupported, total = time.monotonic(), 0, len(seeds) * count
        with bar(f"{backend_name} {mode}", total, done=-1) as step:  # told before each
            for name, case in _cases(seeds, count):
                step(f"{backend_name} {mode}: {case.op}")
                try:
                    problem = difference(run_case(backend, case, mode), case.expect)
                except UnsupportedError:
                    unsupported += 1
                    continue
                except Exception as error:
                    problem = f"raised {type(error).__name__}: {error}"
                if problem:
                    bad += 1
                    print(f"{backend_name} {mode} {name}: {problem}\n  {case.call}", flush=True)
        print(
            f"{backend_name} {mode}: seeds {seeds}, {total} cases, {unsupported} unsupported, {bad} differ so far "
            f"({time.monotonic() - started:.0f} s)",
            flush=True,
        )
    return bad


def _cases(seeds: list[int], count: int) -> Iterator[tuple[str, Case]]:
    """Each case, and by which seed and number it is drawn again."""
    for seed in seeds:
        rng = random.Random(seed)
        for k in range(count):
            yield f"seed {seed} case {k}", random_case(rng, f"soak/{seed}/{k}")


def main() -> int:
    settings = tomllib.loads((resources.files("islices.conformance") / "soak.toml").read_text("utf-8"))
    parser = argparse.ArgumentParser(
        prog="python -m islices.conformance.soak", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("-b", "--backend", action="append", help="only this backend (may be repeated)")
    parser.add_argument("--seed", type=int, action="append", help=f"instead of {settings['seeds']} (may be repeated)")
    parser.add_argument("--cases", type=int, default=settings["cases"], help="for each seed and mode")
    parser.add_argument("--here", action="store_true", help="in this process (one backend)")
    options = parser.parse_args()
    names = options.backend or islices.list_backends()
    seeds = options.seed or settings["seeds"]
    if options.here:
        return int(soak(names[0], seeds, options.cases) > 0)
    own = [sys.executable, "-m", "islices.conformance.soak", "--here", "--cases", str(options.cases)]
    own += [word for seed in seeds for word in ("--seed", str(seed))]
    codes = [subprocess.run([*own, "-b", name], check=False).returncode for name in names]
    return 3 if any(code not in (0, 1) for code in codes) else max(codes)


if __name__ == "__main__":
    sys.exit(main())
