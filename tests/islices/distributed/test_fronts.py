"""The fronts' clips with group=: the norm of all ranks, with the bits of `islices.clip_by_global_norm`, in processes.

Each rank has parameters of its own, and one that all have; a rank now and then has no gradient at all.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import islices
from islices import IndexedSlices
from islices.conformance.ranks import run_ranks
from islices.conformance.ranks.launch import absent
from islices.distributed import Group, RankError

SIZE, TIMEOUT = 3, 30.0
SEMANTICS = ("islices", "torch", "mxnet", "optax", "keras")


def run(engine: str, function: Any) -> list[Any]:
    if why := absent(engine):
        pytest.skip(why)
    return run_ranks(engine, SIZE, f"{__file__}:{function.__name__}", timeout=TIMEOUT, deadline=110.0).values


def arrays(rank: int, scale: float = 1.0) -> list[Any]:
    """The leaves of a rank on the host: rows of its own table (none on rank 2), its own array, and everybody's."""
    rng = np.random.default_rng(rank)
    table = scale * rng.standard_normal((7, 3)), rng.integers(0, 5, 7), (5, 3)
    own = scale * rng.standard_normal((2, 2))
    shared = np.random.default_rng(9).standard_normal(4)
    return [None if rank == 2 else table, own, shared]


FLAGS = [False, False, True]


def host_tree(rank: int, scale: float = 1.0) -> list[Any]:
    table, own, shared = arrays(rank, scale)
    sparse = None if table is None else IndexedSlices(table[0].astype(np.float32), table[1], table[2])
    return [sparse, own.astype(np.float32), shared.astype(np.float32)]


def expected(group: Group, max_norm: float, scale: float = 1.0, **by: Any) -> tuple[list[Any], Any]:
    """By islices' own clip, as plain arrays: (values of each leaf, the norm)."""
    tree, norm = islices.clip_by_global_norm(
        host_tree(group.rank, scale), max_norm, group=group, replicated=FLAGS, **by
    )
    return [x.values if isinstance(x, IndexedSlices) else x for x in tree], norm


def same(got: Any, wanted: Any) -> None:
    assert len(got) == len(wanted)
    for x, y in zip(got, wanted, strict=True):
        assert (x is None) == (y is None)
        assert x is None or (x.dtype == y.dtype and np.array_equal(x, y, equal_nan=True)), (x, y)


# ---------------------------------------------------------------------- torch
def parameters(rank: int, scale: float = 1.0) -> list[Any]:
    import torch

    table, own, shared = arrays(rank, scale)
    out = [torch.nn.Parameter(torch.zeros(shape)) for shape in ((5, 3), own.shape, shared.shape)]
    if table is not None:
        values, indices, shape = table
        out[0].grad = torch.sparse_coo_tensor(indices[None], torch.tensor(values, dtype=torch.float32), shape)
    out[1].grad, out[2].grad = (torch.tensor(x, dtype=torch.float32) for x in (own, shared))
    return out


def stored(params: list[Any]) -> list[Any]:
    grads = [p.grad for p in params]
    return [None if g is None else (g._values() if g.is_sparse else g).numpy() for g in grads]


def torch_clips(group: Group) -> list[float]:
    import torch

    from islices.backends.torch import clip_grad_norm_, clip_grads_with_norm_, get_total_norm

    found = []
    for semantics in SEMANTICS:
        for max_norm in (0.5, 1e9, 0.0):
            params = parameters(group.rank)
            norm = clip_grad_norm_(params, max_norm, semantics=semantics, group=group, replicated=FLAGS)
            values, wanted = expected(group, max_norm, semantics=semantics)
            same([norm.numpy(), *stored(params)], [wanted, *values])
            found.append(norm.item())
    for order in (1.0, 2.0, 3.0, float("inf")):
        grads = [p.grad for p in parameters(group.rank) if p.grad is not None]
        norm = get_total_norm(grads, order, group="torch", replicated=FLAGS[-len(grads) :])
        wanted = islices.global_norm(host_tree(group.rank), order, group=group, replicated=FLAGS)
        same([norm.numpy()], [wanted])
        # what it says is all that the second half needs
        one, other = parameters(group.rank), parameters(group.rank)
        clip_grads_with_norm_(one, 0.5, norm)
        assert torch.equal(clip_grad_norm_(other, 0.5, order, group="torch", replicated=FLAGS), norm)
        same(stored(one), stored(other))
        found.append(norm.item())

    # none on all but one; none at all
    params = parameters(group.rank)
    if group.rank:
        for p in params:
            p.grad = None
    found.append(clip_grad_norm_(params, 1.0, group="torch").item())
    assert clip_grad_norm_([], 1.0, group="torch").item() == 0.0
    # NaN on one rank is decided alike on all
    params = parameters(group.rank, float("nan") if group.rank == 1 else 1.0)
    before = stored(parameters(group.rank))
    with pytest.raises(RuntimeError, match=r"the norm of order 2\.0 of the gradients is nan"):
        clip_grad_norm_(params, 1.0, error_if_nonfinite=True, group="torch", replicated=FLAGS)
    if group.rank != 1:
        same(stored(params), before)
    # what is wrong on one rank is told to the others, whatever it is
    for wrong in ({"max_norm": "one"}, {"norm_type": -1.0}, {"semantics": "tourch"}, {"replicated": [True]},
                  {"parameters": torch.nn.Linear(1, 1)}, {"parameters": [1]}):  # fmt: skip
        given = {"parameters": parameters(group.rank), "max_norm": 1.0, "replicated": FLAGS}
        if group.rank == 1:
            with pytest.raises((TypeError, ValueError)):
                clip_grad_norm_(**{**given, **wrong}, group="torch")
        else:
            with pytest.raises(RankError, match=r"clip_grad_norm_: rank 1 raised \w+Error: .*got "):
                clip_grad_norm_(**given, group="torch")
    with pytest.raises(ValueError, match=r"clip_grad_norm_: ranks differ: max_norm: 0\.0 on rank 0, "):
        clip_grad_norm_(parameters(group.rank), float(group.rank), group="torch", replicated=FLAGS)
    return found


