"""The laws: what holds of the public functions whatever they are given, each with its clause of SPEC.md.

A law is a function of drawn arguments that makes public calls and returns two results, to be compared as `compare` has
it: to the bit unless the decorator says otherwise. Where it returns three, the third bounds their distance. Its source
is what a counterexample prints, so it names nothing but its arguments, `islices` and what Python has built in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from hypothesis import strategies as st

import islices
from islices.conformance.properties.strategies import (
    FACTORS,
    LIMITS,
    Arguments,
    Draw,
    clipped,
    exact,
    given,
    in_another_order,
    moderate,
    one,
    rounding,
    shards,
    some,
    table_and_slices,
    unmeasured,
    wild,
    with_option,
    with_rows,
)

__all__ = ["LAWS", "Law", "law"]


class Law(NamedTuple):
    """A law, its clause, and what it is drawn from."""

    name: str
    clause: str
    call: Callable[..., Any]
    arguments: st.SearchStrategy[Arguments]
    #: the function of `compare` that holds of the two results; "within" where there is a third
    compare: str
    traced: bool
    #: it makes the framework's own sparse object, which some types cannot be held in
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
    """Register a law; ``traced``: it also holds inside jit, where no value is known."""

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


@law("4", one(wild, coalesced=True), traced=False)
def coalesce_leaves_unique_ascending_rows(x):
    forgotten = islices.IndexedSlices(x.values, x.indices, x.dense_shape)
    return islices.coalesce(forgotten), x


@law("3", in_another_order(exact))
def order_is_not_seen_in_exact_sums(x, y):
    return islices.to_dense(y), islices.to_dense(x)


@law("3", in_another_order(wild, keep_order=True))
def order_between_rows_is_not_seen(x, y):
    return islices.to_dense(y), islices.to_dense(x)


# Both orders are left folds of n terms; each is off by at most (n - 1) * eps / 2 * sum|v| to first order (Higham,
# Accuracy and Stability of Numerical Algorithms, 2nd edition, section 4.2), so that they are n * eps * sum|v| apart.
@law("20", rounding, compare="within")
def order_is_rounding_at_most(x, y, sizes, factor):
    return islices.to_dense(y), islices.to_dense(x), islices.scale(islices.to_dense(sizes), factor)


@law("1", one(wild), traced=False, native_form=True)
def native_form_and_back_means_the_same(x):
    return islices.to_dense(islices.from_native(islices.to_native(x))), islices.to_dense(x)


@law("1", one(exact), traced=False)
def nonzero_rows_of_the_dense_array_are_the_slices(x):
    dense = islices.to_dense(x)
    return islices.to_dense(islices.from_dense(dense)), dense


# ---------------------------------------------------------------------- linear operations: clause 6
@law("6", shards)
def shards_joined_are_the_whole(x, parts):
    return (islices.concat(parts), islices.add(*parts)), (x, x)


@law("6", some(2, exact))
def add_commutes_after_densify(x, y):
    return islices.to_dense(islices.add(x, y)), islices.to_dense(islices.add(y, x))


@law("6", some(3, wild))
def add_is_associative(x, y, z):
    return islices.add(islices.add(x, y), z), islices.add(x, islices.add(y, z))


@law("6", some(2, exact))
def densify_is_linear(x, y):
    return islices.to_dense(islices.add(x, y)), islices.add(islices.to_dense(x), islices.to_dense(y))


@law("6", table_and_slices(wild))
def dense_plus_sparse_is_dense_plus_its_rows(table, x):
    mine = islices.keep_rows(islices.add(table, x), x.indices)
    return mine, islices.keep_rows(islices.add(table, islices.to_dense(x)), x.indices)


@law("6", table_and_slices(wild))
def dense_plus_sparse_keeps_other_rows(table, x):
    return islices.drop_rows(islices.add(table, x), x.indices), islices.drop_rows(table, x.indices)


@law("6", with_option(some(2, moderate), c=FACTORS))
def scale_distributes_over_add(x, y, c):
    return islices.scale(islices.add(x, y), c), islices.add(islices.scale(x, c), islices.scale(y, c))


@law("6", with_option(one(exact), c=(2.0, -1.0, 0.5, 0.0)))
def scale_by_powers_of_two_commutes_with_densify(x, c):
    return islices.to_dense(islices.scale(x, c)), islices.scale(islices.to_dense(x), c)


@law("6", one(exact))
def x_minus_x_is_zero(x):
    return islices.to_dense(islices.add(x, islices.scale(x, -1))), islices.scale(islices.to_dense(x), 0)


# ---------------------------------------------------------------------- norms: clauses 7 and 8
@law("7", with_option(one(wild), ord=(2, 1, float("inf"))))
def norm_is_that_of_the_coalesced_gradient(x, ord):
    return islices.norm(x, ord), islices.norm(islices.coalesce(x), ord)


@law("7", with_option(one(wild), ord=(2, 1, float("inf"))))
def norm_is_that_of_the_dense_gradient(x, ord):
    return islices.norm(x, ord), islices.norm(islices.to_dense(x), ord)


@law("7", with_option(in_another_order(exact), ord=(2, 1, float("inf"))))
def norm_does_not_see_the_order(x, y, ord):
    return islices.norm(y, ord), islices.norm(x, ord)


@law("7", with_option(one(moderate), c=(2.0, -4.0, 0.5)))
def norm_scales_with_powers_of_two(x, c):
    return islices.norm(islices.scale(x, c)), islices.scale(islices.norm(x), abs(c))


@law("8", some(2, wild))
def global_norm_sees_neither_structure_nor_order(x, y):
    return islices.global_norm([x, None, {"y": (y,)}]), islices.global_norm((y, x))


@law("8", with_rows(one(wild)))
def global_norm_of_a_partition_is_the_norm(x, rows):
    return islices.global_norm([islices.keep_rows(x, rows), islices.drop_rows(x, rows)]), islices.norm(x)


# ---------------------------------------------------------------------- clipping: clauses 9 and 10
@law("9", with_option(one(wild), lo=(-1.0, 0.0, -2.5), hi=(1.0, 0.0, 4.5)))
def clip_by_value_commutes_with_densify(x, lo, hi):
    return islices.to_dense(islices.clip_by_value(x, lo, hi)), islices.clip_by_value(islices.to_dense(x), lo, hi)


@law("9", with_option(one(wild), lo=(-1.0, 0.0, -2.5), hi=(1.0, 0.0, 4.5)))
def clip_by_value_is_idempotent(x, lo, hi):
    once = islices.clip_by_value(x, lo, hi)
    return islices.clip_by_value(once, lo, hi), once


@law("10", clipped, compare="ulps_apart")
def clipping_twice_agrees_within_ulps(x, max_norm, slack, ulps):
    once = islices.clip_by_norm(x, max_norm)
    return islices.clip_by_norm(once, max_norm).values, once.values, ulps


@law("10", clipped, compare="ulps_apart")
def clipping_rows_twice_agrees_within_ulps(x, max_norm, slack, ulps):
    once = islices.clip_by_row_norm(x, max_norm)
    return islices.clip_by_row_norm(once, max_norm).values, once.values, ulps


@law("10", clipped, compare="ulps_apart")
def clipping_a_tree_twice_agrees_within_ulps(x, max_norm, slack, ulps):
    once, _ = islices.clip_by_global_norm([x, {"dense": islices.to_dense(x)}], max_norm)
    twice, _ = islices.clip_by_global_norm(once, max_norm)
    return [twice[0].values, twice[1]], [once[0].values, once[1]], ulps


@law("10", clipped, compare="at_most", traced=False)
def a_clipped_norm_is_at_most_max_norm(x, max_norm, slack, ulps):
    return islices.norm(islices.clip_by_norm(x, max_norm)), max_norm * slack


@law("10", one(moderate))
def an_infinite_max_norm_changes_nothing(x):
    return islices.clip_by_norm(x, float("inf")), x


@law("10", with_option(one(unmeasured), max_norm=LIMITS, nonfinite=("propagate", "zero")))
def one_gradient_is_clipped_as_a_tree_of_one(x, max_norm, nonfinite):
    (clipped,), norm = islices.clip_by_global_norm([x], max_norm, nonfinite=nonfinite)
    return (clipped, norm), (islices.clip_by_norm(x, max_norm, nonfinite=nonfinite), islices.norm(x))


@law("10", with_option(one(unmeasured, coalesced=True), max_norm=LIMITS))
def clip_by_row_norm_commutes_with_densify(x, max_norm):
    dense = islices.to_dense(x)
    return islices.to_dense(islices.clip_by_row_norm(x, max_norm)), islices.clip_by_row_norm(dense, max_norm)


# ---------------------------------------------------------------------- selection: clause 13
@law("13", with_rows(one(wild)))
def keep_and_drop_are_a_partition(x, rows):
    return islices.to_dense(islices.add(islices.keep_rows(x, rows), islices.drop_rows(x, rows))), islices.to_dense(x)


@law("13", with_rows(one(wild)))
def keep_rows_is_idempotent(x, rows):
    once = islices.keep_rows(x, rows)
    return islices.keep_rows(once, rows), once


@law("13", with_rows(one(wild)))
def keep_rows_commutes_with_densify(x, rows):
    return islices.to_dense(islices.keep_rows(x, rows)), islices.keep_rows(islices.to_dense(x), rows)
