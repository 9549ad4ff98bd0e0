"""Add the bad input of optimizers to the table in `islices.conformance.errors`."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from islices.conformance.data import Array, Slices
from islices.conformance.errors import DENSE, GOOD, INTEGERS, OTHER_SHAPE, WIDE, f32, foreign, i64, of, row


def _refused(raises: str, id: str, message: str, name: str, hyper: dict[str, Any], *rest: Any, **options: Any) -> None:
    """Add a row for an optimizer with bad hyperparameters, or for a step with bad arguments. `rest` is (table,
    gradients) of the step, or empty for a valid table and gradient."""
    table, grads = rest or (DENSE, [GOOD])
    row(raises, f"optimizer-{id}", message, "optimizer_steps", name, hyper, table, grads, **options)


_type_error, _value_error, _index_error = (
    partial(_refused, kind) for kind in ("TypeError", "ValueError", "IndexError")
)


# ---------------------------------------------------------------------- hyperparameters
_sgd = ("sgd", {"lr": 0.1})
_type_error("without-lr", "lr ... none", "adam", {})
_type_error("lr-text", "lr ... '0.1' ... function", "sgd", {"lr": "0.1"})
_type_error("lr-complex", "lr ... complex", "sgd", {"lr": {"complex": [1.0, 2.0]}})
_type_error("lr-bool", "lr ... True", "sgd", {"lr": True})
_value_error("lr-nan", "lr ... nan", "sgd", {"lr": math.nan})
_value_error("lr-negative", "lr ... -0.1 ... >= 0", "sgd", {"lr": -0.1})
_type_error("maximize", "maximize ... 'no' ... bool", *_sgd, maximize="no")
_value_error("beta-one", "beta1 ... 1.0 ... < 1", "adam", {"lr": 0.1, "beta1": 1.0})
_value_error("beta-negative", "beta2 ... -0.1", "adam", {"lr": 0.1, "beta2": -0.1})
_value_error("beta-nan", "beta1 ... nan", "adamw", {"lr": 0.1, "beta1": math.nan})
_value_error("eps-negative", "eps ... -1", "adagrad", {"lr": 0.1, "eps": -1})
_type_error("eps-text", "eps ... 'x'", "rmsprop", {"lr": 0.1, "eps": "x"})
_value_error("decay-inf", "weight_decay ... inf", "sgd", {"lr": 0.1, "weight_decay": math.inf})
_type_error("nesterov-number", "nesterov ... bool", "sgd", {"lr": 0.1, "nesterov": 1})
_value_error("lr-power", "lr_power ... 0.3 ... <= 0", "ftrl", {"lr": 0.1, "lr_power": 0.3})
_value_error("lr-power-large", "lr_power ... -256 ... <= 0", "ftrl", {"lr": 0.1, "lr_power": -256})
_type_error("lr-power-by-step", "lr_power ... real number", "ftrl", {"lr": 0.1, "lr_power": [-0.5]})
_value_error("shrinkage-negative", "l2_shrinkage ... -1", "ftrl", {"lr": 0.1, "l2_shrinkage": -1})
_type_error("amsgrad-number", "amsgrad ... bool", "adam", {"lr": 0.1, "amsgrad": 1})
_amsgrad = {"lr": 0.1, "amsgrad": True}
_value_error("amsgrad-not-there", "amsgrad ... mxnet", "adam", _amsgrad, semantics="mxnet")
_value_error("beta-by-step", "beta1 ... 1.0 ... < 1", "adam", {"lr": 0.1, "beta1": [0.9, 1.0]}, steps=2)
_type_error("momentum-by-step", "momentum ... 'x' ... number", "sgd", {"lr": 0.1, "momentum": ["x"]})
_type_error("beta-array", "beta2 ... array of one", "adam", {"lr": 0.1, "beta2": of("float32", 0.5, 0.5)})
_value_error("rows-not-there", "rows ... 'all'", "adamw", {"lr": 0.1}, semantics="torch", rows="touched")
_value_error("ftrl-lr", "lr ... 0", "ftrl", {"lr": 0.0})
_value_error("rows", "rows ... 'some' ... 'touched'", *_sgd, rows="some")
_value_error("semantics", "semantics ... 'caffe' ... islices", *_sgd, semantics="caffe")
_value_error("duplicates", "duplicates ... 'raw' ... 'sum'", *_sgd, duplicates="raw")
_value_error("duplicates-name", "duplicates ... 'last'", *_sgd, duplicates="last")
_index_error("frozen-negative", "frozen ... -1", *_sgd, frozen=[0, -1])
_index_error("frozen-out-of-range", "frozen ... 5", *_sgd, frozen=[0, 5])
_type_error("frozen-float", "frozen ... float", *_sgd, frozen=[0.5])
_value_error("frozen-empty-mask", "frozen ... length 0 ... 5", *_sgd, frozen=of("bool"))
_value_error("frozen-mask", "frozen ... length 2 ... 5", *_sgd, frozen=[True, False])


def _grad(raises: str, id: str, message: str, grad: Any) -> None:
    """Add a row for a gradient that a step must reject, such as a gradient of another shape than the table."""
    _refused(raises, f"grad-{id}", message, *_sgd, DENSE, [grad])


# ---------------------------------------------------------------------- tables, gradients
_type_error("table-integers", "table ... int64 ... floating", *_sgd, i64(1, 2), [GOOD])
_type_error("table-list-of-numbers", "table ... 1.0", *_sgd, [1.0], [GOOD])
_value_error("table-0-d", "table ... ()", *_sgd, f32(), [GOOD])
_type_error("table-slices", "table ... IndexedSlices", *_sgd, GOOD, [GOOD])
_grad("TypeError", "dtype", "grad ... float64 ... float32", WIDE)
_grad("TypeError", "integers", "grad ... int32", INTEGERS)
_grad("ValueError", "shape", "grad ... (6, 2) ... (5, 2)", OTHER_SHAPE)
_grad("ValueError", "dense-shape", "grad ... (4, 2) ... (5, 2)", f32(4, 2))
_grad("TypeError", "framework", "grad ... framework", foreign(f32(5, 2)))
_grad("TypeError", "list", "grad ... list", [1.0])
_grad("TypeError", "text", "grad ... 'g'", "g")
_wide_table = Array("float16", (5, 2), [1.0] * 10)
_type_error("grad-wider", "grad ... float64 ... float16 or float32", *_sgd, _wide_table, [WIDE])
_unknown = Slices(f32(1, 3), i64(0), (None, 3))
_grad("ValueError", "rows-unknown", "grad ... (None, 3)", _unknown)

# ---------------------------------------------------------------------- states
_adam = ("adam", {"lr": 0.1}, DENSE, [GOOD])
_state = {"step": of("int32", 0), "m": f32(5, 2), "v": f32(5, 2)}
_value_error("state-missing", "state ... 'm' ... 'v'", *_adam, state={k: _state[k] for k in ("step", "m")})
_value_error("state-other", "state ... 'z'", *_adam, state={**_state, "z": f32(5, 2)})
_type_error("state-list", "state ... list", *_adam, state=[f32(5, 2)])
_value_error("state-shape", "state['v'] ... (4, 2) ... (5, 2)", *_adam, state={**_state, "v": f32(4, 2)})
_twice = {**_state, "step": of("int32", 0, 0)}
_value_error("state-step-shape", "state['step'] ... (2,)", *_adam, state=_twice)
_float = {**_state, "step": f32(1)}
_type_error("state-step-dtype", "state['step'] ... float32 ... int32", *_adam, state=_float)
_type_error("state-number", "state['m'] ... 1.0", *_adam, state={**_state, "m": 1.0})
_value_error("state-master", "state ... 'master'", *_adam, state={**_state, "master": f32(5, 2)})
_value_error("master", "master ... float32 ... 16-bit", *_adam, master=True)