@pytest.mark.outside
def test_torch() -> None:
    pytest.importorskip("torch")
    first, *others = run("torch", torch_clips)
    assert others == [first] * (SIZE - 1)
    assert first[0] == float(whole_norm())


def whole_norm(order: float = 2.0) -> Any:
    """Of one process that has all leaves."""
    own = [x for rank in range(SIZE) for x in host_tree(rank)[:2]]
    return islices.global_norm([*own, host_tree(0)[2]], order)


def test_torch_alone_needs_no_group() -> None:
    pytest.importorskip("torch")
    from islices.backends.torch import clip_grad_norm_, get_total_norm
    from islices.distributed import Alone

    one, other = parameters(0), parameters(0)
    assert clip_grad_norm_(one, 0.5).item() == clip_grad_norm_(other, 0.5, group=Alone(), replicated=True).item()
    same(stored(one), stored(other))
    with pytest.raises(ValueError, match="replicated: got a list of 1 for a list of 3"):
        clip_grad_norm_(other, 0.5, replicated=[True])
    assert get_total_norm([], group=Alone()).item() == 0.0


# ---------------------------------------------------------------------- optax
def optax_tree(rank: int) -> dict[str, Any]:
    import jax.numpy as jnp

    sparse, own, shared = host_tree(rank)
    if sparse is not None:
        sparse = IndexedSlices(jnp.asarray(sparse.values), jnp.asarray(sparse.indices, jnp.int32), sparse.dense_shape)
    return {"table": sparse, "layers": [{"own": jnp.asarray(own)}, {"every": jnp.asarray(shared)}]}


def optax_clips(group: Group) -> list[float]:
    import jax

    from islices.backends.jax.optax import clip_by_global_norm

    flags = {"table": False, "layers": [False, True]}
    tree, found = optax_tree(group.rank), []
    if tree["table"] is None:
        del tree["table"], flags["table"]
    for semantics in SEMANTICS:
        tx = clip_by_global_norm(0.5, semantics=semantics, group="jax", replicated=flags)
        clipped, _ = tx.update(tree, tx.init(None))
        values, _ = expected(group, 0.5, semantics=semantics)
        layers = [np.asarray(x) for x in jax.tree.leaves(clipped["layers"])]
        same([np.asarray(clipped["table"].values) if "table" in tree else None, *layers], values)
        found.append(float(layers[1][0]))
    for wrong in ("updates", "replicated"):
        tx = clip_by_global_norm(
            0.5, group="jax", replicated=[True] if group.rank == 1 and wrong != "updates" else flags
        )
        if group.rank == 1:
            with pytest.raises((TypeError, ValueError)):
                tx.update({"table": "w"} if wrong == "updates" else tree, tx.init(None))
        else:
            with pytest.raises(RankError, match="clip_by_global_norm: rank 1 raised"):
                tx.update(tree, tx.init(None))
    return found


@pytest.mark.repeats
def test_optax() -> None:
    pytest.importorskip("optax")
    first, *others = run("jax", optax_clips)
    assert others == [first] * (SIZE - 1)


def test_optax_within_a_program() -> None:
    """A mapped axis, whose ranks are of one process."""
    jax = pytest.importorskip("jax")
    pytest.importorskip("optax")
    from islices.backends.jax.optax import clip_by_global_norm

    values = np.random.default_rng(3).standard_normal((4, 5, 2)).astype(np.float32)
    indices = np.array([[1, 0, 1, 2, 2]] * 4, np.int32)
    shared = np.full(3, 0.25, np.float32)
    tx = clip_by_global_norm(0.5, group="data", replicated={"table": False, "shared": True})

    def clipped(values: Any, indices: Any) -> Any:
        tree = {"table": IndexedSlices(values, indices, (3, 2)), "shared": jax.numpy.asarray(shared)}
        done, _ = tx.update(tree, tx.init(None))
        return done["table"].values, done["shared"]

    got = jax.jit(jax.vmap(clipped, axis_name="data"))(values, indices)
    tables = [IndexedSlices(v, i, (3, 2)) for v, i in zip(values, indices, strict=True)]
    (*wanted, last), _ = islices.clip_by_global_norm([*tables, shared], 0.5)
    same([np.asarray(x) for x in got[0]], [x.values for x in wanted])
    same([np.asarray(x) for x in got[1]], [last] * 4)
