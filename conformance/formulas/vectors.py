"""Write the float arrays of the vector files as hexadecimal texts in JSON, which any language can read.

The text of an array contains the bytes of its elements, row by row. Each element is big-endian. Inputs
are float32 numbers (8 digits), and expected values are float64 numbers (16 digits). A bound is the upper half of a
float32, rounded up (4 digits). A bound of 7f80 is infinite: the element is not judged. A bound of 0000 requires the
exact value.

May import: `numpy`, this folder.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from islices.conformance.formulas.inputs import MAKERS, Bags, Gradient, Rows, inputs

Array = np.ndarray[Any, Any]


def single_hex(x: Array) -> str:
    return x.astype(">f4").tobytes().hex()


def expected_hex(x: Array) -> str:
    return x.astype(">f8").tobytes().hex()


def bound_hex(x: Array) -> str:
    """Return the hexadecimal text of bounds, which are float32 numbers whose lower halves are zeros."""
    return (x.astype(np.float32).view(np.uint32) >> 16).astype(">u2").tobytes().hex()


def inputs_json() -> dict[str, Any]:
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
