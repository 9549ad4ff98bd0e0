"""Whole steps on torch: its compiler, its optimizers, FBGEMM's, and by hand."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from typing import Any

import torch
from torch._dynamo.exc import TorchDynamoException
from torch.nn import functional

from islices.backends.torch import clip_grad_norm_, optim
from islices.conformance.tools.bench.fbgemm_ways import fbgemm_model
from islices.conformance.tools.bench.limit import BETA1, BETA2, RATE
from islices.conformance.tools.bench.steps.model import LOSS_SCALE, MAX_NORM, Problem, Ready, Way
from islices.conformance.tools.bench.steps.ours import Framework, Step
from islices.conformance.tools.bench.update_ways import corrections, shapes

__all__ = ["FRAMEWORK"]

#: The numbers of `limit.OPTIMIZERS` by the names of torch's arguments.
NUMBERS: dict[str, dict[str, Any]] = {
    "sgd": {},
    "adagrad": {"eps": 1e-10},
    "rowwise_adagrad": {"eps": 1e-8},
    "adam": {"betas": (BETA1, BETA2), "eps": 1e-8},
}
OURS: dict[str, Any] = {
    "sgd": optim.SGD, "adagrad": optim.Adagrad, "rowwise_adagrad": optim.RowwiseAdagrad, "adam": optim.Adam,
}  # fmt: skip
THEIRS: dict[str, Any] = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad, "adam": torch.optim.SparseAdam}


def _loss(bags: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (bags - target).square().sum() * (0.5 * LOSS_SCALE)


def _feed(problem: Problem) -> Any:
    return cycle([([torch.from_numpy(x) for x in b.ids], torch.from_numpy(b.target)) for b in problem.batches])


# ---------------------------------------------------------------------- islices
def _compiled(step: Step, tables: Any, states: Any) -> tuple[Step, Callable[[], str]]:
    """In one graph; where a call breaks it, in several, and the remark says so."""
    run: Step = torch.compile(step, fullgraph=True)
    broken: list[str] = []

    def call(*given: Any) -> tuple[Any, Any, Any]:
        nonlocal run
        try:
            return run(*given)
        except TorchDynamoException as error:
            if broken:
                raise
            broken.append(str(error).strip().partition("\n")[0])
        torch._dynamo.reset()
        torch.set_grad_enabled(True)  # a trace that fails may leave it off
        run = torch.compile(step)
        return run(*given)

    return call, lambda: f"torch.compile breaks the graph: {broken[0]}" if broken else ""


def _by_classes(problem: Problem) -> dict[str, Ready]:
    kind, clip = problem.case.optimizer, problem.case.clip

    def ready(max_norm: float | None) -> Way:
        def stepped(parameters: list[Any]) -> Callable[[], None]:
            optimizer = OURS[kind](parameters, lr=RATE, max_norm=max_norm, **NUMBERS[kind])

            def step() -> None:
                if clip and max_norm is None:
                    clip_grad_norm_(parameters, MAX_NORM)
                optimizer.step()
                optimizer.zero_grad()

            return step

        return _backward(problem, stepped)

    label = f"islices, optim.{OURS[kind].__name__} for torch"
    if not clip:
        return {label: lambda: ready(None)}
    return {f"{label}, max_norm=": lambda: ready(MAX_NORM), f"{label}, clip_grad_norm_": lambda: ready(None)}


# ---------------------------------------------------------------------- what torch's users write
def _backward(problem: Problem, stepped: Callable[[list[Any]], Callable[[], None]]) -> Way:
    """torch's sparse backward pass, and a step on what it left."""
    parameters = [torch.nn.Parameter(torch.from_numpy(x)) for x in problem.start()]
    step, feed = stepped(parameters), _feed(problem)

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


def _clip_coalesced(parameters: list[Any]) -> None:
    """`torch.nn.utils.clip_grad_norm_`, which refuses sparse gradients, by hand."""
    for p in parameters:
        p.grad = p.grad.coalesce()
    total = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(p.grad._values()) for p in parameters]))
    factor = torch.clamp(MAX_NORM / (total + 1e-6), max=1.0)
    for p in parameters:
        p.grad._values().mul_(factor)


