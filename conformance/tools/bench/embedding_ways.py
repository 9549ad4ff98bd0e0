"""Steps with embeddings, by islices and as users of each framework write them without it, for the bench.

For each framework a function that makes tables, one that makes the ways to one gradient, and one that makes the ways to
the clipped gradients of samples. Ways come by variant (as it runs by default, and compiled) and then by label. islices
is "islices"; other labels say what is written instead. Results are of the framework, not yet computed perhaps: the
caller waits.

The loss of the gradient step is sum(rows * upstream), that of a sample sum((mean(rows) @ head - target)^2).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import islices
from islices import Table, clip_per_sample, lookup, value_and_grad

__all__ = ["STEPS", "Steps"]

Ways = dict[str, dict[str, Callable[[], Any]]]


class Steps(NamedTuple):
    """What one framework has."""

    table: Callable[[int, int], Any]
    """(rows, dim) -> float32 ones."""
    gradient: Callable[[Any, np.ndarray[Any, Any], np.ndarray[Any, Any]], Ways]
    """(table, ids, upstream) -> ways to (loss, gradient). The label "dense" is the framework's dense gradient."""
    samples: Callable[..., Ways]
    """(table, head, ids, targets, max_norm) -> ways to (norms, values, indices, head's sum, or None where it has none).
    The label "one by one" takes a backward pass for each sample."""


def _clipped(found: tuple[Any, Any], max_norm: float) -> Any:
    (table, head), norms = clip_per_sample(found, max_norm)
    total = table.sum()
    return norms, total.values, total.indices, head.sum(0)


def _torch() -> Steps:
    import torch
    from torch.nn import functional

    def gradient(table: Any, ids: Any, upstream: Any) -> Ways:
        i, u, wrapped = torch.from_numpy(ids), torch.from_numpy(upstream), Table(table)
        step = value_and_grad(lambda table: (lookup(table, i) * u).sum())
        parameter = table.detach().requires_grad_(True)

        def own(sparse: bool) -> Any:
            loss = (functional.embedding(i, parameter, sparse=sparse) * u).sum()
            return loss.detach(), torch.autograd.grad(loss, parameter)[0]

        ways = {
            "islices": lambda: step(wrapped),
            "embedding(sparse=True), backward": lambda: own(True),
            "dense": lambda: own(False),
        }
        return {"": ways}

    def samples(table: Any, head: Any, ids: Any, targets: Any, max_norm: float) -> Ways:
        w, i, y, wrapped = *map(torch.from_numpy, (head, ids, targets)), Table(table)
        weights, parameter = table.detach().requires_grad_(True), w.clone().requires_grad_(True)

        def loss(table: Any, w: Any, i: Any, y: Any) -> Any:
            return ((lookup(table, i).mean(1) @ w - y) ** 2).sum(1)

        step = value_and_grad(loss, (0, 1), per_sample=True)

        def one_by_one() -> Any:
            norms, values, indices, total = [], [], [], torch.zeros_like(w)
            for ids_of, target in zip(i, y, strict=True):
                rows = functional.embedding(ids_of, weights, sparse=True)
                found = ((rows.mean(0) @ parameter - target) ** 2).sum()
                g, dense = torch.autograd.grad(found, (weights, parameter))
                g = g.coalesce()
                norm = torch.sqrt(g.values().square().sum() + dense.square().sum())
                factor = torch.clamp(max_norm / norm, max=1.0)
                norms.append(norm)
                values.append(g.values() * factor)
                indices.append(g.indices()[0])
                total += dense * factor
            return torch.stack(norms), torch.cat(values), torch.cat(indices), total

        def of_rows(rows: Any, w: Any, y: Any) -> Any:
            return ((rows.mean(0) @ w - y) ** 2).sum()

        mapped = torch.func.vmap(torch.func.grad(of_rows, argnums=(0, 1)), in_dims=(0, None, 0))
        sample = torch.arange(len(ids)).repeat_interleave(ids.shape[1])

        def by_vmap() -> Any:
            g, dense = mapped(functional.embedding(i, table), w, y)
            keys, place = torch.unique(sample * len(table) + i.reshape(-1), return_inverse=True)
            sums = torch.zeros(len(keys), g.shape[-1]).index_add_(0, place, g.reshape(-1, g.shape[-1]))
            owner = keys // len(table)
            squares = dense.square().sum((1, 2)).index_add_(0, owner, sums.square().sum(1))
            norms = squares.sqrt()
            factor = torch.clamp(max_norm / norms, max=1.0)
            return norms, sums * factor[owner][:, None], keys % len(table), torch.einsum("b,bij->ij", factor, dense)

        ways = {
            "islices": lambda: _clipped(step(wrapped, w, i, y)[1], max_norm),
            "one by one": one_by_one,
            "vmap(grad) by the gathered rows": by_vmap,
        }
        return {"": ways}

    return Steps(lambda rows, dim: torch.ones(rows, dim), gradient, samples)


