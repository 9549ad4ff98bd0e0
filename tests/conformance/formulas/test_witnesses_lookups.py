"""Frameworks confirm the formulas of clips of several tensors, of bags and of the gradients of lookups."""

from __future__ import annotations

from typing import Any

import pytest

from islices.conformance.formulas.judge import judge


# ---------------------------------------------------------------------- clips
def torch_parameters(tensors: list[Any]) -> list[Any]:
    import torch

    found = []
    for x in tensors:
        found.append(torch.nn.Parameter(torch.zeros(x.shape)))
        found[-1].grad = torch.from_numpy(x)
    return found


def torch_several(w: Any, g: Any, state: Any, t: int, *, max_norm: float) -> Any:
    import torch

    parameters = torch_parameters(g)
    torch.nn.utils.clip_grad_norm_(parameters, max_norm, foreach=bool(t % 2))
    return [p.grad for p in parameters]


def test_clips() -> None:
    found = judge(torch_several, "torch.clip_grad_norm_ of several")
    assert found.grade == 1, str(found)
    assert not found.unsupported, str(found)


# ---------------------------------------------------------------------- torch's lookups
def torch_bags(w: Any, x: Any, given: dict[str, Any]) -> tuple[Any, Any, Any]:
    import torch

    table = torch.from_numpy(w).requires_grad_()
    weights = None if x.weights is None else torch.from_numpy(x.weights).requires_grad_()
    given = {("mode" if name == "combiner" else name): value for name, value in given.items()}
    found = torch.nn.functional.embedding_bag(
        torch.from_numpy(x.ids), table, torch.from_numpy(x.offsets[:-1]), per_sample_weights=weights, **given
    )
    return table, weights, found


@pytest.mark.parametrize("sparse", [False, True])
def test_torch_bags(sparse: bool) -> None:
    import torch

    def gradient(w: Any, x: Any, state: Any, t: int, **options: Any) -> Any:
        if sparse and (options["combiner"] == "max" or options["scale_grad_by_freq"]):
            raise NotImplementedError("torch has no sparse gradient of it")
        table, _, found = torch_bags(w, x, {**options, "sparse": sparse})
        found.backward(torch.from_numpy(x.upstream))
        return table.grad.to_dense()

    found = judge(gradient, "torch.embedding_bag gradient")
    outside = {score.trajectory for score in found.scores if score.by_grade[0] > 1.0}
    # torch to 2.13 divides by the count of another row (pytorch/pytorch#190063)
    assert outside <= {"frequency"}, str(found)
    assert list(found.unsupported) == (["max", "frequency"] if sparse else [])
