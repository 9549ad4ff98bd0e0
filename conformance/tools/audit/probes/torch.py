"""Probes of PyTorch, mostly of sparse COO tensors. The probes cover sums, norms, clips, lookups, bags, memory, autograd
and optimizers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn.functional import embedding, embedding_bag

from islices.conformance.own_calls.torch import invalid_gradients
from islices.conformance.tools.audit.probe import REFUSED, CorruptionError, Probe
from islices.conformance.tools.audit.probe_inputs import (
    DUPLICATES,
    ROWS,
    UNIQUE,
    ZEROS,
    GivenGradient,
    floats,
    left_fold,
)

INF = float("inf")
IDS, ONES = torch.tensor([1, 2, 1]), torch.ones(ROWS, 2)
ADD, COALESCE, NORM, LOOKUP = (
    "islices.add(x, y)",
    "islices.coalesce(x)",
    "islices.norm(x, ord)",
    "islices.lookup(table, ids)",
)
CLIP = "islices.backends.torch.clip_grad_norm_(parameters, max_norm)"
CHECKED = "islices.from_native(x), or any function of islices: a native gradient is checked first"
UPDATE, SGD, SCALE = (
    "islices.scatter(table, x)",
    "islices.optim.sgd(lr)",
    "islices.coalesce(grad), then torch.isfinite of its values",
)
REFUSES, STAYS = "it refuses every sparse gradient", "the gradient has the size of the table"
SATURATES = "sums of 16-bit values stop growing: 4096 ones give 2048 and 256"


def sparse(indices: Any, values: Any, dtype: Any = torch.float32, **options: Any) -> torch.Tensor:
    values = torch.as_tensor(values, dtype=dtype)
    return torch.sparse_coo_tensor(torch.as_tensor(indices)[None], values, (ROWS, *values.shape[1:]), **options)


def native(g: GivenGradient) -> torch.Tensor:
    return sparse(g.indices, g.values)


X, U = native(DUPLICATES), native(UNIQUE)
HALF = sparse([0] * 4096, np.ones((4096, 1)), torch.float16)
SATURATED = [[4096], [0], [0], [0]]


def dense(x: Any) -> np.ndarray[Any, Any]:
    """Return a tensor as a dense float64 array. float64 represents every number of torch's other float formats
    exactly."""
    return x.detach().to_dense().double().numpy()  # type: ignore[no-any-return]


def table(values: Any = ONES, grad: Any = None) -> torch.nn.Parameter:
    parameter = torch.nn.Parameter(torch.as_tensor(values).clone())
    parameter.grad = grad
    return parameter


def clipped(gradient: torch.Tensor, clip: Any, *bounds: Any) -> Any:
    parameter = table(torch.zeros(gradient.shape), gradient.clone())
    clip([parameter], *bounds)
    return dense(parameter.grad)


def clip_norm(gradient: list[float], bound: float) -> Any:
    return clipped(torch.tensor(gradient, dtype=torch.float32), torch.nn.utils.clip_grad_norm_, bound)


def layout(read: Any) -> str:
    """Return the layout of the table's gradient after the lookup read(table, ids): "row-sparse" or "other"."""
    weight = table()
    read(weight, IDS).sum().backward()
    assert weight.grad is not None
    return "row-sparse" if weight.grad.layout is torch.sparse_coo and weight.grad.sparse_dim() == 1 else "other"


def looked_up(ids: Any = IDS, upstream: Any = None, **options: Any) -> Any:
    """Return the gradient of the table after a lookup. By default, the upstream gradient consists of ones."""
    weight = table()
    embedding(ids, weight, **{"sparse": True, **options}).backward(
        torch.ones(len(ids), 2) if upstream is None else upstream
    )
    return weight.grad


def overwritten(ids: torch.Tensor, upstream: torch.Tensor, part: str) -> Any:
    """Return a part of a lookup's gradient after the ids and the upstream gradient were overwritten. `part` is the name
    of a method, such as "_indices"."""
    gradient = looked_up(ids, upstream)
    ids.fill_(3)
    upstream.zero_()
    return getattr(gradient, part)()


def renormed() -> Any:
    weight = torch.tensor([[0.0009, 0.0012]])
    embedding(torch.tensor([0]), weight, max_norm=0.001)
    return weight


def bag(mode: str, **options: Any) -> Any:
    weight = table()
    embedding_bag(IDS, weight, torch.tensor([0, 2]), mode=mode, sparse=True, **options).sum().backward()
    return dense(weight.grad)


