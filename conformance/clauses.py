"""Map each operation of the cases to its clause of the specification.

May import: the standard library.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

#: clause -> its operations
OPERATIONS = {
    "1": "IndexedSlices replace_values from_dense from_native to_native convert __len__ __bool__ __setattr__",
    "4": "coalesce",
    "5": "to_dense __array__",
    "6": "scale add concat divide",
    "7": "norm row_norms",
    "8": "global_norm",
    "9": "clip_by_value",
    "10": "clip_by_norm clip_by_row_norm clip_by_global_norm clip_by_block_rms adaptive_grad_clip",
    "12": "Table lookup lookup_gradient double_lookup_gradient embedding_grad drop_padding scale_by_frequency "
    "renorm_rows",
    "13": "keep_rows drop_rows top_k_rows",
    "14": "per_sample per_sample_norms per_sample_sum per_sample_slices per_sample_to_dense per_sample_clip_sum "
    "clip_per_sample clip_per_sample_sum samples_of_loss",
    "15": "scatter_add scatter_sub scatter_update scatter_min scatter_max scatter_mul scatter_div",
    "16": "optimizer_steps",
}
CLAUSES = {operation: clause for clause, names in OPERATIONS.items() for operation in names.split()}


def clause_of(op: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return the clause that defines a call. Bags belong to clause 19; a gradient belongs to the clause of its
    operation."""
    return "19" if "combiner" in kwargs else CLAUSES[args[0] if op == "gradient" else op]
