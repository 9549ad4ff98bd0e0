"""Test that `islices.diff` explains the typical differences of ports. Frameworks compute both sides."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import torch
from ported import CHANGES, LIMIT, Batch, clipped_by_torch, compared, summed

import islices


def causes(names: tuple[str, ...]) -> set[str]:
    return {CHANGES[n].cause for n in names}


def reported(found: Any) -> list[set[str]]:
    return [set(e.names) for e in found.causes]


@pytest.mark.parametrize("name", CHANGES)
def test_what_a_gradient_went_through_is_named(name: str) -> None:
    found = compared(Batch(1), (name,))
    assert reported(found), str(found)
    assert reported(found)[0] == causes((name,)), str(found)


def test_a_gradient_of_a_real_autocast_run_is_said_to_be_of_16_bits() -> None:
    r = np.random.default_rng(0)
    ids, target = torch.from_numpy(r.integers(0, 40, 64)), torch.from_numpy(r.standard_normal((64, 16)).astype("f4"))
    grads = []
    for enabled in (False, True):
        torch.manual_seed(0)
        table, head = torch.nn.Embedding(60, 16, sparse=True), torch.nn.Linear(16, 16)
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            loss = (head(table(ids)).float() - target).square().mean()
        loss.backward()
        grads.append({"table": table.weight.grad})
    found = islices.diff(*grads)
    assert reported(found)[:1] == [{"autocast"}], str(found)
    assert "fix: in b, compute the layers in float32" in str(found)
    (cause,) = found.causes[0].causes
    assert cause.details["dtype"] == "bfloat16", "whose eight bits float16 holds too"


@pytest.mark.parametrize("by", ["keras", "torch"])
def test_a_table_whose_rows_are_renormed_is_said_to_be_bounded(by: str) -> None:
    table = np.random.default_rng(2).standard_normal((60, 8)).astype("f4")
    if by == "keras":
        bounded: Any = keras.constraints.MaxNorm(2.5, axis=1)(tf.constant(table))
    else:
        bounded = torch.from_numpy(table.copy())
        torch.nn.functional.embedding(torch.arange(60), bounded, max_norm=2.5)
    found = islices.diff(table, bounded)
    assert reported(found)[:1] == [{"row_clip"}], str(found)
    assert found.causes[0].causes[0].details["limit"] == 2.5


def test_where_two_causes_leave_the_same_bits_both_are_told() -> None:
    """Check that the report has both explanations: the clip left out "v", or each tensor was clipped by its norm."""
    d = Batch(1)
    g = summed(d)
    g = {"u": g["u"], "v": g["v"] * np.float32(0.2)}
    clip = torch.nn.utils.clip_grad_norm_
    each = {n: clipped_by_torch(clip, {n: x})[n] for n, x in g.items()}
    found = islices.diff(clipped_by_torch(clip, g), each, before=g, max_norm=LIMIT)
    assert sorted(map(sorted, reported(found))) == [["left_out"], ["per_tensor"]], str(found)
