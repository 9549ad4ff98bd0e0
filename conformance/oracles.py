"""Map each operation of the cases to its clause, and most operations to the oracle that computes the expected
result."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from islices.conformance.oracle import ORACLE, SCATTER, scatter
from islices.conformance.oracle_embedding import (
    PER_SAMPLE,
    double_lookup_gradient,
    lookup,
    lookup_gradient,
    renorm_rows,
)
from islices.conformance.oracle_gradients import gradient
from islices.conformance.oracle_optim import optimizer_steps
from islices.conformance.oracle_unitwise import adaptive_grad_clip, clip_by_block_rms, clip_by_norm

#: (clause, the functions with the names of their operations)
_NAMED: Sequence[tuple[str, Sequence[Callable[..., Any]]]] = (
    *ORACLE.items(),
    ("10", (adaptive_grad_clip, clip_by_block_rms, clip_by_norm)),
    ("12", (double_lookup_gradient, lookup, lookup_gradient, renorm_rows)),
    ("16", (optimizer_steps,)),
)
#: operation -> the function that computes its expected result
ORACLES: dict[str, Callable[..., Any]] = {
    **{fn.__name__: fn for _, functions in _NAMED for fn in functions},
    **{f"scatter_{op}": functools.partial(scatter, op) for op in SCATTER},
    **PER_SAMPLE,
    "gradient": gradient,
}
#: operation -> its clause
CLAUSES = {
    **{fn.__name__: clause for clause, functions in _NAMED for fn in functions},
    **{f"scatter_{op}": "15" for op in SCATTER},
    **dict.fromkeys(PER_SAMPLE, "14"),
    # operations without an oracle: the vectors state the result, or the call must raise an error
    **dict.fromkeys(("IndexedSlices", "replace_values", "from_native", "to_native", "convert"), "1"),
    **dict.fromkeys(("__len__", "__bool__", "__setattr__"), "1"),
    "__array__": "5",
    "Table": "12",
    "per_sample": "14",
    "clip_per_sample": "14",
    "samples_of_loss": "14",
}


def clause_of(op: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return the clause that defines a call. Calls with a combiner belong to clause 19. The operation "gradient"
    belongs to the clause of the operation that is differentiated."""
    return "19" if "combiner" in kwargs else CLAUSES[args[0] if op == "gradient" else op]
