"""Test that the clips with `group` for torch and optax use the norm of all ranks, and have the bits of
`islices.clip_by_global_norm`.

Ranks are threads. Each rank has some parameters that the other ranks lack, and one that all ranks have. Sometimes a
rank has no gradient at all.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from comparing import assert_same

import islices
from islices import IndexedSlices
from islices.conformance.ranks.threads import thread_results
from islices.distributed import Alone, Group, RankError

SIZE = 3
FLAGS = [False, False, True]


def host_tree(rank: int, scale: float = 1.0) -> list[Any]:
    """Return a rank's gradients: slices of its table (None on rank 2), an array, and the array that all ranks have."""
    rng = np.random.default_rng(rank)
    values, ids = (scale * rng.standard_normal((7, 3))).astype(np.float32), rng.integers(0, 5, 7)
    own = (scale * rng.standard_normal((2, 2))).astype(np.float32)
    shared = np.random.default_rng(9).standard_normal(4).astype(np.float32)
    return [None if rank == 2 else islices.coalesce(IndexedSlices(values, ids, (5, 3))), own, shared]


def plain(tree: Any) -> list[Any]:
    return [x.values if isinstance(x, IndexedSlices) else x for x in tree]


# ---------------------------------------------------------------------- torch
def parameters(rank: int, scale: float = 1.0) -> list[Any]:
    import torch

    table, own, shared = host_tree(rank, scale)
    out = [torch.nn.Parameter(torch.zeros(shape)) for shape in ((5, 3), own.shape, shared.shape)]
    if table is not None:
        out[0].grad = torch.sparse_coo_tensor(table.indices[None], torch.from_numpy(table.values), (5, 3))
    out[1].grad, out[2].grad = map(torch.from_numpy, (own, shared))
    return out


def stored(params: list[Any]) -> list[Any]:
    grads = [p.grad for p in params]
    return [None if g is None else (g._values() if g.is_sparse else g).numpy() for g in grads]


def by_torch(group: Group, semantics: str) -> tuple[list[Any], Any]:
    from islices.backends.torch import clip_grad_norm_

    params = parameters(group.rank)
    norm = clip_grad_norm_(params, 0.5, semantics=semantics, group=group, replicated=FLAGS)
    return stored(params), norm.numpy()


def by_optax(group: Group, semantics: str) -> tuple[list[Any], None]:
    jnp = pytest.importorskip("jax.numpy")
    from islices.backends.jax.optax import clip_by_global_norm

    table, own, shared = host_tree(group.rank)
    tree = {"own": jnp.asarray(own), "shared": jnp.asarray(shared)}
    if table is not None:
        tree["a"] = IndexedSlices(jnp.asarray(table.values), jnp.asarray(table.indices, jnp.int32), (5, 3))
    flags = {name: name == "shared" for name in tree}
    tx = clip_by_global_norm(0.5, semantics=semantics, group=group, replicated=flags)
    clipped, _ = tx.update(tree, tx.init(None))
    return [
        np.asarray(clipped["a"].values) if "a" in tree else None,
        *map(np.asarray, (clipped["own"], clipped["shared"])),
    ], None


@pytest.mark.parametrize("semantics", ["islices", "keras"])
@pytest.mark.parametrize(("backend", "front"), [("torch", by_torch), ("jax", by_optax)])
def test_a_front_clips_by_the_norm_of_all_ranks(backend: str, front: Any, semantics: str) -> None:
    if backend not in islices.list_backends():
        pytest.skip(f"{backend} is not installed")
    islices.get_backend(backend)

    def run(group: Group) -> None:
        values, norm = front(group, semantics)
        wanted, whole = islices.clip_by_global_norm(
            host_tree(group.rank), 0.5, semantics=semantics, group=group, replicated=FLAGS
        )
        assert_same(values, plain(wanted))
        assert norm is None or np.float32(norm) == whole

    thread_results(SIZE, run)


def test_torch_says_what_is_wrong_on_one_rank_to_the_others() -> None:
    pytest.importorskip("torch")
    from islices.backends.torch import clip_grad_norm_, get_total_norm

    def run(group: Group) -> None:
        grads = [p.grad for p in parameters(group.rank) if p.grad is not None]
        norm = get_total_norm(grads, 1.0, group=group, replicated=FLAGS[-len(grads) :])
        assert_same([norm.numpy()], [islices.global_norm(host_tree(group.rank), 1.0, group=group, replicated=FLAGS)])
        # NaN on one rank makes all ranks raise
        params = parameters(group.rank, float("nan") if group.rank == 1 else 1.0)
        with pytest.raises(RuntimeError, match=r"the norm of order 2\.0 of the gradients is nan"):
            clip_grad_norm_(params, 1.0, error_if_nonfinite=True, group=group, replicated=FLAGS)
        assert_same(stored(params)[1:], host_tree(group.rank, float("nan") if group.rank == 1 else 1.0)[1:])
        for wrong in ({"norm_type": -1.0}, {"replicated": [True]}, {"parameters": [1]}):
            given: dict[str, Any] = {"parameters": parameters(group.rank), "max_norm": 1.0, "replicated": FLAGS}
            with pytest.raises((TypeError, ValueError) if group.rank == 1 else RankError, match="got "):
                clip_grad_norm_(**{**given, **(wrong if group.rank == 1 else {})}, group=group)
        with pytest.raises(ValueError, match=r"clip_grad_norm_: ranks differ: max_norm: 0\.0 on rank 0, "):
            clip_grad_norm_(parameters(group.rank), float(group.rank), group=group, replicated=FLAGS)
        # only one rank has a gradient
        params = parameters(group.rank)
        for p in params if group.rank else []:
            p.grad = None
        assert clip_grad_norm_(params, 1.0, group=group).item() == float(islices.global_norm(host_tree(0)))

    thread_results(SIZE, run)
    assert clip_grad_norm_(parameters(0), 0.5).item() == clip_grad_norm_(parameters(0), 0.5, group=Alone()).item()
