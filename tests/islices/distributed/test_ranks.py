"""all_reduce gives the same bits over every engine, with any number of ranks, whatever travels; and little travels.

The common cases (`islices.conformance.ranks.cases`) run here on every engine with 4 processes, all of them over MPI and
a part over the others, and with 1 and 3 ranks that are threads; `islices conform`, which
tests/conformance/test_conformance.py calls, runs all on every engine with 2 processes. What they must give is written
plainly in NumPy scalars, and that is checked here against exact arithmetic.
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ranks_on_wire
from ranks_on_wire import COUNT, DIM, ROWS
from suite_runs import LOOPBACK, run_suite

import islices
from islices.conformance import oracle
from islices.conformance.data import Array, Slices
from islices.conformance.execute import difference, to_backend
from islices.conformance.ranks import plain, run_ranks
from islices.conformance.ranks.cases import CASES, STRATEGIES, Collective, one_batch
from islices.conformance.ranks.launch import absent
from islices.conformance.ranks.mistakes import MISTAKES
from islices.conformance.ranks.running import Said, chosen, raise_verdict, result, run_cases
from islices.conformance.ranks.threads import run_threads
from islices.distributed import Group, all_reduce, exchange

IDS = [c.id for c in chosen(full=True)]


def verdicts(said: list[Any], least: int) -> None:
    """Every case passed on every rank, with the same bits; a framework may lack a type."""
    for one in said:
        if isinstance(one, Exception):
            raise one
    problems, passed = [], 0
    for name in said[0]:
        try:
            raise_verdict([one[name] for one in said])
            passed += 1
        except Exception as error:
            if said[0][name].kind != "unsupported":
                problems.append(f"{name}: {error}")
    assert not problems, f"{len(problems)} of {len(said[0])}:\n" + "\n".join(problems[:5])
    assert passed >= least


# ---------------------------------------------------------------------- every engine
#: (engine, whose arrays) -> of the cases, every how many'th: 4 is no good, so many strategies take turns
ENGINES = {
    ("mpi", "numpy"): 1, ("torch", "torch"): 5, ("torch", "numpy"): 8, ("mpi", "mxnet"): 8, ("jax", "jax"): 8,
    ("tensorflow", "tensorflow"): 8,
}  # fmt: skip


def ids_for(engine: str, backend: str) -> list[str]:
    """Those that an engine runs, other ones than the next engine."""
    every = ENGINES[engine, backend]
    return IDS[list(ENGINES).index((engine, backend)) % every :: every]


@functools.cache
def four_processes(engine: str, backend: str) -> list[dict[str, Said]]:
    keywords = {"backend": backend, "ids": ids_for(engine, backend)}
    run = run_ranks(engine, 4, "islices.conformance.ranks.running:run_cases", keywords, timeout=60.0, deadline=240.0)
    return run.values


def runs_here(engine: str, backend: str) -> None:
    if backend not in islices.list_backends():
        pytest.skip(f"{backend} is not installed")
    if why := absent(engine):
        pytest.skip(why)


@pytest.mark.repeats_where(lambda engine, backend: (engine, backend) != ("mpi", "numpy"))
@pytest.mark.parametrize(("engine", "backend"), ENGINES)
@pytest.mark.one_in(3)
def test_every_case_over_an_engine(engine: str, backend: str) -> None:
    runs_here(engine, backend)
    said = four_processes(engine, backend)
    assert [list(one) for one in said] == [ids_for(engine, backend)] * 4
    verdicts(said, len(said[0]) * 3 // 4)  # without bfloat16, which not every NumPy has


@pytest.mark.repeats
@pytest.mark.parametrize(("engine", "backend"), list(ENGINES)[1:])
def test_bits_do_not_depend_on_the_engine(engine: str, backend: str) -> None:
    runs_here(engine, backend)
    runs_here("mpi", "numpy")
    first, other = (four_processes(*which)[0] for which in (("mpi", "numpy"), (engine, backend)))
    shared = [name for name in other if first[name].digest and other[name].digest]
    assert len(shared) >= 25
    assert {name: other[name].digest for name in shared} == {name: first[name].digest for name in shared}


@pytest.mark.parametrize("size", [1, 3])
def test_every_case_with_any_number_of_ranks(size: int) -> None:
    ids = [name for name in IDS if size > 1 or name not in {m.id for m in MISTAKES}]
    verdicts(run_threads(size, lambda group: run_cases(group, "numpy", ids)), 200)


# ---------------------------------------------------------------------- the cases catch mistakes
def rounded_at_every_step(blocks: Any) -> Any:
    total = blocks[0]
    for block in blocks[1:]:
        total = total + block
    return total


def folded_backwards(fold: Any) -> Any:
    return lambda like, received: fold(like, received[::-1])


#: what is wrong -> (name in exchange.py, what stands there instead, the cases that tell, and ones that cannot)
MISTAKEN: dict[str, tuple[str, Any, str, str]] = {
    "ranks in another order": (
        "fold_sparse", folded_backwards(exchange.fold_sparse), "ranks/numbers/order of ranks/sum", "ranks/one batch",
    ),
    "16 bits rounded at every step": ("fold_dense", rounded_at_every_step, "ranks/dense/float16", "ranks/dense/(5,)"),
    "0 where nothing is": ("_nothing", np.zeros, "ranks/numbers/special float32/sum/dense", "ranks/layout/sorted"),
    "cuts that are all the same": (
        "splitters", lambda sketches, counts, parts: np.zeros(parts - 1, np.int64), "", "ranks/layout/many",
    ),
    "indices cut to 32 bits": ("NARROW", 2**63, "ranks/rows/2**40", "ranks/rows/2**31"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKEN)
def test_a_mistake_in_all_reduce_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the cases that were made for it; the last but one is none: where ranges end only says who does the work."""
    place, instead, caught, unharmed = MISTAKEN[name]
    monkeypatch.setattr(exchange, place, instead)
    ids = [c for c in IDS if c.startswith((caught or unharmed, unharmed))]
    said = run_threads(4, lambda group: run_cases(group, "numpy", ids))
    failed = {c for c in ids if any(one[c].kind != "pass" for one in said)}
    assert bool([c for c in failed if caught and c.startswith(caught)]) == bool(caught)
    assert not [c for c in failed if c.startswith(unharmed)]
    for c in failed:
        with pytest.raises(AssertionError):
            raise_verdict([one[c] for one in said])


