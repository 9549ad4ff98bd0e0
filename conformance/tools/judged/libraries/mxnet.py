"""mx.optimizer with MXNet's kernels for dense and row_sparse gradients, and the clip of gluon."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import islices
from islices.conformance.formulas.judge import Step
from islices.conformance.formulas.records import FORMULAS
from islices.conformance.tools.judged.entry import Judged, clip_of, formulas, renamed

islices.get_backend("mxnet")  # imports MXNet in a form that works with NumPy 2
import mxnet as mx  # noqa: E402

LIBRARY = "mxnet"
NAMES = {"lr": "learning_rate", "eps": "epsilon", "weight_decay": "wd"}
OTHERS = {
    "RMSProp": {"rho": "gamma1", "momentum": "gamma2"}, "Ftrl": {"l1": "lamda1", "l2": "wd"}, "AdaGrad": {"eps": "eps"},
    "GroupAdaGrad": {"eps": "eps"},
}  # fmt: skip


def gradient(g: Any, shape: tuple[int, ...]) -> Any:
    if isinstance(g, np.ndarray):
        return mx.nd.array(g)
    named, places = np.unique(g.indices, return_inverse=True)  # row_sparse allows each row once
    values = np.zeros((len(named), shape[1]), np.float32)
    np.add.at(values, places, g.values)
    return mx.nd.sparse.row_sparse_array((values, named), shape=shape)


def mxnet_step(name: str, sparse: bool, **chosen: Any) -> Step:
    def step(w: Any, g: Any, state: Any, t: int, **options: Any) -> Any:
        if t == 1:
            h = renamed(options, {**NAMES, **OTHERS.get(name, {})})
            module = mx.optimizer.contrib if name == "GroupAdaGrad" else mx.optimizer
            state["optimizer"] = getattr(module, name)(**h, **chosen)
            weight = mx.nd.array(w)
            state["w"] = weight.tostype("row_sparse") if sparse and name == "Ftrl" else weight
            state["held"] = state["optimizer"].create_state(0, state["w"])
        state["optimizer"].lr = options["lr"]
        state["optimizer"].update(0, state["w"], gradient(g, w.shape), state["held"])
        return state["w"].asnumpy()

    return step


def clip(g: Any, max_norm: float) -> Any:
    found = mx.nd.array(g)
    mx.gluon.utils.clip_global_norm([found], max_norm)
    return found.asnumpy()


def step_of(formula: str, name: str) -> Step:
    """Return the step of an MXNet optimizer for a formula. The step of a centered formula uses the option
    ``centered``, and the step of a formula of SGD or Adam uses the option ``lazy_update``."""
    sparse = FORMULAS[formula].gradients != "dense"
    chosen = {"centered": True} if "centered" in formula else {"lazy_update": True} if name in ("SGD", "Adam") else {}
    return mxnet_step(name, sparse, **chosen)


def entries() -> Iterator[Judged]:
    for formula, name in formulas("mxnet"):
        given = formula.partition(" ")[2].replace("sparse", "row_sparse")
        module = "mx.optimizer.contrib" if name == "GroupAdaGrad" else "mx.optimizer"
        yield Judged(f"{module}.{name}{given and ', '}{given}", formula, step_of(formula, name))
    yield Judged("mx.gluon.utils.clip_global_norm", "mxnet.clip_global_norm", clip_of(clip))
