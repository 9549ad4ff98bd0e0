"""Frameworks confirm the formulas that they document, each in its grade: they are witnesses, never what is expected.

Their steps are those that `make judged` holds against the formulas. Compiled ones are left to it: torch takes seconds a
trajectory to compile.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from islices.conformance.formulas.judge import judge
from islices.conformance.tools.judged.entry import Entry, formulas

CLIPS = {
    "torch": ("torch.clip_grad_norm_", "torch.embedding_renorm_"),
    "tensorflow": ("tensorflow.clip_by_global_norm",),
    "optax": ("optax.clip_by_global_norm",),
    "mxnet": ("mxnet.clip_global_norm",),
}
#: the worst grade of a library's optimizers: Keras, TensorFlow, optax and MXNet form scalars in float32
GRADES = {"torch": 1, "keras": 2, "tensorflow": 2, "optax": 2, "mxnet": 2, "fbgemm": 1}
#: without an implementation that runs here: of TensorFlow Addons, and for GPUs alone
NOT_HERE = ("tensorflow.LazyAdam", "fbgemm.ADAM")
#: known mistakes of released code, docs/judged.md: the CPU kernel of a table that one feature uses
KNOWN = {("fbgemm.EXACT_ROWWISE_ADAGRAD", ""): "decay missing"}


def cases() -> Iterator[Any]:
    for library in GRADES:
        names = [*(name for name, _ in formulas(library) if name not in NOT_HERE), *CLIPS.get(library, ())]
        marks = [] if library == "torch" else [pytest.mark.soak]
        yield from (pytest.param(library, name, marks=marks) for name in names)


def entries(library: str, formula: str) -> list[Entry]:
    module = pytest.importorskip(f"islices.conformance.tools.judged.libraries.{library}")
    return [x for x in module.entries() if x.formula == formula and x.variant not in ("torch.compile", "jax.jit")]


@pytest.mark.parametrize(("library", "formula"), list(cases()))
def test_a_framework_confirms_its_formula(library: str, formula: str) -> None:
    found = entries(library, formula)
    assert found
    for entry in found:
        judged = judge(entry.step, formula)
        if known := KNOWN.get((formula, entry.variant)):
            assert judged.cause == known, str(judged)
            continue
        assert judged.grade is not None, f"{entry.variant}: {judged}"
        assert judged.grade <= (1 if formula in CLIPS.get(library, ()) else GRADES[library]), (
            f"{entry.variant}: {judged}"
        )
        left_off = ["decay"] if entry.variant == "without weight_decay" else []
        assert list(judged.unsupported) == left_off, str(judged)
