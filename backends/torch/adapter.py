"""Implement the backend's primitives for torch tensors on any device.

This module never lets torch compute with a sparse tensor, for two reasons. By default, torch does not check sparse
tensors. So an index out of range or a wrong is_coalesced may crash the process, or lead to wrong sums. And torch's
coalesce() does not always add in order of occurrence. `islices.backends.torch.arithmetic` corrects torch's dense
arithmetic.
"""

# torch's functions are attributes of the class
# pyright: reportAssignmentType=false, reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from islices.backend import Array, Backend, Host, Look, LoopState, NativeParts, Shape, elements_meet
from islices.backends.torch import autograd, dynamo, hooked_layers, jagged, openmp, sparse_reads
from islices.backends.torch.arithmetic import in_bags, rounded_sqrt, sum_bags, with_numbers
from islices.backends.torch.tracers import (
    PLAIN,
    at_work,
    bare,
    below,
    has_tangent,
    is_traced,
    is_wrapped,
    plain_eager,
    tracer_of,
)
from islices.core import modes
from islices.core.host_memory import zeros

#: In eager code, NumPy allocates arrays of zeros on the CPU, such as an optimizer's state, if they have a dtype in
#: `WIDE` and at least this many elements (4 MB in float32). NumPy requests pages of 2 MB, and torch does not. A step
#: reads scattered rows. With torch's pages of 4 KB, address translation would take a tenth of the step's time.
HUGE = 1 << 20
WIDE = ("float32", "float64")

#: a dtype of values or indices -> its name. NumPy can view these dtypes; for bfloat16, it views the bits.
VIEWED = {getattr(torch, name): name for name in ("float16", "bfloat16", "float32", "float64", "int32", "int64")}
FLOATS = tuple(kind for kind in VIEWED if kind.is_floating_point)
#: The size in bytes of an element of the largest of these dtypes.
LONGEST = 8
#: The number of float64 elements in each row of a block. A block of one row fits into the caches. For longer rows,
#: torch would wake other threads for every operation.
BLOCK = 1 << 15


