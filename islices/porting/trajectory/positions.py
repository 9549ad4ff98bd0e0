"""Define `Step`, one recorded step of a training. A `Step` contains copies of the step's arrays on the host, grouped by
position.

May import: `numpy`, the core below `islices.files`, `islices.porting.compare.steps.side`,
`islices.porting.trajectory.descriptions`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from islices.core.arguments import is_real, show, whole_number
from islices.core.conversion import convert
from islices.core.registry import describe, find_backend
from islices.core.slices import IndexedSlices
from islices.core.trees import named_leaves
from islices.embedding.table import Table
from islices.porting.compare.steps.side import TableStep
from islices.porting.trajectory.descriptions import optimizers_of

Leaf = np.ndarray[Any, Any] | IndexedSlices
Leaves = dict[str, Leaf]

#: The positions of a step, in the order in which a training computes them.
POSITIONS = (
    "batch", "tables", "state", "outputs", "loss", "gradients", "clipped", "tables_after", "state_after",
)  # fmt: skip
#: position after a step -> the position of the same arrays before the next step
BEFORE = {"tables_after": "tables", "state_after": "state"}
#: The keys that a step may contain in addition to the positions.
BESIDE = ("step", "optimizer")


@dataclass
class Step:
    """One step of one side.

    Unless the user numbers the steps, the first step has the number 1. `trees` maps each position to a dict of its
    leaves by name, without leaves that are None. `optimizers` maps the name of a tensor to the description of its
    optimizer; the key "" stands for all tensors. `framework` is the name of the side's framework, or "" if it is
    unknown.
    """

    number: int
    trees: dict[str, Leaves] = field(default_factory=dict)
    optimizers: dict[str, Any] = field(default_factory=dict)
    framework: str = ""

    def get(self, position: str) -> Leaves:
        return self.trees.get(position, {})

    @property
    def applied(self) -> Leaves:
        """Return the gradients that the optimizer gets: for each tensor, the clipped gradient if it is recorded, else
        the raw gradient."""
        return {**self.get("gradients"), **self.get("clipped")}

    def table(self, name: str) -> TableStep:
        """Return the data of one table's step. If a table or gradient is not recorded, it is None; if a state is not
        recorded, it is an empty dict."""
        start = f"{name}."
        state, after = (
            {key.removeprefix(start): x for key, x in self.get(position).items() if key.startswith(start)}
            for position in ("state", "state_after")
        )
        optimizer = self.optimizers.get(name, self.optimizers.get("", {}))
        before, moved = (self.get(position).get(name) for position in ("tables", "tables_after"))
        return TableStep(before, moved, self.applied.get(name), state, after, optimizer)


class Steps(NamedTuple):
    """One step of both sides. The paired tensors of b have been renamed, so that they have the same names as in a."""

    a: Step
    b: Step

    def common(self, position: str) -> tuple[Leaves, Leaves]:
        """Return both sides' leaves at a position. Leaves that only one side has are left out."""
        x, y = self.a.get(position), self.b.get(position)
        return {name: leaf for name, leaf in x.items() if name in y}, {name: y[name] for name in x if name in y}


def _as_host(x: Any, argument: str) -> Leaf:
    """Copy a leaf of any framework to the host. The result is a host array, or slices that contain host arrays."""
    if isinstance(x, Table):
        x = x.weights
    if (is_real(x) or isinstance(x, (bool, np.bool_))) and find_backend(x) is None:
        return np.asarray(x)
    B = find_backend(x)
    if B is None:
        raise TypeError(f"{argument}: got {describe(x)}; accepted are arrays, sparse gradients, numbers and None")
    if isinstance(x, IndexedSlices) or B.is_native(x):
        found = convert(x, "numpy")
        return IndexedSlices(
            np.array(found.values), np.array(found.indices), found.dense_shape, coalesced=found.coalesced
        )
    array = np.array(B.to_numpy(x))
    if B.dtype(x) == "bfloat16":
        return np.array(convert(x, "numpy"))
    return array


def host_leaves(tree: Any, argument: str) -> Leaves:
    """Return copies of the leaves of a tree by name, as host arrays, without leaves that are None."""
    found = named_leaves(tree, argument)
    return {name: _as_host(x, f"{argument}[{name!r}]") for name, x in found.items() if x is not None}


def read_step(given: Any, argument: str, number: int) -> Step:
    """Check and copy one step of a user's iterator. If the step does not contain its number, it gets `number`. Return a
    `Step` unchanged.

    Raise TypeError if the step is not a mapping, or if a leaf or the optimizer cannot be read. Raise ValueError if a
    position, the number or the optimizer is invalid. Raise ValueError or IndexError for an invalid sparse gradient.
    """
    if isinstance(given, Step):
        return given
    if not isinstance(given, Mapping):
        raise TypeError(
            f"{argument}: got {describe(given)} for a step; accepted is a dict of {', '.join(map(repr, POSITIONS))}"
        )
    unknown = [name for name in given if name not in (*POSITIONS, *BESIDE)]
    if unknown:
        accepted = ", ".join(map(repr, (*POSITIONS, *BESIDE)))
        raise ValueError(f"{argument}: got a step with {show(unknown[0])}; accepted are {accepted}")
    if given.get("step") is not None:
        own = whole_number(given["step"])
        if own is None or own < 0:
            raise ValueError(f"{argument}: got the step {show(given['step'])}; accepted is a whole number >= 0")
        number = own
    trees = {
        position: host_leaves(given[position], f"{argument}, step {number}, {position}")
        for position in POSITIONS
        if given.get(position) is not None
    }
    return Step(number, trees, optimizers_of(given.get("optimizer"), argument))
