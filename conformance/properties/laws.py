"""Define the laws that the public functions obey for all drawn arguments. Each law has its clause of SPEC.md.

A law is a function of drawn arguments that makes public calls. The law returns a tuple, which a function of the module
`compare` checks. The default function is `same_bits`; it checks that two results have the same bits.

A printed counterexample contains the source code of the law as a comment, so that users can read and copy the law.
Therefore, a law uses only its arguments, `islices` and Python's builtins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from hypothesis import strategies as st

import islices
from islices.conformance.properties import strategies
from islices.conformance.properties.strategies import (
    Arguments,
    Draw,
    exact,
    given,
    moderate,
    one,
    some,
    wild,
    with_option,
)


class Law(NamedTuple):
    """A law, its clause, and the Hypothesis strategy for its arguments."""

    name: str
    clause: str
    call: Callable[..., Any]
    arguments: st.SearchStrategy[Arguments]
    #: the name of the function in `compare` that gets the results of the law
    compare: str
    traced: bool
    #: True if the law makes a sparse object of the framework, which may not support all dtypes
    native_form: bool


LAWS: dict[str, Law] = {}


def law(
    clause: str,
    make: Callable[[Draw], Arguments],
    *,
    compare: str = "same_bits",
    traced: bool = True,
    native_form: bool = False,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that registers a law. ``make`` draws the arguments. ``traced`` is True if the law also holds
    in traced code, where values are unknown."""

    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        LAWS[fn.__name__] = Law(fn.__name__, clause, fn, given(make), compare, traced, native_form)
        return fn

    return register


# ---------------------------------------------------------------------- meaning, sums, coalescing: clauses 1 to 5
@law("4", one(wild))
def densify_of_coalesce_is_densify(x):
    return islices.to_dense(islices.coalesce(x)), islices.to_dense(x)


@law("4", one(wild), traced=False)
def coalesce_is_idempotent(x):
    once = islices.coalesce(x)
    forgotten = islices.IndexedSlices(once.values, once.indices, once.dense_shape)
    return islices.coalesce(forgotten), once


@law("3", strategies.in_another_order(exact))
def order_is_not_seen_in_exact_sums(x, y):
    return islices.to_dense(y), islices.to_dense(x)


@law("3", strategies.in_another_order(wild, keep_order=True))
def order_between_rows_is_not_seen(x, y):
    return islices.to_dense(y), islices.to_dense(x)


# Both orders are left folds of n terms. The error of each is at most (n - 1) * eps / 2 * sum|v| to first order (Higham,
# Accuracy and Stability of Numerical Algorithms, 2nd edition, section 4.2). So the results differ by at most n * eps *
# sum|v|.
@law("20", strategies.rounding, compare="within")
def order_is_rounding_at_most(x, y, sizes, factor):
    return islices.to_dense(y), islices.to_dense(x), islices.scale(islices.to_dense(sizes), factor)


@law("1", one(wild), traced=False, native_form=True)
def native_form_and_back_means_the_same(x):
    return islices.to_dense(islices.from_native(islices.to_native(x))), islices.to_dense(x)


# ---------------------------------------------------------------------- linear operations: clause 6
@law("6", strategies.shards)
def shards_joined_are_the_whole(x, parts):
    return (islices.concat(parts), islices.add(*parts)), (x, x)


@law("6", some(3, wild))
def add_is_associative(x, y, z):
    return islices.add(islices.add(x, y), z), islices.add(x, islices.add(y, z))


@law("6", some(2, exact))
def densify_is_linear(x, y):
    return islices.to_dense(islices.add(x, y)), islices.add(islices.to_dense(x), islices.to_dense(y))


@law("6", strategies.table_and_slices(wild))
def dense_plus_sparse_is_dense_plus_its_rows(table, x):
    mine = islices.keep_rows(islices.add(table, x), x.indices)
    return mine, islices.keep_rows(islices.add(table, islices.to_dense(x)), x.indices)


