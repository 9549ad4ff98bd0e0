"""What FBGEMM's table-batched embeddings do on the CPU: lookups, bags, and the steps that run in the backward pass.

FBGEMM is optional: ``pip install fbgemm-gpu-cpu==1.8.0``; 1.9 does not load beside torch 2.13.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from islices.conformance import oracle, oracle_embedding
from islices.conformance.data import Slices
from islices.conformance.operations import UnsupportedError
from islices.conformance.oracle_optim import optimizer_steps
from islices.conformance.tools.audit.inputs import ROWS, Given, gradients, plain
from islices.conformance.tools.audit.probe import Ask, probe

try:
    from fbgemm_gpu import split_table_batched_embeddings_ops_training as ops
    from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
except ModuleNotFoundError:
    raise
except (ImportError, OSError, AttributeError) as error:
    raise UnsupportedError(f"fbgemm_gpu does not load beside torch {torch.__version__}: {error}") from error

WIDTH = 4  # it takes multiples of 4
CODEGEN = "SplitTableBatchedEmbeddingBagsCodegen"
ROWWISE = "islices.optim.rowwise_adagrad(lr, semantics='fbgemm')"
Array = np.ndarray[Any, Any]


def wide(g: Given) -> Array:
    """A gradient's values, filled up with zeros."""
    return np.pad(g.values, ((0, 0), (0, WIDTH - g.values.shape[1])))


def slices(values: Any, indices: Any) -> Slices:
    return Slices(plain(np.array(values, np.float32)), plain(np.array(indices, np.int64)), (ROWS, WIDTH))


def layer(kind: str, start: Any = 1.0, features: int = 1, width: int = WIDTH, **options: Any) -> Any:
    """A table that features look up, of `start`."""
    spec = (ROWS, width, ops.EmbeddingLocation.HOST, ops.ComputeDevice.CPU)
    given: dict[str, Any] = {"learning_rate": 1.0, "feature_table_map": [0] * features, **options}
    made = ops.SplitTableBatchedEmbeddingBagsCodegen([spec], optimizer=getattr(EmbOptimType, kind), **given)
    made.split_embedding_weights()[0].copy_(torch.as_tensor(start))
    return made


def weights(made: Any) -> Array:
    return made.split_embedding_weights()[0].detach().float().numpy().astype(np.float64)  # type: ignore[no-any-return]


def stepped(made: Any, ids: Any, values: Any, bags: int = 1) -> Array:
    """The table after the backward pass of a bag for each id; other features' bags are empty."""
    ids, n = torch.as_tensor(np.array(ids, np.int64)), len(ids)
    offsets = torch.arange(n * bags + 1).clamp(max=n)
    made(ids, offsets)[:, :WIDTH].backward(torch.as_tensor(np.array(values, np.float32)))
    return weights(made)


def exact(rule: str, grads: Sequence[Slices], start: float = 1.0, **options: Any) -> Array:
    """The table that clause 16 gives, to five decimals: how products are rounded is no question here."""
    table = plain(np.full((ROWS, WIDTH), start, np.float32))
    found = optimizer_steps(rule, {"lr": 1.0, **options}, table, list(grads))["table"]
    return np.array(found.data).reshape(ROWS, WIDTH).round(5)


# ---------------------------------------------------------------------- steps
RULES = {"EXACT_SGD": "sgd", "EXACT_ADAGRAD": "adagrad", "EXACT_ROWWISE_ADAGRAD": "rowwise_adagrad"}


def stepping(kind: str, claim: str) -> None:
    rule = RULES[kind]
    eps: dict[str, Any] = {} if rule == "sgd" else {"eps": 1e-8}

    @probe(
        "fbgemm_gpu", f"{CODEGEN}, EmbOptimType.{kind}", "16", trap="", claim=claim,
        instead=f"islices.optim.{rule}(lr, semantics='fbgemm')",
    )  # fmt: skip
    def ask() -> Iterator[Ask]:
        for g in gradients():
            call = partial(lambda g: stepped(layer(kind, learning_rate=0.5), g.indices, wide(g)).round(5), g)
            yield Ask(g.name, call, exact(rule, [slices(wide(g), g.indices)], lr=0.5, **eps))
        large = [[1e8] * WIDTH, [-1e8] * WIDTH]
        yield Ask("weights 1, 1e8 and -1e8 in one row", lambda: stepped(layer(kind), [1, 1], large), np.ones((ROWS, 4)))


stepping("EXACT_SGD", "duplicates are summed first")
stepping("EXACT_ADAGRAD", "duplicates are summed before they are squared; other rows keep their bits")
stepping("EXACT_ROWWISE_ADAGRAD", "duplicates are summed before they are squared; other rows keep their bits")


