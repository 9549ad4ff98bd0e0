"""Run the docstring examples of the modules in `MODULES`."""

from __future__ import annotations

import doctest
import importlib.util

import pytest

MODULES = [
    "torch.nn_utils", "torch.optim", "torch.amp", "jax.optax", "jax.optax.transforms", "jax.optax.named_state",
    "keras.coalesced", "keras.stock_models", "keras.loss_scale", "keras.named_states", "keras.stepped", "mxnet.gluon",
]  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_a_module(name: str) -> None:
    if importlib.util.find_spec(name.partition(".")[0]) is None:
        pytest.skip(f"{name} needs its framework")
    module = importlib.import_module(f"islices.backends.{name}")
    results = doctest.testmod(module, optionflags=doctest.IGNORE_EXCEPTION_DETAIL)
    assert (results.failed, results.attempted > 0) == (0, True)
