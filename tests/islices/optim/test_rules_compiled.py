"""Test the rules of optimizers in compiled kernels: their errors, and that optimizers with the same rule share a
kernel. The suite compares the bits with the oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from islices import optim
from islices.optim.operators import bind


def test_a_rule_without_operators_says_so() -> None:
    with pytest.raises(TypeError, match="without operators"):
        optim.sgd(0.1)._formula.rule(np.ones(1), np.ones(1), 0.1)
    with pytest.raises(TypeError, match="plain function"):
        bind(len, {})


def test_optimizers_share_the_kernel_of_a_rule() -> None:
    pytest.importorskip("numba")
    from islices.kernels.updating import step_kernel

    def kernel(*args: Any, **options: Any) -> Any:
        return step_kernel(optim.adam(*args, **options)._formula, "float32", "float32")

    assert kernel(0.1) is kernel(0.2, eps=1e-3) is kernel(lambda t: 1.0 / (t + 1), rows="all")
    others = [kernel(0.1), kernel(0.1, maximize=True), kernel(0.1, weight_decay=0.1), kernel(0.1, amsgrad=True)]
    assert len(set(map(id, others))) == len(others)
