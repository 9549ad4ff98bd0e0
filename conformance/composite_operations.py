"""Define operations that cases use and that are not functions of islices. Examples are combinations of public calls,
and gradients that the framework's autodiff computes."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

import islices
from islices import norms
from islices.backend import Backend
from islices.core.row_operators import OPERATORS
from islices.norms.nonfinite import Nonfinite


class UnsupportedError(Exception):
    """The error for a case that cannot run because the backend, the environment or the suite lacks a feature."""


def _replace_values(s: Any, values: Any) -> Any:
    replaced = s.replace(values=values)
    return islices.to_dense(replaced)


def own_calls_of(backend: Backend) -> Any:
    """Return the module that calls the framework without islices; docs/adapter_author.md lists the module's functions.
    The module is part of the suite or of a plug-in. Raise UnsupportedError if there is no such module, and
    NotImplementedError if the backend declares `own_calls` as `not_implemented`."""
    if callable(backend.own_calls):
        backend.own_calls()  # a declaration of a missing feature raises an error with the reason
    if backend.own_calls:
        return importlib.import_module(backend.own_calls)
    name = f"islices.conformance.own_calls.{backend.name}"
    try:
        known = importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # a plug-in's name may contain a dot, and the suite has no such package
        known = False
    if not known:
        raise UnsupportedError(f"the suite does not know {backend.name}'s own layers")
    return importlib.import_module(name)


def gradients(loss: Callable[..., Any], *args: Any, **options: Any) -> tuple[Any, ...]:
    """Return the gradients of a loss with respect to each positional argument. Raise UnsupportedError if the backend
    has no autodiff."""
    try:
        return islices.value_and_grad(loss, tuple(range(len(args))), **options)(*args)[1]  # type: ignore[no-any-return]
    except NotImplementedError as error:
        if ": differentiate: " in str(error):
            raise UnsupportedError(str(error)) from error
        raise


def _lookup_gradient(
    table: Any,
    ids: Any,
    upstream: Any,
    *,
    padding_idx: int | None = None,
    scale_by_freq: bool = False,
    weights: Any = None,
    **options: Any,
) -> Any:
    """Return the gradient of sum(lookup * upstream) with respect to the table. With `weights`, return (gradient of the
    table, gradient of the weights). The framework, not islices, computes the product and the sum."""
    own = own_calls_of(islices.get_backend(table))
    parameter = islices.Table(table, padding_idx=padding_idx, scale_by_freq=scale_by_freq)
    if weights is None:
        return gradients(lambda t: own.weighted_sum(islices.lookup(t, ids, **options), upstream), parameter)[0]

    def loss(t: Any, w: Any) -> Any:
        return own.weighted_sum(islices.lookup(t, ids, weights=w, **options), upstream)

    return gradients(loss, parameter, weights)


def _double_lookup_gradient(table: Any, ids: Any, upstream: Any, other_ids: Any, other: Any) -> Any:
    own = own_calls_of(islices.get_backend(table))

    def loss(t: Any) -> Any:
        first = own.weighted_sum(islices.lookup(t, ids), upstream)
        return first + own.weighted_sum(islices.lookup(t, other_ids), other)

    return gradients(loss, islices.Table(table))[0]


def _gradient(op: str, leaves: list[Any], upstream: list[Any], *limit: float, **options: Any) -> list[Any]:
    """Return the gradient of sum(op(leaves) * upstream) with respect to the stored values of each leaf.

    For a norm, `upstream` is a list of one array with one number. For a clip, `upstream` has one array per leaf, with
    the shape of the stored values, or of the dense array for clip_by_value.
    """
    own, function = own_calls_of(islices.get_backend(upstream[0])), getattr(islices, op)
    bare = [x.values if isinstance(x, islices.IndexedSlices) else x for x in leaves]

    def loss(*arrays: Any) -> Any:
        tree = [
            x.replace(values=v) if isinstance(x, islices.IndexedSlices) else v
            for x, v in zip(leaves, arrays, strict=True)
        ]
        given = tree if op in ("global_norm", "clip_by_global_norm") else tree[0]
        out = function(given, *limit, **options)
        parts = out[0] if isinstance(out, tuple) else [out]
        terms = [own.weighted_sum(_numbers(op, y), g) for y, g in zip(parts, upstream, strict=True)]
        return functools.reduce(operator.add, terms)

    return list(gradients(loss, *bare))


def _numbers(op: str, x: Any) -> Any:
    """Return a result as one array. A dense result is returned as it is. For slices of clip_by_value, which coalesces,
    return the dense array; for slices of any other operation, return the stored values."""
    if not isinstance(x, islices.IndexedSlices):
        return x
    return islices.to_dense(x) if op == "clip_by_value" else x.values


def _clip_per_sample(upstream: Any, ids: Any, num_rows: int, dense: Any, max_norm: float) -> Any:
    tree = [islices.per_sample(upstream, ids, num_rows), dense]
    (clipped, rest), norms = islices.clip_per_sample(tree, max_norm)
    return clipped.sum(), rest, norms


def _per_sample_clip_sum(
    upstream: Any, ids: Any, num_rows: int, max_norm: float, *, nonfinite: Nonfinite = "propagate", **options: Any
) -> Any:
    return islices.per_sample(upstream, ids, num_rows, **options).clip(max_norm, nonfinite=nonfinite).sum()


def _per_sample(method: str) -> Callable[..., Any]:
    def call(upstream: Any, ids: Any, num_rows: int, *arguments: Any, **options: Any) -> Any:
        return getattr(islices.per_sample(upstream, ids, num_rows, **options), method)(*arguments)

    return call


def _samples_of_loss(table: Any, ids: Any, kind: str, **options: Any) -> Any:
    """Compute the per-sample gradients of an invalid loss. The call must raise an error. `kind` selects the mistake:
    the loss is not one number per sample, or a sample influences another sample's loss."""
    own = own_calls_of(islices.get_backend(table))

    def loss(t: Any) -> Any:
        rows, bags = islices.lookup(t, ids), islices.lookup(t, ids, combiner="sum")
        kinds: dict[str, Callable[[], Any]] = {
            "scalar": lambda: own.weighted_sum(bags, bags),
            "short": lambda: (bags * bags)[:1, 0],
            "shared": lambda: (bags * bags)[:, 0] + own.weighted_sum(bags, bags),
            "time-major": lambda: (rows[0] + rows[1])[:, 0],
        }
        return kinds[kind]()

    return gradients(loss, islices.Table(table), per_sample=True, **options)[0].sum()