def _tensorflow() -> Steps:
    import tensorflow as tf

    def gradient(table: Any, ids: Any, upstream: Any) -> Ways:
        i, u, wrapped = tf.constant(ids), tf.constant(upstream), Table(table)
        step = value_and_grad(lambda table: tf.reduce_sum(lookup(table, i) * u))

        def ours() -> Any:
            value, g = step(wrapped)
            return value, g.values, g.indices

        def taped() -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.gather(table, i) * u)
            return loss, tape.gradient(loss, table)

        def own() -> Any:
            loss, g = taped()
            return loss, g.values, g.indices

        def dense() -> Any:
            loss, g = taped()
            return loss, tf.convert_to_tensor(g)

        ways = {"islices": ours, "gather, GradientTape": own, "dense": dense}
        return {"": ways, "tf.function": {label: tf.function(way) for label, way in ways.items()}}

    def samples(table: Any, head: Any, ids: Any, targets: Any, max_norm: float) -> Ways:
        w, i, y, wrapped = *map(tf.constant, (head, ids, targets)), Table(table)

        def loss(table: Any, w: Any, i: Any, y: Any) -> Any:
            return tf.reduce_sum((tf.reduce_mean(lookup(table, i), 1) @ w - y) ** 2, 1)

        step = value_and_grad(loss, (0, 1), per_sample=True)

        def ours() -> Any:
            (g, dense), norms = clip_per_sample(step(wrapped, w, i, y)[1], max_norm)
            total = g.sum()
            return norms, total.values, total.indices, tf.reduce_sum(dense, 0)

        def one(ids_of: Any, target: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(w)
                rows = tf.gather(table, ids_of)
                found = tf.reduce_sum((tf.reduce_mean(rows, 0, keepdims=True) @ w - target) ** 2)
            g, dense = tape.gradient(found, (table, w))
            distinct, place = tf.unique(g.indices)
            sums = tf.math.unsorted_segment_sum(g.values, place, tf.size(distinct))
            norm = tf.sqrt(tf.reduce_sum(sums**2) + tf.reduce_sum(dense**2))
            factor = tf.minimum(max_norm / norm, 1.0)
            return norm, sums * factor, distinct, dense * factor

        def one_by_one(one: Callable[..., Any]) -> Callable[[], Any]:
            def call() -> Any:
                norms, values, indices, dense = zip(*(one(i[b], y[b]) for b in range(len(ids))), strict=True)
                return tf.stack(norms), tf.concat(values, 0), tf.concat(indices, 0), tf.add_n(dense)

            return call

        return {
            "": {"islices": ours, "one by one": one_by_one(one)},
            "tf.function": {"islices": tf.function(ours), "one by one": one_by_one(tf.function(one))},
        }

    return Steps(lambda rows, dim: tf.Variable(tf.ones((rows, dim))), gradient, samples)


def _jax() -> Steps:
    import jax
    import jax.numpy as jnp

    def gradient(table: Any, ids: Any, upstream: Any) -> Ways:
        i, u, wrapped = jnp.asarray(ids, jnp.int32), jnp.asarray(upstream), Table(table)
        step = value_and_grad(lambda table, i, u: jnp.sum(lookup(table, i) * u))

        def own(table: Any, i: Any, u: Any) -> Any:
            value, g = jax.value_and_grad(lambda rows: jnp.sum(rows * u))(table[i])
            return value, g, i

        dense = jax.value_and_grad(lambda table, i, u: jnp.sum(table[i] * u))
        label = "grad by the gathered rows, by hand"

        def ways(compiled: Callable[..., Any]) -> dict[str, Callable[[], Any]]:
            ours, theirs, whole = compiled(step), compiled(own), compiled(dense)
            return {
                "islices": lambda: ours(wrapped, i, u),
                label: lambda: theirs(table, i, u),
                "dense": lambda: whole(table, i, u),
            }

        return {"": ways(lambda fn: fn), "jit": ways(jax.jit)}

    def samples(table: Any, head: Any, ids: Any, targets: Any, max_norm: float) -> Ways:
        w, i, y, wrapped = jnp.asarray(head), jnp.asarray(ids, jnp.int32), jnp.asarray(targets), Table(table)

        def loss(table: Any, w: Any, i: Any, y: Any) -> Any:
            return jnp.sum((lookup(table, i).mean(1) @ w - y) ** 2, 1)

        step = value_and_grad(loss, (0, 1), per_sample=True)

        def whole(table: Any, w: Any, i: Any, y: Any) -> Any:
            return _clipped(step(table, w, i, y)[1], max_norm)

        def of_rows(rows: Any, w: Any, y: Any) -> Any:
            return jnp.sum((rows.mean(0) @ w - y) ** 2)

        def one(table: Any, w: Any, i: Any, y: Any) -> Any:
            g, dense = jax.grad(of_rows, (0, 1))(table[i], w, y)
            distinct, place = jnp.unique(i, size=len(i), fill_value=len(table), return_inverse=True)
            sums = jax.ops.segment_sum(g, place, len(i))
            norm = jnp.sqrt(jnp.sum(sums**2) + jnp.sum(dense**2))
            factor = jnp.minimum(max_norm / norm, 1.0)
            return norm, sums * factor, distinct, dense * factor

        def mapped(table: Any, w: Any, i: Any, y: Any) -> Any:
            norms, sums, distinct, dense = jax.vmap(one, in_axes=(None, None, 0, 0))(table, w, i, y)
            return norms, sums.reshape(-1, sums.shape[-1]), distinct.reshape(-1), dense.sum(0)

        def ways(compiled: Callable[..., Any]) -> dict[str, Callable[[], Any]]:
            ours, single, batched = compiled(whole), compiled(one), compiled(mapped)

            def one_by_one() -> Any:
                norms, values, indices, dense = zip(
                    *(single(table, w, i[b], y[b]) for b in range(len(ids))), strict=True
                )
                return jnp.stack(norms), jnp.concatenate(values), jnp.concatenate(indices), sum(dense)

            return {
                "islices": lambda: ours(wrapped, w, i, y),
                "one by one": one_by_one,
                "vmap(grad) by the gathered rows": lambda: batched(table, w, i, y),
            }

        return {"": ways(lambda fn: fn), "jit": ways(jax.jit)}

    return Steps(lambda rows, dim: jnp.ones((rows, dim), jnp.float32), gradient, samples)


def _mxnet() -> Steps:
    islices.get_backend("mxnet")  # MXNet imports beside a NumPy of today by way of its backend
    import mxnet as mx

    nd = mx.nd

    def gradient(table: Any, ids: Any, upstream: Any) -> Ways:
        i, u, wrapped = nd.array(ids, dtype="int64"), nd.array(upstream), Table(table)
        step = value_and_grad(lambda table: (lookup(table, i) * u).sum())

        def own(sparse: bool) -> Any:
            parameter = table.detach()  # shares the memory
            parameter.attach_grad(stype="row_sparse" if sparse else "default")  # the buffer is part of the work
            with mx.autograd.record():
                rows = nd.Embedding(i, parameter, *table.shape, sparse_grad=sparse)
                loss = (rows * u).sum()
            loss.backward()
            return loss, parameter.grad

        ways = {
            "islices": lambda: step(wrapped),
            "Embedding(sparse_grad=True), backward": lambda: own(True),
            "dense": lambda: own(False),
        }
        return {"": ways}

    def samples(table: Any, head: Any, ids: Any, targets: Any, max_norm: float) -> Ways:
        w, i, y, wrapped = nd.array(head), nd.array(ids, dtype="int64"), nd.array(targets), Table(table)
        parameter = table.detach()
        parameter.attach_grad(stype="row_sparse")

        def loss(table: Any) -> Any:
            return ((nd.dot(lookup(table, i).mean(axis=1), w) - y) ** 2).sum(axis=1)

        step = value_and_grad(loss, per_sample=True)

        def ours() -> Any:
            (g,), norms = clip_per_sample([step(wrapped)[1]], max_norm)
            total = g.sum()
            return norms, total.values, total.indices, None

        def one_by_one() -> Any:
            norms, values, indices = [], [], []
            for b in range(len(ids)):
                with mx.autograd.record():
                    rows = nd.Embedding(i[b : b + 1], parameter, *table.shape, sparse_grad=True)
                    found = ((nd.dot(rows.mean(axis=1), w) - y[b : b + 1]) ** 2).sum()
                found.backward()
                norm = parameter.grad.norm()
                norms.append(norm)
                values.append(nd.broadcast_mul(parameter.grad.data, nd.minimum(max_norm / norm, 1.0).reshape((1, 1))))
                indices.append(parameter.grad.indices)
            return nd.concat(*norms, dim=0), nd.concat(*values, dim=0), nd.concat(*indices, dim=0), None

        return {"table alone": {"islices": ours, "one by one": one_by_one}}

    return Steps(lambda rows, dim: nd.ones((rows, dim)), gradient, samples)


#: By framework; each imports its framework when it is called.
STEPS: dict[str, Callable[[], Steps]] = {"torch": _torch, "tensorflow": _tensorflow, "jax": _jax, "mxnet": _mxnet}
