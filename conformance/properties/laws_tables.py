"""Laws of lookups, samples, row updates and optimizers: a part of `islices.conformance.properties.laws`."""

from __future__ import annotations

import islices
from islices.conformance.properties.laws import law
from islices.conformance.properties.strategies import (
    exact,
    looked_up,
    moderate,
    one,
    some_rows_frozen,
    stepped,
    table_and_shards,
    table_and_slices,
    wild,
    with_option,
)

__all__: list[str] = []


# ---------------------------------------------------------------------- padding and lookups: clause 12
@law("12", with_option(one(wild), padding_idx=(0, 3, -1)))
def drop_padding_is_idempotent(x, padding_idx):
    once = islices.drop_padding(x, padding_idx)
    return islices.drop_padding(once, padding_idx), once


@law("12", with_option(one(wild), padding_idx=(0, 3, 6)))
def a_negative_padding_idx_counts_from_the_end(x, padding_idx):
    return islices.drop_padding(x, padding_idx - 7), islices.drop_rows(x, [padding_idx])


@law("12", one(wild, coalesced=True))
def unique_rows_have_frequency_one(x):
    return islices.scale_by_frequency(x), x


@law("12", with_option(looked_up, padding_idx=(0, 3, -1)))
def padding_is_dropped_early_or_late(upstream, ids, num_rows, padding_idx):
    early = islices.embedding_grad(upstream, ids, num_rows, padding_idx=padding_idx)
    late = islices.drop_padding(islices.embedding_grad(upstream, ids, num_rows), padding_idx)
    return islices.to_dense(early), islices.to_dense(late)


@law("12", looked_up)
def the_gradient_of_a_lookup_lands_where_it_was_looked_up(upstream, ids, num_rows):
    grad = islices.embedding_grad(upstream, ids, num_rows)
    rows = islices.lookup(islices.to_dense(grad), ids)
    return rows, islices.lookup(islices.to_dense(islices.coalesce(grad)), ids)


# ---------------------------------------------------------------------- samples: clause 14
@law("14", looked_up)
def samples_add_up_to_the_whole(upstream, ids, num_rows):
    whole = islices.embedding_grad(upstream, ids, num_rows)
    return islices.to_dense(islices.per_sample(upstream, ids, num_rows).sum()), islices.to_dense(whole)


@law("14", looked_up)
def samples_within_max_norm_are_left_alone(upstream, ids, num_rows):
    samples = islices.per_sample(upstream, ids, num_rows)
    return islices.to_dense(samples.clip(1e9).sum()), islices.to_dense(samples.sum())


@law("14", looked_up)
def clipped_samples_are_clipped_alone(upstream, ids, num_rows):
    samples = islices.per_sample(upstream, ids, num_rows)
    numbers = range(samples.dense_shape[0])
    alone = [islices.clip_by_norm(samples.slices(b), 1.0) for b in numbers]
    return [islices.to_dense(samples.clip(1.0).slices(b)) for b in numbers], [islices.to_dense(s) for s in alone]


# ---------------------------------------------------------------------- row updates: clause 15
@law("15", table_and_slices(exact))
def scatter_add_adds_the_dense_gradient(table, x):
    expected = islices.add(table, islices.to_dense(x))
    return islices.scatter(table, x), expected


@law("15", table_and_slices(wild))
def scatter_sub_adds_the_negative(table, x):
    expected = islices.scatter(islices.scale(table, 1), islices.scale(x, -1))
    return islices.scatter(table, x, op="sub"), expected


@law("15", table_and_shards)
def scatter_add_takes_shards_one_by_one(table, x, parts):
    expected = islices.scatter(islices.scale(table, 1), x)
    for part in parts:
        table = islices.scatter(table, part)
    return table, expected


@law("15", with_option(table_and_slices(wild), op=("add", "sub", "update", "min", "max", "mul", "div")))
def scatter_keeps_other_rows(table, x, op):
    expected = islices.drop_rows(table, x.indices)
    return islices.drop_rows(islices.scatter(table, x, op), x.indices), expected


@law("15", with_option(table_and_slices(wild), op=("update", "min", "max")))
def scatter_twice_is_once(table, x, op):
    once = islices.scale(islices.scatter(table, x, op), 1)
    return islices.scatter(islices.scale(once, 1), x, op), once


@law("15", table_and_slices(wild))
def scatter_min_is_the_reflected_maximum(table, x):
    reflected = islices.scatter(islices.scale(table, -1), islices.scale(x, -1), op="max")
    return islices.scatter(table, x, op="min"), islices.scale(reflected, -1)


# ---------------------------------------------------------------------- optimizers: clause 16
@law("16", stepped)
def rows_not_named_keep_their_bits(table, x, optimizer):
    expected = islices.drop_rows(table, x.indices)
    table, _ = optimizer().step(table, x, optimizer().init(table))
    return islices.drop_rows(table, x.indices), expected


@law("16", stepped)
def all_rows_is_the_dense_step(table, x, optimizer):
    other, dense = islices.scale(table, 1), islices.to_dense(x)
    optimizer = optimizer(rows="all")
    expected = optimizer.step(other, dense, optimizer.init(other))
    return optimizer.step(table, x, optimizer.init(table)), expected


@law("16", stepped)
def a_step_sees_the_coalesced_gradient(table, x, optimizer):
    other, optimizer = islices.scale(table, 1), optimizer()
    expected = optimizer.step(other, islices.coalesce(x), optimizer.init(other))
    return optimizer.step(table, x, optimizer.init(table)), expected


@law("16", stepped)
def maximize_follows_the_negative_gradient(table, x, optimizer):
    other = islices.scale(table, 1)
    expected = optimizer().step(other, islices.scale(x, -1), optimizer().init(other))
    return optimizer(maximize=True).step(table, x, optimizer().init(table)), expected


@law("16", some_rows_frozen, traced=False)
def frozen_rows_keep_their_bits(table, x, optimizer, rows):
    expected = islices.keep_rows(table, rows)
    optimizer = optimizer(frozen=rows, rows="all")
    table, _ = optimizer.step(table, x, optimizer.init(table))
    return islices.keep_rows(table, rows), expected


@law("16", stepped)
def no_gradient_is_no_step(table, x, optimizer):
    expected = islices.scale(table, 1)
    table, state = optimizer().step(table, None, optimizer().init(table))
    return (table, state), (expected, optimizer().init(table))


@law("16", with_option(table_and_slices(moderate, "float32", "float64"), lr=(0.1, 1.0, 0.03)))
def gradient_descent_subtracts_the_scaled_gradient(table, x, lr):
    expected = islices.scatter(islices.scale(table, 1), islices.scale(islices.coalesce(x), lr), op="sub")
    table, _ = islices.optim.sgd(lr).step(table, x, islices.optim.sgd(lr).init(table))
    return table, expected