def _optimizer_steps(
    name: str,
    hyper: dict[str, Any],
    table: Any,
    grads: list[Any],
    *,
    steps: int | None = None,
    state: dict[str, Any] | None = None,
    master: bool = False,
    **options: Any,
) -> Any:
    """Take several steps, and return the table and the state as one dict. The steps use the gradients in turn, and
    begin again after the last gradient. If a hyperparameter is a list, the steps use its numbers in the same manner."""
    hyper = {k: functools.partial(_in_turn, v) if isinstance(v, list) else v for k, v in hyper.items()}
    optimizer = getattr(islices.optim, name)(**hyper, **options)
    if state is None:
        state = optimizer.init(table, master=master)
    for k in range(len(grads) if steps is None else steps):
        table, state = optimizer.step(table, grads[k % len(grads)], state)
    return {"table": table, **state}  # pyright: ignore[reportGeneralTypeIssues]


def _in_turn(values: list[float], step: Any) -> Any:
    """Return the value of a schedule at a step, where `step` counts the earlier steps. If `step` is traced, it must be
    smaller than the length of `values`."""
    if isinstance(step, int):
        return values[step % len(values)]
    B = islices.get_backend(step)
    with B.scope():
        return B.take(B.asarray(np.array(values), step), B.reshape(step, (1,)))


#: The operations without a public function of the same name.
SPECIAL_OPERATIONS: dict[str, Callable[..., Any]] = {
    "replace_values": _replace_values,
    "lookup_gradient": _lookup_gradient,
    "gradient": _gradient,
    "double_lookup_gradient": _double_lookup_gradient,
    "divide": operator.truediv,
    "clip_per_sample_sum": _clip_per_sample,
    "optimizer_steps": _optimizer_steps,
    "per_sample_clip_sum": _per_sample_clip_sum,
    "samples_of_loss": _samples_of_loss,
    **{f"per_sample_{method}": _per_sample(method) for method in ("norms", "slices", "sum", "to_dense")},
    **{f"scatter_{op}": functools.partial(islices.scatter, op=op) for op in OPERATORS},
    "__array__": np.asarray,
    "__len__": len,
    "__bool__": bool,
    "__setattr__": setattr,
}


def operation(name: str) -> Callable[..., Any]:
    return SPECIAL_OPERATIONS.get(name) or getattr(islices, name, None) or getattr(norms, name)
