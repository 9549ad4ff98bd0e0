"""Test that two formulas are generated with the bytes of the vector files. Most results must have a finite bound, and a
file must be readable without islices."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import islices.conformance
from islices.conformance.formulas.generate import line_of
from islices.conformance.formulas.inputs import inputs
from islices.conformance.formulas.records import FORMULAS
from islices.conformance.formulas.trajectories import trajectories

FOLDER = Path(islices.conformance.__file__).parent / "vectors" / "formulas"


@pytest.mark.parametrize("name", ["torch.SGD sparse", "sparsecore.laprop"])
def test_a_formula_is_written_to_the_same_bytes(name: str) -> None:
    formula = FORMULAS[name]
    text = (FOLDER / f"{formula.framework}.json").read_text("utf-8")
    for one in trajectories(formula):
        assert line_of(one) in text


@pytest.mark.parametrize("name", FORMULAS)
def test_most_elements_are_judged(name: str) -> None:
    """Check that more than half of the results have a finite bound at the last checkpoint. Results that may overflow or
    be NaN have infinite bounds and are not judged."""
    for one in trajectories(FORMULAS[name]):
        last = one.expected[inputs(one.inputs).checkpoints[-1]][FORMULAS[name].gives]
        for bound in last.bounds:
            assert np.isfinite(bound).mean() > 0.5, one.name


def test_a_file_is_read_without_islices() -> None:
    """Read a vector file without islices, as a program in another language would. Convert the hexadecimal digits to
    numbers, and check an SGD step that is computed here."""
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
