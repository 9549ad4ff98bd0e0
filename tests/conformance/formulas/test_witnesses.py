"""Test that each framework's step agrees with the formula that the framework documents. The expected numbers come from
the formulas, not from the frameworks.

Except for the mistakes in `KNOWN`, each library must reach its grade in `GRADES`, and grade 1 for clips. The steps are
those of `make judged`, but without the compiled steps, because torch needs seconds to compile each trajectory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from islices.conformance.formulas.judge import judge
from islices.conformance.tools.judged.entry import Judged, formulas

CLIPS = {
    "torch": ("torch.clip_grad_norm_", "torch.embedding_renorm_"),
    "tensorflow": ("tensorflow.clip_by_global_norm",),
    "optax": ("optax.clip_by_global_norm",),
    "mxnet": ("mxnet.clip_global_norm",),
}
#: library -> the worst grade of its optimizers: Keras, TensorFlow, optax and MXNet compute scalars in float32
GRADES = {"torch": 1, "keras": 2, "tensorflow": 2, "optax": 2, "mxnet": 2, "fbgemm": 1}
#: formulas whose implementation cannot run here: an optimizer of TensorFlow Addons, and one that needs a GPU
NOT_HERE = ("tensorflow.LazyAdam", "fbgemm.ADAM")
#: known mistakes of released code (docs/judged.md): FBGEMM's CPU kernel for a table of one feature
KNOWN = {("fbgemm.EXACT_ROWWISE_ADAGRAD", ""): "decay missing"}


def cases() -> Iterator[Any]:
    for library in GRADES:
        names = [*(name for name, _ in formulas(library) if name not in NOT_HERE), *CLIPS.get(library, ())]
        marks = [] if library == "torch" else [pytest.mark.soak]
        yield from (pytest.param(library, name, marks=marks) for name in names)


def entries(library: str, formula: str) -> list[Judged]:
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


def test_torch_clips_several() -> None:
    import torch

    def step(w: Any, g: Any, state: Any, t: int, *, max_norm: float) -> Any:
        parameters = [torch.nn.Parameter(torch.zeros(x.shape)) for x in g]
        for p, x in zip(parameters, g, strict=True):
            p.grad = torch.from_numpy(x)
        torch.nn.utils.clip_grad_norm_(parameters, max_norm, foreach=bool(t % 2))
        return [p.grad for p in parameters]

    found = judge(step, "torch.clip_grad_norm_ of several")
    assert (found.grade, found.unsupported) == (1, {}), str(found)


@pytest.mark.parametrize("sparse", [False, True])
def test_torch_bags(sparse: bool) -> None:
    import torch

    def gradient(w: Any, x: Any, state: Any, t: int, *, combiner: str, **options: Any) -> Any:
        if sparse and (combiner == "max" or options["scale_grad_by_freq"]):
            raise NotImplementedError("torch has no sparse gradient of it")
        table, ids, offsets = torch.from_numpy(w).requires_grad_(), torch.from_numpy(x.ids), torch.from_numpy(x.offsets)
        weights = None if x.weights is None else torch.from_numpy(x.weights).requires_grad_()
        options |= {"mode": combiner, "per_sample_weights": weights, "sparse": sparse}
        torch.nn.functional.embedding_bag(ids, table, offsets[:-1], **options).backward(torch.from_numpy(x.upstream))
        return table.grad.to_dense()

    found = judge(gradient, "torch.embedding_bag gradient")
    outside = {score.trajectory for score in found.scores if score.by_grade[0] > 1.0}
    # torch up to 2.13 divides by the count of another row (pytorch/pytorch#190063)
    assert outside <= {"frequency"}, str(found)
    assert list(found.unsupported) == (["max", "frequency"] if sparse else [])
