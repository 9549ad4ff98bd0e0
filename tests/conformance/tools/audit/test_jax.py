"""What the audit finds in JAX, optax, NumPy and numba: the findings that islices' adapter is built on, asked again."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
from typing import Any

import pytest

from islices.conformance.tools.audit.run import run_all

if importlib.util.find_spec("jax") is None:
    pytest.skip("jax is not installed", allow_module_level=True)

pytestmark = pytest.mark.outside


@functools.cache
def findings(module: str) -> list[dict[str, Any]]:
    """What was found, in the order of its probes."""
    return run_all([module], "", lambda planned, done: None)


def of(module: str, words: str) -> dict[str, Any]:
    """The one finding whose function or claim has those words."""
    (found,) = (f for f in findings(module) if words in f"{f['call']}: {f['claim']}")
    return found


@pytest.mark.parametrize(("module", "least"), [("arithmetic", 3), ("jax", 21), ("jax_arithmetic", 16), ("optax", 1)])
def test_no_probe_is_broken(module: str, least: int) -> None:
    broken = [(f["number"], f["got"]) for f in findings(module) if f["outcome"] == "broken"]
    assert not broken, broken
    assert len(findings(module)) >= least


#: (module, words, outcome, got)
FOUND = [
    ("jax", "a negative id adds to a row at the end", "differs", "[[0, 0], [0, 0], [0, 0], [1, 1]]"),
    ("jax", "ids past either end add nothing", "agrees", ""),
    ("jax", "all ids out of range add nothing", "agrees", ""),
    ("jax", "reads the nearest row", "differs", "[[7, 8]]"),
    ("jax", "reads NaN", "differs", "[[nan, nan]]"),
    ("jax", "jnp.unique(ids, size=n): ", "differs", "[2, 3, 2, 2]"),
    ("jax", "jnp.linalg.norm(bcoo.data)", "differs", "141.50972"),
    ("jax", "array of the table's size", "differs", "dense"),
    ("jax", "they are cut to 32 bits", "differs", "no error"),
    ("jax", "ones stop counting at 2048", "differs", "[[256, 256], [0, 0]]"),
    ("jax_arithmetic", "jax.jit of a * b + c", "differs", ""),
    ("jax_arithmetic", "a selection keeps them apart", "agrees", ""),
    ("jax_arithmetic", "jax.jit of x / 3.0", "differs", ""),
    ("jax_arithmetic", "NumPy called from JAX flushes", "differs", "[0, 0]"),
    ("jax_arithmetic", "a sum of -0 is -0 under jit", "differs", "-0.0"),
    ("arithmetic", "numpy.add.at(out, ids, values)", "agrees", ""),
    ("arithmetic", "numpy.add.reduceat", "differs", ""),
    ("arithmetic", "x + y, x * y", "agrees", ""),
]  # fmt: skip


@pytest.mark.parametrize(("module", "words", "outcome", "got"), FOUND)
def test_found_again(module: str, words: str, outcome: str, got: str) -> None:
    finding = of(module, words)
    assert finding["outcome"] == outcome, finding
    assert not got or finding["got"] == got, finding


def test_division_by_a_scalar_depends_on_the_version() -> None:
    finding = of("jax_arithmetic", "x / scalar")
    if importlib.metadata.version("jax").startswith("0.7."):
        assert (finding["outcome"], finding["status"]) == ("agrees", "gone")
    else:
        assert finding["outcome"] in ("agrees", "differs"), finding


#: (words, outcome, got)
OPTAX = [
    ("the squares of the indices", "differs", "nan"),
    ("fails on the integer indices", "raises", "TypeError"),
    ("the indices are clipped", "differs", "[1, 1.5, 1, 1.5]"),
    ("the indices are multiplied by the rate", "differs", "[-1, -0.5]"),
    ("optax.sgd of dense gradients", "agrees", ""),
    ("finite gradients are clipped", "agrees", ""),
]  # fmt: skip


@pytest.mark.parametrize(("words", "outcome", "got"), OPTAX)
def test_optax(words: str, outcome: str, got: str) -> None:
    pytest.importorskip("optax", reason="optax is not installed")
    finding = of("optax", words)
    assert finding["outcome"] == outcome, finding
    assert finding["got"].startswith(got) or outcome == "agrees", finding


def test_a_module_whose_library_is_missing_says_so() -> None:
    if importlib.util.find_spec("optax") is None:
        (finding,) = findings("optax")
        assert (finding["outcome"], finding["got"]) == ("not run", "optax is not installed")
    else:
        assert len(findings("optax")) > 10


@pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="numba is not installed")
def test_concurrent_callers_end_the_process_with_workqueue_threads() -> None:
    finding = of("arithmetic", "workqueue")
    assert (finding["outcome"], finding["got"]) == ("corrupts", "the process ended by SIGABRT")
