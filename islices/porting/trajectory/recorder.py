"""Define `Recorder`, which writes the steps of a training to files for `parity`.

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
    """A recorder that writes steps of a training to a folder, one file per step. `islices.parity` compares two folders.

    Parameters
    ----------
    folder : str or path
        The folder for the files. If the folder does not exist, the recorder creates it.
    every : int
        The recorder writes step 1 and each step whose number is a multiple of `every`. All other steps are counted but
        not written.
    overwrite : bool
        If True, delete the steps that the folder already contains. If False, raise ValueError if the folder already
        contains steps.
    metadata : mapping of str to str, optional
        Texts that are also written to each file. The commands `islices parity` and `islices diff` read the options
        ``padding_idx``, ``max_norm``, ``batch_size`` and ``tokens`` from these texts.

    Raises
    ------
    TypeError, ValueError, OSError
        An argument is invalid, or `overwrite` is False and the folder already contains steps. Or the system cannot
        create or read the folder, or delete its steps.

    Notes
    -----
    Three integrations call a recorder automatically. `islices.backends.torch.TorchRecorder` adds hooks to the model and
    the optimizer, `islices.backends.keras.KerasRecorder` is a callback, and `islices.backends.jax.optax.recorded` wraps
    an optimizer. With ``every=1``, all files but the first omit tables and states that are unchanged. If at most half
    of the rows of a float array with several axes have changed, these files contain only the changed rows. Each file is
    complete or absent (SPEC clause 21). SPEC clause 23 defines recordings.

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

    #: The name of the framework that is recorded, or "" if it is unknown. `parity` uses the name to explain a
    #: difference, and to choose the line of code that fixes it.
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
        self._found = dict[str, Any]()  # the descriptions of a subclass; those that the user adds take precedence
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
        """Discard positions that `add` has stored and `step` has not written."""
        self._pending = {}

    @property
    def wanted(self) -> bool:
        """Return True if the recorder will write the current step. For all other steps, you need not compute values."""
        return self._count == 0 or (self._count + 1) % self._every == 0

    def add(self, **positions: Any) -> None:
        """Store some positions of the current step before the step ends; `step` will write these positions.

        Parameters
        ----------
        **positions
            The same positions as for `step`. If `wanted` is True, the recorder copies the values immediately; if
            `wanted` is False, the recorder stores only ``optimizer``.

        Raises
        ------
        TypeError, ValueError, IndexError
            A position is unknown, or its value cannot be recorded.
        """
        for name, tree in positions.items():
            if name == "optimizer":
                self._optimizers = optimizers_of(tree, name)
                continue
            check_name(name, POSITIONS, "position")
            if self.wanted and tree is not None:
                self._pending[name] = host_leaves(tree, name)

    def step(self, **positions: Any) -> None:
        """Write the positions that `add` has stored and these positions, if `wanted` is True, and begin the next step.

        Parameters
        ----------
        **positions
            Each value is a tree: arrays, sparse gradients, Tables, numbers or None, nested in lists, tuples and dicts.
            The positions are ``batch`` (ids, labels), ``tables`` and ``state`` (parameters and optimizer's state before
            the step), ``outputs``, ``loss``, ``gradients``, ``clipped``, ``tables_after`` and ``state_after``. A state
            is a dict {name of a tensor: {name of an array: array}}. With ``every=1``, the tables after a step are the
            tables before the next step, so you need to record only one of them. You may also pass ``optimizer``, which
            `parity` uses to judge and explain steps. Pass an optimizer of `islices.optim`, a description such as
            {"name": "adam", "semantics": "torch", "lr": 1e-3}, or a dict from tensors' names to one of these. For an
            optimizer that `islices.optim` does not have, the description is {"class": "its name"}.

        Raises
        ------
        TypeError, ValueError, IndexError, OSError
            A position is unknown, a value cannot be recorded, or a file cannot be written.
        ModuleNotFoundError
            safetensors is missing: ``pip install "islices[io]"``.
        """
        self.add(**positions)
        if not self.wanted:
            self._count += 1
            return
        optimizers = {**({} if "" in self._optimizers else self._found), **self._optimizers}
        step = Step(self._count + 1, self._pending, optimizers, self.framework)
        if self._count and self._every > 1:
            self._last = {}  # steps since the last file may not have been written, so this file is complete
        self._last = write_step(self.folder, step, self._last, self._metadata)
        self._count += 1
        self._pending = {}