def test_ranks_whose_bits_differ_do_not_pass() -> None:
    raise_verdict([Said("pass", digest="1"), Said("pass", digest="1")])
    with pytest.raises(AssertionError, match="bits differ"):
        raise_verdict([Said("pass", digest="1"), Said("pass", digest="2")])
    with pytest.raises(AssertionError, match="rank 1: raised"):
        raise_verdict([Said("pass", digest="1"), Said("problem", "raised TypeError", "TypeError")])


CRASH = """
import os
if os.environ.get("PMI_RANK") == "1" and "ISLICES_RANKS" in os.environ:
    os._exit(7)
"""
#: what the end of an adapter says -> (what comes of the cases, a word of the reason)
ADAPTERS = {
    "sound": ("", {"pass"}, ""),
    "nothing comes back from the host": (
        "\nLoopbackBackend.from_host = None\n", {"fail"}, "rank 0: raised TypeError",
    ),
    "a rank dies": (CRASH, {"harness error"}, "ended with 7"),
}  # fmt: skip


@pytest.mark.parametrize("name", ADAPTERS)
@pytest.mark.repeats_where(lambda name: name != "a rank dies")
def test_the_suite_tells_what_came_of_the_ranks(name: str, tmp_path: Path) -> None:
    """The variant "ranks" on an outsider's backend, over MPI."""
    if why := absent("mpi"):
        pytest.skip(why)
    added, outcomes, words = ADAPTERS[name]
    site = shutil.copytree(LOOPBACK, tmp_path / "site", ignore=shutil.ignore_patterns("__pycache__"))
    with (site / "islices_loopback.py").open("a", encoding="utf-8") as adapter:
        adapter.write(added)
    run = run_suite(tmp_path, "loopback", "--islices-variant", "ranks", "-k", "layout", path=site)
    assert len(run.cases) == run.lines[0]["total"] > 40, run.output[-2000:]
    assert {case["outcome"] for case in run.cases} == outcomes
    assert {(case["clause"], case["group"], case["mode"]) for case in run.cases} == {("25", "ranks", "host")}
    assert run.status == (0 if name == "sound" else 1)
    assert all(words in reason for outcome in outcomes - {"pass"} for reason in run.reasons(outcome))