class TorchBackend(Backend):
    name = "torch"
    module = "torch"
    memory_error = "can't allocate memory"
    native_name = "torch sparse COO tensor"
    native_of_views = True

    def devices(self) -> tuple[str, ...]:
        return ("cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count())))

    def is_array(self, x: object) -> bool:
        return isinstance(x, Tensor) and x.layout is torch.strided and not x.is_nested

    def is_native(self, x: object) -> bool:
        return isinstance(x, Tensor) and (x.layout is not torch.strided or x.is_nested)

    # ------------------------------------------------------------------ looking at an array
    def dtype(self, x: Array) -> str:
        _check_storage(x)  # a computation on a freed storage would crash the process
        return VIEWED.get(x.dtype) or str(x.dtype).removeprefix("torch.")

    def host_view(self, x: Array) -> Host | None:
        if not x.is_cpu or is_wrapped(x):  # x may be wrapped by a transform that has ended: a pullback runs later
            return None
        if not at_work():
            return _checked_view(x)
        if is_traced(x):
            return None
        with bare():
            return _checked_view(x)

    def look(self, arrays: Sequence[Array], *, views: bool = True) -> Look:
        found = _look_at_plain(arrays)
        if found is None and not arrays[0].is_meta and any(x.is_meta for x in arrays):
            places = ", ".join(str(x.device) for x in arrays)
            raise TypeError(f"x: got tensors on the devices {places}; accepted are tensors that all hold data")
        return found or super().look(arrays, views=views)

    def memory_span(self, x: Array) -> tuple[int, int] | None:
        try:
            start = x.data_ptr()
        except RuntimeError:  # x is a wrapper of functorch, or its class has no memory
            return None
        if not start:  # x is empty, or has no memory, as on the device meta
            return (0, 0) if 0 in x.shape else None
        if x.is_contiguous():
            return start, start + x.nbytes
        reach = sum((size - 1) * step for size, step in zip(x.shape, x.stride(), strict=True))
        return (start, start + (reach + 1) * x.element_size()) if x.numel() else (start, start)

    def from_host(self, array: Host, like: Array) -> Array:
        flags = array.flags
        if not flags.carray and (not flags.writeable or any(step < 0 for step in array.strides)):
            array = array.copy()
        if array.dtype.char == "H":
            out = torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        else:
            out = torch.from_numpy(array)
        return out if like is None or like.is_cpu else out.to(like.device)

    def to_numpy(self, x: Array) -> Host:
        view = self.host_view(x)
        if view is not None:
            return view
        check_data(x)
        with bare():
            held: Any = below(x)
            _check_storage(held)
            return _view(held.resolve_neg().cpu())

    def scalar(self, x: Host, like: Array) -> Array:
        return self.from_host(x.copy(), like)

    #: A context without effect. `scope` is the class itself, because a function that calls the class would cost a
    #: second Python call.
    scope = staticmethod(contextlib.nullcontext)  # pyright: ignore[reportAssignmentType]

    # ------------------------------------------------------------------ the framework's sparse form
    def from_native(self, x: Any) -> NativeParts:
        found = _plain_views(x)
        if found is not None:
            return _plain_parts(x, *found)
        if x.layout is not torch.sparse_coo or x.is_nested:
            kind = "nested tensor" if x.is_nested else f"tensor of layout {x.layout}"
            shape = "that differs by row" if x.is_nested else tuple(x.shape)
            raise ValueError(
                f"x: got a {kind} and shape {shape}; accepted is a sparse COO tensor with one sparse "
                "dimension, the rows"
            )
        if x.sparse_dim() != 1:
            raise ValueError(
                f"x: got a sparse COO tensor of shape {tuple(x.shape)} with {x.sparse_dim()} sparse dimensions; "
                "accepted is one, the rows (a small one passes as from_dense(x.to_dense()))"
            )
        if x.requires_grad and torch.is_grad_enabled():
            raise ValueError(
                "x: got a sparse COO tensor whose own gradient is being recorded, which torch loses on the way to its "
                "values; accepted is one that records none: x.detach(), or a call under torch.no_grad()"
            )
        # _indices() and _values() copy and check nothing; indices() would require a coalesced tensor
        indices = x._indices()
        _check_storage(indices)
        return NativeParts(x._values(), indices[0], tuple(x.shape), coalesced=x.is_coalesced())

    def to_native(
        self,
        values: Array,
        indices: Array,
        dense_shape: Shape,
        *,
        coalesced: bool,
        padded: bool,
        like: Any = None,
    ) -> Any:
        if dense_shape[0] is None:
            raise ValueError(
                f"s: got dense_shape {dense_shape}; a torch sparse COO tensor needs the number of rows: accepted is "
                "a known one"
            )
        rows = torch.from_numpy(indices[None]) if isinstance(indices, np.ndarray) else indices.view(1, -1).long()
        shape: Any = dense_shape
        try:  # either the core has checked the indices, or the caller has promised that they are valid
            return torch.sparse_coo_tensor(rows, values, shape, is_coalesced=coalesced, check_invariants=False)
        except RuntimeError:
            if math.prod(filter(None, shape)) < 2**63:
                raise
            raise ValueError(
                f"s: got dense_shape {shape}; accepted by a torch sparse COO tensor are fewer than 2^63 elements"
            ) from None

    def coalesce_few(self, x: Any) -> Any:
        found = _plain_views(x)
        if found is None or x.is_coalesced() or not modes.on_host():
            return None
        compiled, shape = modes.kernels_on(found[2:]), x.shape
        summed = compiled.sum_few(found[2], found[3], shape[0]) if compiled else None  # torch has checked the shapes
        if summed is None:
            return None
        values, indices = torch.from_numpy(summed[0]), torch.from_numpy(summed[1][None])
        return torch.sparse_coo_tensor(indices, values, shape, is_coalesced=True, check_invariants=False)

    # ------------------------------------------------------------------ functions as they are
    abs = staticmethod(torch.abs)  # type: ignore[assignment]
    isfinite = staticmethod(torch.isfinite)  # type: ignore[assignment]
    isin = staticmethod(torch.isin)  # type: ignore[assignment]
    logical_not = staticmethod(torch.logical_not)  # type: ignore[assignment]
    where = staticmethod(torch.where)  # type: ignore[assignment]
    zeros_like = staticmethod(torch.zeros_like)  # type: ignore[assignment]
    equal = staticmethod(torch.eq)  # type: ignore[assignment]
    concat = staticmethod(torch.cat)  # type: ignore[assignment]
    permute = staticmethod(torch.permute)  # type: ignore[assignment]
    on_device = staticmethod(Tensor.to)  # type: ignore[assignment]
    searchsorted = staticmethod(torch.searchsorted)  # type: ignore[assignment]
    minimum = staticmethod(with_numbers(torch.minimum))  # type: ignore[assignment]
    maximum = staticmethod(with_numbers(torch.maximum))  # type: ignore[assignment]
    less_equal = staticmethod(with_numbers(torch.le))  # type: ignore[assignment]
    div = staticmethod(with_numbers(torch.div))  # type: ignore[assignment]
    row_sum = staticmethod(partial(torch.sum, dim=1))
    sqrt = staticmethod(rounded_sqrt)
    is_traced = staticmethod(is_traced)
    take_ragged = staticmethod(jagged.take_apart)
    capture = staticmethod(hooked_layers.capture)
    records_gradient = staticmethod(autograd.is_recorded)
    stop_gradient = staticmethod(Tensor.detach)  # type: ignore[assignment]
    trace = staticmethod(dynamo.compiled)
    forget_compiled = staticmethod(dynamo.forget)
    custom_gradient = staticmethod(autograd.custom_gradient)
    per_sample_gradients = staticmethod(autograd.per_sample_gradients)

    # ------------------------------------------------------------------ array primitives
    def astype(self, x: Array, dtype: str) -> Array:
        return x.to(getattr(torch, dtype))

    def reshape(self, x: Array, shape: Sequence[int | None]) -> Array:
        return x.reshape([-1 if n is None else n for n in shape])

    def zeros(self, shape: Sequence[int], dtype: str, like: Array) -> Array:
        plain = like.is_cpu and type(like) in PLAIN and not at_work()
        if plain and math.prod(shape) >= HUGE and dtype in WIDE:
            return torch.from_numpy(zeros(shape, dtype))
        return torch.zeros(tuple(shape), dtype=getattr(torch, dtype), device=like.device)

    def take(self, x: Array, positions: Array) -> Array:
        if positions.dtype not in (torch.int32, torch.int64):
            positions = positions.long()
        rows = torch.index_select(x, 0, positions.reshape(-1))
        return rows if positions.ndim == 1 else rows.reshape((*positions.shape, *x.shape[1:]))

    def row_amax(self, x: Array) -> Array:
        if x.shape[1] == 0:
            return x.new_zeros(x.shape[0])
        low, high = torch.aminmax(x, dim=1)  # aminmax reads x once and makes no copy; both results keep NaN
        return torch.maximum(high, -low)

    def largest(self, x: Array, k: int) -> Array:
        return torch.sort(torch.argsort(x, descending=True, stable=True)[:k]).values

    def while_any(self, condition: Callable[..., Array], body: Callable[..., LoopState], state: LoopState) -> LoopState:
        while _holds_anywhere(condition(*state)):
            state = body(*state)
        return state

    def blocks(self, x: Array) -> Sequence[Array]:
        return x.split(BLOCK, dim=1) if x.is_cpu else [x]

    # ------------------------------------------------------------------ sparse primitives
    def in_range(self, indices: Array, rows: int | None) -> Array:
        mask = indices >= 0
        return mask if rows is None else mask & (indices < rows)

    def select(self, values: Array, indices: Array, keep: Array, rows: int | None) -> tuple[Array, Array]:
        check_data(keep)
        kept = keep.nonzero()[:, 0]
        return values.index_select(0, kept), indices.index_select(0, kept)

    def unique(self, indices: Array, rows: int | None) -> tuple[Array, Array]:
        check_data(indices)
        return torch.unique(indices, return_inverse=True)  # type: ignore[no-any-return]

    def segment_sum(self, values: Array, segments: Array, count: int | None) -> Array:
        if values.is_cuda and in_bags(values):
            sums, ids = self.sum_duplicates(values, segments, count)
            return self.scatter_rows(sums, ids, (count or 0, *values.shape[1:]))
        out = values.new_zeros((count or 0, *values.shape[1:]))
        if is_wrapped(values):  # under vmap only an addition out of place works
            return out.index_add(0, segments, values)
        return out.index_add_(0, segments, values)

    def outer_products(self, g: Array, x: Array) -> Array:
        return g.transpose(1, 2) @ x

    def sum_duplicates(self, values: Array, indices: Array, rows: int | None) -> tuple[Array, Array]:
        if not in_bags(values):
            return super().sum_duplicates(values, indices, rows)
        return sum_bags(values, indices)

    def scatter_rows(self, values: Array, ids: Array, shape: tuple[int, ...]) -> Array:
        return values.new_zeros(shape).index_copy(0, ids.long(), values)  # under vmap only a copy out of place works

    def add_rows(self, dense: Array, values: Array, ids: Array) -> Array:
        if dense.dtype not in (torch.float16, torch.bfloat16):
            return dense.index_add(0, ids, values)
        sums = dense.index_select(0, ids).float() + values.float()
        return dense.index_copy(0, ids.long(), sums.to(dense.dtype))

    def arange(self, x: Array) -> Array:
        return torch.arange(x.shape[0], device=x.device)

    def segment_max(self, values: Array, segments: Array, count: int | None, *, least: float | None = None) -> Array:
        kind = values.dtype
        lowest = -torch.inf if kind.is_floating_point else torch.iinfo(kind).min
        lowest = lowest if least is None else least
        out = values.new_full((count or 0, *values.shape[1:]), lowest)
        if values.numel() == 0:
            return out
        place = self.as_column(segments.long(), values).expand_as(values)
        return out.scatter_reduce(0, place, values.detach(), "amax")

    def set_rows(self, table: Array, ids: Array, values: Array, *, donate: bool = False) -> Array:
        with torch.no_grad():
            table.index_copy_(0, ids.long(), values)
        return table

    def add_in_order(self, table: Array, ids: Array, values: Array, *, donate: bool = False) -> Array | None:
        if not table.is_cpu or is_traced(table):  # CUDA adds in any order
            return None
        with torch.no_grad():
            return table.index_add_(0, ids, values)

    def in_place(self, x: Array) -> bool:
        if shares_elements(x):
            raise ValueError(
                f"table: got strides {x.stride()} for shape {tuple(x.shape)}, by which elements share memory (expand "
                "makes such); accepted is a tensor whose elements have each their own"
            )
        check_inference(x, "table")
        return True

    def made_like(self, x: Array, like: Array) -> Array:
        return torch.nn.Parameter(x, like.requires_grad) if isinstance(like, torch.nn.Parameter) else x

    def plain_tables(self, arrays: Sequence[Any]) -> Look | None:
        return _look_at_plain(arrays, written=True)

    def mark_written(self, arrays: Sequence[Array]) -> None:
        for x in arrays:  # torch before 2.6 accepts only one tensor per call
            increment_version(x)  # a backward pass compares versions to detect that a saved tensor has changed

    def writable_view(self, x: Array) -> Host | None:
        view = self.host_view(x)
        if view is None or x.untyped_storage().nbytes() < view.nbytes:  # FSDP, for example, empties storages
            return None
        return None if has_tangent(x) else view

    # ------------------------------------------------------------------ differentiation
    differentiate = autograd.differentiate
    differentiate_rows = sparse_reads.differentiate_rows

    # ------------------------------------------------------------------ models
    def is_model(self, x: object) -> bool:
        return isinstance(x, torch.nn.Module)


def _view(x: Tensor) -> Host:
    """Return a NumPy view of a tensor in CPU memory. The view of a bfloat16 tensor has the dtype uint16.

    Raise TypeError or RuntimeError if NumPy cannot view the tensor. The reason may be a dtype that NumPy lacks, a
    device other than the CPU, a wrapper of a transform, or the negative bit.
    """
    if x.requires_grad:
        x = x.detach()
    return x.view(torch.int16).numpy().view(np.uint16) if x.dtype is torch.bfloat16 else x.numpy()


def _checked_view(x: Tensor) -> Host | None:
    """Return a NumPy view of a tensor, or None if NumPy cannot view the tensor. Raise ValueError if the tensor's
    storage was freed."""
    _check_storage(x)
    try:
        return _view(x)
    except (TypeError, RuntimeError):
        return None


def _plain_views(x: Tensor) -> tuple[Tensor, Tensor, Host, Host] | None:
    """Return the values and indices of a sparse tensor, and NumPy views of both.

    Return None if x requires a gradient, if `plain_eager` returns False, or if x is not a sparse COO tensor of the
    class Tensor. Also return None if Tensor.numpy fails for the values or indices, as for bfloat16, or if `VIEWED`
    lacks the dtype of the values. The result is also None if x stores no values, a storage was freed, or the number of
    sparse dimensions is not 1.
    """
    if type(x) is not Tensor or x.requires_grad or x.layout is not torch.sparse_coo or not plain_eager():
        return None
    values, indices = x._values(), x._indices()
    try:
        view, rows = values.numpy(), indices.numpy()
    except (TypeError, RuntimeError):  # not on CPU, negated, recorded, bfloat16
        return None
    # if a storage was freed, data_ptr() is only the offset
    for held in (values, indices):
        if held.data_ptr() <= LONGEST * held.storage_offset():
            return None
    return (values, indices, view, rows[0]) if len(rows) == 1 and values.dtype in VIEWED else None


def _plain_parts(x: Tensor, values: Tensor, indices: Tensor, view: Host, row: Host) -> NativeParts:
    """Return the parts of a sparse tensor, given the results of `_plain_views`.

    The parts contain None in place of the tensor of indices. To make that tensor would take as long as to make all
    views.
    """
    spans = None
    if view.flags.c_contiguous and row.flags.c_contiguous:
        start, first = values.data_ptr(), indices.data_ptr()
        spans = [(start, start + view.nbytes), (first, first + row.nbytes)]
    look = Look([VIEWED[values.dtype], "int64"], [view.shape, row.shape], [False, False], [view, row], spans)
    return NativeParts(values, None, tuple(x.shape), x.is_coalesced(), False, look)


def _look_at_plain(arrays: Sequence[Tensor], *, written: bool = False) -> Look | None:
    """Return a `Look` with the dtypes, shapes and NumPy views of plain tensors. A single loop collects all of them.

    Return None if `plain_eager` returns False, or if NumPy cannot view one of the tensors. Also return None if the
    class of one of them is not Tensor or Parameter, or if its dtype is not in `VIEWED`. The result is also None if one
    of the tensors has an empty storage, or if autograd would record operations on it.

    If `written` is True, the caller will write to the tensors. Then the tensors may require gradients. But if a tensor
    is empty, not contiguous, partly outside of its storage, or an inference tensor, the result is None.
    """
    if not plain_eager():
        return None
    recording = not written and torch.is_grad_enabled()
    spans: list[tuple[int, int]] | None = [] if written else None
    look = Look([], [], [False] * len(arrays), views := [], spans)
    for x in arrays:
        dtype = VIEWED.get(x.dtype) if type(x) in PLAIN else None
        if dtype is None or (recording and x.requires_grad):
            return None
        try:
            view, held = _view(x), x.untyped_storage().nbytes()
        except (TypeError, RuntimeError):  # not on CPU, negated, sparse, or wrapped by a transform that may have ended
            return None
        if not held:
            return None
        if spans is not None:
            start = x.data_ptr()
            if not start or held < view.nbytes or not view.flags.carray or x.is_inference():
                return None
            spans.append((start, start + view.nbytes))
        look.dtypes.append(dtype)
        look.shapes.append(view.shape)
        views.append(view)
    return look


def _holds_anywhere(mask: Tensor) -> bool:
    """Return True if any element of a mask is True, even if torch.func wraps the mask. Return False if the values of
    the mask are unknown, for example on the device meta."""
    while is_wrapped(mask):
        mask = torch._C._functorch.get_unwrapped(mask)  # pyright: ignore[reportAttributeAccessIssue]
    return not backend.is_traced(mask) and bool(mask.any())


def check_data(x: Tensor) -> None:
    """Raise TypeError for a tensor without readable values: a tensor that is fake, on the device meta, mapped by
    torch.func.vmap, or recorded by a tracer."""
    fake = type(x) is not Tensor and hasattr(x, "fake_mode")
    if x.is_meta or fake:
        kind = "fake tensor" if fake else "tensor on the device meta"
        raise TypeError(f"x: got a {kind} of shape {tuple(x.shape)}, which holds no data; accepted is one that does")
    if not at_work():
        return
    if below(x) is None:
        raise TypeError(
            f"x: got a tensor that torch.func.vmap maps over, each of shape {tuple(x.shape)}; accepted, where "
            "numbers must be known, is one that is the same for all"
        )
    tracer = tracer_of(x)
    if tracer is not None:
        raise TypeError(
            f"x: got a tensor that {tracer} records, whose numbers would be constants of its graph; accepted is a call "
            "outside of the traced function, or torch.compile"
        )


def shares_elements(x: Tensor) -> bool:
    """Return True if a tensor's strides allow elements to share memory."""
    return not x.is_contiguous() and elements_meet(x.shape, x.stride(), 1)


def check_inference(x: Tensor, argument: str) -> None:
    """Raise ValueError for an inference tensor outside of inference mode, because torch does not allow writes to it
    there."""
    if x.is_inference() and not torch.is_inference_mode_enabled():
        raise ValueError(f"{argument}: got an inference tensor; accepted outside of torch.inference_mode() is a clone")


def _check_storage(x: Tensor) -> None:
    """Raise ValueError if a tensor's storage was freed, for example by FSDP. A read of freed memory would crash the
    process."""
    try:
        freed = not x.untyped_storage().nbytes() and x.numel()
    except (RuntimeError, NotImplementedError):  # the subclass or the layout has no storage
        return
    if freed:
        raise ValueError(f"x: got a tensor of shape {tuple(x.shape)} whose storage was freed; accepted is one in use")


backend = TorchBackend()
openmp.lend()
