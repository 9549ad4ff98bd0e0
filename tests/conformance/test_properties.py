"""The laws hold on every backend, and what breaks one comes back as code that shows it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import islices
from islices.conformance.data import Array, Slices
from islices.conformance.execute import read
from islices.conformance.properties import compare
from islices.conformance.properties.__main__ import main
from islices.conformance.properties.running import LAWS, break_law, build, columns, compare_columns
from islices.conformance.properties.script import literal
from islices.conformance.properties.strategies import Optimizer

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
        counterexample.script
        for law in LAWS.values()
        for backend, mode in columns([name])
        if (counterexample := break_law(law, backend, mode, EXAMPLES, seed=0))
    ]
    assert not found, "\n".join(found)


@pytest.mark.repeats_where(lambda name: name != "tensorflow")
@pytest.mark.parametrize("name", [name for name in BACKENDS if "traced" in islices.get_backend(name).modes()])
def test_laws_hold_in_traced_code(name: str) -> None:
    found = [break_law(LAWS[law], islices.get_backend(name), "traced", EXAMPLES, seed=0) for law in TRACED]
    assert not any(found), "\n".join(f.script for f in found if f)


@pytest.mark.repeats
def test_backends_give_the_same_bits() -> None:
    places = sorted(columns(BACKENDS), key=lambda place: place[0].name != "numpy")
    found = [c.script for law in LAWS.values() if (c := compare_columns(law, places, 2, seed=0))]
    assert not found, "\n".join(found)


def test_every_law_names_a_clause() -> None:
    assert len(LAWS) > 50
    for law in LAWS.values():
        assert f"\n## {law.clause} " in SPEC, law.name
        assert law.source.startswith(f"def {law.name}("), law.name


# ---------------------------------------------------------------------- counterexamples
def run_script(script: str, folder: Path, mutation: str = "") -> subprocess.CompletedProcess[str]:
    path = folder / "pasted.py"
    path.write_text(mutation + script, "utf-8")
    return subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=False)


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
    assert counterexample is not None, "last-wins sums were not noticed"
    x, y = counterexample.arguments["x"], counterexample.arguments["y"]
    assert len(x.indices.data) + len(y.indices.data) <= 4, counterexample.script
    assert "torch.tensor(" in counterexample.script, counterexample.script
    assert "densify_is_linear(x, y)" in counterexample.script
    wrong = run_script(counterexample.script, tmp_path, LAST_WINS)
    assert wrong.returncode == 1, wrong.stdout + wrong.stderr
    assert f"AssertionError: {counterexample.problem}" in wrong.stderr
    right = run_script(counterexample.script, tmp_path)
    assert right.returncode == 0, right.stderr
    assert right.stdout.endswith("the law densify_is_linear holds here\n")


@pytest.mark.repeats
@pytest.mark.usefixtures("wrong_torch")
def test_a_disagreement_is_printed_as_code(tmp_path: Path) -> None:
    counterexample = compare_columns(LAWS["densify_of_coalesce_is_densify"], columns(["numpy", "torch"]), 200, seed=0)
    assert counterexample is not None, "last-wins sums were not noticed"
    assert counterexample.where == "numpy, host and torch, framework"
    wrong = run_script(counterexample.script, tmp_path, LAST_WINS)
    assert wrong.returncode == 1, wrong.stdout + wrong.stderr
    assert "AssertionError: got" in wrong.stderr
    right = run_script(counterexample.script, tmp_path)
    assert right.returncode == 0, right.stderr
    assert right.stdout == "the two agree here\n"


def test_what_a_law_raises_breaks_it() -> None:
    def out_of_range(x: Any, rows: Any) -> Any:
        return islices.keep_rows(x, [-1]), x

    law = LAWS["keep_rows_is_idempotent"]._replace(call=out_of_range)
    counterexample = break_law(law, islices.get_backend("numpy"), "host", 50, seed=0)
    assert counterexample is not None
    assert counterexample.problem.startswith("raised IndexError: rows: got")


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int32", "int64"])
def test_literals_are_what_they_stand_for(name: str, dtype: str) -> None:
    backend = islices.get_backend(name)
    data = [1, 0, -3, 2] if dtype.startswith("int") else [0.5, float("inf"), -3.0, float("nan")]
    array = Array(dtype, (2, 2), data)
    names: dict[str, Any] = {"islices": islices, "np": np, "inf": float("inf"), "nan": float("nan")}
    pytest.importorskip("ml_dtypes")
    exec("import ml_dtypes", names)
    for line in {"torch": ["import torch"], "tensorflow": ["import tensorflow as tf"]}.get(name, []):
        exec(line, names)
    if name == "jax":
        exec("import jax.numpy as jnp", names)
    with backend.wide_types():
        for plain in (array, Array(dtype, (0, 3), []), Slices(array, Array("int32", (2,), [1, 1]), (3, 2))):
            got = eval(literal(backend, plain), names)
            assert not compare.same_bits(got, build(backend, plain)), literal(backend, plain)
            assert type(got) is type(build(backend, plain))


def test_a_literal_optimizer_takes_options() -> None:
    text = literal(islices.get_backend("numpy"), Optimizer("adam", {"lr": 0.1}))
    optimizer = eval(text, {"islices": islices, "functools": __import__("functools")})(rows="all")
    assert repr(optimizer) == repr(islices.optim.adam(0.1, rows="all"))


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
    assert main([*options, "--here", "laws"]) == 0
    chosen = [law for law in LAWS.values() if "coalesce" in law.name]
    assert capsys.readouterr().out.startswith(f"numpy: {len(chosen)} laws and modes, 0 broken")
    assert main([*options, "--here", "differential"]) == 0
    with pytest.raises(SystemExit, match="2"):
        main(["-b", "nowhere"])
    assert "nowhere" in capsys.readouterr().err
