"""Test every third law on NumPy, and test that the suite prints a counterexample as code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from suite_runs import python

import islices
from islices.conformance.properties import compare
from islices.conformance.properties.__main__ import main
from islices.conformance.properties.running import LAWS, Counterexample, break_law, columns

EXAMPLES = 3
#: A mistake of an adapter: each sum of rows is only the last contribution.
LAST_WINS = """
import numpy as np
from islices.backends.torch.adapter import TorchBackend

def last_wins(self, values, segments, count):
    sums = self.zeros((count, *values.shape[1:]), self.dtype(values), values)
    for value, segment in zip(values, segments.tolist()):
        sums[segment] = value
    return sums

TorchBackend.segment_sum = last_wins
"""


def test_every_third_law_holds() -> None:  # make soak: all laws on all backends
    found = [
        str(counterexample)
        for law in list(LAWS.values())[::3]
        for backend, mode in columns(["numpy"])
        if (counterexample := break_law(law, backend, mode, EXAMPLES, seed=0))
    ]
    assert not found, "\n".join(found)


# ---------------------------------------------------------------------- counterexamples
def assert_shown(counterexample: Counterexample | None, folder: Path) -> None:
    """Check that the counterexample's code fails under the fault with the reported problem, and runs without the
    fault."""
    assert counterexample is not None, "last-wins sums were not noticed"
    path = folder / "pasted.py"
    for fault, message in ((LAST_WINS, f"AssertionError: {counterexample.problem}"), ("", "")):
        path.write_text(fault + str(counterexample), "utf-8")
        result = python(path)
        assert (result.returncode == 1) == bool(message), result.stderr
        assert message in result.stderr


@pytest.fixture
def wrong_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the segment_sum of torch's adapter by a function that returns only the last contribution to each sum."""
    adapter = pytest.importorskip("islices.backends.torch.adapter").TorchBackend
    monkeypatch.setattr(adapter, "segment_sum", adapter.segment_sum)  # restored at the end of the test
    exec(LAST_WINS, {})


@pytest.mark.outside
@pytest.mark.usefixtures("wrong_torch")
def test_a_broken_law_is_shrunk_and_printed_as_code(tmp_path: Path) -> None:
    law, torch = LAWS["densify_is_linear"], islices.get_backend("torch")
    counterexample = break_law(law, torch, "framework", 200, seed=0)
    assert_shown(counterexample, tmp_path)
    x, y = counterexample.arguments["x"], counterexample.arguments["y"]  # type: ignore[union-attr]
    assert len(x.indices.data) + len(y.indices.data) <= 4, counterexample
    assert "densify_is_linear(x, y)" in str(counterexample)


def test_what_a_law_raises_breaks_it() -> None:
    def out_of_range(x: Any, rows: Any) -> Any:
        return islices.keep_rows(x, [-1]), x

    law = LAWS["keep_rows_is_idempotent"]._replace(call=out_of_range)
    counterexample = break_law(law, islices.get_backend("numpy"), "host", 50, seed=0)
    assert counterexample is not None
    assert counterexample.problem.startswith("raised IndexError: rows: got")


# ---------------------------------------------------------------------- comparisons
# fmt: off
COMPARISONS = [
    (compare.same_bits, [0.0, np.nan], [-0.0, np.nan], (), True),
    (compare.same_bits, [1.0], [np.nextafter(1.0, 2)], (), False),
    (compare.ulps_apart, [1.0], [1 + 2**-51], (1,), False),
    (compare.ulps_apart, [np.nan], [1.0], (1,), False),
    (compare.within, [1.0, 5.0], [1.5, 5.0], ([0.5, 0.0],), True),
    (compare.within, [1.0, 5.0], [1.5, 5.0], ([0.4, 0.0],), False),
    (compare.at_most, [1.0, 2.5], 2.0, (), False),
    (compare.at_most, [np.nan], 2.0, (), False),
]
# fmt: on


@pytest.mark.parametrize(("holds", "got", "expected", "bound", "good"), COMPARISONS)
def test_comparisons(holds: Any, got: Any, expected: Any, bound: Any, good: bool) -> None:
    wanted = expected if isinstance(expected, float) else np.array(expected)
    problem = holds(np.array(got), wanted, *(np.array(b) if isinstance(b, list) else b for b in bound))
    assert (not problem) == good, problem


# ---------------------------------------------------------------------- the command
def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["-b", "numpy", "-k", "coalesce_is_idempotent", "--examples", "3", "--traced", "0"]
    assert main(["laws", *options, "--here", ""]) == 0
    chosen = [law for law in LAWS.values() if "coalesce_is_idempotent" in law.name]
    assert capsys.readouterr().out.startswith(f"numpy: {len(chosen)} laws and modes, 0 broken")
    with pytest.raises(SystemExit, match="2"):
        main(["laws", "-b", "nowhere"])
    assert "nowhere" in capsys.readouterr().err
