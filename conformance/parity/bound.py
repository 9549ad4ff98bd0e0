"""How far apart two backends' parameters may be after each step, when each has its own autodiff.

The frameworks' losses agree but for rounding: sums in another order, an exp that is off by an ulp. How far that takes a
gradient follows from the formula of the loss by running error analysis (`rounding`), element by element; the gaps that
the parameters already have count as errors of what the loss reads. What the optimizer makes of it is asked of the
optimizer itself, in float64: it takes the step from the ends of what state and gradient may be, and how far these
movements are apart is added to the bound, with the step's own roundings.

A unit such as eps * (|start| + sum of |steps|) would not do: adagrad and adam divide by roots of squares, so that an
element whose gradients have always cancelled takes steps of full size in the direction of its rounding errors. To first
order in the errors; SPEC clause 23.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

import islices
from islices.conformance.parity.models import Batch
from islices.conformance.parity.rounding import EPS, Rounded
from islices.conformance.parity.text import PADDING
from islices.conformance.parity.training import Recipe, make_optimizer

__all__ = ["Bound"]

#: eps by which a step, and the clip factor, are rounded at most, relative to their size.
STEP, FACTOR = 8.0, 4.0

Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]


class Bound:
    """The bound of a training, step by step.

    Parameters
    ----------
    recipe : Recipe
    start : dict of str to float32 array
    """

    def __init__(self, recipe: Recipe, start: Mapping[str, Array]) -> None:
        self.recipe, self.optimizer = recipe, make_optimizer(recipe)
        zeros = {name: np.zeros(x.shape) for name, x in start.items()}
        #: the least and the largest that each element of the optimizer's state may be
        self.low, self.high = self.optimizer.init(zeros), self.optimizer.init(zeros)
        self.width = zeros
        #: the gradient of the last step by hand, not clipped, and its errors
        self.by_hand: dict[str, Rounded] = {}
        self.rounding = {name: np.zeros(x.shape) for name, x in start.items()}

    def step(self, batch: Batch, before: Arrays, gaps: Arrays, after: Arrays) -> Arrays:
        """How far apart tables may be after a step.

        Parameters
        ----------
        batch : the step's
        before, after : one backend's parameters, before the step and after it
        gaps : the largest distance of any two backends' parameters before the step, element by element

        Returns
        -------
        dict of str to float64 array
            For each element the largest distance allowed.
        """
        gradient, error = self._gradient(batch, before, gaps)
        for name, x in gradient.items():
            reach = EPS * error[name]
            # squares are least where the gradient is nearest to 0
            ends = [x - reach, x + reach, np.clip(0.0, x - reach, x + reach)]
            self._move(name, [self._slices(name, end, batch) for end in ends])
        for name, total in self.rounding.items():
            rows = self._named(name, batch) if self.optimizer.rows == "touched" else slice(None)
            now = after[name].astype(np.float64)
            total[rows] += (EPS * (np.abs(now) + STEP * np.abs(now - before[name])))[rows]
        return {name: self.width[name] + self.rounding[name] for name in self.width}

    def _move(self, name: str, gradients: list[Any]) -> None:
        """Take the step from every end of state and gradient; widen what may be."""
        low, high = self.low[name], self.high[name]
        arrays = [key for key in low if key != "step"]
        moves, states = [], []
        for ends in itertools.product((low, high), repeat=len(arrays)):
            for gradient in gradients:
                state = {key: end[key].copy() for key, end in zip(arrays, ends, strict=True)}
                moved, state = self.optimizer.step(
                    np.zeros_like(self.width[name]), gradient, {"step": low["step"].copy(), **state}
                )
                moves.append(moved)
                states.append(state)
        self.width[name] += np.maximum.reduce(moves) - np.minimum.reduce(moves)
        self.low[name] = {key: np.minimum.reduce([state[key] for state in states]) for key in low}
        self.high[name] = {key: np.maximum.reduce([state[key] for state in states]) for key in low}

    def _gradient(self, batch: Batch, before: Arrays, gaps: Arrays) -> tuple[Arrays, Arrays]:
        """The clipped gradient, dense, and the eps by which a backend's may be away from it."""
        parameters = {name: Rounded(x, gaps[name] / EPS) for name, x in before.items()}
        _, lookups, dense = self.recipe.model.upstream(parameters, batch)
        found: dict[str, Rounded] = dict(dense)
        raw: dict[str, list[Any]] = {name: [x.value] for name, x in dense.items()}
        for name, ids, x in lookups:
            rows = len(before[name])
            total = x.scatter(ids, rows)
            found[name] = found[name] + total if name in found else total
            raw.setdefault(name, []).append(islices.embedding_grad(x.value, ids, rows, padding_idx=PADDING))
        for name in self.recipe.model.tables:
            counts = (np.arange(len(before[name])) != PADDING)[:, None].astype(np.float64)
            found[name] = Rounded(found[name].value * counts, found[name].error * counts)
        self.by_hand = found
        gradients = {name: islices.add(*parts) for name, parts in raw.items()}
        norm = float(islices.global_norm(gradients))
        factor = float(islices.global_norm(self.recipe.clip(gradients)[0])) / norm if norm else 1.0
        # the norm, and with it the factor, is off by the errors' norm at most
        slack = FACTOR + np.sqrt(sum((x.error**2).sum() for x in found.values())) / norm if factor < 1 else 0.0
        return (
            {name: factor * x.value for name, x in found.items()},
            {name: factor * (x.error + slack * x.size) for name, x in found.items()},
        )

    def _slices(self, name: str, x: Array, batch: Batch) -> Any:
        """A dense gradient as slices of the rows that the batch names."""
        ids = self._named(name, batch)
        return x if isinstance(ids, slice) else islices.IndexedSlices(x[ids], ids, x.shape)

    def _named(self, name: str, batch: Batch) -> Any:
        """The rows that the batch names: of a dense parameter all."""
        if name not in self.recipe.model.tables:
            return slice(None)
        ids = np.unique(np.concatenate([batch[key].ravel() for key in self.recipe.model.reads[name]]))
        return ids[ids != PADDING]
