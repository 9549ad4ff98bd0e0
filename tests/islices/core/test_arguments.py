"""Test arguments other than arrays. Factors may be bools, all other numbers may not, and flags must be bools."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import islices
from islices import IndexedSlices, optim
from islices.vocabulary import RowMap

IDS, UP = np.array([1, 2]), np.ones((2, 1))
S = IndexedSlices(UP, IDS, (3, 1))
WHOLE = IndexedSlices(np.array([[5], [-7]], np.int32), IDS, (3, 1))
SAMPLES = islices.per_sample(UP[:, None], IDS[:, None], 3)

#: "argument, its function" -> a call with the value of the argument
NUMBERS: dict[str, Callable[[Any], Any]] = {
    "max_norm, a clip": lambda x: islices.clip_by_norm(S, x),
    "max_norm, renorm_rows": lambda x: islices.renorm_rows(UP.copy(), IDS[:1] - 1, x),
    "threshold, clip_by_block_rms": lambda x: islices.norms.clip_by_block_rms(S, x),
    "ord, norm": lambda x: islices.norm(S, x),
    "hi, clip_by_value": lambda x: islices.clip_by_value(S, 0, x),
    "num_rows, embedding_grad": lambda x: islices.embedding_grad(UP, IDS, x),
    "padding_idx, embedding_grad": lambda x: islices.embedding_grad(UP, IDS, 3, padding_idx=x),
    "dense_shape, IndexedSlices": lambda x: IndexedSlices(UP, IDS - 1, (3, x)),
    "axes, clip_by_norm": lambda x: islices.clip_by_norm(UP, 1.0, axes=x),
    "b, PerSample.slices": lambda x: SAMPLES.slices(x),
    "argnums, value_and_grad": lambda x: islices.value_and_grad(print, x),
    "missing, RowMap.ids": lambda x: RowMap([2, -1, 0], 3).ids(IDS, missing=x),
    "lr, sgd": optim.sgd,
}


@pytest.mark.parametrize("name", NUMBERS)
def test_a_bool_is_no_number(name: str) -> None:
    for x in (True, np.True_):
        with pytest.raises(TypeError, match=f"^{name.partition(',')[0]}: got"):
            NUMBERS[name](x)


@pytest.mark.parametrize("x", [True, np.True_, False, np.False_])
def test_as_a_factor_it_is_0_or_1(x: Any) -> None:
    for s in (S, WHOLE):
        scaled = islices.scale(s, x).values
        assert scaled.dtype == s.values.dtype
        np.testing.assert_array_equal(scaled, s.values if x else s.values * 0)


#: argument -> a call with the value of the flag
FLAGS: dict[str, Callable[[Any], Any]] = {
    "coalesced": lambda x: IndexedSlices(UP, IDS, (3, 1), coalesced=x),
    "scale_by_freq": lambda x: islices.embedding_grad(UP, IDS, 3, scale_by_freq=x),
    "has_aux": lambda x: islices.value_and_grad(print, has_aux=x),
    "per_sample": lambda x: islices.value_and_grad(print, per_sample=x),
    "nesterov": lambda x: optim.sgd(0.1, momentum=0.5, nesterov=x),
    "maximize": lambda x: optim.sgd(0.1, maximize=x),
    "master": lambda x: optim.sgd(0.1).init(np.zeros((3, 1), np.float16), master=x),
    "on": lambda x: islices.config.use_kernels(x).__enter__(),
}


@pytest.mark.parametrize("name", FLAGS)
def test_nothing_else_is_a_flag(name: str) -> None:
    for x in (1, "no", np.array(True)):
        with pytest.raises(TypeError, match=f"^{name}: got .*; accepted is a bool"):
            FLAGS[name](x)
