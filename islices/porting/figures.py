"""Figures of matplotlib (extra `plot`), without its global state. May import: `matplotlib`."""

from __future__ import annotations

from typing import Any

__all__ = ["new_figure"]


def new_figure(width: float, height: float, *, dpi: int = 130) -> Any:
    """A figure of so many inches that can be saved as it is; ModuleNotFoundError with the line that installs it."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        message = 'a picture needs matplotlib: pip install "islices[plot]"'
        raise ModuleNotFoundError(message, name="matplotlib") from None
    figure = Figure(figsize=(width, height), dpi=dpi, layout="constrained")
    FigureCanvasAgg(figure)
    return figure
