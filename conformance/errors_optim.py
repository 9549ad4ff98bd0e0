"""The table of bad input, continued: optimizers. See `islices.conformance.errors`."""

from __future__ import annotations

import math
from typing import Any

from islices.conformance.data import Array, Slices
from islices.conformance.errors import DENSE, GOOD, INTEGERS, OTHER_SHAPE, WIDE, f32, foreign, i64, of, row


def _refused(
    id: str, raises: str, words: list[str], name: str, hyper: dict[str, Any], *rest: Any, **options: Any
) -> None:
    """Return a row of the table for an optimizer that cannot be made, or for a step that raises."""
    table, grads = rest or (DENSE, [GOOD])
    row(f"optimizer-{id}", "16", raises, words, "optimizer_steps", name, hyper, table, grads, **options)


# ---------------------------------------------------------------------- hyperparameters
_refused("without-lr", "TypeError", ["lr", "none"], "adam", {})
_refused("lr-text", "TypeError", ["lr", "'0.1'", "function"], "sgd", {"lr": "0.1"})
_refused("lr-complex", "TypeError", ["lr", "complex"], "sgd", {"lr": {"complex": [1.0, 2.0]}})
_refused("lr-bool", "TypeError", ["lr", "True"], "sgd", {"lr": True})
_refused("lr-nan", "ValueError", ["lr", "nan"], "sgd", {"lr": math.nan})
_refused("lr-negative", "ValueError", ["lr", "-0.1", ">= 0"], "sgd", {"lr": -0.1})
_refused("maximize", "TypeError", ["maximize", "'no'", "bool"], "sgd", {"lr": 0.1}, maximize="no")
_refused("beta-one", "ValueError", ["beta1", "1.0", "< 1"], "adam", {"lr": 0.1, "beta1": 1.0})
_refused("beta-negative", "ValueError", ["beta2", "-0.1"], "adam", {"lr": 0.1, "beta2": -0.1})
_refused("beta-nan", "ValueError", ["beta1", "nan"], "adamw", {"lr": 0.1, "beta1": math.nan})
_refused("eps-negative", "ValueError", ["eps", "-1"], "adagrad", {"lr": 0.1, "eps": -1})
_refused("eps-text", "TypeError", ["eps", "'x'"], "rmsprop", {"lr": 0.1, "eps": "x"})
_refused("decay-inf", "ValueError", ["weight_decay", "inf"], "sgd", {"lr": 0.1, "weight_decay": math.inf})
_refused("nesterov-number", "TypeError", ["nesterov", "bool"], "sgd", {"lr": 0.1, "nesterov": 1})
_refused("lr-power", "ValueError", ["lr_power", "0.3", "<= 0"], "ftrl", {"lr": 0.1, "lr_power": 0.3})
_refused("lr-power-large", "ValueError", ["lr_power", "-256", "<= 0"], "ftrl", {"lr": 0.1, "lr_power": -256})
_refused("lr-power-by-step", "TypeError", ["lr_power", "real number"], "ftrl", {"lr": 0.1, "lr_power": [-0.5]})
_refused("shrinkage-negative", "ValueError", ["l2_shrinkage", "-1"], "ftrl", {"lr": 0.1, "l2_shrinkage": -1})
_refused("amsgrad-number", "TypeError", ["amsgrad", "bool"], "adam", {"lr": 0.1, "amsgrad": 1})
_amsgrad = {"lr": 0.1, "amsgrad": True}
_refused("amsgrad-not-there", "ValueError", ["amsgrad", "mxnet"], "adam", _amsgrad, semantics="mxnet")
_refused("beta-by-step", "ValueError", ["beta1", "1.0", "< 1"], "adam", {"lr": 0.1, "beta1": [0.9, 1.0]}, steps=2)
_refused("momentum-by-step", "TypeError", ["momentum", "'x'", "number"], "sgd", {"lr": 0.1, "momentum": ["x"]})
_refused("beta-array", "TypeError", ["beta2", "array of one"], "adam", {"lr": 0.1, "beta2": of("float32", 0.5, 0.5)})
_refused("rows-not-there", "ValueError", ["rows", "'all'"], "adamw", {"lr": 0.1}, semantics="torch", rows="touched")
_refused("ftrl-lr", "ValueError", ["lr", "0"], "ftrl", {"lr": 0.0})
_refused("rows", "ValueError", ["rows", "'some'", "'touched'"], "sgd", {"lr": 0.1}, rows="some")
_refused("semantics", "ValueError", ["semantics", "'caffe'", "islices"], "sgd", {"lr": 0.1}, semantics="caffe")
_refused("duplicates", "ValueError", ["duplicates", "'raw'", "'sum'"], "sgd", {"lr": 0.1}, duplicates="raw")
_refused("duplicates-name", "ValueError", ["duplicates", "'last'"], "sgd", {"lr": 0.1}, duplicates="last")
_refused("frozen-negative", "IndexError", ["frozen", "-1"], "sgd", {"lr": 0.1}, frozen=[0, -1])
_refused("frozen-out-of-range", "IndexError", ["frozen", "5"], "sgd", {"lr": 0.1}, frozen=[0, 5])
_refused("frozen-float", "TypeError", ["frozen", "float"], "sgd", {"lr": 0.1}, frozen=[0.5])
_refused("frozen-empty-mask", "ValueError", ["frozen", "length 0", "5"], "sgd", {"lr": 0.1}, frozen=of("bool"))
_refused("frozen-mask", "ValueError", ["frozen", "length 2", "5"], "sgd", {"lr": 0.1}, frozen=[True, False])

