"""Define the functions that Dynamo traces in place of functions of islices.

Calls of some functions become nodes of the graph (`islices.backends.torch.nodes`). value_and_grad is traced, because
Dynamo must trace the user's function. Reads of attributes of `IndexedSlices` are traced too. All other calls of islices
are graph breaks and run eagerly. Calls whose result a graph cannot represent are graph breaks too. So is a call through
which a gradient passes, except a lookup in a `Table` that value_and_grad differentiates. SPEC clause 17. May import:
`torch`, the core, `islices.backends.torch`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from islices.backend import Slots, Source
from islices.backends.torch import tracers
from islices.backends.torch.adapter import FLOATS, backend
from islices.backends.torch.hooked_layers import INSIDE
from islices.backends.torch.nodes import ABSENT, NODES, NOTHING, PUBLIC, Read
from islices.core import slots
from islices.core.slices import IndexedSlices
from islices.core.slots import SlotValues
from islices.embedding import autodiff
from islices.embedding import capture as models
from islices.embedding import lookup as lookups
from islices.embedding.bags import LINEAR
from islices.embedding.table import Table
from islices.embedding.transformed import transformed
from islices.optim import Optimizer, optimizer

# name -> node. `substitute` fills this dict, and registers IndexedSlices, Table and Optimizer with torch's pytrees.
_nodes: dict[str, Callable[..., Any]] = {}


def substitute() -> None:
    """Make Dynamo trace the functions of this module in place of functions of islices. Only the first call has an
    effect.

    The caller must check that torch has the required hooks.
    """
    if _nodes:
        return
    pytree.register_pytree_node(IndexedSlices, _slices_apart, _slices_together)
    pytree.register_pytree_node(
        Table,
        lambda table: ([table._source.weights], (table.padding_idx, table.scale_by_freq)),
        lambda parts, known: Table._trusted(backend, Source(*parts), *known),
    )
    pytree.register_constant(Optimizer)
    # by default a graph may not contain autograd.grad, and traced code may change only the settings in this tuple
    decorators: Any = torch._dynamo.decorators
    decorators._allowed_config_patches = (*decorators._allowed_config_patches, "trace_autograd_ops")
    for name, node in NODES.items():
        _nodes[name] = torch._dynamo.nonstrict_trace(node.__call__)
    substitutes: dict[Any, Callable[..., Any]] = {
        **{node.function: _as_node(_nodes[node.name]) for node in PUBLIC},
        slots._values_of: values_of,
        # Dynamo inlines the substitute of a method, and also substitutes functions that this substitute calls
        Optimizer.step: step,
        optimizer.step_tables: step_tables,
        vars(IndexedSlices)["values"].fget: _values,
        vars(IndexedSlices)["indices"].fget: _indices,
        vars(IndexedSlices)["dtype"].fget: _dtype,
        vars(IndexedSlices)["shape"].fget: _shape,
        tracers.is_traced: is_traced,
        lookups.lookup: lookup,
        autodiff._differentiate: differentiate,
        autodiff.value_and_grad: value_and_grad,
        models.capture: capture,
    }
    for original, traced in substitutes.items():
        torch.compiler.substitute_in_graph(original, skip_signature_check=True)(traced)


def _slots_in(s: IndexedSlices) -> Any:
    """Return the slots from which the values of the slices are computed, or None if the slices store the values.
    `islices.core.slots.slots_in` does the same, but Dynamo does not trace that function."""
    values: Any = s._values
    return values.slots if isinstance(values, SlotValues) else None


def _values(self: IndexedSlices) -> Any:
    """Substitute for `IndexedSlices.values`."""
    return self._values if _slots_in(self) is None else values_of(self)


def _indices(self: IndexedSlices) -> Any:
    """Substitute for `IndexedSlices.indices`."""
    return self._indices


def _dtype(self: IndexedSlices) -> Any:
    """Substitute for `IndexedSlices.dtype`."""
    slots = _slots_in(self)
    return (self.values if slots is None else slots.values).dtype


def _shape(self: IndexedSlices) -> Any:
    """Substitute for `IndexedSlices.shape`."""
    return self.dense_shape


def is_traced(x: Any) -> bool:
    """Substitute for `islices.backends.torch.tracers.is_traced`: every tensor of a graph is traced."""
    return True


# ---------------------------------------------------------------------- our objects, taken apart and put together
def _slices_apart(s: IndexedSlices) -> tuple[list[Any], Any]:
    slots = _slots_in(s)
    parts = [s.values if slots is None else slots.values, s.indices, *((None, None) if slots is None else slots[3:])]
    there = [x is not None for x in parts]  # a graph returns no None
    return [x for x in parts if x is not None], (s.dense_shape, s.coalesced, s.padded, *there)


def _slices_together(parts: Any, known: Any) -> IndexedSlices:
    (shape, coalesced, padded, *there), rest = known, iter(parts)
    values, indices, positions, factor = [next(rest) if x else None for x in there]
    if positions is not None or factor is not None:
        slots, values = Slots(values, indices, shape[0], positions, factor), object.__new__(SlotValues)
        object.__setattr__(values, "slots", slots)
        object.__setattr__(values, "values", None)
    s = object.__new__(IndexedSlices)  # Dynamo can trace this call and the calls below
    held = {"backend": backend, "_values": values, "_indices": indices, "dense_shape": shape}
    for name, x in {**held, "coalesced": coalesced, "padded": padded}.items():
        object.__setattr__(s, name, x)
    return s


# ---------------------------------------------------------------------- calls that become nodes
def _break(reason: str) -> None:
    torch._dynamo.graph_break(msg=f"islices: {reason}: this call runs in eager code")


def _records(tree: Any) -> bool:
    """Return True if autograd records operations on a tensor in the tree."""
    leaves = pytree.tree_leaves(tree)
    return torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in leaves)


def _as_node(node: Callable[..., Any]) -> Callable[..., Any]:
    def traced(*args: Any, **kwargs: Any) -> Any:
        if _records((args, kwargs)):
            _break("a gradient passes through it")
        return _called(node, *args, **kwargs)

    return traced


def _called(node: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a node. A graph cannot contain None. So this function replaces None among the arguments by `NOTHING`, and
    each tensor of dtype `ABSENT` among the results by None."""
    args, kwargs = pytree.tree_map(lambda x: NOTHING if x is None else x, (args, kwargs), is_leaf=_is_ours)
    out = node(*args, **kwargs)
    return pytree.tree_map(lambda x: None if isinstance(x, Tensor) and x.dtype == ABSENT else x, out, is_leaf=_is_ours)


