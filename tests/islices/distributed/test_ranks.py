"""Test that all_reduce gives the expected bits on ranks that are threads, and that the suite's cases catch mistakes.

All cases run here with 3 ranks that are threads. `islices conform` runs cases with processes: 2 in the quick profile,
and 4 in the full profile. Plain NumPy scalars give the expected results, and a test here compares them with exact
arithmetic.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from suite_runs import LOOPBACK, run_suite

import islices
from islices.conformance import oracle
from islices.conformance.data import Array, Slices
from islices.conformance.execute import difference, to_backend
from islices.conformance.ranks import plain
from islices.conformance.ranks.cases import CASES, STRATEGIES, Collective, one_batch
from islices.conformance.ranks.launch import absent
from islices.conformance.ranks.running import Said, chosen, raise_verdict, result, run_cases
from islices.conformance.ranks.threads import run_threads
from islices.distributed import Group, all_reduce, exchange

IDS = [c.id for c in chosen(full=True)]


def verdicts(statement: list[Any], least: int) -> None:
    """Check that each case passed on all ranks with the same bits, unless the framework lacks a type. At least `least`
    cases must pass."""
    for one in statement:
        if isinstance(one, Exception):
            raise one
    problems, passed = [], 0
    for name in statement[0]:
        try:
            raise_verdict([one[name] for one in statement])
            passed += 1
        except Exception as error:
            if statement[0][name].kind != "unsupported":
                problems.append(f"{name}: {error}")
    assert not problems, f"{len(problems)} of {len(statement[0])}:\n" + "\n".join(problems[:5])
    assert passed >= least


# ---------------------------------------------------------------------- every engine


def test_every_case_on_three_ranks() -> None:
    verdicts(run_threads(3, lambda group: run_cases(group, "numpy", IDS)), 200)


# ---------------------------------------------------------------------- the cases catch mistakes
def rounded_at_every_step(blocks: Any) -> Any:
    total = blocks[0]
    for block in blocks[1:]:
        total = total + block
    return total


def folded_backwards(fold: Any) -> Any:
    return lambda like, received: fold(like, received[::-1])


#: mistake -> (name in exchange.py, its replacement, cases that show the mistake, cases that cannot show it)
MISTAKEN: dict[str, tuple[str, Any, str, str]] = {
    "ranks in another order": (
        "fold_sparse", folded_backwards(exchange.fold_sparse), "ranks/numbers/order of ranks/sum", "ranks/one batch",
    ),
    "16 bits rounded at every step": ("fold_dense", rounded_at_every_step, "ranks/dense/float16", "ranks/dense/(5,)"),
    "cuts that are all the same": (
        "splitters", lambda samples, counts, parts: np.zeros(parts - 1, np.int64), "", "ranks/layout/many",
    ),
    "indices cut to 32 bits": (
        "narrow", lambda rows, dtype: np.dtype(np.int32), "ranks/rows/2**40", "ranks/rows/2**31",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKEN)
def test_a_mistake_in_all_reduce_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that cases catch each mistake except "cuts that are all the same". This mistake is harmless, because cuts
    only divide the work."""
    place, instead, caught, unharmed = MISTAKEN[name]
    monkeypatch.setattr(exchange, place, instead)
    ids = [c for c in IDS if c.startswith((caught or unharmed, unharmed))]
    statement = run_threads(4, lambda group: run_cases(group, "numpy", ids))
    failed = {c for c in ids if any(one[c].kind != "pass" for one in statement)}
    assert bool([c for c in failed if caught and c.startswith(caught)]) == bool(caught)
    assert not [c for c in failed if c.startswith(unharmed)]
    for c in failed:
        with pytest.raises(AssertionError):
            raise_verdict([one[c] for one in statement])


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


@pytest.mark.outside
def test_a_rank_that_dies_is_a_harness_error(tmp_path: Path) -> None:
    """Run the suite's variant "ranks" over MPI, with an adapter that ends the process of a rank."""
    if why := absent("mpi"):
        pytest.skip(why)
    site = shutil.copytree(LOOPBACK, tmp_path / "site", ignore=shutil.ignore_patterns("__pycache__"))
    with (site / "islices_loopback.py").open("a", encoding="utf-8") as adapter:
        adapter.write(CRASH)
    run = run_suite(tmp_path, "loopback", "--islices-variant", "ranks", "-k", "layout", path=site)
    assert len(run.cases) == run.lines[0]["total"] > 30, run.output[-2000:]
    assert (run.counts.keys(), run.status) == ({"harness error"}, 1)
    assert all("ended with 7" in reason for reason in run.reasons("harness error"))


# ---------------------------------------------------------------------- expected results


def leaf_lists(trees: list[Any]) -> list[list[Any]]:
    if isinstance(trees[0], dict):
        return [one for key in trees[0] for one in leaf_lists([tree[key] for tree in trees])]
    if isinstance(trees[0], (list, tuple)):
        return [one for items in zip(*trees, strict=True) for one in leaf_lists(list(items))]
    return [trees]


MADE = {c.make: c for c in CASES}.values()


@pytest.mark.parametrize("case", MADE, ids=lambda c: c.id.rpartition("/")[0])
def test_expectations_are_those_of_exact_arithmetic(case: Collective) -> None:
    """Compare the expected results with exact fractions, which are rounded as clause 25 requires."""
    for leaves in leaf_lists([case.make(rank, 3) for rank in range(3)]):
        there = [leaf for leaf in leaves if leaf is not None]
        if not there:
            assert plain.reduce_leaf(leaves) is None
            continue
        first = there[0]
        dtype = oracle.values_of(first).dtype
        for op in ("sum", "mean") if "float" in dtype else ("sum",):
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


def mean_of(v: Any, dtype: str) -> Any:
    return oracle.round_to(oracle.over(v, 3.0, oracle.wide(dtype)), dtype)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_exact_sums_do_not_depend_on_the_number_of_ranks(dtype: str, size: int, strategy: str) -> None:
    backend = islices.get_backend("numpy")
    (make,) = {c.make for c in CASES if c.id.startswith(f"ranks/one batch/{dtype}/")}
    expected = oracle.coalesce(one_batch(dtype))

    def run(group: Group) -> Any:
        x = to_backend(backend, make(group.rank, size))
        return result(all_reduce(x, group=group, strategy=strategy))

    for got in run_threads(size, run):
        assert not difference(got, expected)