# ---------------------------------------------------------------------- what is expected
#: dtype -> largest relative error of one rounding to it, and of one in the type that sums are formed in.
UNIT = {
    "float16": (Fraction(1, 2**11), Fraction(1, 2**24)), "bfloat16": (Fraction(1, 2**8), Fraction(1, 2**24)),
    "float32": (Fraction(1, 2**24), Fraction(1, 2**24)), "float64": (Fraction(1, 2**53), Fraction(1, 2**53)),
}  # fmt: skip


def terms(leaves: Sequence[Any]) -> dict[tuple[int, int], list[Fraction]]:
    """(row, column) -> every rank's contributions to it, exact, without padding; a dense leaf has one row."""
    found: dict[tuple[int, int], list[Fraction]] = {}
    for leaf in leaves:
        if isinstance(leaf, Slices):
            for index, row in zip(leaf.indices.data, leaf.values.rows(), strict=True):
                for column, v in enumerate([] if leaf.padded and index == leaf.dense_shape[0] else row):
                    found.setdefault((index, column), []).append(Fraction(v))
        elif leaf is not None:
            for column, v in enumerate(leaf.data):
                found.setdefault((0, column), []).append(Fraction(v))
    return found


def error_bound(values: Sequence[Fraction], dtype: str, ranks: int, op: str = "sum") -> Fraction:
    """How far the sum (or mean) of these values over so many ranks may be from the exact one.

    Each value takes part in at most n - 1 additions, each wrong by a factor 1 + d, |d| <= u; 16-bit sums are rounded
    once on their rank and once over all; a mean is one division and, in 16 bits, one more rounding.
    """
    unit, sums = UNIT[dtype]
    factor = (1 + sums) ** max(0, len(values) - 1)
    if unit != sums:
        factor *= (1 + unit) ** 2
    if op == "mean":
        factor *= (1 + unit) * (1 + sums if unit != sums else 1)
    return (factor - 1) * sum(map(abs, values), Fraction(0)) / (ranks if op == "mean" else 1)


def leaf_lists(trees: list[Any]) -> list[list[Any]]:
    """For each leaf what the ranks have."""
    if isinstance(trees[0], dict):
        return [one for key in trees[0] for one in leaf_lists([tree[key] for tree in trees])]
    if isinstance(trees[0], (list, tuple)):
        return [one for items in zip(*trees, strict=True) for one in leaf_lists(list(items))]
    return [trees]


MADE = {c.make: c for c in CASES}.values()


@pytest.mark.parametrize("case", MADE, ids=lambda c: c.id.rpartition("/")[0])
def test_expectations_are_those_of_exact_arithmetic(case: Collective) -> None:
    """By the oracle of fractions, which rounds where clause 25 says so; and within the bound of the exact sum."""
    for leaves in leaf_lists([case.make(rank, 3) for rank in range(3)]):
        there = [leaf for leaf in leaves if leaf is not None]
        if not there:
            assert plain.reduce_leaf(leaves) is None
            continue
        first = there[0]
        dtype = oracle.values_of(first).dtype
        for op in ("sum", "mean") if dtype in UNIT else ("sum",):
            got = plain.reduce_leaf(leaves, op)
            if isinstance(first, Slices):
                total = oracle.coalesce(oracle.concat([oracle.coalesce(leaf) for leaf in there]))
            else:
                rows = [leaf.data for leaf in there]
                total = Array(dtype, first.shape, oracle.fold(rows, dtype))
            exact = (
                oracle.with_values(total, [mean_of(v, dtype) for v in oracle.values_of(total).data])
                if op == "mean"
                else total
            )
            assert not difference(got, exact)
            if "special" not in case.id and dtype in UNIT:
                within_bound(got, leaves, dtype, op)


