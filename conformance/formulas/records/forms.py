"""Options of the rules that most formulas share.

May import: the standard library.
"""

from __future__ import annotations

from typing import Any

Form = dict[str, Any]
BETAS: Form = {"beta1": 0.9, "beta2": 0.999}
#: Kingma and Ba 2015, algorithm 1
ADAM: Form = {"epsilon": "corrected", "correction": "both", "decay": "coupled", "amsgrad": False, "maximum": "raw"}
MOMENTS: Form = {"m": 0.0, "v": 0.0}
#: Polyak 1964, the learning rate outside of the buffer
SGD: Form = {
    "buffer": "gradients", "first": "gradient", "decay": "coupled", "momentum": 0.0, "dampening": 0.0, "nesterov": False,
    "weight_decay": 0.0,
}  # fmt: skip
ADAGRAD: Form = {"epsilon": "outside", "per_row": False, "decay": "coupled", "weight_decay": 0.0, "lr_decay": 0.0}
RMSPROP: Form = {
    "epsilon": "outside", "buffer": "gradients", "decay": "coupled", "centered": False, "momentum": 0.0,
    "weight_decay": 0.0,
}  # fmt: skip