@law("6", with_option(some(2, moderate), c=strategies.FACTORS))
def scale_distributes_over_add(x, y, c):
    return islices.scale(islices.add(x, y), c), islices.add(islices.scale(x, c), islices.scale(y, c))


# ---------------------------------------------------------------------- norms: clauses 7 and 8
@law("7", with_option(one(wild), ord=(2, 1, float("inf"))))
def norm_is_that_of_the_coalesced_gradient(x, ord):
    return islices.norm(x, ord), islices.norm(islices.coalesce(x), ord)


@law("7", with_option(one(wild), ord=(2, 1, float("inf"))))
def norm_is_that_of_the_dense_gradient(x, ord):
    return islices.norm(x, ord), islices.norm(islices.to_dense(x), ord)


@law("8", some(2, wild))
def global_norm_sees_neither_structure_nor_order(x, y):
    return islices.global_norm([x, None, {"y": (y,)}]), islices.global_norm((y, x))


@law("8", strategies.with_rows(one(wild)))
def global_norm_of_a_partition_is_the_norm(x, rows):
    return islices.global_norm([islices.keep_rows(x, rows), islices.drop_rows(x, rows)]), islices.norm(x)


# ---------------------------------------------------------------------- clipping: clauses 9 and 10
@law("9", with_option(one(wild), lo=(-1.0, 0.0, -2.5), hi=(1.0, 0.0, 4.5)))
def clip_by_value_commutes_with_densify(x, lo, hi):
    return islices.to_dense(islices.clip_by_value(x, lo, hi)), islices.clip_by_value(islices.to_dense(x), lo, hi)


@law("10", strategies.clipped, compare="ulps_apart")
def clipping_twice_agrees_within_ulps(x, max_norm, slack, ulps):
    once = islices.clip_by_norm(x, max_norm)
    return islices.clip_by_norm(once, max_norm).values, once.values, ulps


@law("10", strategies.clipped, compare="at_most", traced=False)
def a_clipped_norm_is_at_most_max_norm(x, max_norm, slack, ulps):
    return islices.norm(islices.clip_by_norm(x, max_norm)), max_norm * slack


@law("10", with_option(one(strategies.unmeasured), max_norm=strategies.LIMITS, nonfinite=("propagate", "zero")))
def one_gradient_is_clipped_as_a_tree_of_one(x, max_norm, nonfinite):
    (clipped,), norm = islices.clip_by_global_norm([x], max_norm, nonfinite=nonfinite)
    return (clipped, norm), (islices.clip_by_norm(x, max_norm, nonfinite=nonfinite), islices.norm(x))


# ---------------------------------------------------------------------- selection: clause 13
@law("13", strategies.with_rows(one(wild)))
def keep_and_drop_are_a_partition(x, rows):
    return islices.to_dense(islices.add(islices.keep_rows(x, rows), islices.drop_rows(x, rows))), islices.to_dense(x)


@law("13", strategies.with_rows(one(wild)))
def keep_rows_is_idempotent(x, rows):
    once = islices.keep_rows(x, rows)
    return islices.keep_rows(once, rows), once


# ---------------------------------------------------------------------- padding and lookups: clause 12


@law("12", with_option(one(wild), padding_idx=(0, 3, 6)))
def a_negative_padding_idx_counts_from_the_end(x, padding_idx):
    return islices.drop_padding(x, padding_idx - 7), islices.drop_rows(x, [padding_idx])


@law("12", with_option(strategies.looked_up, padding_idx=(0, 3, -1)))
def padding_is_dropped_early_or_late(upstream, ids, num_rows, padding_idx):
    early = islices.embedding_grad(upstream, ids, num_rows, padding_idx=padding_idx)
    late = islices.drop_padding(islices.embedding_grad(upstream, ids, num_rows), padding_idx)
    return islices.to_dense(early), islices.to_dense(late)


