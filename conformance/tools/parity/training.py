"""One backend's training by islices: gradients by its own autodiff or of recorded ones, clipping, a step."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

import islices
from islices import optim
from islices.clip_formulas import Semantics
from islices.conformance.tools.parity.models import Batch, Model, Upstream
from islices.conformance.tools.parity.text import PADDING

__all__ = ["OPTIMIZERS", "SEMANTICS", "Recipe", "Training", "has_losses", "make_optimizer"]

OPTIMIZERS = ("sgd", "adagrad", "adam")
#: of clip_by_global_norm and of the optimizer
SEMANTICS: tuple[Semantics, ...] = ("islices", "torch", "tensorflow", "keras", "mxnet", "optax")

Array = np.ndarray[Any, Any]


class Recipe(NamedTuple):
    """What all backends do alike."""

    model: Model
    optimizer: str
    lr: float
    max_norm: float
    semantics: Semantics = "islices"

    def clip(self, gradients: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
        """(clipped gradients, their norm before), by the semantics' formula."""
        return islices.clip_by_global_norm(dict(gradients), self.max_norm, semantics=self.semantics)


def make_optimizer(recipe: Recipe) -> Any:
    """The optimizer of a recipe: of the rows that a gradient names, where its semantics has that, else of all."""
    return getattr(optim, recipe.optimizer)(recipe.lr, semantics=recipe.semantics)


def has_losses(name: str) -> bool:
    """Whether the models' losses are written for a framework."""
    return importlib.util.find_spec(f"islices.conformance.tools.parity.{name}") is not None and name != "numpy"


class Training:
    """A backend's parameters, and its steps.

    Attributes
    ----------
    parameters : dict of str to array
        The framework's own, as its users hold weights.
    state : dict of str to dict
    clipped : dict of str to array
        The last step's gradients after clipping.
    padding_idx : int
    """

    padding_idx: int | None = PADDING

    def __init__(self, name: str, recipe: Recipe, start: Mapping[str, Array]) -> None:
        self.name, self.recipe, self.B = name, recipe, islices.get_backend(name)
        self.parameters = {key: self._trainable(x) for key, x in start.items()}
        self.optimizer = make_optimizer(recipe)
        self.state = self.optimizer.init(self.parameters)
        self.clipped: dict[str, Any] = {}
        self.of_rows: Any = None
        if has_losses(name):
            module = importlib.import_module(f"islices.conformance.tools.parity.{name}")
            self.of_rows = getattr(module, recipe.model.name)

    def _trainable(self, x: Array) -> Any:
        with contextlib.suppress(ModuleNotFoundError):  # plug-ins have no such module
            return importlib.import_module(f"islices.conformance.own_calls.{self.name}").trainable(x)
        return self.B.asarray(x)

    def own_gradients(self, batch: Batch) -> tuple[float, dict[str, Any]]:
        """(loss, gradients) by the framework's own autodiff: slices of tables, dense ones of the others."""
        arrays = {name: self.B.asarray(x) for name, x in batch.items()}
        model = self.recipe.model
        given = {
            k: islices.Table(x, padding_idx=self.padding_idx) if k in model.tables else x
            for k, x in self.parameters.items()
        }

        def loss(parameters: dict[str, Any]) -> Any:
            return model.loss(self.of_rows, _lookup, parameters, arrays)

        value, gradients = islices.value_and_grad(loss)(given)
        return float(np.ravel(self.B.to_numpy(value))[0]), gradients

    def recorded_gradients(self, upstream: Upstream) -> dict[str, Any]:
        """Gradients of recorded upstream ones, rounded to float32: the same for all backends."""
        found: dict[str, list[Any]] = {}
        rows = len(self.recipe.model.text.vocabulary)
        for name, ids, x in upstream.lookups:
            arrived = self.B.asarray(x.value.astype(np.float32))
            slices = islices.embedding_grad(arrived, self.B.asarray(ids), rows, padding_idx=self.padding_idx)
            found.setdefault(name, []).append(slices)
        dense = {name: self.B.asarray(x.value.astype(np.float32)) for name, x in upstream.dense.items()}
        return {name: islices.add(*slices) for name, slices in found.items()} | dense

    def step(self, gradients: Mapping[str, Any]) -> float:
        """Clip and step; the norm before clipping."""
        clipped, norm = self.recipe.clip(gradients)
        self.clipped = {name: clipped[name] for name in self.parameters}
        self.parameters, self.state = self.optimizer.step(self.parameters, self.clipped, self.state)
        return float(np.ravel(self.B.to_numpy(norm))[0])

    def tables(self) -> dict[str, Array]:
        """The parameters as NumPy arrays."""
        return {name: np.array(self.B.to_numpy(x)) for name, x in self.parameters.items()}

    def states(self) -> dict[str, Array]:
        """The optimizer's arrays as NumPy arrays, named "table/array"."""
        return {f"{k}/{name}": np.array(self.B.to_numpy(x)) for k, s in self.state.items() for name, x in s.items()}


def _lookup(table: Any, ids: Any, mean: bool = False) -> Any:
    return islices.lookup(table, ids, combiner="mean" if mean else None)
