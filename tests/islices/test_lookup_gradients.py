"""Lookups drawn at random, on each framework: value_and_grad beside the framework's own dense autodiff.

Where nothing rounds (whole numbers) the densified gradients are bit-equal. Otherwise the frameworks add in orders of
their own: the bound is n * eps * sum of |terms|, n contributions to the element (SPEC clause 20). Bags are compared
with torch's embedding_bag and tf.nn.embedding_lookup_sparse (SPEC clause 19).
"""

from __future__ import annotations

import importlib
import math
from typing import Any

import numpy as np
import pytest

import islices

hypothesis = pytest.importorskip("hypothesis", reason="hypothesis is not installed")
from hypothesis import strategies as st  # noqa: E402

FRAMEWORKS = [name for name in ("torch", "tensorflow", "jax", "mxnet") if name in islices.list_backends()]
properties = hypothesis.settings(derandomize=True, deadline=None, max_examples=40, database=None)
#: Few shapes, since frameworks compile each: the draws differ in ids and numbers.
SHAPES = ((), (0,), (1,), (6,), (3, 4), (2, 0), (2, 3, 2))

Lookup = tuple[np.ndarray, np.ndarray, dict[str, Any]]


def numbers(draw: Any, shape: tuple[int, ...], whole: bool) -> np.ndarray:
    size = math.prod(shape)
    if whole:
        data = draw(st.lists(st.integers(-64, 64), min_size=size, max_size=size))
    else:
        element = st.floats(0.0625, 16, width=32) | st.floats(-16, -0.0625, width=32)
        data = draw(st.lists(element, min_size=size, max_size=size))
    return np.array(data, np.float32).reshape(shape)


@st.composite
def plain_lookups(draw: Any, whole: bool) -> tuple[np.ndarray, list[Lookup]]:
    count, width = draw(st.sampled_from(((1, 1), (5, 3))))
    table = numbers(draw, (count, width), whole)
    lookups = []
    for shape in draw(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=3)):
        size = math.prod(shape)
        ids = draw(st.lists(st.integers(0, count - 1), min_size=size, max_size=size))
        dtype = draw(st.sampled_from((np.int32, np.int64)))
        lookups.append((np.array(ids, dtype).reshape(shape), numbers(draw, (*shape, width), whole), {}))
    return table, lookups


@st.composite
def bags(draw: Any, framework: str) -> tuple[np.ndarray, list[Lookup]]:
    table = numbers(draw, (5, 3), False)
    combiner = draw(st.sampled_from(("sum", "mean", "max") if framework == "torch" else ("sum", "mean", "sqrtn")))
    # TensorFlow leaves out empty bags at the end
    lengths = [*draw(st.lists(st.integers(0, 4), min_size=1, max_size=4)), 1]
    ids = draw(st.lists(st.integers(0, 4), min_size=sum(lengths), max_size=sum(lengths)))
    offsets = np.cumsum([0, *lengths])[:-1].astype(np.int64)
    options: dict[str, Any] = {"combiner": combiner, "offsets": offsets}
    if draw(st.booleans()) and (combiner == "sum" or framework == "tensorflow"):
        options["weights"] = np.abs(numbers(draw, (len(ids),), False))  # of one sign: no sum of them nears zero
    return table, [(np.array(ids, np.int64), numbers(draw, (len(lengths), 3), False), options)]


def own_calls(framework: str) -> Any:
    islices.get_backend(framework)  # MXNet imports through its adapter only
    return importlib.import_module(f"islices.conformance.own_calls.{framework}")


def our_gradient(framework: str, table: np.ndarray, lookups: list[Lookup]) -> tuple[islices.IndexedSlices, list[Any]]:
    B, own = islices.get_backend(framework), own_calls(framework)
    weights = [B.asarray(o["weights"]) for *_, o in lookups if "weights" in o]

    def loss(parameter: Any, given: list[Any]) -> Any:
        rest, total = iter(given), None
        for ids, upstream, options in lookups:
            more = {"weights": next(rest)} if "weights" in options else {}
            rows = islices.lookup(parameter, B.asarray(ids), **(options | more))
            part = own.weighted_sum(rows, B.asarray(upstream))
            total = part if total is None else total + part
        return total

    parameter = islices.Table(B.asarray(table))
    if not weights:
        return islices.value_and_grad(lambda t: loss(t, []))(parameter)[1], []
    _, (gradient, rest) = islices.value_and_grad(loss, (0, 1))(parameter, weights)
    return gradient, [B.to_numpy(w) for w in rest]


def check_slices(gradient: islices.IndexedSlices, lookups: list[Lookup]) -> None:
    """One slice for each of the ids, in order."""
    expected = np.concatenate([ids.reshape(-1).astype(np.int64) for ids, *_ in lookups])
    assert gradient.backend.to_numpy(gradient.indices).tolist() == expected.tolist()