@law("12", strategies.looked_up)
def the_gradient_of_a_lookup_lands_where_it_was_looked_up(upstream, ids, num_rows):
    grad = islices.embedding_grad(upstream, ids, num_rows)
    rows = islices.lookup(islices.to_dense(grad), ids)
    return rows, islices.lookup(islices.to_dense(islices.coalesce(grad)), ids)


# ---------------------------------------------------------------------- samples: clause 14
@law("14", strategies.looked_up)
def samples_add_up_to_the_whole(upstream, ids, num_rows):
    whole = islices.embedding_grad(upstream, ids, num_rows)
    return islices.to_dense(islices.per_sample(upstream, ids, num_rows).sum()), islices.to_dense(whole)


@law("14", strategies.looked_up)
def clipped_samples_are_clipped_alone(upstream, ids, num_rows):
    samples = islices.per_sample(upstream, ids, num_rows)
    numbers = range(samples.dense_shape[0])
    alone = [islices.clip_by_norm(samples.slices(b), 1.0) for b in numbers]
    return [islices.to_dense(samples.clip(1.0).slices(b)) for b in numbers], [islices.to_dense(s) for s in alone]


# ---------------------------------------------------------------------- row updates: clause 15
@law("15", strategies.table_and_slices(exact))
def scatter_add_adds_the_dense_gradient(table, x):
    expected = islices.add(table, islices.to_dense(x))
    return islices.scatter(table, x), expected


@law("15", strategies.table_and_shards)
def scatter_add_takes_shards_one_by_one(table, x, parts):
    expected = islices.scatter(islices.scale(table, 1), x)
    for part in parts:
        table = islices.scatter(table, part)
    return table, expected


@law("15", with_option(strategies.table_and_slices(wild), op=("add", "sub", "update", "min", "max", "mul", "div")))
def scatter_keeps_other_rows(table, x, op):
    expected = islices.drop_rows(table, x.indices)
    return islices.drop_rows(islices.scatter(table, x, op), x.indices), expected


@law("15", with_option(strategies.table_and_slices(wild), op=("update", "min", "max")))
def scatter_twice_is_once(table, x, op):
    once = islices.scale(islices.scatter(table, x, op), 1)
    return islices.scatter(islices.scale(once, 1), x, op), once


# ---------------------------------------------------------------------- optimizers: clause 16
@law("16", strategies.stepped)
def rows_not_named_keep_their_bits(table, x, optimizer):
    expected = islices.drop_rows(table, x.indices)
    table, _ = optimizer().step(table, x, optimizer().init(table))
    return islices.drop_rows(table, x.indices), expected


@law("16", strategies.stepped)
def all_rows_is_the_dense_step(table, x, optimizer):
    other, dense = islices.scale(table, 1), islices.to_dense(x)
    optimizer = optimizer(rows="all")
    expected = optimizer.step(other, dense, optimizer.init(other))
    return optimizer.step(table, x, optimizer.init(table)), expected


@law("16", strategies.stepped)
def a_step_sees_the_coalesced_gradient(table, x, optimizer):
    other, optimizer = islices.scale(table, 1), optimizer()
    expected = optimizer.step(other, islices.coalesce(x), optimizer.init(other))
    return optimizer.step(table, x, optimizer.init(table)), expected


@law("16", strategies.stepped)
def maximize_follows_the_negative_gradient(table, x, optimizer):
    other = islices.scale(table, 1)
    expected = optimizer().step(other, islices.scale(x, -1), optimizer().init(other))
    return optimizer(maximize=True).step(table, x, optimizer().init(table)), expected


@law("16", strategies.some_rows_frozen, traced=False)
def frozen_rows_keep_their_bits(table, x, optimizer, rows):
    expected = islices.keep_rows(table, rows)
    optimizer = optimizer(frozen=rows, rows="all")
    table, _ = optimizer.step(table, x, optimizer.init(table))
    return islices.keep_rows(table, rows), expected