@probe(
    "fbgemm_gpu", f"{CODEGEN}, EmbOptimType.EXACT_SGD, float16 tables", "16", trap="", instead="islices.optim.sgd(lr)",
    claim="duplicates are summed in float32 and the weight is rounded once",
)  # fmt: skip
def half() -> Iterator[Ask]:
    made = layer("EXACT_SGD", 0.0, weights_precision=SparseType.FP16, stochastic_rounding=False)
    wanted = np.zeros((ROWS, WIDTH))
    wanted[1] = -4096
    yield Ask("4096 ones in a row", lambda: stepped(made, [1] * 4096, np.ones((4096, WIDTH))), wanted)


@probe(
    "fbgemm_gpu", f"{CODEGEN}, EmbOptimType.EXACT_ROWWISE_ADAGRAD, weight_decay", "16",
    instead="islices.optim.rowwise_adagrad(lr, weight_decay=..., semantics='fbgemm')",
    claim="with one feature a table the decay is taken and ignored, as it always is with WeightDecayMode.DECOUPLE",
)  # fmt: skip
def weight_decay() -> Iterator[Ask]:
    grad = [1.0, 2.0, 3.0, 4.0]
    factor = 0.1 / (np.sqrt(np.mean(np.square(grad))) + 1e-8)
    documented = {"L2": 1 - factor * (np.array(grad) + 0.5), "DECOUPLE": 1 - 0.1 * 0.5 - factor * np.array(grad)}

    def row(mode: str, features: int) -> Array:
        chosen = getattr(ops.WeightDecayMode, mode)
        options = {"learning_rate": 0.1, "weight_decay": 0.5, "weight_decay_mode": chosen}
        made = layer("EXACT_ROWWISE_ADAGRAD", features=features, **options)
        return stepped(made, [1], [grad], features)[1].round(5)  # type: ignore[no-any-return]

    for mode, wanted in documented.items():
        for features in (1, 2):
            name = f"weight_decay=0.5, WeightDecayMode.{mode}, features of the table: {features}"
            yield Ask(name, partial(row, mode, features), wanted.round(5))


@probe(
    "fbgemm_gpu", f"{CODEGEN}, EmbOptimType.ADAM", "16", trap="raises", instead="islices.optim.adam(lr)",
    claim="on the CPU there are SGD and two kinds of Adagrad; the others are refused",
)  # fmt: skip
def adam() -> Iterator[Ask]:
    g = next(gradients("duplicates"))
    call = partial(lambda: stepped(layer("ADAM", learning_rate=0.5), g.indices, wide(g)).round(5))
    yield Ask(g.name, call, exact("adam", [slices(wide(g), g.indices)], lr=0.5))


@probe(
    "fbgemm_gpu", f"{CODEGEN}(max_norm=...)", "19", instead="islices.renorm_rows(table, ids, max_norm)",
    claim="it is taken and ignored on the CPU: the rows grow past the bound",
)  # fmt: skip
def max_norm() -> Iterator[Ask]:
    free = stepped(layer("EXACT_ROWWISE_ADAGRAD"), [1], np.eye(1, WIDTH))
    wanted = oracle_embedding.renorm_rows(plain(free.astype(np.float32)), plain(np.array([1])), 0.5)
    made = partial(layer, "EXACT_ROWWISE_ADAGRAD", max_norm=0.5)
    yield Ask("max_norm=0.5, row 1 of length 2", lambda: stepped(made(), [1], np.eye(1, WIDTH)), wanted)


@probe(
    "fbgemm_gpu", f"{CODEGEN}(gradient_clipping=True, max_gradient=5.0)", "9",
    instead="islices.clip_by_value(gradient, -5.0, 5.0)",
    claim="the gradient of each bag is clipped, duplicates are summed afterwards",
)  # fmt: skip
def clipping() -> Iterator[Ask]:
    for g in gradients():
        made = partial(layer, "EXACT_SGD", gradient_clipping=True, max_gradient=5.0)
        clipped = oracle.clip_by_value(slices(wide(g), g.indices), -5.0, 5.0)
        call = partial(lambda g, made: stepped(made(), g.indices, wide(g)), g, made)
        yield Ask(g.name, call, exact("sgd", [clipped]))


@probe(
    "fbgemm_gpu", f"{CODEGEN}, a table looked up twice", "16", instead=f"{ROWWISE}, on islices.add(x, y)",
    claim="each lookup of a loss takes a step of its own, on its own part of the gradient",
)  # fmt: skip
def looked_up_twice() -> Iterator[Ask]:
    def call() -> Any:
        made = layer("EXACT_ROWWISE_ADAGRAD")
        ids, offsets = torch.tensor([1]), torch.tensor([0, 1])
        (made(ids, offsets) + made(ids, offsets)).backward(torch.full((1, WIDTH), 3.0))
        return weights(made).round(5)

    wanted = exact("rowwise_adagrad", [slices([[6.0] * WIDTH], [1])])
    yield Ask("gradients 3 and 3 of row 1", call, wanted)


