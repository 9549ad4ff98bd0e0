"""What torch.compile makes of torch's optimizers, lookups and row-sparse gradients, against the same calls as they are.

Tracing alone, backend="eager", needs no compiler and shows what a graph computes; backend="inductor", the default,
needs one of C++. `instead` says what keeps its bits under torch.compile.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import optim
from torch.nn.functional import embedding

from islices.conformance.operations import UnsupportedError
from islices.conformance.tools.audit.inputs import ROWS, gradients
from islices.conformance.tools.audit.probe import Ask, probe
from islices.conformance.tools.audit.probes.torch import dense, native, refused

#: No question here is of vector instructions, and to find those of a processor the default compiles several programs;
#: headers compiled beforehand are for those who compile more than two.
QUICK: dict[str, Any] = {"cpp.vec_isa_ok": True, "cpp.simdlen": 1, "cpp_cache_precompile_headers": False}
ADAM = "islices.optim.adam(lr): compiled and not, its steps have the same bits"
Array = np.ndarray[Any, Any]


def compiled(function: Callable[..., Any], backend: str) -> Callable[..., Any]:
    """It compiled, whatever was before: of more than eight of a kind torch runs the others as they are."""
    if backend == "inductor" and not any(map(shutil.which, (os.environ.get("CXX", "g++"), "g++", "clang++", "cl"))):
        raise UnsupportedError("torch.compile needs a C++ compiler, and none is installed: apt-get install g++")
    torch.compiler.reset()
    return torch.compile(function, backend=backend, options=QUICK if backend == "inductor" else None)


def stepped(kind: Any, grads: Sequence[Any], start: float, backend: str = "", **options: Any) -> Array:
    """A table of `start` after a step for each gradient, compiled or (no backend) not."""
    table = torch.nn.Parameter(torch.full(tuple(grads[0].shape), start))
    optimizer = kind([table], **options)
    step = compiled(optimizer.step, backend) if backend else optimizer.step
    for gradient in grads:
        table.grad = gradient
        step()
    return dense(table)


# ---------------------------------------------------------------------- bias correction
ONE = [torch.ones(1)]
FIRST = "a step of 1 is off by 7e-6: 1 - beta ** t is formed in float32, which the step itself does in float64"
#: Those whose first step is a whole number in exact arithmetic.
BIASED = (optim.Adam, optim.AdamW, optim.Adamax, optim.RAdam)


@probe(
    "torch", "torch.compile(optimizer.step) of Adam, the first step", "17", instead=ADAM,
    claim=f"with its compiler, Inductor: {FIRST}",
)  # fmt: skip
def inductor_first_step() -> Iterator[Ask]:
    call = partial(stepped, optim.Adam, ONE, 0.0, "inductor", lr=1.0, eps=0.0)
    yield Ask("Adam, gradient 1, lr 1, eps 0", call, stepped(optim.Adam, ONE, 0.0, lr=1.0, eps=0.0))


@probe(
    "torch", "torch.compile(optimizer.step, backend='eager') of Adam, AdamW, Adamax, RAdam, the first step", "17",
    instead=ADAM, claim=f"it comes of tracing, not of the compiler: {FIRST}",
)  # fmt: skip
def traced_first_step() -> Iterator[Ask]:
    for kind, foreach in ((optim.Adam, True), *((kind, False) for kind in BIASED)):
        options: dict[str, Any] = {"lr": 1.0, "eps": 0.0, "foreach": foreach}
        wanted = stepped(kind, ONE, 0.0, **options)
        call = partial(stepped, kind, ONE, 0.0, "eager", **options)
        yield Ask(f"{kind.__name__}, foreach={foreach}", call, wanted)


@probe(
    "torch", "torch.optim.Adam(lr=tensor), the first step, not compiled", "18", trap="", instead=ADAM,
    claim="a learning rate that is a tensor changes nothing: the bias is corrected in float64",
)  # fmt: skip
def tensor_rate() -> Iterator[Ask]:
    for fused in (False, True):
        wanted = stepped(optim.Adam, ONE, 0.0, lr=1.0, eps=0.0, fused=fused)
        call = partial(stepped, optim.Adam, ONE, 0.0, lr=torch.tensor(1.0), eps=0.0, fused=fused)
        yield Ask(f"fused={fused}", call, wanted)


@probe(
    "torch", "torch.optim.Adam(capturable=True), the first step, on the CPU", "17", trap="raises", instead=ADAM,
    claim="it is for accelerators; what it computes there is what tracing takes here",
)  # fmt: skip
def capturable() -> Iterator[Ask]:
    for foreach in (False, True):
        options: dict[str, Any] = {"lr": 1.0, "eps": 0.0, "foreach": foreach}
        wanted = stepped(optim.Adam, ONE, 0.0, **options)
        yield Ask(f"foreach={foreach}", partial(stepped, optim.Adam, ONE, 0.0, capturable=True, **options), wanted)


@probe(
    "torch", "torch.compile(optimizer.step, backend='eager') of Adam(lr=torch.tensor(0.))", "17", instead=ADAM,
    claim="a warmup that starts at 0 makes NaN of every weight whose gradients were zero: 0 / 0",
    issue="pytorch/pytorch#126514",
)  # fmt: skip
def zero_rate() -> Iterator[Ask]:
    grads = [torch.tensor([0.0, 1.0])]
    for kind in (optim.Adam, optim.AdamW, optim.NAdam):
        call = partial(stepped, kind, grads, 1.0, "eager", lr=torch.tensor(0.0), foreach=False)
        yield Ask(f"{kind.__name__}, gradients 0 and 1, weights 1", call, [1.0, 1.0])


# ---------------------------------------------------------------------- row-sparse gradients
@probe(
    "torch", "torch.compile(optimizer.step, backend='eager') of SGD, Adagrad, SparseAdam, sparse gradients", "17",
    trap="", instead="islices.optim.adam(lr)", claim="the graph breaks, and the steps are those that are not compiled",
)  # fmt: skip
def sparse_steps() -> Iterator[Ask]:
    for kind in (optim.SGD, optim.Adagrad, optim.SparseAdam):
        (g,) = gradients("duplicates")
        wanted = stepped(kind, [native(g)] * 2, 1.0, lr=0.5)
        call = partial(stepped, kind, [native(g)] * 2, 1.0, "eager", lr=0.5)
        yield Ask(f"{kind.__name__}, two steps, {g.name}", call, wanted)


@probe(
    "torch", "torch.compile(torch.nn.Embedding(sparse=True), backend='aot_eager')", "17", trap="",
    instead="islices.lookup(table, ids) in islices.value_and_grad", claim="the gradient is row-sparse, as not compiled",
)  # fmt: skip
def sparse_lookups() -> Iterator[Ask]:
    def call(ids: list[int], **options: Any) -> Any:
        layer = torch.nn.Embedding(ROWS, 2, sparse=True, **options)
        compiled(lambda i: layer(i).sum(), "aot_eager")(torch.tensor(ids)).backward()
        assert layer.weight.grad is not None
        return layer.weight.grad._indices()[0].numpy()

    yield Ask("ids 1, 2, 1: indices", partial(call, [1, 2, 1]), [1, 2, 1])
    yield Ask("ids 1, 2, 1, padding_idx=1: indices", partial(call, [1, 2, 1], padding_idx=1), [2])


# ---------------------------------------------------------------------- ids
def looked_up(count: int, index: int) -> str:
    """Whether a compiled lookup of as many ids, one of them `index`, is refused."""
    ids = torch.zeros(count, dtype=torch.int64)
    ids[1] = index
    call = compiled(lambda table, i: embedding(i, table), "inductor")
    return refused(call, torch.ones(ROWS, 2), ids)


@probe(
    "torch", "torch.compile(torch.nn.functional.embedding), ids out of range, many", "2", trap="corrupts",
    instead="islices.lookup(table, ids)", isolated=True, issue="pytorch/pytorch#195402",
    claim="from 512 numbers a thread on, the error is thrown in a thread of OpenMP, which ends the process",
)  # fmt: skip
def many_out_of_range() -> Iterator[Ask]:
    torch.set_num_threads(max(2, torch.get_num_threads()))
    yield Ask(f"20,000 ids, one of them {ROWS}", partial(looked_up, 20_000, ROWS), "refused")
