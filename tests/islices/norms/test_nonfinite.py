"""Test the effect of nonfinite="zero" on an optimizer, and the check of the argument `nonfinite` in functions of the
core and for frameworks."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import pytest

import islices
from islices import IndexedSlices, optim
from islices.distributed.group import Alone

X = IndexedSlices(np.array([[np.nan, 1.0], [2.0, 3.0], [0.5, np.inf]], np.float32), np.array([1, 0, 1]), (4, 2))
DENSE = islices.to_dense(X)
Call = Callable[[str], Any]


def trainer(nonfinite: str) -> Any:
    front, mx = import_module("islices.backends.mxnet.gluon"), import_module("mxnet")
    layer = mx.gluon.nn.Dense(1, in_units=2, use_bias=False)
    layer.initialize(mx.init.One())
    return front.Trainer(
        layer.collect_params(), "sgd", {"learning_rate": 1.0}, clip_global_norm=0.5, nonfinite=nonfinite
    )


def keras(nonfinite: str) -> Any:
    return import_module("islices.backends.keras").SGD(1.0, global_clipnorm=1.0, nonfinite=nonfinite)


def gluon(nonfinite: str) -> Any:
    front, nd = import_module("islices.backends.mxnet.gluon"), import_module("mxnet").nd
    return front.clip_global_norm([nd.array(DENSE)], 1.0, False, nonfinite=nonfinite)


def optax(name: str) -> Call:
    return lambda how: getattr(import_module("islices.backends.jax.optax"), name)(1.0, nonfinite=how)


CALLS: dict[str, Call] = {
    "clip_by_norm, axes": lambda how: islices.clip_by_norm(X, 1.0, axes=1, nonfinite=how),  # type: ignore[arg-type]
    "clip_by_global_norm, group": lambda how: islices.clip_by_global_norm(
        [X], 1.0, nonfinite=how, group=Alone()  # type: ignore[arg-type]
    ),
    "gluon": gluon,
    "gluon.Trainer": trainer,
    "keras": keras,
    "optax.clip_by_global_norm": optax("clip_by_global_norm"),
    "optax.adaptive_grad_clip": optax("adaptive_grad_clip"),
}  # fmt: skip
NEEDS = {"gluon": "islices.backends.mxnet", "keras": "keras", "optax": "optax"}


@pytest.mark.parametrize("name", CALLS)
def test_every_function_and_front_checks_it(name: str) -> None:
    front = name.partition(",")[0].partition(".")[0]
    if front in NEEDS:
        pytest.importorskip(NEEDS[front])
    with pytest.raises(ValueError, match="nonfinite: got 'skip'; accepted"):
        CALLS[name]("skip")


def test_adam_moves_rows_by_zeros_and_apply_leaves_the_step_out() -> None:
    """Check that Adam changes rows even if nonfinite="zero" has made their gradients zero, because its state contains
    earlier gradients. The argument `apply` skips the step."""
    good = IndexedSlices(np.ones((1, 2), np.float32), np.array([1]), (4, 2))
    optimizer = optim.adam(0.1)
    table = np.zeros((4, 2), np.float32)
    table, state = optimizer.step(table, good, optimizer.init(table))
    before = table.copy()
    (bad,), norm = islices.clip_by_global_norm([X], 1.0, nonfinite="zero")
    assert not np.isfinite(norm)
    assert (bad.values == 0).all()
    moved, _ = optimizer.step(table.copy(), bad, {name: x.copy() for name, x in state.items()})
    assert (moved[1] != before[1]).all()
    kept, after = optimizer.step(table.copy(), bad, state, apply=bool(np.isfinite(norm)))
    assert kept.tobytes() == before.tobytes()
    assert after["step"] == 1
