"""The laws hold on every backend, and what breaks one comes back as code that shows it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import islices
from islices.conformance.execute import read
from islices.conformance.properties import compare
from islices.conformance.properties.__main__ import main
from islices.conformance.properties.running import LAWS, Counterexample, break_law, columns, compare_columns

BACKENDS = islices.list_backends()
SPEC = (Path(__file__).parents[2] / "conformance" / "SPEC.md").read_text("utf-8")
EXAMPLES = 3
#: laws that compile soon, for traced code
TRACED = ("densify_of_coalesce_is_densify", "scatter_add_adds_the_dense_gradient")
#: Where rows are summed, the last contribution wins: what a wrong adapter does.
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


@pytest.mark.repeats_where(lambda name: name not in ("numpy", "torch"))
@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.one_in(3)
def test_the_laws_hold(name: str) -> None:
    found = [
        str(counterexample)
        for law in LAWS.values()
        for backend, mode in columns([name])
        if (counterexample := break_law(law, backend, mode, EXAMPLES, seed=0))
    ]
    assert not found, "\n".join(found)


@pytest.mark.repeats_where(lambda name: name != "tensorflow")
@pytest.mark.parametrize("name", [name for name in BACKENDS if "traced" in islices.get_backend(name).modes()])
def test_laws_hold_in_traced_code(name: str) -> None:
    found = [break_law(LAWS[law], islices.get_backend(name), "traced", EXAMPLES, seed=0) for law in TRACED]
    assert not any(found), "\n".join(str(f) for f in found if f)


@pytest.mark.repeats
def test_backends_give_the_same_bits() -> None:
    places = sorted(columns(BACKENDS), key=lambda place: place[0].name != "numpy")
    found = [str(c) for law in LAWS.values() if (c := compare_columns(law, places, 2, seed=0))]
    assert not found, "\n".join(found)


def test_every_law_names_a_clause() -> None:
    assert len(LAWS) > 50
    for law in LAWS.values():
        assert f"\n## {law.clause} " in SPEC, law.name


# ---------------------------------------------------------------------- counterexamples
def assert_shown(counterexample: Counterexample | None, folder: Path) -> None:
    """The counterexample as code fails with its problem under the fault, and runs without."""
    assert counterexample is not None, "last-wins sums were not noticed"
    path = folder / "pasted.py"
    for fault, message in ((LAST_WINS, f"AssertionError: {counterexample.problem}"), ("", "")):
        path.write_text(fault + str(counterexample), "utf-8")
        result = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=False)
        assert (result.returncode == 1) == bool(message), result.stderr
        assert message in result.stderr


@pytest.fixture
def wrong_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's adapter with a segment_sum whose last contribution wins."""
    adapter = pytest.importorskip("islices.backends.torch.adapter").TorchBackend
    monkeypatch.setattr(adapter, "segment_sum", adapter.segment_sum)  # put back at the end
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


@pytest.mark.repeats
@pytest.mark.usefixtures("wrong_torch")
def test_a_disagreement_is_printed_as_code(tmp_path: Path) -> None:
    counterexample = compare_columns(LAWS["densify_of_coalesce_is_densify"], columns(["numpy", "torch"]), 200, seed=0)
    assert_shown(counterexample, tmp_path)
    assert counterexample.places == [("numpy", "host"), ("torch", "framework")]  # type: ignore[union-attr]


def test_what_a_law_raises_breaks_it() -> None:
    def out_of_range(x: Any, rows: Any) -> Any:
        return islices.keep_rows(x, [-1]), x

    law = LAWS["keep_rows_is_idempotent"]._replace(call=out_of_range)
    counterexample = break_law(law, islices.get_backend("numpy"), "host", 50, seed=0)
    assert counterexample is not None
    assert counterexample.problem.startswith("raised IndexError: rows: got")


# ---------------------------------------------------------------------- what is compared
# fmt: off
COMPARISONS = [
    (compare.same_bits, [0.0, np.nan], [-0.0, np.nan], (), True),
    (compare.same_bits, [1.0], [np.nextafter(1.0, 2)], (), False),
    (compare.ulps_apart, [1.0], [1 + 2**-52], (1,), True),
    (compare.ulps_apart, [1.0], [1 + 2**-51], (1,), False),
    (compare.ulps_apart, [1.0], [1 + 2**-51], (2,), True),
    (compare.ulps_apart, [np.inf], [np.inf], (1,), True),
    (compare.ulps_apart, [np.inf], [1e308], (1,), False),
    (compare.ulps_apart, [np.nan], [1.0], (1,), False),
    (compare.within, [1.0, 5.0], [1.5, 5.0], ([0.5, 0.0],), True),
    (compare.within, [1.0, 5.0], [1.5, 5.0], ([0.4, 0.0],), False),
    (compare.within, [1.0], [np.nan], ([2.0],), False),
    (compare.within, [1.0], [np.nan], ([np.inf],), True),
    (compare.at_most, [1.0, 2.0], 2.0, (), True),
    (compare.at_most, [1.0, 2.5], 2.0, (), False),
    (compare.at_most, [np.nan], 2.0, (), False),
]
# fmt: on


@pytest.mark.parametrize(("holds", "got", "expected", "bound", "good"), COMPARISONS)
def test_comparisons(holds: Any, got: Any, expected: Any, bound: Any, good: bool) -> None:
    wanted = expected if isinstance(expected, float) else np.array(expected)
    problem = holds(np.array(got), wanted, *(np.array(b) if isinstance(b, list) else b for b in bound))
    assert (not problem) == good, problem


def test_bfloat16_has_its_own_ulp() -> None:
    one = islices.get_backend("numpy").asarray(np.array([0x3F80], np.uint16))
    assert [read(one).dtype, read(one).data] == ["bfloat16", [1.0]]
    next_up = islices.get_backend("numpy").asarray(np.array([0x3F81], np.uint16))
    assert not compare.ulps_apart(one, next_up, 1)
    assert compare.ulps_apart(one, islices.get_backend("numpy").asarray(np.array([0x3F82], np.uint16)), 1)


# ---------------------------------------------------------------------- the command
def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["-b", "numpy", "-k", "coalesce", "--examples", "3", "--traced", "0"]
    assert main(["laws", *options, "--here", ""]) == 0
    chosen = [law for law in LAWS.values() if "coalesce" in law.name]
    assert capsys.readouterr().out.startswith(f"numpy: {len(chosen)} laws and modes, 0 broken")
    assert main(["differential", *options, "--here", ""]) == 0
    with pytest.raises(SystemExit, match="2"):
        main(["laws", "-b", "nowhere"])
    assert "nowhere" in capsys.readouterr().err