def _by_theirs(problem: Problem) -> Ready:
    kind, clip = problem.case.optimizer, problem.case.clip

    def stepped(parameters: list[Any]) -> Callable[[], None]:
        optimizer = THEIRS[kind](parameters, lr=RATE, **NUMBERS[kind])

        def step() -> None:
            if clip:
                _clip_coalesced(parameters)
            optimizer.step()
            optimizer.zero_grad()

        return step

    return lambda: _backward(problem, stepped)


def _on_rows(kind: str, arrays: list[torch.Tensor], ids: torch.Tensor, g: torch.Tensor, t: int) -> None:
    """The formula on the rows of distinct ids, in place where it can be."""
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
        w.index_add_(0, ids, m.div_(v.sqrt_().div_(root).add_(NUMBERS[kind]["eps"])), alpha=-rate)
    else:
        squares = g.square() if kind == "adagrad" else g.square().mean(1, keepdim=True)
        total = state[0].index_select(0, ids).add_(squares)
        state[0].index_copy_(0, ids, total)
        w.index_add_(0, ids, g / total.sqrt_().add_(NUMBERS[kind]["eps"]), alpha=-RATE)


def _coalesced(problem: Problem) -> Way:
    """torch's sparse gradient, coalesced, and the formula on its rows."""
    kind, dim = problem.case.optimizer, problem.case.model.dim

    def stepped(parameters: list[Any]) -> Callable[[], None]:
        states = [[torch.zeros(shape) for shape in shapes(kind, len(p), dim)[1:]] for p in parameters]
        t = 0

        def step() -> None:
            nonlocal t
            t += 1
            if problem.case.clip:
                _clip_coalesced(parameters)
            for p, state in zip(parameters, states, strict=True):
                g = p.grad if kind == "sgd" else p.grad.coalesce()
                _on_rows(kind, [p.detach(), *state], g._indices()[0], g._values(), t)
                p.grad = None

        return step

    return _backward(problem, stepped)


def _of_upstream(problem: Problem) -> Way:
    """The rows' sums straight from the gradient of the bags: no slice of an id is written."""
    (start,), (case, model) = problem.start(), (problem.case, problem.case.model)
    arrays = [torch.from_numpy(start), *(torch.zeros(shape) for shape in shapes(case.optimizer, *start.shape)[1:])]
    feed, t = _feed(problem), 0
    bag_of = torch.arange(model.bags).repeat_interleave(model.ids)

    def call() -> Any:
        nonlocal t
        t += 1
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
        _on_rows(case.optimizer, arrays, ordered[starts], g, t)
        return loss.detach()

    return Way(call, lambda: arrays[:1])


def _fbgemm(problem: Problem) -> dict[str, Ready]:
    """FBGEMM takes the step within the backward pass, so nothing can be clipped between."""
    case, model = problem.case, problem.case.model
    make = None if case.clip else fbgemm_model(case.optimizer, RATE, model.rows, model.dim)
    if make is None:
        return {}

    def ready() -> Way:
        layer, tables = make(problem.start())
        offsets = torch.arange(len(model.rows) * model.bags + 1) * model.ids
        given = [
            (torch.cat([torch.from_numpy(x).reshape(-1) for x in b.ids]), torch.from_numpy(b.target))
            for b in problem.batches
        ]
        feed = cycle(given)

        def call() -> Any:
            ids, target = next(feed)
            bags = layer(ids, offsets).reshape(model.bags, len(model.rows), model.dim).sum(1)
            loss = _loss(bags, target)
            loss.backward()
            return loss.detach()

        return Way(call, lambda: tables)

    return {"FBGEMM, fused step": ready}


def _own(problem: Problem) -> dict[str, Ready]:
    kind = problem.case.optimizer
    ways: dict[str, Ready] = {"backward, coalesce(), formula on rows": lambda: _coalesced(problem)}
    if kind in THEIRS:
        ways[f"torch.optim.{THEIRS[kind].__name__}"] = _by_theirs(problem)
    if len(problem.case.model.rows) == 1:
        ways["sort ids, embedding_bag of upstream, formula on rows"] = lambda: _of_upstream(problem)
    return ways | _fbgemm(problem)


FRAMEWORK = Framework(torch.from_numpy, torch.sum, _own, _compiled, _by_classes)
