"""How far apart two backends' parameters may be after each step, when each has its own autodiff.

The frameworks' losses agree but for rounding: sums in another order, an exp that is off by an ulp. How far that takes a
gradient follows from the formula of the loss by running error analysis (`rounding`), element by element; the gaps that
the parameters already have count as errors of what the loss reads. What the optimizer makes of it is asked of the
optimizer itself, in float64: it takes the step from the ends of what state and gradient may be, and how far these
movements are apart is added to the bound, with the roundings of state and step.

A unit such as eps * (|start| + sum of |steps|) would not do: adagrad and adam divide by roots of squares, so that an
element whose gradients have always cancelled takes steps of full size in the direction of its rounding errors. SPEC
clause 23.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

import islices
from islices.conformance.tools.parity.models import Batch
from islices.conformance.tools.parity.rounding import EPS, Rounded
from islices.conformance.tools.parity.text import PADDING
from islices.conformance.tools.parity.training import Recipe, make_optimizer

__all__ = ["Bound"]

#: eps by which two backends' steps, and one's clip factor, are rounded at most, relative to their size.
STEP, FACTOR = 8.0, 4.0
#: eps of |before| + |after| by which a new state is rounded at most: (m + (1 - b) (g - m)) and (b v + ((1 - b) g) g)
#: are three and four roundings, each half an eps of a term that is no larger.
STATE = 1.5

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
        #: the gradient of the last step by hand and its errors, before clipping and after
        self.by_hand: dict[str, Rounded] = {}
        self.clipped_by_hand: dict[str, Rounded] = {}
        self.rounding = {name: np.zeros(x.shape) for name, x in start.items()}

    @np.errstate(over="ignore", invalid="ignore")
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
            For each element the largest distance allowed; infinite where even float64 does not hold it.
        """
        self._gradient(batch, before, gaps)
        for name, clipped in self.clipped_by_hand.items():
            x, reach = clipped.value, EPS * clipped.error
            # squares are least where the gradient is nearest to 0
            ends = [x - reach, x + reach, np.clip(0.0, x - reach, x + reach)]
            self._move(name, [self._slices(name, end, batch) for end in ends], _between(x, reach))
        for name, total in self.rounding.items():
            rows = self._named(name, batch) if self.optimizer.rows == "touched" else slice(None)
            now = after[name].astype(np.float64)
            total[rows] += (EPS * (np.abs(now) + STEP * np.abs(now - before[name])))[rows]
        allowed = {name: x + self.rounding[name] for name, x in self.width.items()}
        return {name: np.nan_to_num(x, nan=np.inf, posinf=np.inf) for name, x in allowed.items()}

    def _move(self, name: str, gradients: list[Any], between: Array) -> None:
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
        self.width[name] += np.maximum.reduce(moves) - np.minimum.reduce(moves) + between * np.abs(moves).max(0)
        least = {key: np.minimum.reduce([state[key] for state in states]) for key in low}
        largest = {key: np.maximum.reduce([state[key] for state in states]) for key in low}
        for key in arrays:
            size = sum(np.maximum(np.abs(a[key]), np.abs(b[key])) for a, b in ((low, high), (least, largest)))
            rounding = np.where((least[key] == low[key]) & (largest[key] == high[key]), 0.0, EPS * STATE * size)
            # a sum of squares is never below 0
            floor = np.where(least[key] >= 0, 0.0, -np.inf)
            least[key], largest[key] = np.maximum(least[key] - rounding, floor), largest[key] + rounding
        self.low[name], self.high[name] = least, largest

    def _gradient(self, batch: Batch, before: Arrays, gaps: Arrays) -> None:
        """The gradients by hand, dense, and the eps by which a backend's may be away from them."""
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
        # the norm is off by the norm of the errors at most
        away = EPS * float(np.sqrt(sum((x.error**2).sum() for x in found.values())))
        _, norm = self.recipe.clip(gradients)
        factor, most, least = (self._factor(gradients, float(norm), by) for by in (0.0, -away, away))
        rounding = FACTOR if least < 1 else 0.0
        apart = max(most - factor, factor - least) / EPS + rounding * most
        self.clipped_by_hand = {
            name: Rounded(factor * x.value, most * x.error + apart * x.reach) for name, x in found.items()
        }

    def _factor(self, gradients: Mapping[str, Any], norm: float, away: float) -> float:
        """What gradients are multiplied by where the norm that is measured is by `away` larger than it should be."""
        if not norm + away > 0:
            return 1.0
        moved = {name: islices.scale(x, (norm + away) / norm) for name, x in gradients.items()}
        before, after = (float(islices.global_norm(x)) for x in (moved, self.recipe.clip(moved)[0]))
        return after / before if before else 1.0

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


def _between(x: Array, reach: Array) -> Array:
    """By how much adam may move further than from the ends of a gradient, in units of its largest movement from them.

    (a + c g) / sqrt(b + d g^2) is the cosine of an angle: tan(angle) = g sqrt(d / b), shifted and scaled. The ends are
    asin(reach / |x|) apart at most, and the cosine's peak, if it lies between them, at least half of that from one.
    """
    apart = np.divide(reach, np.abs(x), out=np.where(reach > 0, 1.0, 0.0), where=np.abs(x) > reach)
    return np.sqrt(2 / (1 + np.sqrt(1 - apart**2))) - 1  # type: ignore[no-any-return]
