"""Compiled host kernels as XLA custom calls: what jitted programs on CPU reach without Python, its lock or a copy.

XLA calls a handler by its name. numba compiles one (`handlers`) for each kernel and types, so no C compiler is needed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np

from islices.backends.jax import frames, handlers, tasks
from islices.core.locks import Lock
from islices.kernels import squares, totals
from islices.kernels.compiling import INTEGER, Kernel, compile_callback, compile_kernel, contents, inline, vector
from islices.kernels.folding import fold_kernel
from islices.kernels.grouping import group_kernel, runs_kernel
from islices.kernels.halves import FORMATS
from islices.kernels.multiplying import scale_kernel
from islices.kernels.updating import step_kernel
from islices.optim.formulas import Formula

__all__ = [
    "bags_target",
    "bins_of",
    "bins_target",
    "groups_target",
    "members_target",
    "places_target",
    "scale_target",
    "step_target",
    "sum_target",
    "total_target",
]

#: What code on disk is of, beside the kernels.
_SOURCES = tuple(Path(module.__file__ or "").resolve() for module in (frames, handlers, tasks))

_lock = Lock()
#: name -> the handler and what it calls, which live as long as XLA may call it; None for one that XLA refused
_handlers: dict[str, Any] = {}


# ---------------------------------------------------------------------- the names by which XLA calls; None if it cannot
def groups_target(index: str, place: str | None = None) -> str | None:
    """Of the groups of such indices, whose slots' values lie at such positions."""
    names: dict[str, Any] = {"INDEX": np.dtype(index), "MOVED": place is not None}
    if place is not None:
        names["PLACE"] = np.dtype(place)
    return _named(
        "_".join(filter(None, ("islices_groups", index, place))),
        lambda: _callback(handlers.groups, group=_group_named_kernel(index), **names),
    )


def places_target() -> str | None:
    """Of the places of slots' rows among the groups."""
    return _named("islices_places", lambda: _callback(handlers.places))


def sum_target(dtype: str) -> str | None:
    """Of the sums of rows of such values."""
    stored = np.dtype(FORMATS[dtype].stored)
    return _named(
        f"islices_sum_rows_{dtype}",
        lambda: _in_parts(
            handlers.sum_rows,
            inline(handlers.huge_sums, ITEMSIZE=stored.itemsize),
            cut=inline(handlers.cut), fold=fold_kernel(dtype), VALUES=stored,
        ),
    )  # fmt: skip


def members_target(index: str, place: str, mask: str | None) -> str | None:
    """Of the members of bags: such ids, of such segments, and what says which count."""
    integers = ("int32", "int64")
    if index not in integers or place not in integers or mask not in ("int32", None):
        return None
    names: dict[str, Any] = {"INDEX": np.dtype(index), "PLACE": np.dtype(place), "KEPT": mask is not None}
    wide = np.dtype(np.int64)
    return _named(
        "_".join(filter(None, ("islices_members", index, place, mask))),
        lambda: _callback(handlers.members, runs=runs_kernel(wide), group=group_kernel(wide), **names),
    )


def bags_target(dtype: str) -> str | None:
    """Of the sums of rows of a table of such values."""
    stored = np.dtype(FORMATS[dtype].stored)
    zero = inline(handlers.zero_sums, huge_sums=inline(handlers.huge_sums, ITEMSIZE=stored.itemsize), VALUES=stored)
    return _named(
        f"islices_read_bags_{dtype}",
        lambda: _in_parts(
            handlers.read_bags, zero, cut=inline(handlers.cut), fold=fold_kernel(dtype), VALUES=stored,
        ),
    )  # fmt: skip


def scale_target(dtype: str, steps: tuple[str, ...]) -> str | None:
    """Of such values times ("mul") or over ("div") one or two numbers."""
    form = FORMATS[dtype]
    return _named(
        "_".join(("islices_scaled", *steps, dtype)),
        lambda: _callback(
            handlers.scaled, scale=scale_kernel(dtype, steps), VALUES=np.dtype(form.stored), WIDE=np.dtype(form.wide)
        ),
    )


