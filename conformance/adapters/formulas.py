"""Call the operation ``formula_step`` of an adapter. `islices judge` runs an adapter's optimizers, clips and lookups
with this operation.

May import: `numpy`, `islices.core.slices`, `islices.conformance.data`, `islices.conformance.formulas`,
`islices.conformance.protocol`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from islices.conformance.data import Array, Slices
from islices.conformance.formulas.formula import Formula
from islices.conformance.formulas.inputs import Bags
from islices.conformance.protocol import CallError, Client, Refused, Unsupported
from islices.core.slices import IndexedSlices

#: The name of the operation in the protocol.
OPERATION = "formula_step"


class AdapterStep:
    """A step function for `islices.conformance.judge`. The function calls an adapter, which computes the step.

    Each call contains all inputs of the step, so an adapter need not store the trajectory. The call also passes back
    the state that the adapter returned for the previous step. If the adapter does not have the operation or answers
    "unsupported", the step raises NotImplementedError. If the adapter answers with an error or in an unexpected form,
    ends, or exceeds the time limit, the step raises CallError. This error ends the judging.
    """

    def __init__(self, client: Client, formula: Formula) -> None:
        self.client = client
        self.formula = formula

    def __call__(self, weights: Any, grad: Any, state: Mapping[str, Any], t: int, **options: Any) -> Any:
        statement = [
            self.formula.name,
            t,
            options,
            _described_as(weights),
            _described_as(grad),
            {k: _described_as(x) for k, x in state.items()},
        ]
        if self.client.hello.ops is not None and OPERATION not in self.client.hello.ops:
            raise NotImplementedError(f"{OPERATION} is not among its operations")
        answer = self.client.call(OPERATION, statement)
        if isinstance(answer, Unsupported):
            raise NotImplementedError(answer.reason or "it says so")
        if isinstance(answer, Refused):
            raise CallError(f"it refused the step: {answer.error}: {answer.message}")
        return self._taken(answer.value)

    def _taken(self, value: Any) -> tuple[Any, dict[str, Any]]:
        gives = self.formula.gives
        state = dict(value) if isinstance(value, dict) else {}
        result = state.pop(gives, None)
        tensors = result if isinstance(result, list) else [result]
        if not all(isinstance(x, Array) for x in (*tensors, *state.values())):
            came = f"a dict of {', '.join(value)}" if isinstance(value, dict) else type(value).__name__
            raise CallError(f'its answer: got {came}; accepted is a dict of arrays with "{gives}"')
        given = [_array(x) for x in tensors]
        return given if isinstance(result, list) else given[0], {name: _array(x) for name, x in state.items()}


def _described_as(x: Any) -> Any:
    """Convert an array, a list of arrays, a row-sparse gradient or a `Bags` object to plain data."""
    if isinstance(x, IndexedSlices):
        return Slices(_described_as(x.values), _described_as(x.indices), tuple(x.dense_shape))
    if isinstance(x, Bags):
        return {name: None if part is None else _described_as(part) for name, part in vars(x).items()}
    return (
        [_described_as(one) for one in x] if isinstance(x, list) else Array(x.dtype.name, x.shape, x.ravel().tolist())
    )


def _array(x: Array) -> Any:
    return np.array(x.data, x.dtype).reshape(x.shape)
