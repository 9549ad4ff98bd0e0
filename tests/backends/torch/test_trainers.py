"""Test the recipes of docs/trainers.md for trainers that clip gradients in their code.

The last test needs Lightning and Accelerate, which are in the environment of conformance/environments/judged.txt. Only
`make soak` runs this test.
"""

from __future__ import annotations

import inspect
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
import trainers

ROOT = Path(__file__).parents[3]


def test_the_recipe_for_lightning_is_that_of_the_page() -> None:
    assert inspect.getsource(trainers.ClipsSparse) in (ROOT / "docs" / "trainers.md").read_text("utf-8")


@pytest.mark.parametrize(("algorithm", "largest"), [(None, 0.25), ("norm", 0.25), ("value", None)])
def test_the_recipe_clips_what_lightning_hands_it(algorithm: Any, largest: float | None) -> None:
    network = trainers.Network()
    network.loss([torch.arange(4)]).backward()
    optimizer = trainers.optim.Adam(network.parameters())
    grads = [p.grad for p in network.parameters()]
    before = trainers.get_total_norm(grads)
    hook = trainers.ClipsSparse().configure_gradient_clipping
    hook(optimizer)
    assert torch.equal(trainers.get_total_norm([p.grad for p in network.parameters()]), before)
    hook(optimizer, gradient_clip_val=0.25, gradient_clip_algorithm=algorithm)
    grads = [p.grad for p in network.parameters()]
    if largest is not None:
        assert trainers.get_total_norm(grads).item() == pytest.approx(largest, rel=1e-4)
    else:
        assert max(g.to_dense().abs().max().item() for g in grads) == 0.25


@pytest.mark.soak
@pytest.mark.parametrize(
    ("words", "norms"),
    [
        ("lightning norm", ["0.2500"] * 3),
        ("lightning value", ["1.1244", "1.1177", "1.1250"]),
        ("accelerate 1", ["0.2500"] * 4),
        ("accelerate 2", ["0.2500"] * 2),
    ],
)
def test_trainers(words: str, norms: list[str]) -> None:
    python = os.environ.get("ISLICES_JUDGED_PYTHON", ROOT / ".venv-judged" / "bin" / "python")
    done = subprocess.run(
        [python, trainers.__file__, *words.split()],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert [line for line in done.stdout.splitlines() if line[0].isdigit()] == norms, done.stderr[-2000:]