# ---------------------------------------------------------------------- tables, gradients
_sgd = ("sgd", {"lr": 0.1})
_refused("table-integers", "TypeError", ["table", "int64", "floating"], *_sgd, i64(1, 2), [GOOD])
_refused("table-list-of-numbers", "TypeError", ["table", "1.0"], *_sgd, [1.0], [GOOD])
_refused("table-0-d", "ValueError", ["table", "()"], *_sgd, f32(), [GOOD])
_refused("table-slices", "TypeError", ["table", "IndexedSlices"], *_sgd, GOOD, [GOOD])
_refused("grad-dtype", "TypeError", ["grad", "float64", "float32"], *_sgd, DENSE, [WIDE])
_refused("grad-integers", "TypeError", ["grad", "int32"], *_sgd, DENSE, [INTEGERS])
_refused("grad-shape", "ValueError", ["grad", "(6, 2)", "(5, 2)"], *_sgd, DENSE, [OTHER_SHAPE])
_refused("grad-dense-shape", "ValueError", ["grad", "(4, 2)", "(5, 2)"], *_sgd, DENSE, [f32(4, 2)])
_refused("grad-framework", "TypeError", ["grad", "framework"], *_sgd, DENSE, [foreign(f32(5, 2))])
_refused("grad-list", "TypeError", ["grad", "list"], *_sgd, DENSE, [[1.0]])
_refused("grad-text", "TypeError", ["grad", "'g'"], *_sgd, DENSE, ["g"])
_wide_table = Array("float16", (5, 2), [1.0] * 10)
_refused("grad-wider", "TypeError", ["grad", "float64", "float16 or float32"], *_sgd, _wide_table, [WIDE])
_unknown = Slices(f32(1, 3), i64(0), (None, 3))
_refused("grad-rows-unknown", "ValueError", ["grad", "(None, 3)"], *_sgd, DENSE, [_unknown])

# ---------------------------------------------------------------------- states
_adam = ("adam", {"lr": 0.1}, DENSE, [GOOD])
_state = {"step": of("int32", 0), "m": f32(5, 2), "v": f32(5, 2)}
_refused("state-missing", "ValueError", ["state", "'m'", "'v'"], *_adam, state={k: _state[k] for k in ("step", "m")})
_refused("state-other", "ValueError", ["state", "'z'"], *_adam, state={**_state, "z": f32(5, 2)})
_refused("state-list", "TypeError", ["state", "list"], *_adam, state=[f32(5, 2)])
_refused("state-shape", "ValueError", ["state['v']", "(4, 2)", "(5, 2)"], *_adam, state={**_state, "v": f32(4, 2)})
_twice = {**_state, "step": of("int32", 0, 0)}
_refused("state-step-shape", "ValueError", ["state['step']", "(2,)"], *_adam, state=_twice)
_float = {**_state, "step": f32(1)}
_refused("state-step-dtype", "TypeError", ["state['step']", "float32", "int32"], *_adam, state=_float)
_refused("state-number", "TypeError", ["state['m']", "1.0"], *_adam, state={**_state, "m": 1.0})
_refused("state-master", "ValueError", ["state", "'master'"], *_adam, state={**_state, "master": f32(5, 2)})
_refused("master", "ValueError", ["master", "float32", "16-bit"], *_adam, master=True)
