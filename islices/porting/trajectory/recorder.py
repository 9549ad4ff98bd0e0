"""`Recorder`: what a training does, written down step by step for `parity`.

May import: the core, this folder.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from islices.core.arguments import check_flag, check_name, show, whole_number
from islices.core.registry import describe
from islices.files.manifest import check_metadata
from islices.porting.trajectory.descriptions import optimizers_of
from islices.porting.trajectory.folder import is_folder, step_files, write_step
from islices.porting.trajectory.positions import POSITIONS, Leaves, Step, host_leaves


class Recorder:
    """Writes a training's steps into a folder, one file each, for `islices.parity`.

    Parameters
    ----------
    folder : str or path
        Made where there is none.
    every : int
        Record each so many steps: 1, every, 2 every ... Steps between are counted and not written.
    overwrite : bool
        Delete the steps that the folder holds; else such a folder is refused.
    metadata : mapping of str to str, optional
        What else each file is to say; ``padding_idx``, ``max_norm``, ``batch_size`` and ``tokens`` are read by
        `islices parity` as by `islices diff`.

    Raises
    ------
    TypeError, ValueError, OSError
        Arguments that do not fit; a folder that holds steps, or cannot be written.

    Notes
    -----
    These record by themselves: `islices.backends.torch.TorchRecorder` (hooks of model and optimizer), the callback
    `islices.backends.keras.KerasRecorder`, `islices.backends.jax.optax.recorded`. Of tables and states the rows that
    changed are written. Each file is whole or not there (SPEC clause 21). SPEC clause 23.

    Examples
    --------
    >>> import tempfile, numpy as np, islices
    >>> grad = islices.IndexedSlices(np.ones((1, 2), np.float32), np.array([3]), (4, 2))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     recorder = islices.Recorder(folder)
    ...     recorder.step(batch=np.array([3]), tables={"emb": np.zeros((4, 2), np.float32)}, gradients={"emb": grad})
    ...     found = islices.parity(folder, folder)
    >>> found.equal
    True
    """

    #: The framework that is recorded, for the lines that mend it; "" where it is not known.
    framework: str = ""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        every: int = 1,
        overwrite: bool = False,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        if not is_folder(folder):
            raise TypeError(f"folder: got {describe(folder)}; accepted is a str or a path")
        number = whole_number(every)
        if number is None or number < 1:
            raise ValueError(f"every: got {show(every)}; accepted is an int >= 1")
        self.folder = Path(os.fsdecode(folder))
        self._every = number
        self._metadata, overwrites = check_metadata(metadata), check_flag(overwrite, "overwrite")
        self._count = 0
        self._pending, self._optimizers = dict[str, Leaves](), dict[str, Any]()
        self._last: dict[str, Leaves] = {}
        self.folder.mkdir(parents=True, exist_ok=True)
        there = step_files(self.folder)
        if there and not overwrites:
            raise ValueError(
                f"folder: got {str(self.folder)!r}, which holds {len(there)} steps; accepted is an empty folder, or "
                "overwrite=True"
            )
        for _, path in there:
            path.unlink()

    def __repr__(self) -> str:
        return f"Recorder({str(self.folder)!r}, {self._count} steps)"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        """A step that was begun and not ended is not written."""
        self._pending = {}

    @property
    def wanted(self) -> bool:
        """Return True if the next step is written: expensive values need not be computed otherwise."""
        return self._count == 0 or (self._count + 1) % self._every == 0

    def add(self, **positions: Any) -> None:
        """Note a part of the step under way, as soon as it is there; `step` writes it.

        Parameters
        ----------
        **positions
            As of `step`. It is copied at once.

        Raises
        ------
        TypeError, ValueError
            A position that is not known, or what cannot be recorded there.
        """
        for name, tree in positions.items():
            if name == "optimizer":
                self._optimizers = optimizers_of(tree, name)
                continue
            check_name(name, POSITIONS, "position")
            if self.wanted and tree is not None:
                self._pending[name] = host_leaves(tree, name)

    def step(self, **positions: Any) -> None:
        """End a step: write what `add` has been told of it and what is given here.

        Parameters
        ----------
        **positions
            Trees (arrays, sparse gradients, Tables, numbers, None; nested in lists, tuples, dicts) at ``batch``
            (ids, labels), ``tables`` and ``state`` (parameters and optimizer's state before the step), ``outputs``,
            ``loss``, ``gradients``, ``clipped``, ``tables_after``, ``state_after``; a state as {tensor: {array: ...}}.
            Tables after the step are those before the next one, so that either will do. ``optimizer``: a description
            of what steps, {"name": "adam", "semantics": "torch", "lr": 1e-3, ...}, or a dict of tensors' names to
            such: `parity` explains steps by it. Of one that `islices.optim` does not have, {"class": "its name"}.

        Raises
        ------
        TypeError, ValueError, OSError
            A position that is not known, what cannot be recorded, or a file that cannot be written.
        """
        self.add(**positions)
        if not self.wanted:
            self._count += 1
            return
        step = Step(self._count + 1, self._pending, self._optimizers, self.framework)
        if self._count and self._every > 1:
            self._last = {}  # what lies between is not known
        self._last = write_step(self.folder, step, self._last, self._metadata)
        self._count += 1
        self._pending = {}
