"""Define `Reported`, the base class of `Difference` and `Parity`, which can report their results as text, JSON and a
picture. May import: `matplotlib`."""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import Any


class Reported(abc.ABC):
    """The base class of the dataclasses `Difference` and `Parity`, which contain the result of a comparison."""

    def __str__(self) -> str:
        return self.report()

    def __bool__(self) -> bool:
        raise TypeError(f"the truth value of a {type(self).__name__} is ambiguous: say .equal")

    @abc.abstractmethod
    def report(self) -> str:
        """Return the report as plain text."""

    @abc.abstractmethod
    def _figure(self) -> Any:
        """Return the picture as a matplotlib figure."""

    def to_json(self) -> dict[str, Any]:
        """Return a dict that json.dumps accepts, with the fields by name. NaN and infinity become strings.

        The dict does not contain `TensorDifference.row_gaps`, the data that `Difference.plot` draws.
        """
        found: dict[str, Any] = _plain(self)
        return found

    def plot(self, path: Any) -> None:
        """Draw the result, and write the picture to a file. The suffix of the path selects the format. This method
        needs matplotlib (extra `plot`).

        Parameters
        ----------
        path : str or path-like

        Raises
        ------
        ModuleNotFoundError
            matplotlib is not installed. The message contains the command that installs matplotlib.
        ValueError
            matplotlib cannot write files with this suffix.
        OSError
            The system cannot write the file.
        """
        self._figure().savefig(path)


def _plain(x: Any) -> Any:
    if isinstance(x, float):
        return x if math.isfinite(x) else str(x)
    if is_dataclass(x):
        return {f.name: _plain(getattr(x, f.name)) for f in fields(x) if f.repr}
    if isinstance(x, dict):
        return {str(k): _plain(v) for k, v in x.items()}
    return [_plain(v) for v in x] if isinstance(x, (list, tuple)) else x


def columns(rows: Sequence[Sequence[str]], indent: str, right: Sequence[int] = ()) -> list[str]:
    """Return the lines of a text table with aligned columns. `right` contains the positions of the columns to align to
    the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = (c.rjust(w) if k in right else c.ljust(w) for k, (c, w) in enumerate(zip(row, widths, strict=True)))
        lines.append((indent + "  ".join(cells)).rstrip())
    return lines


def new_figure(width: float, height: float) -> Any:
    """Return a new figure of the given size in inches. The figure does not affect the global state of pyplot. Raise
    ModuleNotFoundError if matplotlib is not installed."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        message = 'a picture needs matplotlib: pip install "islices[plot]"'
        raise ModuleNotFoundError(message, name="matplotlib") from None
    figure = Figure(figsize=(width, height), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    return figure