def mean_of(v: Any, dtype: str) -> Any:
    return oracle.round_to(oracle.over(v, 3.0, oracle.wide(dtype)), dtype)


def within_bound(got: Any, leaves: list[Any], dtype: str, op: str) -> None:
    found = terms([got])
    for place, values in terms(leaves).items():
        exact = sum(values, Fraction(0)) / (3 if op == "mean" else 1)
        (v,) = found[place]
        assert abs(v - exact) <= error_bound(values, dtype, 3, op), (place, float(v), float(exact))


def test_the_bound_is_not_loose_enough_to_pass_anything() -> None:
    values = [Fraction(1), Fraction(1, 3)]
    assert error_bound(values, "float32", 2) == Fraction(4, 3) / 2**24
    assert error_bound(values[:1], "float32", 2) == 0, "what one rank alone has is exact"
    assert Fraction(1, 128) < error_bound(values[:1], "bfloat16", 2) < Fraction(1, 127)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_exact_sums_do_not_depend_on_the_number_of_ranks(dtype: str, size: int, strategy: str) -> None:
    backend = islices.get_backend("numpy")
    if dtype not in backend.float_dtypes:
        pytest.skip(f"NumPy has no {dtype} without ml_dtypes")
    (make,) = {c.make for c in CASES if c.id.startswith(f"ranks/one batch/{dtype}/")}
    expected = oracle.coalesce(one_batch(dtype))

    def run(group: Group) -> Any:
        x = to_backend(backend, make(group.rank, size))
        return result(all_reduce(x, group=group, strategy=strategy))

    for got in run_threads(size, run):
        assert not difference(got, expected)


def test_inputs_with_many_ranks_and_hundreds_of_rows() -> None:
    """Against NumPy's own unbuffered left fold, rank by rank: 6 ranks, more rows than a sketch holds."""
    r = np.random.default_rng(5)
    each = [(r.standard_normal((n, 3), np.float32), r.integers(0, 5000, n)) for n in (3000, 0, 900, 1, 2500, 2500)]
    total, touched = np.full((5000, 3), -0.0, np.float32), np.zeros(5000, bool)
    for values, ids in each:
        own = np.full((5000, 3), -0.0, np.float32)
        np.add.at(own, ids, values)
        total += own
        touched[ids] = True

    def run(group: Group) -> list[Any]:
        s = islices.IndexedSlices(*each[group.rank], (5000, 3))
        return [all_reduce(s, group=group, strategy=strategy) for strategy in STRATEGIES]

    for results in run_threads(6, run):
        for s in results:
            assert s.indices.tolist() == np.flatnonzero(touched).tolist()
            assert s.values.tobytes() == total[touched].tobytes()


# ---------------------------------------------------------------------- what travels
PROGRAM = ranks_on_wire.__file__


@pytest.mark.outside
@pytest.mark.parametrize("size", [2, 4])
def test_at_least_three_times_fewer_bytes_than_raw_slices(size: int) -> None:
    """Horovod and TensorFlow all-gather every rank's slices as they come: here the same engine moves them."""
    runs_here("torch", "torch")
    found, said = zip(*run_ranks("torch", size, f"{PROGRAM}:by_arrays_and_by_bytes", timeout=60.0).values, strict=True)
    rows = [[1.0, 1.0]] * size + [[0.0, 0.0]] * (5 - size)
    rows[3] = [float(size + (size == 4))] * 2
    assert found == ([True, rows, [float(size)] * 2],) * size, "the engine is found by the arrays"
    payload = {name: sum(one[name][0] for one in said) for name in said[0]}
    wire = {name: min(one[name][1] for one in said) for name in said[0]}
    assert payload["raw"] == size * (size - 1) * COUNT * (8 + 4 * DIM)
    assert payload["raw"] >= 3 * payload["all_reduce"]
    if wire["raw"]:
        assert wire["raw"] >= payload["raw"], "what was counted went over the loopback"
        assert wire["raw"] >= 3 * wire["all_reduce"], wire
    dense = 2 * ROWS * DIM * 4 * (size - 1)  # of all ranks together: what a ring moves
    assert dense >= 10 * payload["all_reduce"]
