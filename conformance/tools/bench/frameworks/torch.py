"""Define torch's calls for the bench. Steps use torch's optimizers or FBGEMM, which is optional, or are written by
hand."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import torch
from torch.nn import functional

from islices import Table, lookup, value_and_grad
from islices.backends.torch import clip_grad_norm_, optim
from islices.conformance.tools.bench.rates import BETA1, BETA2, EPS, RATE, corrections, shapes
from islices.conformance.tools.bench.rounds import Call
from islices.conformance.tools.bench.step import LOSS_SCALE, MAX_NORM, Problem
from islices.conformance.tools.bench.variants import Ready, Way

ones, table, total = torch.ones, torch.from_numpy, torch.sum
#: optimizer -> its hyperparameters in `rates.OPTIMIZERS` except the learning rate, with the names of torch's arguments
NUMBERS: dict[str, dict[str, Any]] = {
    "sgd": {}, "adagrad": {"eps": EPS}, "rowwise_adagrad": {"eps": EPS}, "adam": {"betas": (BETA1, BETA2), "eps": EPS},
}  # fmt: skip
OURS: dict[str, Any] = {
    "sgd": optim.SGD, "adagrad": optim.Adagrad, "rowwise_adagrad": optim.RowwiseAdagrad, "adam": optim.Adam,
}  # fmt: skip
THEIRS: dict[str, Any] = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad, "adam": torch.optim.SparseAdam}
FBGEMM = {"sgd": "EXACT_SGD", "adagrad": "EXACT_ADAGRAD", "rowwise_adagrad": "EXACT_ROWWISE_ADAGRAD"}


def zeros(shape: tuple[int, ...]) -> Any:
    return torch.empty(shape).zero_()


def compiled(step: Callable[..., Any], tables: Any, states: Any) -> Callable[..., Any]:
    return torch.compile(step, fullgraph=True)


def _states(kind: str, rows: int, dim: int) -> list[torch.Tensor]:
    return [zeros(shape) for shape in shapes(kind, rows, dim)]


def _on_rows(kind: str, arrays: list[torch.Tensor], ids: torch.Tensor, g: torch.Tensor, t: int) -> None:
    """Update `arrays`, the table and its state, in place. `ids` are row numbers, and g has one gradient
    per id. Only sgd accepts duplicate ids."""
    w, *state = arrays
    if kind == "sgd":
        w.index_add_(0, ids, g, alpha=-RATE)
    elif kind == "adam":
        m, v = (x.index_select(0, ids) for x in state)
        m.lerp_(g, 1 - BETA1)
        v.mul_(BETA2).addcmul_(g, g, value=1 - BETA2)
        for x, rows in zip(state, (m, v), strict=True):
            x.index_copy_(0, ids, rows)
        rate, root = corrections(kind, t)
        w.index_add_(0, ids, m.div_(v.sqrt_().div_(root).add_(EPS)), alpha=-rate)
    else:
        squares = g.square() if kind == "adagrad" else g.square().mean(1, keepdim=True)
        total = state[0].index_select(0, ids).add_(squares)
        state[0].index_copy_(0, ids, total)
        w.index_add_(0, ids, g / total.sqrt_().add_(EPS), alpha=-RATE)


def _fbgemm(kind: str, start: Sequence[Any]) -> tuple[Any, list[Any]]:
    """Return FBGEMM's layer and views of its tables. The layer sums the rows of each bag, and runs the optimizer in the
    backward pass."""
    # pip install fbgemm-gpu-cpu==1.8.0; version 1.9 does not load with torch 2.13
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    layer = SplitTableBatchedEmbeddingBagsCodegen(
        [(*x.shape, EmbeddingLocation.HOST, ComputeDevice.CPU) for x in start],
        optimizer=EmbOptimType[FBGEMM[kind]], learning_rate=RATE, **NUMBERS[kind],
    )  # fmt: skip
    tables = [x.detach() for x in layer.split_embedding_weights()]
    for table, x in zip(tables, start, strict=True):
        table.copy_(torch.from_numpy(x))
    return layer, tables


def _has_fbgemm(kind: str) -> bool:
    return kind in FBGEMM and importlib.util.find_spec("fbgemm_gpu") is not None


# ---------------------------------------------------------------------- a step on a gradient
def updates(kind: str, values: Any, ids: Any, rows: int) -> dict[str, Ready]:
    v, i, dim = torch.from_numpy(values), torch.from_numpy(ids), values.shape[1]

    def optimizer() -> Way:
        parameter = torch.nn.Parameter(zeros((rows, dim)))
        theirs = THEIRS[kind]([parameter], RATE, **NUMBERS[kind])

        def step() -> None:  # a new gradient for each call, because torch coalesces a gradient only once
            parameter.grad = torch.sparse_coo_tensor(
                i[None], v, (rows, dim), is_coalesced=False, check_invariants=False
            )
            theirs.step()

        return Way(step, lambda: [parameter.detach()])

    def index_add() -> Way:
        table = zeros((rows, dim))
        return Way(lambda: table.index_add_(0, i, v, alpha=-RATE), lambda: [table])

    def by_hand() -> Way:
        arrays, times = [zeros((rows, dim)), *_states(kind, rows, dim)], count(1)

        def step() -> None:
            distinct, place = torch.unique(i, return_inverse=True)
            _on_rows(kind, arrays, distinct, v.new_zeros((len(distinct), dim)).index_add_(0, place, v), next(times))

        return Way(step, lambda: arrays[:1])

    variants: dict[str, Ready] = {f"optim.{THEIRS[kind].__name__}": optimizer} if kind in THEIRS else {}
    label, ready = ("index_add_", index_add) if kind == "sgd" else ("unique + index_add_, optimizer by hand", by_hand)
    return variants | {label: ready}


# ---------------------------------------------------------------------- whole steps
def _loss(bags: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (bags - target).square().sum() * (0.5 * LOSS_SCALE)


def _backward(problem: Problem, stepped: Callable[[list[Any]], Callable[[], None]]) -> Way:
    """Return an implementation that runs torch's sparse backward pass and then a step. `stepped(parameters)` returns
    the function that takes the step."""
    parameters = [torch.nn.Parameter(torch.from_numpy(x)) for x in problem.start()]
    step, feed = stepped(parameters), problem.feed(torch.from_numpy, torch.from_numpy)

    def bags_of(ids: torch.Tensor, table: Any) -> torch.Tensor:
        if ids.ndim == 1:
            return functional.embedding(ids, table, sparse=True)
        return functional.embedding_bag(ids, table, mode="sum", sparse=True)

    def call() -> Any:
        ids, target = next(feed)
        bags = [bags_of(x, table) for x, table in zip(ids, parameters, strict=True)]
        loss = _loss(sum(bags[1:], bags[0]), target)
        loss.backward()
        step()
        return loss.detach()

    return Way(call, lambda: [p.detach() for p in parameters])


def _by_class(problem: Problem, make: Any, clip: Callable[[list[Any]], Any] | None, **options: Any) -> Ready:
    """Return a function that makes an implementation. The implementation runs torch's sparse backward pass, then `clip`
    if it is given, then the step of the optimizer class `make`."""

    def stepped(parameters: list[Any]) -> Callable[[], None]:
        optimizer = make(parameters, lr=RATE, **NUMBERS[problem.case.optimizer], **options)

        def step() -> None:
            if clip:
                clip(parameters)
            optimizer.step()
            optimizer.zero_grad()

        return step

    return lambda: _backward(problem, stepped)


def more_of_ours(problem: Problem) -> dict[str, Ready]:
    make = OURS[problem.case.optimizer]
    label = f"islices, optim.{make.__name__} for torch"
    if not problem.case.clip:
        return {label: _by_class(problem, make, None)}
    return {
        f"{label}, max_norm=": _by_class(problem, make, None, max_norm=MAX_NORM),
        f"{label}, clip_grad_norm_": _by_class(problem, make, lambda p: clip_grad_norm_(p, MAX_NORM)),
    }


def _clip_coalesced(parameters: list[Any]) -> None:
    """Coalesce the gradients and clip them by hand, because `torch.nn.utils.clip_grad_norm_` raises an error for sparse
    gradients."""
    for p in parameters:
        p.grad = p.grad.coalesce()
    total = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(p.grad._values()) for p in parameters]))
    factor = torch.clamp(MAX_NORM / (total + 1e-6), max=1.0)
    for p in parameters:
        p.grad._values().mul_(factor)


def steps(problem: Problem) -> dict[str, Ready]:
    case, model = problem.case, problem.case.model
    kind = case.optimizer

    def on_coalesced(parameters: list[Any]) -> Callable[[], None]:
        states, times = [_states(kind, len(p), model.dim) for p in parameters], count(1)

        def step() -> None:
            t = next(times)
            if case.clip:
                _clip_coalesced(parameters)
            for p, state in zip(parameters, states, strict=True):
                g = p.grad if kind == "sgd" else p.grad.coalesce()
                _on_rows(kind, [p.detach(), *state], g._indices()[0], g._values(), t)
                p.grad = None

        return step

    def of_upstream() -> Way:
        """Return an implementation that sums the gradients of rows directly from the gradient of the bags. The
        implementation does not make one slice per id."""
        (start,) = problem.start()
        arrays, times = [torch.from_numpy(start), *_states(kind, *start.shape)], count(1)
        feed = problem.feed(torch.from_numpy, torch.from_numpy)
        bag_of = torch.arange(model.bags).repeat_interleave(model.ids)

        def call() -> Any:
            (ids,), target = next(feed)
            bags = functional.embedding_bag(ids, arrays[0], mode="sum").requires_grad_()
            loss = _loss(bags, target)
            (upstream,) = torch.autograd.grad(loss, bags)
            ordered, order = torch.sort(ids.reshape(-1))
            first = torch.ones(len(ordered), dtype=torch.bool)
            torch.ne(ordered[1:], ordered[:-1], out=first[1:])
            starts = first.nonzero()[:, 0]
            g = functional.embedding_bag(bag_of[order], upstream, starts, mode="sum")
            if case.clip:
                g.mul_(torch.clamp(MAX_NORM / (torch.linalg.vector_norm(g) + 1e-6), max=1.0))
            _on_rows(kind, arrays, ordered[starts], g, next(times))
            return loss.detach()

        return Way(call, lambda: arrays[:1])

    def fbgemm() -> Way:
        layer, tables = _fbgemm(kind, problem.start())
        offsets = torch.arange(len(model.rows) * model.bags + 1) * model.ids
        feed = problem.feed(lambda x: torch.from_numpy(x).reshape(-1), torch.from_numpy)

        def call() -> Any:
            ids, target = next(feed)
            bags = layer(torch.cat(ids), offsets).reshape(model.bags, len(model.rows), model.dim).sum(1)
            loss = _loss(bags, target)
            loss.backward()
            return loss.detach()

        return Way(call, lambda: tables)

    variants: dict[str, Ready] = {"backward, coalesce(), optimizer by hand": lambda: _backward(problem, on_coalesced)}
    if kind in THEIRS:
        clip = _clip_coalesced if case.clip else None
        variants[f"torch.optim.{THEIRS[kind].__name__}"] = _by_class(problem, THEIRS[kind], clip)
    if len(model.rows) == 1:
        variants["sort ids, embedding_bag of the upstream gradient, optimizer by hand"] = of_upstream
    if _has_fbgemm(kind) and not case.clip:  # the backward pass includes the step, so gradients cannot be clipped
        variants["FBGEMM, fused step"] = fbgemm
    return variants


# ---------------------------------------------------------------------- small calls
def small(values: Any, ids: Any, rows: int, max_norm: float) -> dict[str, dict[str, Call]]:
    v, shape = torch.from_numpy(values), (rows, values.shape[1])
    gradient = torch.sparse_coo_tensor(torch.from_numpy(ids)[None], v, shape, check_invariants=False)
    dense, table = torch.nn.Parameter(torch.zeros_like(v)), torch.nn.Parameter(zeros(shape))
    dense.grad, table.grad = v.clone(), gradient

    def by_hand() -> Any:
        return v * torch.clamp(max_norm / (torch.linalg.vector_norm(v) + 1e-6), max=1.0)

    return {
        "coalesce": {"coalesce()": gradient.coalesce},
        "clip_by_global_norm": {
            "nn.utils.clip_grad_norm_ (of dense values)": lambda: torch.nn.utils.clip_grad_norm_([dense], max_norm),
            "vector_norm, clamp, * (of dense values)": by_hand,
        },
        "sgd step": {"optim.SGD.step": torch.optim.SGD([table], RATE).step},
    }


# ---------------------------------------------------------------------- gradients
def gradient(table: Any, ids: Any, upstream: Any) -> dict[str, Call]:
    i, u, wrapped = torch.from_numpy(ids), torch.from_numpy(upstream), Table(table)
    step = value_and_grad(lambda table: (lookup(table, i) * u).sum())
    parameter = table.detach().requires_grad_(True)

    def ours() -> Any:
        value, g = step(wrapped)
        return value, g.values, g.indices

    def own() -> Any:
        loss = (functional.embedding(i, parameter, sparse=True) * u).sum()
        (g,) = torch.autograd.grad(loss, parameter)
        return loss, g._values(), g._indices()[0]

    return {"islices": ours, "embedding(sparse=True), backward": own}
