"""paddle.optimizer on the CPU, and Paddle's clip by the global norm. The gradients are dense, or are SelectedRows from
embeddings with sparse=True."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import paddle

from islices.conformance.formulas.judge import Step
from islices.conformance.tools.judged.entry import Judged, lacking, renamed, taken

LIBRARY = "paddle"
NAMES = {
    "lr": "learning_rate", "eps": "epsilon", "nesterov": "use_nesterov",
    "initial_accumulator": "initial_accumulator_value",
}  # fmt: skip
#: (class, formula). Adam and AdamW occur twice, because their kernels add epsilon at another place than their
#: documentation says.
CLASSES = (
    ("SGD", "torch.SGD"), ("Momentum", "torch.SGD"), ("Adam", "tensorflow.Adam"), ("Adam", "torch.Adam"),
    ("AdamW", "keras.AdamW"), ("AdamW", "torch.AdamW"), ("Adagrad", "torch.Adagrad"), ("Adadelta", "torch.Adadelta"),
    ("RMSProp", "optax.rmsprop"), ("NAdam", "torch.NAdam"), ("RAdam", "torch.RAdam"),
)  # fmt: skip
SPARSE = (
    ("SGD", "torch.SGD sparse"), ("Adagrad", "torch.Adagrad sparse"), ("Adam", "tensorflow.LazyAdam"),
    ("Adam", "fbgemm.ADAM"),
)  # fmt: skip


def paddle_step(name: str, **chosen: Any) -> Step:
    kind = getattr(paddle.optimizer, name)

    def step(w: Any, g: Any, state: Any, t: int, **options: Any) -> Any:
        if t == 1:
            state["p"] = paddle.create_parameter(w.shape, "float32")
            state["p"].set_value(w)
            # a weight decay of 0 is left out
            given = {k: v for k, v in renamed(options, NAMES).items() if k != "weight_decay" or v}
            state["optimizer"] = kind(parameters=[state["p"]], **taken(kind, given), **chosen)
        p, optimizer = state["p"], state["optimizer"]
        optimizer.set_lr(options["lr"])
        if isinstance(g, np.ndarray):
            p.grad = paddle.to_tensor(g)
        # with the other optimizers, an embedding of no ids ends the process by SIGFPE
        elif len(g.indices) or name == "Adam":
            rows = paddle.nn.functional.embedding(paddle.to_tensor(g.indices), p, sparse=True)
            (rows * paddle.to_tensor(g.values)).sum().backward()
        optimizer.step()
        optimizer.clear_grad(set_to_zero=False)
        return p.numpy()

    return step


def clip(w: Any, g: Any, state: Any, t: int, *, max_norm: float) -> Any:
    p = paddle.create_parameter(w.shape, "float32")
    return paddle.nn.ClipGradByGlobalNorm(max_norm)([(p, paddle.to_tensor(g))])[0][1].numpy()


def entries() -> Iterator[Judged]:
    for name, formula in CLASSES:
        yield Judged(f"paddle.optimizer.{name}", formula, paddle_step(name))
    for name, formula in SPARSE:
        chosen = {"lazy_mode": True} if name == "Adam" else {}
        given = "(lazy_mode=True)" if chosen else ""
        step = lacking(paddle_step(name, **chosen), "weight_decay")  # weight decay raises an error for sparse gradients
        yield Judged(f"paddle.optimizer.{name}{given}, sparse=True", formula, step)
    yield Judged("paddle.nn.ClipGradByGlobalNorm", "tensorflow.clip_by_global_norm", clip)