@probe(
    "fbgemm_gpu", f"{CODEGEN}, widths that are no multiples of 4", "16", trap="raises", instead=ROWWISE,
    claim="they are refused",
)  # fmt: skip
def widths() -> Iterator[Ask]:
    for width in (1, 2, 3):
        call = partial(lambda w: list(weights(layer("EXACT_SGD", width=w)).shape), width)
        yield Ask(f"tables of width {width}: their shape", call, [ROWS, width])


# ---------------------------------------------------------------------- ids and bags
OFFSETS, MEMBERS = [0, 3, 3], [1, 2, 1, 3, 0]
TABLE = np.arange(1.0, ROWS * WIDTH + 1, dtype=np.float32).reshape(ROWS, WIDTH)
UPSTREAM = np.arange(1.0, len(OFFSETS) * WIDTH + 1, dtype=np.float32).reshape(-1, WIDTH) * 6


@probe(
    "fbgemm_gpu", f"{CODEGEN}, ids out of range", "2", instead="islices.lookup(table, ids)",
    claim="an id past the last row is taken for row 0, which is read and trained; only the log tells",
)  # fmt: skip
def out_of_range() -> Iterator[Ask]:
    def call(index: int) -> str:
        made = layer("EXACT_SGD")
        try:
            moved = np.flatnonzero((stepped(made, [2, index], np.ones((2, WIDTH))) != 1).any(1))
        except RuntimeError:
            return "refused"
        return f"accepted, rows {', '.join(map(str, moved))} have moved"

    for index in (-1, ROWS):
        yield Ask(f"ids 2, {index}", partial(call, index), "refused")


@probe(
    "fbgemm_gpu", f"{CODEGEN}, offsets that do not fit the ids", "19",
    instead="islices.lookup(table, ids, combiner='sum', offsets=offsets)",
    claim="they are made to fit, and only the log tells: the last bag takes all ids that are left",
)  # fmt: skip
def bad_offsets() -> Iterator[Ask]:
    def call(offsets: list[int]) -> Any:
        try:
            return layer("EXACT_SGD", TABLE)(torch.tensor([1, 2, 1]), torch.tensor(offsets)).detach().numpy()
        except RuntimeError:
            return "refused"

    yield Ask("3 ids, offsets [0, 1, 2]", partial(call, [0, 1, 2]), TABLE[1:3])
    for offsets in ([0, 2, 1, 3], [0, 1, 400]):
        yield Ask(f"3 ids, offsets {offsets}", partial(call, offsets),
                  "refused")  # fmt: skip


def bags(mode: str, trap: str, claim: str, factors: Sequence[float] | None = None) -> None:
    """A probe of bags of 3, 0 and 2 members: what is looked up, and how a step of 1 moves the table."""
    more = "" if factors is None else ", weights=weights"
    shown = f"{CODEGEN}, PoolingMode.{mode.upper()}" + (", per_sample_weights" if factors is not None else "")
    instead = f"islices.lookup(table, ids, combiner='{mode}', offsets=offsets{more})"

    @probe("fbgemm_gpu", shown, "19", trap=trap, claim=claim, instead=instead)
    def ask() -> Iterator[Ask]:
        w: dict[str, Any] = {} if factors is None else {"weights": plain(np.array(factors, np.float32))}
        ids, offsets = plain(np.array(MEMBERS)), plain(np.array(OFFSETS))
        found = oracle_embedding.lookup(plain(TABLE), ids, combiner=mode, offsets=offsets, **w)
        got = oracle_embedding.lookup_gradient(plain(TABLE), ids, plain(UPSTREAM), combiner=mode, offsets=offsets, **w)
        moved = oracle.to_dense(got[0] if isinstance(got, tuple) else got)
        rows = np.array(found.data).reshape(len(OFFSETS), WIDTH)
        yield Ask("what is looked up", lambda: pooled(mode, factors)[0].round(4), rows.round(4))
        step = np.array(moved.data).reshape(ROWS, WIDTH)
        yield Ask("the gradient", lambda: pooled(mode, factors)[1].round(4), step.round(4))


def pooled(mode: str, factors: Sequence[float] | None) -> tuple[Array, Array]:
    """(what is looked up, what a step of 1 subtracts)"""
    made = layer("EXACT_SGD", TABLE, pooling_mode=getattr(ops.PoolingMode, mode.upper()))
    given = None if factors is None else torch.tensor(factors)
    ids, offsets = torch.tensor(MEMBERS), torch.tensor([*OFFSETS, len(MEMBERS)])
    out = made(ids, offsets, per_sample_weights=given)
    found = out.detach().numpy().astype(np.float64)
    out.backward(torch.from_numpy(UPSTREAM))
    return found, TABLE - weights(made)


bags("sum", "", "right, empty bags and duplicates included")
bags("mean", "", "right, empty bags and duplicates included")
bags("sum", "", "right", [1.0, 2.0, -1.0, 0.5, 4.0])
bags(
    "mean", "differs", "it divides by the number of ids, not by the sum of their weights", [1.0, 2.0, 3.0, 0.5, 1.5]
)  # fmt: skip
