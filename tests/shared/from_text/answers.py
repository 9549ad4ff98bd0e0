"""Answer a case of the golden vectors; case and answer are JSON."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from from_text import arrays, lookups, norms, steps

OPERATIONS = {
    **{name: getattr(arrays, name) for name in (
        "coalesce", "to_dense", "replace_values", "from_dense", "concat", "add", "scale", "divide",
        "keep_rows", "drop_rows")},
    **{f"scatter_{name}": functools.partial(arrays.scatter, name) for name in arrays.UPDATES},
    **{name: getattr(norms, name) for name in (
        "norm", "global_norm", "clip_by_value", "clip_by_norm", "clip_by_global_norm", "clip_by_row_norm",
        "row_norms", "top_k_rows", "clip_by_block_rms", "adaptive_grad_clip", "gradient")},
    **{name: getattr(lookups, name) for name in (
        "embedding_grad", "drop_padding", "scale_by_frequency", "lookup", "lookup_gradient", "double_lookup_gradient",
        "renorm_rows", "per_sample_norms", "per_sample_sum", "per_sample_slices", "per_sample_to_dense",
        "per_sample_clip_sum", "clip_per_sample_sum")},
    "optimizer_steps": steps.optimizer_steps,
}  # fmt: skip


def infinite(x: Any) -> Any:
    """Convert the order of a norm to a number: JSON writes infinity as a text."""
    return float(x) if isinstance(x, str) and x in ("inf", "-inf") else x


def answer(line: dict[str, Any]) -> dict[str, Any]:
    if line["op"] not in OPERATIONS:
        return {"unsupported": line["op"]}
    try:
        args = [infinite(arrays.read(x)) for x in line["args"]]
        kwargs = {key: infinite(arrays.read(x)) for key, x in line["kwargs"].items()}
        with np.errstate(all="ignore"):
            return {"ok": arrays.write(OPERATIONS[line["op"]](*args, **kwargs))}
    except arrays.UnsupportedError as why:
        return {"unsupported": str(why)}
    except Exception as error:  # also faults of the adapter: the suite reports them unchanged
        return {"error": type(error).__name__, "message": str(error)}