def _is_ours(x: Any) -> bool:
    return isinstance(x, (IndexedSlices, Optimizer, Table))


def values_of(s: IndexedSlices) -> Tensor:
    """Substitute for `islices.core.slots._values_of`. If the values of the slices are not computed yet, compute
    them."""
    return _called(_nodes["expanded"], s)  # type: ignore[no-any-return]


def step(self: Any, table: Any, grad: Any, state: Any, *, donate: bool = False, apply: Any = True) -> tuple[Any, Any]:
    """Substitute for `Optimizer.step`."""
    return step_tables(self, table, grad, state, donate, apply)


def step_tables(optimizer: Any, table: Any, grad: Any, state: Any, donate: bool, apply: Any) -> tuple[Any, Any]:
    """Substitute for `islices.optim.optimizer.step_tables`."""
    _called(_nodes["step"], optimizer, table, grad, state, apply=apply)
    return table, dict(state) if type(state) is dict else state


# ---------------------------------------------------------------------- value_and_grad
class Recorded:
    """An object that the differentiated function gets in place of a table. The object records lookups."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.reads: list[Read] = []

    def __getitem__(self, ids: Any) -> Any:
        return lookup(self, ids)


def capture(model: Any) -> Any:
    """Substitute for `islices.capture`. Break the graph, so that eager code raises the error for captures in compiled
    code."""
    torch._dynamo.graph_break(msg=INSIDE)
    return models.Capture(backend, model)


def lookup(table: Any, ids: Any, **options: Any) -> Any:
    """Substitute for `islices.lookup`."""
    if _records((table, options)) and not isinstance(table, Recorded):
        _break("a dense gradient passes through lookup")
    source = table.table if isinstance(table, Recorded) else table
    if isinstance(source, Table) and source._source.recorder is not None:
        _break("a gradient that is taken outside of the graph passes through lookup")
    if isinstance(source, Tensor):
        _break("lookup in a tensor that is no Table")
    if not isinstance(ids, Tensor):
        _break("ragged ids")
    if _records(options):
        _break("a gradient passes through the weights of lookup")
    recorded = isinstance(table, Recorded) and torch.is_grad_enabled()
    # with these options, the gradient of the table needs more than the upstream gradient and ids
    needs_more = options.get("combiner") not in (None, *LINEAR)
    needs_more = needs_more or any(options.get(name) is not None for name in ("mask", "weights"))
    if recorded and needs_more:
        _break("lookup with a mask, weights or combiner='max' in a function that is differentiated")
    out = _called(_nodes["lookup"], source, ids, **options)
    if recorded:
        out = out.requires_grad_()
        table.reads.append((out, ids, options))
    return out


def value_and_grad(
    fn: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    *,
    has_aux: bool = False,
    sparse: Any = None,
    per_sample: bool = False,
    sample_axis: int = 0,
    check: bool = True,
) -> Callable[..., tuple[Any, Any]]:
    """Substitute for `islices.value_and_grad`."""
    numbers: tuple[Any, ...] = tuple(argnums) if isinstance(argnums, (list, tuple)) else (argnums,)
    if not numbers or len(set(numbers)) < len(numbers) or any(type(k) is not int for k in numbers):
        _break("argnums")
    if type(has_aux) is not bool or per_sample is not False or sparse is not None:
        _break("flags, or gradients per sample")
    return transformed(autodiff._differentiate, fn, autodiff.GradOptions(argnums, numbers, has_aux, None))


def differentiate(
    fn: Callable[..., Any], options: autodiff.GradOptions, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, Any]:
    """Substitute for `islices.embedding.autodiff._differentiate`."""
    argnums, numbers, has_aux, samples = options
    if samples is not None:
        _break("value_and_grad per sample")
    if any(not -len(args) <= k < len(args) for k in numbers):
        _break("argnums")
    places = [k % len(args) for k in numbers]
    leaves, spec = pytree.tree_flatten([args[k] for k in places], is_leaf=lambda x: type(x) not in (dict, list, tuple))
    tables: list[Recorded] = []
    variables: list[Tensor] = []
    faces = [_recorded(x, tables, variables) for x in leaves]
    full = list(args)
    for k, x in zip(places, pytree.tree_unflatten(faces, spec), strict=True):
        full[k] = x
    if not tables and not variables:
        _break("nothing to differentiate")
    with torch.enable_grad():
        out: Any = fn(*full, **kwargs)
        if has_aux and not (isinstance(out, (list, tuple)) and len(out) == 2):
            _break("what fn returned")
        loss: Any
        aux: Any
        loss, aux = out if has_aux else (out, None)
        if not isinstance(loss, Tensor) or loss.dtype not in FLOATS or loss.numel() != 1:
            _break("what fn returned as the loss")
        gradients = _gradients(loss, variables + [rows for t in tables for rows, _, _ in t.reads])
    loss = loss.detach()
    dense, rest = iter(gradients[: len(variables)]), iter(gradients[len(variables) :])
    found = []
    for x in faces:
        if isinstance(x, Recorded):
            reads = [(next(rest), ids, options) for _, ids, options in x.reads]
            found.append(_called(_nodes["lookup_gradient"], x.table, reads))
        else:
            found.append(next(dense) if isinstance(x, Tensor) and x.dtype in FLOATS else None)
    grads = tuple(pytree.tree_unflatten(found, spec))
    aux = pytree.tree_map(lambda x: x.detach() if isinstance(x, Tensor) and x.requires_grad else x, aux)
    value = (loss, aux) if has_aux else loss
    return value, grads if isinstance(argnums, (list, tuple)) else grads[0]


def _recorded(x: Any, tables: list[Recorded], variables: list[Tensor]) -> Any:
    """Return the object that the differentiated function gets in place of `x`, a leaf of its arguments.

    For a `Table`, append a new `Recorded` to `tables`, and return it. For a float tensor, append a tensor that requires
    a gradient to `variables`, and return this tensor. The tensor is `x` itself if autograd treats `x` as a leaf, `x`
    requires a gradient, and `variables` does not contain `x`. Else the tensor is detached from `x`. Any other tensor,
    None, a bool, an int, a float and a string stay the same. An object of another type breaks the graph, and so does a
    table or tensor that an outer differentiation records.
    """
    if isinstance(x, Recorded) or (isinstance(x, Table) and x._source.recorder is not None):
        _break("value_and_grad within a differentiation")
    if isinstance(x, Table):
        tables.append(Recorded(x))
        return tables[-1]
    if isinstance(x, Tensor) and x.dtype in FLOATS:
        if x.requires_grad and not x.is_leaf and torch.is_grad_enabled():
            _break("value_and_grad within a differentiation")
        known = any(x is y for y in variables)
        variables.append(x if x.requires_grad and x.is_leaf and not known else x.detach().requires_grad_())
        return variables[-1]
    if not (x is None or isinstance(x, (Tensor, bool, int, float, str))):  # only eager code can flatten the object
        _break(f"value_and_grad of an argument that holds a {type(x).__name__}")
    return x


def _gradients(loss: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    found: Sequence[Any] = [None] * len(inputs)
    if inputs and loss.requires_grad:
        with torch._dynamo.patch_dynamo_config(trace_autograd_ops=True):
            found = torch.autograd.grad(loss.reshape(()), inputs, allow_unused=True)
    return [torch.zeros_like(x).detach() if g is None else g for g, x in zip(found, inputs, strict=True)]
