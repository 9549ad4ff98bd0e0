"""Pair the tensors of both sides at the first step, and rename the tensors in every step of the second side.

Frameworks store the weights of a dense layer in different layouts, (in, out) or (out, in). If a tensor of the second
side is transposed at the first step, this module transposes it in every step. So the layout does not count as a
difference.

May import: `numpy`, the core, `islices.porting.compare`, this folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from islices.core.slices import shape_of
from islices.porting.compare.pairing import pair_names
from islices.porting.trajectory.positions import Leaf, Leaves, Step

#: The positions whose leaves are named after a table.
NAMED = ("tables", "tables_after", "gradients", "clipped", "state", "state_after")
#: The positions whose leaves have the name of a table, a dot and the name of the state's array.
NESTED = ("state", "state_after")


@dataclass
class Pairing:
    """The result of pairing both sides' tensors. `names` maps the names in b to the names in a. `transposed` contains
    the tensors that are transposed in b, with their names in a. `only_a` and `only_b` contain the names of tensors
    without a partner."""

    names: dict[str, str] = field(default_factory=dict)
    transposed: frozenset[str] = frozenset()
    only_a: tuple[str, ...] = ()
    only_b: tuple[str, ...] = ()

    def renamed(self, step: Step, other: Step) -> Step:
        """Return a step of b with the names and layouts of a. `other`, the same step of a, is needed to pair the leaves
        of the batch, the outputs and the loss."""
        trees = {}
        for position, leaves in step.trees.items():
            if position in NAMED:
                trees[position] = self._named(leaves, nested=position in NESTED)
            else:
                trees[position] = _beside(leaves, other.get(position))
        optimizers = {self.names.get(name, name): x for name, x in step.optimizers.items()}
        return replace(step, trees=trees, optimizers=optimizers)

    def _named(self, leaves: Leaves, *, nested: bool) -> Leaves:
        out = {}
        for name, x in leaves.items():
            tensor, rest = _split(name, self.names) if nested else (name, "")
            new = self.names.get(tensor, tensor)
            if new in self.transposed and isinstance(x, np.ndarray) and x.ndim == 2:
                x = np.ascontiguousarray(x.T)
            out[new + rest] = x
        return out


def _split(name: str, tensors: Mapping[str, str]) -> tuple[str, str]:
    """Split the name of a state's array into (name of the tensor, rest). The tensor is the longest name in `tensors`
    with which the array's name begins, and the rest begins with a dot. If no tensor fits, return (`name`, "")."""
    found = [t for t in tensors if name.startswith(f"{t}.")]
    tensor = max(found, key=len, default=name)
    return tensor, name[len(tensor) :]


def _beside(leaves: Leaves, others: Leaves) -> Leaves:
    """Rename the leaves of a batch, outputs or loss to the names of `others`, and add or remove axes of length one as
    in `others`. If the sides have a common name, all names stay. If the sides have no common name, each leaf gets the
    name of the first unused leaf of the same shape, if there is one. Axes of length one do not count as part of the
    shape."""
    alike = {} if set(leaves) & set(others) else _matched(others, leaves, lambda x, y: _long(x) == _long(y))
    names = {name: alike.get(name, name) for name in leaves}
    return {new: _shaped(leaves[name], others.get(new)) for name, new in names.items()}


def _matched(left: Leaves, right: Leaves, *rules: Callable[[Leaf, Leaf], bool]) -> dict[str, str]:
    """Pair leaves, and return {name in right: name in left}. Each leaf of `right` gets the first unused leaf of `left`
    for which the first rule returns True. If no unused leaf fits, the next rule applies."""
    free, names = dict(left), {}
    for q, y in right.items():
        match = next((p for fits in rules for p, x in free.items() if fits(x, y)), None)
        if match is not None:
            del free[match]
            names[q] = match
    return names


def _long(x: Leaf) -> tuple[Any, ...]:
    """Return the shape without axes of length one, which some frameworks add to scores and losses."""
    return tuple(n for n in shape_of(x) if n != 1)


def _shaped(x: Leaf, other: Leaf | None) -> Leaf:
    """Return x in the shape of the other side's array if the shapes differ only in axes of length one. If the
    shapes differ in other axes, or if a leaf is not an array, return x unchanged."""
    if not isinstance(x, np.ndarray) or not isinstance(other, np.ndarray) or x.shape == other.shape:
        return x
    return x.reshape(other.shape) if _long(x) == _long(other) else x


# ---------------------------------------------------------------------- settled at the first step
def settle_names(a: Step, b: Step, pair: Mapping[str, str] | None) -> Pairing:
    """Pair the tensors in the first steps of both sides: first by `pair`, then by equal names. If the sides have no
    name in common, pair the remaining tensors by shape.

    Raise TypeError or ValueError if `pair` is invalid, and ValueError if no tensors match.
    """
    left, right = _tensors(a), _tensors(b)
    names = {q: p for p, q in pair_names(left, right, pair).items()}
    if not set(left) & set(right):
        known = set(names.values())
        free = {p: x for p, x in left.items() if p not in known}, {q: y for q, y in right.items() if q not in names}
        names |= _by_shape(*free)
    if not names:
        one, other = (", ".join(map(repr, side)) or "none" for side in (left, right))
        raise ValueError(
            f"a, b: no tensor of a ({one}) has the name or shape of one of b ({other}); accepted is "
            "pair={a's name: b's}"
        )
    transposed = frozenset(p for q, p in names.items() if _is_transposed(left[p], right[q]))
    answered = set(names.values())
    return Pairing(
        names, transposed, tuple(p for p in left if p not in answered), tuple(q for q in right if q not in names)
    )


def _tensors(step: Step) -> Leaves:
    """Return the tensors of a side: the tables, or the gradients if the step contains no tables."""
    for position in ("tables", "tables_after", "gradients", "clipped"):
        if leaves := step.get(position):
            return leaves
    return {}


def _by_shape(left: Leaves, right: Leaves) -> dict[str, str]:
    """Pair leaves by shape, and return {name in right: name in left}. Each leaf of `right` gets the first unused leaf
    of `left` with the same shape. If no unused leaf has this shape, the leaf gets the first unused leaf with the
    transposed shape."""
    return _matched(
        left, right, lambda x, y: shape_of(x) == shape_of(y),
        lambda x, y: len(shape_of(y)) == 2 and shape_of(x) == shape_of(y)[::-1],
    )  # fmt: skip


def _is_transposed(x: Leaf, y: Leaf) -> bool:
    if not isinstance(x, np.ndarray) or not isinstance(y, np.ndarray) or x.ndim != 2 or x.shape != y.shape[::-1]:
        return False
    return x.shape != y.shape or (not np.array_equal(x, y) and np.array_equal(x, y.T))
