"""Write the vector files of formulas: ``python -m islices.conformance.formulas.generate``. Every run writes the same
bytes.

May import: this folder, `islices.conformance`, `islices.conformance.formulas.records`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import islices.conformance
from islices.conformance.formulas.evaluate import Trajectory
from islices.conformance.formulas.formula import Formula
from islices.conformance.formulas.records import FORMULAS
from islices.conformance.formulas.trajectories import trajectories
from islices.conformance.formulas.vectors import bound_hex, expected_hex, inputs_json


def line_of(trajectory: Trajectory) -> str:
    expect = {
        str(t): {
            name: [list(x.value.shape), expected_hex(x.value), *map(bound_hex, x.bounds)] for name, x in arrays.items()
        }
        for t, arrays in trajectory.expected.items()
    }
    fields = {
        "formula": trajectory.formula.name,
        "name": trajectory.name,
        "inputs": trajectory.inputs,
        "options": {**trajectory.formula.options, **trajectory.given},
        "rates": list(trajectory.rates),
        "expect": expect,
    }
    return json.dumps(fields, separators=(",", ":"))


def about(formula: Formula) -> dict[str, Any]:
    """Return the description of a formula for readers who have only the vector file."""
    return {
        "equation": formula.equation,
        "source": formula.source,
        "form": dict(formula.form),
        "states": dict(formula.states),
        "gradients": formula.gradients,
        "duplicates": formula.duplicates,
        "gives": formula.gives,
        "several": formula.several,
    }


def texts() -> Iterator[tuple[str, str]]:
    """Yield (file name, text) for each vector file."""
    yield "inputs.json", json.dumps(inputs_json(), indent=1) + "\n"
    for framework in dict.fromkeys(formula.framework for formula in FORMULAS.values()):
        own = [formula for formula in FORMULAS.values() if formula.framework == framework]
        lines = ",\n".join(line_of(trajectory) for formula in own for trajectory in trajectories(formula))
        head = json.dumps({formula.name: about(formula) for formula in own}, indent=1)
        yield (
            f"{framework}.json",
            f'{{"clause": "28",\n"formulas": {head},\n"trajectories": [\n{lines}\n]}}\n',
        )


def main(argv: Sequence[str] | None = None) -> int:
    folder = Path(islices.conformance.__file__).resolve().parent / "vectors" / "formulas"
    folder.mkdir(exist_ok=True)
    total = 0
    for name, text in texts():
        (folder / name).write_text(text, "utf-8")
        total += len(text)
        print(f"{name}: {len(text):,} bytes")
    print(f"{total:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
