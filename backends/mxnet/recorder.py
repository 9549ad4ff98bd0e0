"""`Recorder`: the steps of a Gluon training written down for `islices.parity`.

May import: the core, this folder. MXNet comes through `memory`, which sees to its stand-in.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Self

from islices.backends.mxnet.memory import mx
from islices.linear import scale
from islices.optim.record import RECORDS
from islices.registry import describe, get_backend
from islices.trajectory import Recorder as Steps

__all__ = ["Recorder"]

#: MXNet's optimizer -> the record of the same formula, and what it calls the arrays that MXNet keeps in a row.
ARRAYS: dict[str, tuple[str, tuple[str, ...]]] = {
    "SGD": ("sgd", ("momentum",)),
    "Adam": ("adam", ("m", "v")),
    "AdaGrad": ("adagrad", ("accumulator",)),
    "RMSProp": ("rmsprop", ("mean_square",)),
    "Ftrl": ("ftrl", ("z", "n")),
}


class Recorder(Steps):
    """Record a Gluon loop as it stands: gradients before and after clipping, tables, state.

    Parameters
    ----------
    folder : str or path
        Where to: see `islices.Recorder`.
    trainer : mxnet.gluon.Trainer
        MXNet's own or `islices.backends.mxnet.gluon.Trainer`. Tensors have the parameters' names.
    **options
        As `islices.Recorder` has them: every, suffix, overwrite, metadata.

    Raises
    ------
    TypeError
        No trainer.

    Notes
    -----
    A step is what ``trainer.step`` or ``trainer.update`` takes. Gradients are those of the first context, divided by
    the batch size as the optimizer takes them. ``recorder.add(batch=..., outputs=..., loss=...)`` notes the rest, and
    `before_clipping` what they were before `mxnet.gluon.utils.clip_global_norm`, which changes them in place. SPEC
    clause 23.

    Examples
    --------
    >>> import tempfile, islices
    >>> from islices.backends.mxnet.gluon import Recorder, Trainer
    >>> import mxnet as mx
    >>> layer = mx.gluon.nn.Embedding(3, 1, sparse_grad=True)
    >>> layer.initialize(mx.init.One())
    >>> trainer = Trainer(layer.collect_params(), "adagrad", {"learning_rate": 1.0})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with Recorder(folder, trainer):
    ...         with mx.autograd.record():
    ...             loss = layer(mx.nd.array([1, 1])).sum()
    ...         loss.backward()
    ...         trainer.step(2)
    ...     found = islices.parity(folder, folder)
    >>> found.same_bits, sorted(found.steps[0].positions)
    (1, ['gradients', 'start', 'state', 'step'])
    """

    framework = "mxnet"

    def __init__(self, folder: str | os.PathLike[str], trainer: Any, **options: Any) -> None:
        if not isinstance(trainer, mx.gluon.Trainer):
            raise TypeError(f"trainer: got {describe(trainer)}; accepted is a mxnet.gluon.Trainer")
        self._trainer = trainer
        self._undo: list[Callable[[], None]] = []
        super().__init__(folder, **options)

    def __enter__(self) -> Self:
        for name, around in (("_update", self._update), ("_clip", self._clip)):
            if hasattr(self._trainer, name):
                self._wrap(name, around)
        return self

    def __exit__(self, *raised: object) -> None:
        while self._undo:
            self._undo.pop()()
        super().__exit__(*raised)

    def _wrap(self, name: str, around: Callable[..., Any]) -> None:
        """A method of this one trainer, with `around` in its place."""
        trainer, method = self._trainer, getattr(self._trainer, name)
        setattr(trainer, name, lambda *args, **kwargs: around(method, *args, **kwargs))
        self._undo.append(lambda: delattr(trainer, name))

    def before_clipping(self, batch_size: float) -> None:
        """Note the gradients as backward left them: to be called before `mxnet.gluon.utils.clip_global_norm`.

        Parameters
        ----------
        batch_size : float
            What ``trainer.step`` is given, which divides by it.
        """
        if self.wanted:
            self.add(gradients=self._gradients(self._trainer._scale / batch_size))

    # ------------------------------------------------------------------ around the trainer's methods
    def _clip(self, method: Any, limit: float, *args: Any) -> None:
        if self.wanted:
            # the limit is the one given, times the batch size and over the loss scale: as much as gradients are larger
            self.add(gradients=self._gradients(self._trainer.clip_global_norm / limit if limit else 1.0))
        method(limit, *args)

    def _update(self, method: Any, *args: Any, **kwargs: Any) -> None:
        if not self.wanted:
            method(*args, **kwargs)
            self.step()
            return
        applied = self._gradients(float(self._trainer._optimizer.rescale_grad))
        clips = getattr(self._trainer, "clip_global_norm", None) is not None or "gradients" in self._pending
        self.add(tables=self._tables(), state=self._states(), **{"clipped" if clips else "gradients": applied})
        if said := self._described():
            self.add(optimizer=said)
        method(*args, **kwargs)
        self.step(tables_after=self._tables(), state_after=self._states())

    def _parameters(self) -> list[tuple[int, Any]]:
        return [(k, p) for k, p in enumerate(self._trainer._params) if p.grad_req != "null"]

    def _tables(self) -> dict[str, Any]:
        return {p.name: p.list_data()[0] for _, p in self._parameters()}

    def _gradients(self, factor: float) -> dict[str, Any]:
        return {p.name: _scaled(p.list_grad()[0], factor) for _, p in self._parameters()}

    def _states(self) -> dict[str, dict[str, Any]]:
        optimizer, updaters = self._trainer._optimizer, self._trainer._updaters
        names = ARRAYS.get(type(optimizer).__name__, ("", ()))[1]
        held = updaters[0].states if updaters else {}
        found: dict[str, dict[str, Any]] = {}
        for k, p in self._parameters():
            arrays = held.get(k)
            arrays = arrays if isinstance(arrays, (list, tuple)) else [arrays]
            named = {name: x for name, x in zip(names, arrays, strict=False) if x is not None}
            if named and len(arrays) == len(names):
                found[p.name] = {"step": optimizer._index_update_count.get(k, optimizer.begin_num_update), **named}
        return found

    def _described(self) -> dict[str, dict[str, Any]]:
        """What steps the parameters, as `islices.optim` describes it, where the formula is among its own."""
        optimizer = self._trainer._optimizer
        record = RECORDS.get(ARRAYS.get(type(optimizer).__name__, ("", ()))[0])
        if record is None or optimizer.clip_gradient or optimizer.lr_scheduler is not None:
            return {}
        preset, said = record.presets["mxnet"], {}
        for ours, theirs in record.spelled("mxnet").items():
            x = optimizer.learning_rate if ours == "lr" else getattr(optimizer, theirs, None)
            if ours in preset.defaults and isinstance(x, (bool, int, float)) and x is not False:
                said[ours] = x
        found = {}
        for _, p in self._parameters():
            if p.lr_mult == 1.0 and p.wd_mult == 1.0:
                lazy = p.list_grad()[0].stype == "row_sparse" and getattr(optimizer, "lazy_update", True)
                rows = "touched" if lazy and record.name != "rmsprop" else "all"
                found[p.name] = {"name": record.name, "semantics": "mxnet", "rows": rows, **said}
        return found


def _scaled(x: Any, factor: float) -> Any:
    if factor == 1.0:
        return x
    return scale(x, factor) if get_backend("mxnet").is_native(x) else x * factor