@pytest.mark.parametrize("framework", islices.list_backends())
def test_of_an_integer_mask_only_0_is_false(framework: str) -> None:
    """Also where the lower half of 64 bits is 0."""
    B, mask = islices.get_backend(framework), np.array([1, 2**32, -(2**40), 0, 2**63 - 1])
    ones, ids = (B.asarray(x) for x in (np.ones((5, 1), np.float32), np.arange(5)))
    expected = [1, 1, 1, 0, 1]
    for given in (mask,) if framework == "jax" else (mask, B.asarray(mask)):  # JAX holds 32 bits
        g = islices.embedding_grad(ones, ids, 5, mask=given)
        assert B.to_numpy(g.values).ravel().tolist() == expected
    bags = islices.lookup(ones, B.reshape(ids, (5, 1)), combiner="sum", mask=mask[:, None])
    assert B.to_numpy(bags).ravel().tolist() == expected


@pytest.mark.repeats_where(lambda framework: framework == "jax")
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_whole_numbers_are_bit_equal(framework: str) -> None:
    @properties
    @hypothesis.given(plain_lookups(whole=True))
    def check(drawn: tuple[np.ndarray, list[Lookup]]) -> None:
        table, lookups = drawn
        gradient, _ = our_gradient(framework, table, lookups)
        check_slices(gradient, lookups)
        expected, _ = own_calls(framework).dense_gradient(table, lookups)
        got = gradient.backend.to_numpy(islices.to_dense(gradient))
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(got, expected)

    check()


@pytest.mark.repeats_where(lambda framework: framework == "jax")
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_sums_agree_within_what_their_order_loses(framework: str) -> None:
    @properties
    @hypothesis.given(plain_lookups(whole=False))
    def check(drawn: tuple[np.ndarray, list[Lookup]]) -> None:
        table, lookups = drawn
        gradient, _ = our_gradient(framework, table, lookups)
        expected, _ = own_calls(framework).dense_gradient(table, lookups)
        terms, count = np.zeros(table.shape), np.zeros(table.shape)
        for ids, upstream, _ in lookups:
            np.add.at(terms, ids, np.abs(upstream, dtype=np.float64))
            np.add.at(count, ids, 1.0)
        got = gradient.backend.to_numpy(islices.to_dense(gradient)).astype(np.float64)
        assert (np.abs(got - expected) <= count * np.finfo(np.float32).eps * terms).all()

    check()


def bag_bounds(
    table: np.ndarray, ids: np.ndarray, upstream: np.ndarray, options: dict[str, Any]
) -> tuple[np.ndarray, np.ndarray]:
    """n * eps * sum of |terms| for the gradients of the table and of the weights: n counts the additions of a bag and
    of a row, and eight for what else is rounded (quotients, roots, products, here and there)."""
    eps = float(np.finfo(np.float32).eps)
    ends = [*options["offsets"][1:], len(ids)]
    terms, count, shares = np.zeros(table.shape), np.zeros(table.shape), np.zeros(len(ids))
    for g, begin, end in zip(np.abs(upstream.astype(np.float64)), options["offsets"], ends, strict=True):
        w = options.get("weights", np.ones(len(ids)))[begin:end].astype(np.float64)
        by = {"mean": w.sum(), "sqrtn": math.sqrt((w * w).sum())}.get(options["combiner"], 1.0) or 1.0
        x = np.abs(table[ids[begin:end]].astype(np.float64))
        np.add.at(terms, ids[begin:end], np.outer(w, g / by))
        np.add.at(count, ids[begin:end], float(end - begin))
        y = (w[:, None] * x).sum(0) / by
        moved = {"mean": y, "sqrtn": y * (w[:, None] / by)}.get(options["combiner"], 0.0)
        shares[begin:end] = ((end - begin) + 8 + table.shape[1]) * eps * ((g / by) * (x + moved)).sum(1)
    return (count + 8) * eps * terms, shares


@pytest.mark.parametrize("framework", [name for name in FRAMEWORKS if name in ("torch", "tensorflow")])
def test_bags_agree_with_the_frameworks_own(framework: str) -> None:
    @properties
    @hypothesis.given(bags(framework))
    def check(drawn: tuple[np.ndarray, list[Lookup]]) -> None:
        table, lookups = drawn
        gradient, weights = our_gradient(framework, table, lookups)
        check_slices(gradient, lookups)
        expected, expected_weights = own_calls(framework).dense_gradient(table, lookups)
        got = gradient.backend.to_numpy(islices.to_dense(gradient)).astype(np.float64)
        bound, weights_bound = bag_bounds(table, *lookups[0])
        assert (np.abs(got - expected) <= bound).all()
        for a, b in zip(weights, [w for w in expected_weights if w is not None], strict=True):
            assert (np.abs(a.astype(np.float64) - b) <= weights_bound).all()

    check()
