"""The files of vectors: written again to the same bytes, small, and readable by themselves."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import islices.conformance
from islices.conformance.formulas.evaluate import rounded_up
from islices.conformance.formulas.generate import line_of, texts
from islices.conformance.formulas.inputs import MAKERS, Bags, Rows, inputs
from islices.conformance.formulas.records import FORMULAS
from islices.conformance.formulas.trajectories import trajectories

FOLDER = Path(islices.conformance.__file__).parent / "vectors" / "formulas"
ALL = [(name, one.name) for name, formula in FORMULAS.items() for one in trajectories(formula)]


@pytest.mark.parametrize("name", ["torch.SGD sparse", "sparsecore.laprop"])
def test_a_formula_is_written_to_the_same_bytes(name: str) -> None:
    formula = FORMULAS[name]
    text = (FOLDER / f"{formula.framework}.json").read_text("utf-8")
    for one in trajectories(formula):
        assert line_of(one) in text


@pytest.mark.repeats
def test_all_are_written_to_the_same_bytes() -> None:
    assert {name: (FOLDER / name).read_text("utf-8") for name in (p.name for p in FOLDER.iterdir())} == dict(texts())


def test_there_are_many_and_they_are_small() -> None:
    assert len(ALL) == len(set(ALL)) >= 150
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= 2_000_000


@pytest.mark.parametrize("name", FORMULAS)
def test_most_elements_are_judged(name: str) -> None:
    """Infinite bounds, where a value may overflow or a divisor be 0, leave no trajectory without weights to judge."""
    for one in trajectories(FORMULAS[name]):
        last = one.expected[inputs(one.inputs).checkpoints[-1]][FORMULAS[name].gives]
        for bound in last.bounds:
            assert np.isfinite(bound).mean() > 0.5, one.name


def test_a_file_is_read_without_islices() -> None:
    """As another language would: hexadecimal to numbers, and a step by hand."""
    made = json.loads((FOLDER / "inputs.json").read_text("utf-8"))["wide"]
    found = json.loads((FOLDER / "torch.json").read_text("utf-8"))
    line = next(x for x in found["trajectories"] if (x["formula"], x["name"]) == ("torch.SGD", "sizes"))
    w, g = (np.frombuffer(bytes.fromhex(x), ">f4") for x in (made["weights"], made["gradients"][0]))
    shape, value, bound, _ = line["expect"]["1"]["weights"]
    expected_w = np.frombuffer(bytes.fromhex(value), ">f8")
    bits = np.frombuffer(bytes.fromhex(bound), ">u2").astype(np.uint32) << 16
    error = np.abs((w - np.float32(line["options"]["lr"]) * g).astype(np.float64) - expected_w)
    assert shape == made["shape"]
    assert np.all(error <= bits.view(np.float32))


@pytest.mark.parametrize("x", [0.0, 1.0, 1.0 + 2.0**-30, 1e-45, 3e-39, 1e30, np.inf])
def test_bounds_are_rounded_up(x: float) -> None:
    assert x <= float(rounded_up(np.array([x]))[0]) <= x * (1 + 2**-6) + 1e-40


@pytest.mark.parametrize("name", MAKERS)
def test_inputs_hold_what_tells_formulas_apart(name: str) -> None:
    made = inputs(name)
    bags = [g for g in made.gradients if isinstance(g, Bags)]
    values = [g.values if isinstance(g, Rows) else g for g in made.gradients if not isinstance(g, Bags)]
    values += [g.upstream for g in bags]
    flat = np.concatenate([x.ravel() for x in values])
    assert flat.dtype == made.weights.dtype == np.float32
    assert (flat == 0).any()
    assert (flat < 0).any()
    if bags:
        assert any(len(set(g.ids.tolist())) < len(g.ids) for g in bags)
        assert name.startswith("ids") or all((np.diff(g.offsets) == 0).any() for g in bags[:2])
        return
    assert any(not x.any() for x in values)
    if made.sparse:
        assert any(len(g.indices) == 0 for g in made.gradients)
        assert any(len(set(g.indices.tolist())) < len(g.indices) for g in made.gradients)
