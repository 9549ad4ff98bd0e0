"""The arithmetic of FBGEMM's embedding optimizers, in its own order of operations. SPEC clauses 11 and 16.

From the kernels of SplitTableBatchedEmbeddingBagsCodegen on the CPU, that sum duplicates in order of occurrence and
move the rows named alone. Row-wise Adagrad divides once a row: ``(lr / (sqrt(a) + eps)) g``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from islices.optim import rules
from islices.optim.formulas import Formula, Preset, State, decays
from islices.optim.hyperparameters import Hyper
from islices.optim.operators import div, mul, sqrt

__all__ = ["PRESETS"]

TOUCHED = ("touched",)


# ---------------------------------------------------------------------- rules
def adagrad(g: Any, q: Any, w: Any, accumulator: Any, lr: Any, eps: Any) -> Any:
    accumulator = accumulator + q
    return w - div(mul(lr, g), sqrt(accumulator) + eps), accumulator


def rowwise_adagrad(g: Any, q: Any, w: Any, accumulator: Any, lr: Any, eps: Any) -> Any:
    """One quotient a row, then a product an element."""
    accumulator = accumulator + q
    return w - mul(div(lr, sqrt(accumulator) + eps), g), accumulator


# ---------------------------------------------------------------------- formulas
def _sgd(h: Hyper) -> Formula:
    return Formula(rules.sgd, lambda n: {"lr": n.lr}, rows=TOUCHED)


def _adagrad(h: Hyper) -> Formula:
    return Formula(
        adagrad,
        lambda n: {"lr": n.lr, "eps": n.h["eps"]},
        (State("accumulator"),),
        squares="element",
        rows=TOUCHED,
    )


def _rowwise_adagrad(h: Hyper) -> Formula:
    """weight_decay is WeightDecayMode.L2, which FBGEMM writes ``(1 - f weight_decay) w - f g``, f the row's factor."""
    return Formula(
        rowwise_adagrad,
        lambda n: {"lr": n.lr, "eps": n.h["eps"]},
        (State("accumulator", per_row=True),),
        squares="row",
        decay=decays(h),
        rows=TOUCHED,
    )


#: optimizer -> its preset
PRESETS: Mapping[str, Preset] = {
    "sgd": Preset({"lr": 0.01}, _sgd, "EmbOptimType.EXACT_SGD"),
    "adagrad": Preset({"lr": 0.01, "eps": 1e-8}, _adagrad, "EmbOptimType.EXACT_ADAGRAD"),
    "rowwise_adagrad": Preset(
        {"lr": 0.01, "eps": 1e-8, "weight_decay": 0.0},
        _rowwise_adagrad,
        "EmbOptimType.EXACT_ROWWISE_ADAGRAD",
    ),
}