def per_sample() -> Any:
    loss = lambda weight, ids: embedding(ids, weight, sparse=True).sum()  # noqa: E731
    return dense(torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(table(), torch.tensor([[1], [2]])))


def within(buffer: torch.Tensor, write: Any) -> Any:
    """Call write(rows) on rows 4 to 7 of a buffer and return these rows. The other rows must be zeros; raise
    CorruptionError if one of them is not zero afterwards."""
    rows, others = buffer[4:8], [*range(4), *range(8, 12)]
    write(rows)
    if buffer[others].any():
        raise CorruptionError(f"memory beside the table changed: {dense(buffer).tolist()}")
    return dense(rows)


def step(weight: Any, x: torch.Tensor, kind: Any = torch.optim.SGD, **options: Any) -> Any:
    parameter = torch.nn.Parameter(weight)
    parameter.grad = x
    kind([parameter], **{"lr": 1.0, **options}).step()
    return dense(parameter)


def momentum_rows() -> int:
    parameter = table()
    optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
    for _ in range(10):
        parameter.grad = native(DUPLICATES)
        optimizer.step()
    return int(optimizer.state[parameter]["momentum_buffer"]._nnz())


def half_done() -> Any:
    first, second = table(grad=ONES), table(grad=U)
    try:
        torch.optim.SGD([first, second], lr=0.5, weight_decay=0.1).step()
    except RuntimeError:
        return dense(first)  # the table after the failed step
    return "it did not raise"


def scaled(value: float, dtype: Any) -> str:
    """Return "stepped" if a GradScaler takes the step, else "skipped". The gradient has two slices of one row, each
    with `value`."""
    parameter = table(ONES.to(dtype), sparse([1, 1], [[value, 0.0]] * 2, dtype))
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    scaler.scale(torch.ones(()))
    scaler.step(torch.optim.SGD([parameter], lr=1.0))
    return "stepped" if (dense(parameter) != 1).any() else "skipped"


LONG, LONG_IDS = floats(34).reshape(17, 2), np.arange(17) % 3
ROOTS = (np.random.default_rng(0).random(20_000) * 10).astype(np.float32)

