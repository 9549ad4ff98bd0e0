"""The vectors of formulas: a file a framework, and one of the inputs, as JSON with arrays in hexadecimal.

An array is its elements row by row, each big-endian IEEE 754: inputs as float32 (8 digits), expected values as float64
(16), bounds as the upper half of a float32, rounded up (4). A bound of 7f80 is infinite: the element is not judged. A
bound of 0000 asks for the value itself.

May import: `numpy`, this folder.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from islices.conformance.formulas.formula import Formula
from islices.conformance.formulas.inputs import MAKERS, Bags, Gradient, Rows, inputs

__all__ = ["GRADES", "Expected", "bound_hex", "expected", "expected_hex", "inputs_json", "single_hex"]

Array = np.ndarray[Any, Any]
#: Scalars formed in float64; in float32.
GRADES = (1, 2)


@dataclass(frozen=True)
class Expected:
    """What an array is at a step, and for each grade how far it may be off."""

    value: Array
    bounds: tuple[Array, Array]


# ---------------------------------------------------------------------- arrays
def single_hex(x: Array) -> str:
    return x.astype(">f4").tobytes().hex()


def expected_hex(x: Array) -> str:
    return x.astype(">f8").tobytes().hex()


def bound_hex(x: Array) -> str:
    """Rounded up, twice: to float32, then to its upper half."""
    single = x.astype(np.float32)
    single = np.where(single.astype(np.float64) < x, np.nextafter(single, np.float32(np.inf)), single)
    bits = single.view(np.uint32)
    return ((bits + np.where(bits & 0xFFFF, 0x10000, 0)) >> 16).astype(">u2").tobytes().hex()


def _array(text: str, dtype: str, shape: tuple[int, ...]) -> Array:
    return np.frombuffer(bytes.fromhex(text), dtype).reshape(shape)


def _bounds(text: str, shape: tuple[int, ...]) -> Array:
    upper = _array(text, ">u2", shape).astype(np.uint32)
    return (upper << 16).view(np.float32).astype(np.float64)


# ---------------------------------------------------------------------- files
def inputs_json() -> dict[str, Any]:
    """All inputs, as their file has them."""
    found: dict[str, Any] = {}
    for name in MAKERS:
        made = inputs(name)
        found[name] = {
            "shape": list(made.weights.shape),
            "weights": single_hex(made.weights),
            "gradients": [_gradient_json(g) for g in made.gradients],
        }
    return found


def _gradient_json(g: Gradient) -> Any:
    if isinstance(g, Rows):
        return {"indices": g.indices.tolist(), "values": single_hex(g.values)}
    if isinstance(g, Bags):
        return {
            "ids": g.ids.tolist(),
            "offsets": g.offsets.tolist(),
            "weights": None if g.weights is None else single_hex(g.weights),
            "upstream": single_hex(g.upstream),
        }
    return single_hex(g)


@cache
def _file(framework: str) -> dict[tuple[str, str], Any]:
    path = resources.files("islices.conformance") / "vectors" / "formulas" / f"{framework}.json"
    found = json.loads(path.read_text("utf-8"))
    return {(x["formula"], x["name"]): x for x in found["trajectories"]}


def expected(formula: Formula, name: str) -> dict[int, dict[str, Expected]]:
    """Step -> array ("weights", or a state) -> what it is, of a trajectory."""
    line = _file(formula.framework)[formula.name, name]
    return {
        int(t): {
            array: Expected(_array(x[1], ">f8", tuple(x[0])), (_bounds(x[2], x[0]), _bounds(x[3], x[0])))
            for array, x in arrays.items()
        }
        for t, arrays in line["expect"].items()
    }
