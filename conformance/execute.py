"""Run one case on one backend in one mode, and convert the result to plain data.

If the setup raises an unexpected error, the case is a harness error (`HarnessError`). A case fails if the call raises
an unexpected error or returns an unexpected result. An eager call also fails if it changes an argument that must stay
unchanged (`ChangedInputError`).
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import islices
from islices.backend import Backend, Host
from islices.conformance.composite_operations import UnsupportedError, operation
from islices.conformance.data import Array, Case, Slices, arrays_of, encode, map_leaves
from islices.conformance.variants import STANDARD, Variant

DTYPES = ("float16", "bfloat16", "float32", "float64", "int32", "int64", "bool")


class HarnessError(Exception):
    """The error for a case whose setup fails, so that the suite cannot make the call."""


class ChangedInputError(AssertionError):
    """The error for a call that changed an argument which the call must not change."""


# ---------------------------------------------------------------------- data to arrays and back
def to_numpy(x: Array) -> Host:
    """Convert an `Array` to a NumPy array. bfloat16 numbers become uint16: the upper 16 bits of the same numbers in
    float32."""
    if x.dtype == "bfloat16":
        bits = np.array(x.data, np.float32).reshape(x.shape).view(np.uint32)
        return (bits >> np.uint32(16)).astype(np.uint16)
    with np.errstate(over="raise"):
        return np.array(x.data, x.dtype).reshape(x.shape)


def to_backend(backend: Backend, x: Any, traced: Iterator[Any] | None = None) -> Any:
    """Convert plain data to arguments for a backend. If `traced` is given, take the arrays from this iterator instead
    of converting them."""
    if isinstance(x, Array):
        if traced is not None:
            return next(traced)
        if x.dtype not in DTYPES:
            return _unusual(backend, to_numpy(x))
        if x.dtype in ("float16", "bfloat16", "float32", "float64") and x.dtype not in backend.float_dtypes:
            raise UnsupportedError(f"{backend.name} has no {x.dtype}")
        return backend.asarray(to_numpy(x))
    if isinstance(x, Slices):
        values, indices = (to_backend(backend, part, traced) for part in (x.values, x.indices))
        return islices.IndexedSlices(values, indices, x.dense_shape, coalesced=x.coalesced, padded=x.padded)
    if isinstance(x, (list, tuple)):
        return type(x)(to_backend(backend, item, traced) for item in x)
    if isinstance(x, dict):
        if "foreign" in x:
            return _foreign(backend, x["foreign"])
        if "set" in x:
            return set(x["set"])
        if "complex" in x:
            return complex(*x["complex"])
        return {key: to_backend(backend, item, traced) for key, item in x.items()}
    return math.inf if x == "inf" else x


def _unusual(backend: Backend, array: Host) -> Any:
    """Return an array of the backend whose dtype is not in `DTYPES`. If the framework does not have the dtype, return
    the NumPy array."""
    try:
        return backend.asarray(array)
    except (TypeError, ValueError):
        return array


def _foreign(backend: Backend, x: Array) -> Any:
    quickest_first = ("jax", "torch", "mxnet", "tensorflow")
    others = [name for name in quickest_first if name in islices.list_backends() and name != backend.name]
    if backend.name != "numpy" and x.dtype.startswith("float"):
        return to_numpy(x)
    if not others:
        raise UnsupportedError("needs a second framework")
    return islices.get_backend(others[0]).asarray(to_numpy(x))


def read(x: Any) -> Any:
    """Convert a result to plain data, without sentinel slots."""
    return map_leaves(_read, x)


def _read(x: Any) -> Any:
    if isinstance(x, islices.IndexedSlices):
        values, indices = (x.backend.to_numpy(part) for part in (x.values, x.indices))
        if x.padded:
            keep = indices != x.dense_shape[0]
            values, indices = values[keep], indices[keep]
        return Slices(_plain(values, x.backend.dtype(x.values)), _plain(indices), x.dense_shape, coalesced=x.coalesced)
    if x is None:
        return None
    backend = islices.get_backend(x)
    return _plain(backend.to_numpy(x), backend.dtype(x))


def _plain(x: Host, dtype: str = "") -> Array:
    dtype = dtype or x.dtype.name
    if dtype == "bfloat16":
        x = (x.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    return Array(dtype, x.shape, x.reshape(-1).tolist())


# ---------------------------------------------------------------------- the call
@contextlib.contextmanager
def setting(backend: Backend, mode: str, wide: bool) -> Iterator[None]:
    """Set the mode while the context runs, and switch on the framework's 64-bit types if `wide`. For traced mode, set
    no mode, because the caller compiles the code."""
    types = backend.wide_types() if wide else contextlib.nullcontext()
    with types, contextlib.nullcontext() if mode == "traced" else islices.config.execution(mode):
        yield


def run_case(backend: Backend, case: Case, mode: str, variant: Variant = STANDARD) -> Any:
    """Run a case and return the result as plain data. Raise HarnessError if the setup fails, UnsupportedError if a
    feature is missing, and ChangedInputError if an eager call changes an argument that must stay unchanged.

    If the call itself raises an error, pass it on. In the errors group, also pass on an error of the setup for the
    operation IndexedSlices.
    """
    arguments: list[Any] = []
    options: dict[str, Any] = {}
    arrays: list[Any] = []
    with setting(backend, mode, _is_wide(case)):
        try:
            if mode != "traced":
                arguments, options = _arguments(backend, case, variant)
            else:
                arrays = [to_backend(backend, a) for a in arrays_of([case.args, case.kwargs], indices=True)]
                if variant.device is not None:
                    arrays = _placed(backend, arrays, variant.device(backend))
        except UnsupportedError:
            raise
        except Exception as error:
            if case.group == "errors" and case.op == "IndexedSlices":
                raise
            raise HarnessError(f"setting up {case.id}: {error!r}") from error
        if mode == "traced":
            compiled, shells = _compiled(backend, case.op, _skeleton([case.args, case.kwargs]))
            out = compiled(*arrays)
            return read(reassemble(shells[-1], iter(out)))
        try:
            result = operation(case.op)(*arguments, **options)
        except Exception:
            if "steps" in case.kwargs:  # an earlier step of the case may have changed the table
                arguments, options = [], {}
            _check_unchanged((arguments, options), (case.args[: len(arguments)], case.kwargs), "arguments")
            raise
        _check_unchanged(*_left_alone(backend, case, arguments, options), "arguments")
        return read(result)


def _left_alone(backend: Backend, case: Case, arguments: list[Any], options: dict[str, Any]) -> tuple[Any, Any]:
    """Select the arguments that the call must not change, and return (these arguments, their plain data). If the
    backend updates the table in place, omit the table, all arguments before the table, and the state."""
    place = 2 if case.op == "optimizer_steps" else 0 if case.op.startswith(("scatter_", "renorm_")) else None
    if place is None or not backend.in_place(arguments[place]):
        return (arguments, options), (case.args, case.kwargs)
    rest = {name: option for name, option in options.items() if name != "state"}
    return (arguments[place + 1 :], rest), (case.args[place + 1 :], case.kwargs)


def _check_unchanged(given: Any, plain: Any, path: str) -> None:
    if isinstance(plain, Slices):
        given, plain = (given.values, given.indices), (plain.values, plain.indices)
    if isinstance(plain, Array):
        if plain.dtype in DTYPES and (problem := _first_unequal(read(given).data, plain.data, path)):
            raise ChangedInputError(f"the call changed its input: {problem}")
    elif isinstance(plain, (list, tuple)):
        for k, (g, p) in enumerate(zip(given, plain, strict=True)):
            _check_unchanged(g, p, f"{path}[{k}]")
    elif isinstance(plain, dict) and isinstance(given, dict):  # other dicts stand for an object that is no dict
        for name in given:
            _check_unchanged(given[name], plain[name], f"{path}[{name!r}]")


def _arguments(backend: Backend, case: Case, variant: Variant) -> tuple[list[Any], dict[str, Any]]:
    arguments = [to_backend(backend, a) for a in case.args]
    options = {k: to_backend(backend, v) for k, v in case.kwargs.items()}
    if variant.device is not None:
        arguments, options = _placed(backend, (arguments, options), variant.device(backend))
    if variant.arrange is not None:
        variant.arrange(case, arguments, options)
    return arguments, options


def _placed(backend: Backend, x: Any, device: str) -> Any:
    def moved(leaf: Any) -> Any:
        if isinstance(leaf, islices.IndexedSlices) and leaf.backend is backend:
            values, indices = (backend.on_device(part, device) for part in (leaf.values, leaf.indices))
            return leaf.replace(values=values, indices=indices)
        return backend.on_device(leaf, device) if backend.is_array(leaf) else leaf

    return map_leaves(moved, x)


def forget_compiled(backend: Backend) -> None:
    """Release the compiled programs of traced cases, and the compiled programs that the backend keeps."""
    _compiled.cache_clear()
    backend.forget_compiled()


def _is_wide(case: Case) -> bool:
    """Return True if the case contains 64-bit data. For 64-bit data, JAX needs its x64 mode."""
    text = repr((case.args, case.kwargs, case.expect))
    return "float64" in text or "int64" in text


class _Skeleton:
    """The arguments of a case, as a cache key for compiled programs. Two keys are equal if the arguments differ only in
    the elements of arrays."""

    def __init__(self, tree: Any, key: str) -> None:
        self.tree, self.key = tree, key

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Skeleton) and self.key == other.key


def _skeleton(tree: Any) -> _Skeleton:
    def bare(x: Any) -> Any:
        if isinstance(x, Array):
            return f"{x.dtype}{x.shape}"
        if isinstance(x, Slices):
            return f"slices {bare(x.values)} {bare(x.indices)} {x.dense_shape} {x.coalesced} {x.padded}"
        return encode(x)

    return _Skeleton(tree, repr(map_leaves(bare, tree)))


@functools.cache
def _compiled(backend: Backend, op: str, skeleton: _Skeleton) -> tuple[Callable[..., Any], list[Any]]:
    """Return (the compiled operation, a list). When the framework traces the operation, the structure of the result is
    appended to the list. `reassemble` needs this structure."""
    shells: list[Any] = []

    def fn(*arrays: Any) -> list[Any]:
        args, kwargs = skeleton.tree
        inputs = iter(arrays)
        positional = [to_backend(backend, a, inputs) for a in args]
        named = {k: to_backend(backend, v, inputs) for k, v in kwargs.items()}
        leaves: list[Any] = []
        shells.append(take_apart(operation(op)(*positional, **named), leaves))
        return leaves

    return backend.trace(fn), shells


def take_apart(x: Any, leaves: list[Any]) -> Any:
    """Return the structure of a result, and append the result's arrays to `leaves`. A compiled function gets or returns
    these arrays without the structure."""
    if isinstance(x, islices.IndexedSlices):
        leaves += [x.values, x.indices]
        return (islices.IndexedSlices, x.dense_shape, x.coalesced, x.padded)
    if isinstance(x, (list, tuple)) and not hasattr(x, "dtype"):
        return [type(x), [take_apart(item, leaves) for item in x]]
    if isinstance(x, dict):
        return [dict, {key: take_apart(item, leaves) for key, item in x.items()}]
    if x is None:
        return None
    leaves.append(x)
    return "array"


def reassemble(shell: Any, leaves: Iterator[Any]) -> Any:
    """Undo `take_apart`: return the result with the structure `shell` and the arrays `leaves`."""
    if shell is None:
        return None
    if shell == "array":
        return next(leaves)
    if isinstance(shell, tuple):
        _, dense_shape, coalesced, padded = shell
        values, indices = next(leaves), next(leaves)
        return islices.IndexedSlices(values, indices, dense_shape, coalesced=coalesced, padded=padded)
    kind, items = shell
    if kind is dict:
        return {key: reassemble(item, leaves) for key, item in items.items()}
    return kind(reassemble(item, leaves) for item in items)


# ---------------------------------------------------------------------- comparison
def difference(got: Any, expected: Any, *, path: str = "result") -> str:
    """Describe the first difference in one line; return "" if there is none.

    Numbers must have the same bits, but NaN equals NaN, and -0 equals +0. Sentinel slots of `expected` are ignored. The
    shapes () and (1,) count as equal. The flag coalesced may also be True where False is expected.
    """
    if isinstance(expected, Slices) and isinstance(got, Slices):
        if expected.padded:
            slots = [k for k, i in enumerate(expected.indices.data) if i != expected.dense_shape[0]]
            expected = expected.at(slots, coalesced=expected.coalesced)
        return (
            difference(got.indices, expected.indices, path=f"{path}.indices")
            or difference(got.values, expected.values, path=f"{path}.values")
            or _unequal(got.dense_shape, tuple(expected.dense_shape), f"{path}.dense_shape")
            or ("" if got.coalesced >= expected.coalesced else f"{path}.coalesced: got False, expected True")
        )
    if isinstance(expected, Array) and isinstance(got, Array):
        problem = _unequal(got.dtype, expected.dtype, f"{path}.dtype")
        if not problem and got.shape != expected.shape and {got.shape, tuple(expected.shape)} != {(), (1,)}:
            problem = _unequal(got.shape, expected.shape, f"{path}.shape")
        return problem or _first_unequal(got.data, expected.data, path)
    if isinstance(expected, (list, tuple)) and isinstance(got, type(expected)) and len(got) == len(expected):
        pairs = enumerate(zip(got, expected, strict=True))
        return next((d for k, (g, e) in pairs if (d := difference(g, e, path=f"{path}[{k}]"))), "")
    if isinstance(expected, dict) and isinstance(got, dict) and got.keys() == expected.keys():
        return next((d for k in got if (d := difference(got[k], expected[k], path=f"{path}[{k!r}]"))), "")
    return "" if got is None and expected is None else f"{path}: got {got!r:.200}, expected {expected!r:.200}"


def _unequal(got: Any, expected: Any, path: str) -> str:
    return "" if got == expected else f"{path}: got {got}, expected {expected}"


def _first_unequal(got: list[Any], expected: list[Any], path: str) -> str:
    bad = [k for k, (g, e) in enumerate(zip(got, expected, strict=True)) if not (g == e or (g != g and e != e))]
    if not bad:
        return ""
    k = bad[0]
    more = f", and {len(bad) - 1} more of {len(got)}" if len(bad) > 1 else ""
    return f"{path}: element {k}: got {got[k]!r}, expected {expected[k]!r}{more}"
