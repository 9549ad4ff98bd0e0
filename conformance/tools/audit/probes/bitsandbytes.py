"""What bitsandbytes' optimizers do on the CPU, with row-sparse gradients and dense ones.

What its names promise is asked for: Adam's formula of bnb.optim.Adam, clause 16's at five decimals.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from islices.conformance.data import Slices
from islices.conformance.oracle_optim import optimizer_steps
from islices.conformance.tools.audit.inputs import ROWS, Given, gradients, plain
from islices.conformance.tools.audit.probe import Ask, probe

Array = np.ndarray[Any, Any]
bnb: Any = importlib.import_module("bitsandbytes")  # this module has its name


def native(g: Given) -> torch.Tensor:
    return torch.sparse_coo_tensor(torch.from_numpy(g.indices)[None], torch.from_numpy(g.values), (ROWS, 2))


def stepped(kind: str, grads: Sequence[torch.Tensor], start: Any = 1.0, **options: Any) -> Array:
    """A table of `start` after a step for each gradient."""
    table = torch.nn.Parameter(torch.as_tensor(start).expand(grads[0].shape).clone())
    optimizer = getattr(bnb.optim, kind)([table], **options)
    for gradient in grads:
        table.grad = gradient
        optimizer.step()
    return table.detach().numpy().astype(np.float64).round(5)


def exact(rule: str, grads: Sequence[Slices], rows: str = "all", **options: Any) -> Array:
    """The table of ones after the steps of clause 16, to five decimals: rounding is no question here."""
    found = optimizer_steps(rule, options, plain(np.ones((ROWS, 2), np.float32)), list(grads), rows=rows)["table"]
    return np.array(found.data).reshape(ROWS, 2).round(5)


def single(values: Sequence[float], row: int = 1) -> list[Slices]:
    """Gradients of one row, a step each."""
    ids = plain(np.array([row]))
    return [Slices(plain(np.full((1, 2), v, np.float32)), ids, (ROWS, 2)) for v in values]


def dense(values: Sequence[float], row: int = 1) -> list[torch.Tensor]:
    """The same as dense tensors."""
    out = [torch.zeros(ROWS, 2) for _ in values]
    for x, v in zip(out, values, strict=True):
        x[row] = v
    return out


# ---------------------------------------------------------------------- row-sparse gradients
#: class -> (the rule of clause 16, its options)
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "Adam": ("adam", {}),
    "AdamW": ("adamw", {"weight_decay": 0.0}),
    "SGD": ("sgd", {"momentum": 0.5}),
    "RMSprop": ("rmsprop", {}),
    "Adagrad": ("adagrad", {}),
    "Lion": ("lion", {}),
}


@probe(
    "bitsandbytes", "bitsandbytes.optim.Adam, AdamW, SGD, RMSprop, Adagrad, Lion: sparse gradients", "16",
    trap="raises", instead="islices.optim.adam(lr), adamw, sgd, rmsprop, adagrad, lion",
    claim="all raise an error about a memory format, although bitsandbytes.nn.Embedding takes sparse=True",
)  # fmt: skip
def sparse() -> Iterator[Ask]:
    (g,) = gradients("duplicates")
    for kind, (rule, options) in KINDS.items():
        call = partial(lambda kind, o: stepped(kind, [native(g)], lr=0.5, **o), kind, options)
        yield Ask(kind, call, exact(rule, [g.slices], "touched", lr=0.5, **options))


@probe(
    "bitsandbytes", "bitsandbytes.nn.Embedding(sparse=True)", "12", trap="", instead="islices.lookup(table, ids)",
    claim="the gradient has one slice for each id, in order",
)  # fmt: skip
def embedding() -> Iterator[Ask]:
    def call(ids: list[int]) -> Any:
        layer = bnb.nn.Embedding(ROWS, 2, sparse=True)
        layer(torch.tensor(ids)).sum().backward()
        return layer.weight.grad._indices()[0].numpy()

    for ids in ([2, 1], [1, 2, 1]):
        yield Ask(f"ids {ids}: indices", partial(call, ids), ids)


def lazy(skip: bool) -> Array:
    """A step with row 1, then one with row 2: what the second has done to row 1."""
    table = torch.nn.Parameter(torch.ones(ROWS, 2))
    manager = bnb.optim.GlobalOptimManager.get_instance()
    manager.register_parameters([table])
    if skip:
        manager.override_config(table, "skip_zeros", True)
    optimizer, rows = bnb.optim.Adam([table], lr=0.5), []
    for row in (1, 2):
        (table.grad,) = dense([4.0], row)
        optimizer.step()
        rows.append(table.detach().numpy()[1].copy())
    return rows[1] - rows[0]  # type: ignore[no-any-return]


@probe(
    "bitsandbytes", "GlobalOptimManager.override_config(table, 'skip_zeros', True)", "16",
    instead="islices.optim.adam(lr, rows='touched')",
    claim="it is taken and changes nothing on the CPU: rows whose gradient is zero move by the momentum they have",
)  # fmt: skip
def skip_zeros() -> Iterator[Ask]:
    yield Ask("a step with row 1, then one with row 2: row 1 moves by", partial(lazy, True), np.zeros(2))


# ---------------------------------------------------------------------- what an option does
@probe(
    "bitsandbytes", "bitsandbytes.optim.Adam, AdamW, SGD, RMSprop, Adagrad, Lion", "16", trap="",
    instead="islices.optim.adam(lr), adamw, sgd, rmsprop, adagrad, lion",
    claim="they are the documented formulas on dense gradients, to five decimals",
)  # fmt: skip
def formulas() -> Iterator[Ask]:
    values = [4.0, -1.0, 0.5]
    for kind, (rule, options) in KINDS.items():
        if rule in ("adagrad", "rmsprop"):
            options = {**options, "eps": 1e-8}
        ours = {**options, "rho": 0.99} if rule == "rmsprop" else options
        call = partial(lambda kind, o: stepped(kind, dense(values), lr=0.1, **o), kind, options)
        yield Ask(f"{kind}, three steps", call, exact(rule, single(values), lr=0.1, **ours))


def option(kind: str, rule: str, claim: str, issue: str, trap: str = "differs", **options: Any) -> None:
    """A probe of three steps in which an option matters."""
    given = ", ".join(f"{k}={v}" for k, v in options.items())

    @probe(
        "bitsandbytes", f"bitsandbytes.optim.{kind}({given})", "16", claim=claim, issue=issue, trap=trap,
        instead=f"islices.optim.{rule}(lr, {given}, rows='all')",
    )  # fmt: skip
    def ask() -> Iterator[Ask]:
        values = [10.0, 0.1, 0.1]
        common = {"weight_decay": 0.0, **options, "lr": 0.1}
        wanted = exact(rule, single(values), beta1=0.9, beta2=0.5, **common)
        yield Ask("three steps, betas 0.9 and 0.5", lambda: stepped(kind, dense(values), betas=(0.9, 0.5), **common),
                  wanted)  # fmt: skip


REPORT = "bitsandbytes-foundation/bitsandbytes#2010"
option("Adam", "adam", "it decays as AdamW does: the decay does not go through the moments", REPORT, weight_decay=0.5)
option("AdamW", "adamw", "the weights decay before the update, as documented", "", "", weight_decay=0.5)
option("Adam", "adam", "it is taken and ignored: the largest second moment is not kept", "", amsgrad=True)
option("AdamW", "adamw", "it is taken and ignored: the largest second moment is not kept", "", amsgrad=True)


@probe(
    "bitsandbytes", "bitsandbytes.optim.SGD(momentum=0)", "16", trap="raises", instead="islices.optim.sgd(lr)",
    claim="SGD without momentum is refused",
)  # fmt: skip
def plain_sgd() -> Iterator[Ask]:
    for given in ({}, {"momentum": 0.0}):
        name = "no momentum given" if not given else "momentum=0.0"
        yield Ask(name, partial(lambda o: stepped("SGD", dense([4.0]), lr=0.5, **o), given),
                  exact("sgd", single([4.0]), lr=0.5))  # fmt: skip


@probe(
    "bitsandbytes", "bitsandbytes.optim.Adam, the first step", "16", trap="", instead="islices.optim.adam(lr)",
    claim="the bias is corrected in float64",
)  # fmt: skip
def first_step() -> Iterator[Ask]:
    grads = [torch.ones(ROWS, 2)]
    yield Ask("gradient 1, lr 1", lambda: stepped("Adam", grads, 0.0, lr=1.0, eps=0.0), np.full((ROWS, 2), -1.0))


# ---------------------------------------------------------------------- eight bits
@probe(
    "bitsandbytes", "bitsandbytes.optim.AdamW8bit", "16", instead="islices.optim.adamw(lr)",
    claim="moments of 8 bits in blocks of 256: a row of small gradients beside one of large ones moves by another step",
)  # fmt: skip
def eight_bits() -> Iterator[Ask]:
    rows, width = 64, 128  # of fewer than 4,096 elements the moments keep their 32 bits
    scale = torch.ones(rows, 1)
    scale[1::2] = 1e-4
    grads = [torch.ones(rows, width) * scale] * 3

    def call(kind: Any) -> Array:
        table = torch.nn.Parameter(torch.zeros(rows, width))
        optimizer = kind([table], lr=0.5, weight_decay=0.0)
        for gradient in grads:
            table.grad = gradient.clone()
            optimizer.step()
        return table.detach().numpy()[:2, 0].astype(np.float64).round(3)

    wanted = call(torch.optim.AdamW)
    yield Ask("3 steps, gradients 1 and 1e-4 in turn: rows 0, 1", partial(call, bnb.optim.AdamW8bit), wanted)
    yield Ask("the same with AdamW", partial(call, bnb.optim.AdamW), wanted)