def bins_target(dtype: str, ord: int, *, grouped: bool, exact: bool = False) -> str | None:
    """Of the bins of the terms of such values, or of the rows' sums; exact: of these terms' exact sum."""
    part = handlers.bins_of_rows if grouped else handlers.bins_of_all
    kernel, count = squares.rows_kernel if grouped else squares.dense_kernel, bins_of(dtype, exact=exact)
    return _named(
        f"islices_{'exact' if exact else 'bins'}{ord}_{'rows' if grouped else 'all'}_{dtype}",
        lambda: _in_parts(
            part, inline(handlers.clear, COUNT=count), grouped=grouped, give=inline(handlers.give, COUNT=count),
            cut=inline(handlers.cut), measure=kernel(dtype, ord, exact), COUNT=count,
            VALUES=np.dtype(FORMATS[dtype].stored),
        ),
    )  # fmt: skip


def bins_of(dtype: str, *, exact: bool = False) -> int:
    """How many bins there are, or rows of an exact sum."""
    return totals.EXACT if exact else squares.BINS["float64" if dtype == "float64" else "float32"]


def total_target(*, exact: bool = False) -> str | None:
    """Of what bins, or exact sums, hold together."""
    kernels = {"add_bins": totals.add_exact_kernel if exact else totals.add_bins_kernel, "rounded": totals.round_kernel}
    return _named(
        f"islices_{'exact_' if exact else ''}total",
        lambda: _callback(handlers.total, **{k: kernel() for k, kernel in kernels.items()}),
    )


def step_target(formula: Formula, table: str, gradient: str, index: str, *, scaled: bool) -> str | None:
    """Of a step of an optimizer on such a table, gradient and indices; scaled: the last number is the gradient's
    factor."""
    step, states = step_kernel(formula, table, gradient, index, scaled=scaled), len(formula.state)

    def compiled() -> Any:
        wide = np.dtype(FORMATS[table].wide)
        form = inline(handlers.state, WIDE=wide)
        return _in_parts(
            handlers.step, inline(handlers.nothing), change=step, states=inline(handlers.STATES[states], state=form),
            cut=inline(handlers.cut), INDEX=np.dtype(index), WIDE=wide, VALUES=np.dtype(FORMATS[gradient].stored),
            TABLE=np.dtype(FORMATS[table].stored),
        )  # fmt: skip

    # programs are kept on disk under this name: that of the kernel tells its rule, too
    return _named(f"islices_{formula.rule.__name__}_{table}_{gradient}_{index}{step.__qualname__}", compiled)


# ---------------------------------------------------------------------- handlers
@cache
def _group_named_kernel(index: str) -> Kernel:
    row, place = vector(np.dtype(index)), vector(np.uint64)
    return compile_kernel(
        handlers.group_named,
        (vector(np.dtype(index), readonly=True), INTEGER, row, place, place, row),
        group=group_kernel(np.dtype(index)),
    )


def _callback(template: Callable[..., Any], **names: Any) -> Any:
    return compile_callback(template, frames.SIGNATURE, SOURCES=contents(_SOURCES), **names)


def _in_parts(part: Callable[..., Any], prepare: Any, *, grouped: bool = True, **names: Any) -> Any:
    """The handler of an operation whose parts these are, with its task, which it calls."""
    task, run_parts = tasks.compile_task(part, SOURCES=contents(_SOURCES), **names)
    return _callback(handlers.in_parts, prepare=prepare, run_parts=run_parts, GROUPED=grouped), task


def _named(name: str, compiled: Callable[[], Any]) -> str | None:
    with _lock:
        if name not in _handlers:
            _handlers[name] = _registered(name, compiled())
        return None if _handlers[name] is None else name


def _registered(name: str, handler: Any) -> Any:
    callback = handler[0] if isinstance(handler, tuple) else handler
    try:
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(callback.address), platform="cpu")
    except (RuntimeError, TypeError, ValueError) as error:  # a version of the API that this jaxlib does not speak
        warnings.warn(f"islices computes without compiled kernels in jitted code: {error}", stacklevel=2)
        return None
    return handler