# fmt: off
PROBES = [
    # ------------------------------------------------------------------ sums and linear operations
    Probe("torch.Tensor.coalesce", "3", "more than 16 slices are not summed in order of occurrence: other bits than to_dense",
          COALESCE, "17 slices of 3 rows", lambda: dense(sparse(LONG_IDS, LONG).coalesce()), left_fold(LONG, LONG_IDS)),
    Probe("torch.Tensor.coalesce, 16 bits", "3", SATURATES, COALESCE,
          "4096 ones, float16", lambda: dense(HALF.coalesce()), SATURATED),
    Probe("torch.Tensor.to_dense, 16 bits", "3", SATURATES, "islices.to_dense(x)",
          "4096 ones, float16", lambda: dense(HALF), SATURATED),
    Probe("sparse + dense", "6", "only dense + sparse works", ADD, "duplicates", lambda: dense(X + ONES), DUPLICATES.dense + 1, "raises"),
    Probe("torch.clamp", "6", REFUSES + ", coalesced or not", "islices.clip_by_value(x, -5.0, 5.0)",
          "unique rows", lambda: dense(U.coalesce().clamp(-5, 5)), UNIQUE.dense, "raises"),
    Probe("torch.Tensor.index_select", "13", "a row number out of range selects a row of zeros from a sparse tensor; a dense one raises",
          "islices.keep_rows(x, rows)", "row -1", lambda: X.index_select(0, torch.tensor([-1])), REFUSED),
    # ------------------------------------------------------------------ norms and clips
    Probe("torch.nn.utils.get_total_norm", "7", REFUSES, "islices.global_norm(gradients)",
          "duplicates", lambda: torch.nn.utils.get_total_norm([X]), 10.0, "raises"),
    Probe("torch.norm, large and 16-bit values", "7", "squares are summed in float32, which 1e20 overflows; float16 gradients have float16 norms",
          NORM, "four of 1e20", lambda: sparse([1, 2], np.full((2, 2), 1e20)).norm(), np.float32(2e20)),
    Probe("torch.norm, slices falsely claimed to be coalesced", "7", "it does not sum duplicates that are claimed not to be there: 1.41 for 2",
          CHECKED, "[1] twice in one row", lambda: sparse([1, 1], [[1.0], [1.0]], is_coalesced=True).norm(), 2.0),
    Probe("torch.nn.utils.clip_grad_norm_", "10", REFUSES, CLIP,
          "duplicates", lambda: clipped(X, torch.nn.utils.clip_grad_norm_, 5.0), DUPLICATES.dense / 2, "raises", "pytorch/pytorch#4829"),
    Probe("torch.nn.utils.clip_grad_value_", "9", REFUSES, "islices.backends.torch.clip_grad_value_(parameters, clip_value)",
          "duplicates", lambda: clipped(X, torch.nn.utils.clip_grad_value_, 5.0), DUPLICATES.dense.clip(-5, 5), "raises", "pytorch/pytorch#4829"),
    Probe("torch.nn.utils.clip_grad_norm_, dense, at max_norm", "10", "a gradient whose norm is max_norm is changed: 1e-6 is added",
          CLIP, "norm 10, max_norm 10", lambda: clip_norm([6, 8], 10.0), [6, 8]),
    Probe("torch.nn.utils.clip_grad_norm_, dense, infinite", "10", "what was finite beside an infinity becomes 0, not NaN",
          CLIP, "[6, inf]", lambda: clip_norm([6, INF], 5.0), [np.nan] * 2, issue="pytorch/pytorch#46849"),
    Probe("torch.nn.utils.clip_grad_norm_, dense, large", "10", "the norm of 1e20 overflows, and the gradient becomes zeros",
          CLIP, "four of 1e20, max_norm 4", lambda: clip_norm([1e20] * 4, 4.0), [2] * 4),
    Probe("torch.nn.utils.clip_grad_norm_(max_norm=-1)", "10", "a negative or NaN max_norm is taken: it turns the gradient around, or makes it NaN",
          CLIP, "-1", lambda: clip_norm([6, 8], -1.0), REFUSED, issue="pytorch/pytorch#31367"),
    Probe("torch.sqrt", "16", "some of its roots are not the nearest float32, nor the nearest float64", 'islices.get_backend("torch").sqrt(x)',
          "20,000 float32", lambda: torch.from_numpy(ROOTS).sqrt(), np.sqrt(ROOTS), issue="pytorch/pytorch#31250"),
    # ------------------------------------------------------------------ invalid input, and writes to wrong memory
    Probe("torch.sparse_coo_tensor, indices outside of the shape", "2", "it accepts indices that are negative, or not below rows",
          CHECKED, "negative index", invalid_gradients()["negative index"][0], REFUSED, issue="pytorch/pytorch#124168"),
    Probe("torch.sparse_coo_tensor(is_coalesced=True)", "2", "it believes that slices are coalesced which are unsorted, or have duplicates",
          CHECKED, "duplicates", invalid_gradients()["falsely coalesced, duplicates"][0], REFUSED),
    Probe("dense.add_(sparse), indices outside of the shape", "15", "uncoalesced slices whose index is outside of the table are dropped without a word",
          UPDATE, "rows 1 and 5 of 4", lambda: torch.zeros(ROWS, 1).add_(sparse([1, 5], [[1.0], [2.0]])), REFUSED),
    Probe("dense.add_(coalesced sparse), indices outside of the shape", "15",
          "slices known to be coalesced, or a single one, are written to memory before and behind the table", UPDATE, "rows [5] of 4",
          lambda: within(torch.zeros(12, 2), lambda rows: rows.add_(sparse([5], [[1.0, 1.0]], is_coalesced=True))), REFUSED, "corrupts"),
    Probe("torch.optim.SGD, indices outside of the shape", "16", "a step writes to memory before and behind the table", SGD,
          "row -2 of 4", lambda: within(torch.zeros(12, 2), lambda rows: step(rows, sparse([-2], [[1.0, 1.0]]))), REFUSED, "corrupts"),
    Probe("dense.add_(coalesced sparse), a table of numbers inside a larger tensor", "15",
          "valid slices of a one-dimensional table are written to another place: the table's offset in its storage is counted twice",
          UPDATE, "rows 1 and 2 of 4", lambda: within(torch.zeros(12), lambda rows: rows.add_(sparse([1, 2], [1.0, 2.0]).coalesce())),
          [0, 1, 2, 0], "corrupts"),
    Probe("torch.Tensor.coalesce, a negative index", "2", "it writes before its own memory: the process may end", CHECKED,
          "rows 1 and -1 of 4, a hundred times", lambda: [sparse([1, -1], torch.ones(2, 2)).coalesce() for _ in range(100)], REFUSED,
          "corrupts", "pytorch/pytorch#124168", True),
    Probe("torch.Tensor.to_dense, a huge index", "2", "it writes where the index points: the process ends", CHECKED,
          "row -2**40 of 4", lambda: sparse([-(2**40)], [[1.0, 1.0]]).to_dense(), REFUSED, "corrupts", "pytorch/pytorch#182662", True),
    # ------------------------------------------------------------------ lookups, bags, autograd
    Probe("embedding(sparse=True), its indices", "12", "they are the caller's ids themselves: what is written there changes the gradient",
          LOOKUP, "ids [1, 2], afterwards overwritten by 3", lambda: overwritten(torch.tensor([1, 2]), torch.ones(2, 2), "_indices"), [[1, 2]]),
    Probe("embedding(sparse=True, scale_grad_by_freq=True)", "12", "it refuses",
          "islices.embedding_grad(upstream, ids, num_rows, scale_by_freq=True)", "ids 1, 2, 1",
          lambda: dense(looked_up(scale_grad_by_freq=True)), [[0, 0], [1, 1], [1, 1], [0, 0]], "raises", "pytorch/pytorch#189720"),
    Probe("embedding(max_norm=...)", "12", "1e-7 is added to the norm of a row, so that rows come out shorter than max_norm",
          "islices.renorm_rows(table, ids, max_norm)", "row (0.0009, 0.0012) to 0.001", renormed, np.array([[0.0006, 0.0008]], "f4")),
    Probe("EmbeddingBag(mode='mean', sparse=True), weighted", "19", "only sums are weighted",
          'islices.lookup(table, ids, combiner="mean", offsets=offsets, weights=weights)', "bags of 2 and 1",
          lambda: bag("mean", per_sample_weights=torch.tensor([0.5, 1.5, 1])), [[0, 0], [1.25, 1.25], [0.75, 0.75], [0, 0]], "raises"),
    Probe("EmbeddingBag(mode='max', sparse=True)", "19", "it has no sparse gradient",
          'islices.lookup(table, ids, combiner="max", offsets=offsets)', "bags of 2 and 1",
          lambda: bag("max"), [[0, 0], [2, 2], [0, 0], [0, 0]], "raises"),
    Probe("table[ids]", "12", STAYS, LOOKUP, "ids [1, 2, 1]", lambda: layout(lambda w, i: w[i]), "row-sparse"),
    Probe("torch.func.vmap(torch.func.grad(...)), sparse lookups", "14", "gradients per sample cannot be sparse",
          "islices.value_and_grad(fn, per_sample=True)", "two samples", per_sample,
          [[[0, 0], [1, 1], [0, 0], [0, 0]], [[0, 0], [0, 0], [1, 1], [0, 0]]], "raises"),
    # ------------------------------------------------------------------ steps
    Probe("torch.optim.SGD(weight_decay=0.1)", "16", "weight decay refuses sparse gradients, and what the step did before stays done",
          "islices.optim.sgd(lr, weight_decay=0.1)", "a dense parameter of ones, then a sparse one", half_done, ZEROS + 1,
          issue="pytorch/pytorch#30402"),
    Probe("torch.optim.Adam, AdamW, RMSprop", "16", "they refuse sparse gradients", "islices.optim.adam(lr)",
          "unique rows", lambda: step(ONES, U, torch.optim.Adam), [[1, 1], [0, 1], [1, 0], [1, 1]], "raises"),
    Probe("torch.optim.SGD, cancelling duplicates", "16",
          "duplicates are subtracted one by one, not summed first: two that cancel wipe the weight out", SGD, "1e8 and -1e8 in one row",
          lambda: step(ONES.clone(), sparse([1, 1], [[1e8] * 2, [-1e8] * 2])), ZEROS + 1),
    Probe("torch.optim.SGD(momentum=0.9), its state", "16", "the momentum buffer is never coalesced and grows with every step",
          "islices.optim.sgd(lr, momentum=0.9)", "slices kept for 2 rows after 10 steps", momentum_rows, 2, issue="pytorch/pytorch#3129"),
    Probe("torch.amp.GradScaler", "16", "it looks at stored slices: duplicates whose sum overflows float32 or bfloat16 are stepped with",
          SCALE, "3e38 twice", lambda: scaled(3e38, torch.float32), "skipped", issue="pytorch/pytorch#36786"),
]
