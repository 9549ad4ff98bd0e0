"""Test value_and_grad, tables and per-sample gradients on every framework, as users call them."""

from __future__ import annotations

import collections
import importlib
import pickle
from typing import Any

import numpy as np
import pytest
from comparing import host
from numpy.testing import assert_allclose, assert_array_equal

import islices

FRAMEWORKS = [name for name in ("torch", "tensorflow", "jax", "mxnet") if name in islices.list_backends()]
ROWS, WIDTH = 9, 3
IDS = np.array([[1, 4, 4], [0, 8, 1]], np.int32)


class Framework:
    def __init__(self, name: str) -> None:
        self.name = name
        self.backend = islices.get_backend(name)  # MXNet must be imported by its adapter
        self.sum = importlib.import_module(f"islices.conformance.own_calls.{name}").weighted_sum

    def losses(self, x: Any) -> Any:
        """Return one loss per sample: the sum of x[b] for each b."""
        if self.name == "tensorflow":
            return importlib.import_module("tensorflow").reduce_sum(x, list(range(1, len(x.shape))))
        return x.sum(tuple(range(1, len(x.shape))))

    def array(self, x: Any, dtype: Any = np.float32) -> Any:
        return self.backend.asarray(np.asarray(x, dtype))

    def table(self, **options: Any) -> islices.Table:
        return islices.Table(self.array(np.arange(ROWS * WIDTH).reshape(ROWS, WIDTH)), **options)

    def upstream(self, *shape: int) -> Any:
        return self.array(1.0 + np.arange(np.prod(shape)).reshape(shape) % 7)


@pytest.fixture(params=FRAMEWORKS)
def fw(request: pytest.FixtureRequest) -> Framework:
    return Framework(request.param)


with_vmap = pytest.mark.parametrize("fw", [name for name in FRAMEWORKS if name != "mxnet"], indirect=True)


def dense(gradient: islices.IndexedSlices) -> np.ndarray:
    return host(islices.to_dense(gradient))


def scattered(ids: np.ndarray, upstream: np.ndarray) -> np.ndarray:
    out = np.zeros((ROWS, WIDTH), np.float32)
    np.add.at(out, ids, upstream)
    return out


# ---------------------------------------------------------------------- gradients mirror the arguments
def test_trees_of_tables_arrays_and_the_rest(fw: Framework) -> None:
    up = fw.upstream(2, 3, WIDTH)
    Parameters = collections.namedtuple("Parameters", ["words", "head"])
    tree = {
        "used": fw.table(), "unused": fw.table(padding_idx=0),
        "pair": [Parameters(fw.table(), fw.array([1.0, 2.0, 4.0])), None], "name": "a text", "steps": 3,
    }  # fmt: skip

    def loss(params: Any, scale: float, *, shift: float) -> Any:
        assert params["name"] == "a text"
        assert params["steps"] == 3
        rows = islices.lookup(params["used"], fw.array(IDS, np.int32))
        more = islices.lookup(params["pair"][0].words, fw.array(IDS, np.int32)) * params["pair"][0].head
        return (fw.sum(rows, up) + fw.sum(more, up)) * scale + shift

    value, grads = islices.value_and_grad(loss)(tree, 2.0, shift=1.0)
    rows = np.arange(ROWS * WIDTH).reshape(ROWS, WIDTH)[IDS]
    weights = host(up)
    expected = 2 * (rows * weights).sum() + 2 * (rows * [1, 2, 4] * weights).sum() + 1
    assert float(host(value).reshape(())) == expected
    assert list(grads) == list(tree)
    assert isinstance(grads["pair"][0], Parameters)
    assert (grads["name"], grads["steps"], grads["pair"][1]) == (None, None, None)
    assert_array_equal(dense(grads["used"]), scattered(IDS, 2 * weights))
    assert_array_equal(dense(grads["pair"][0].words), scattered(IDS, 2 * weights * [1, 2, 4]))
    assert_array_equal(host(grads["pair"][0].head), (2 * rows * weights).sum((0, 1)))
    assert host(grads["unused"].indices).shape == (0,)
    assert grads["unused"].dense_shape == (ROWS, WIDTH)
    assert fw.backend.dtype(grads["unused"].values) == "float32"


def test_argnums_and_aux(fw: Framework) -> None:
    def loss(scale: float, table: Any, w: Any) -> Any:
        rows = islices.lookup(table, IDS)
        return fw.sum(rows * w, fw.upstream(2, 3, WIDTH)) * scale, {"rows": rows}

    args = (2.0, fw.table(), fw.array([1.0, 1.0, 0.0]))
    (value, aux), (g, t) = islices.value_and_grad(loss, (2, 1), has_aux=True)(*args)
    assert host(aux["rows"]).shape == (2, 3, WIDTH)
    assert float(host(value).reshape(())) > 0
    assert host(g).shape == (WIDTH,)
    assert host(t.indices).tolist() == IDS.reshape(-1).tolist()
    (_, _), last = islices.value_and_grad(loss, -2, has_aux=True)(*args)
    assert_array_equal(dense(last), dense(t))


def test_array_gradients_of_lookups_are_the_frameworks_own(fw: Framework) -> None:
    """Check that a looked-up array gets a dense gradient, to which padding and masked slots add nothing."""

    def loss(w: Any) -> Any:
        mask = np.array([[True, True, False], [True, True, True]])
        rows = islices.lookup(w, IDS, padding_idx=0, mask=mask)
        bags = islices.lookup(w, IDS, combiner="sum", padding_idx=-1)
        return fw.sum(rows, fw.upstream(2, 3, WIDTH)) + fw.sum(bags, fw.upstream(2, WIDTH))

    _, g = islices.value_and_grad(loss)(fw.table().weights)
    up, bag = host(fw.upstream(2, 3, WIDTH)), host(fw.upstream(2, WIDTH))
    expected = scattered(IDS, up)
    expected[0] = 0
    expected[4] -= up[0, 2]
    members = scattered(IDS, np.repeat(bag[:, None], 3, 1))
    members[8] = 0
    assert_array_equal(host(g), expected + members)


def test_an_error_in_fn_passes_through_and_leaves_nothing_behind(fw: Framework) -> None:
    class OwnError(Exception):
        pass

    def broken(table: Any) -> Any:
        islices.lookup(table, IDS)
        raise OwnError

    with pytest.raises(OwnError):
        islices.value_and_grad(broken)(fw.table())
    _, g = islices.value_and_grad(lambda t: fw.sum(islices.lookup(t, IDS), fw.upstream(2, 3, WIDTH)))(fw.table())
    assert host(g.indices).shape == (6,)


@pytest.mark.parametrize("fw", [name for name in FRAMEWORKS if name in ("tensorflow", "jax")], indirect=True)
def test_auto_marks_tables_of_which_fewer_rows_are_read_than_they_have(fw: Framework) -> None:
    def loss(few: Any, every: Any) -> Any:
        B = fw.backend
        parts = [B.take(few, fw.array(IDS[0], np.int32)), B.take(every, fw.array(np.arange(ROWS), np.int32))]
        return sum(fw.sum(rows, fw.upstream(*rows.shape)) for rows in parts)

    _, (few, every) = islices.value_and_grad(loss, (0, 1), sparse="auto")(fw.table().weights, fw.table().weights)
    assert isinstance(few, islices.IndexedSlices)
    assert fw.backend.is_array(every)


# ---------------------------------------------------------------------- errors
def test_what_value_and_grad_refuses(fw: Framework) -> None:
    table, up = fw.table(), fw.upstream(2, 3, WIDTH)

    def good(t: Any, *_: Any) -> Any:
        return fw.sum(islices.lookup(t, IDS), up)

    def refuses(kind: type[Exception], words: str, call: Any) -> None:
        with pytest.raises(kind, match=words):
            call()

    refuses(TypeError, "fn: got int 3", lambda: islices.value_and_grad(3))
    refuses(TypeError, "argnums: got 'a'", lambda: islices.value_and_grad(good, "a"))
    refuses(ValueError, "argnums: got .*once", lambda: islices.value_and_grad(good, (0, 0)))
    refuses(ValueError, "argnums: .* each once", lambda: islices.value_and_grad(good, (0, -1))(table))
    refuses(ValueError, "argnums: got 3, called with 1", lambda: islices.value_and_grad(good, 3)(table))
    refuses(TypeError, "argument 0: got .*int32", lambda: islices.value_and_grad(good)(fw.array(IDS, np.int32)))
    refuses(TypeError, "argument 0: got None", lambda: islices.value_and_grad(good)(None))
    refuses(TypeError, "numpy", lambda: islices.value_and_grad(good, (0, 1))(table, np.ones(3)))
    refuses(ValueError, "fn: returned a loss of shape", lambda: islices.value_and_grad(lambda t: t[IDS])(table))
    refuses(TypeError, "fn: returned", lambda: islices.value_and_grad(lambda t: "a loss")(table))
    refuses(TypeError, "fn: returned", lambda: islices.value_and_grad(lambda t: fw.array(3, np.int32))(table))
    refuses(TypeError, "fn: returned .*aux", lambda: islices.value_and_grad(good, has_aux=True)(table))
    refuses(IndexError, "ids: got 9 at position 0", lambda: islices.value_and_grad(lambda t: t[np.array([9])])(table))


def test_numpy_has_no_gradients_and_says_what_to_use() -> None:
    table = islices.Table(np.ones((3, 2)))
    with pytest.raises(NotImplementedError, match=r"numpy: differentiate: .*embedding_grad\(upstream, ids, num_rows\)"):
        islices.value_and_grad(lambda t: islices.lookup(t, np.array([0])).sum())(table)
    assert pickle.loads(pickle.dumps(table)).shape == (3, 2)


# ---------------------------------------------------------------------- per sample
def squared(fw: Framework) -> Any:
    """Return a function of a table, a dense array, ids and weights. The function computes one loss per sample."""

    def loss(table: Any, w: Any, ids: Any, weights: Any) -> Any:
        rows = islices.lookup(table, ids) * w
        return fw.losses(rows * rows * weights)

    return loss


def test_per_sample_is_what_each_sample_gives_alone(fw: Framework) -> None:
    table, w = fw.table(padding_idx=4), fw.array([1.0, 2.0, -1.0])
    ids, up = fw.array(IDS, np.int32), fw.upstream(2, 3, WIDTH)
    step = islices.value_and_grad(squared(fw), (0, 1), per_sample=True)
    if fw.name == "mxnet":
        with pytest.raises(NotImplementedError, match="mxnet: per_sample_gradients: "):
            step(table, w, ids, up)
        value, t = islices.value_and_grad(squared(fw), per_sample=True)(table, w, ids, up)
    else:
        value, (t, d) = step(table, w, ids, up)
        assert fw.backend.shape(d) == (2, WIDTH)

    def whole(*args: Any) -> Any:
        losses = squared(fw)(*args)
        return fw.sum(losses, losses / losses)

    for b in range(2):
        one = islices.value_and_grad(whole, (0, 1))(table, w, fw.array(IDS[b : b + 1], np.int32), up[b : b + 1])
        assert float(host(one[0]).reshape(())) == host(value)[b]
        assert_array_equal(dense(t.slices(b)), dense(one[1][0]))
        if fw.name != "mxnet":
            assert_allclose(host(d)[b], host(one[1][1]), rtol=1e-6)
    _, together = islices.value_and_grad(whole)(table, w, ids, up)
    assert_array_equal(dense(t.sum()), dense(together))
    assert_allclose(host(t.norms()), [np.linalg.norm(dense(t.slices(b))) for b in range(2)], rtol=1e-6)


@with_vmap
def test_an_empty_batch_has_empty_gradients(fw: Framework) -> None:
    w, ids, up = fw.array([1.0, 2.0, -1.0]), fw.array(IDS[:0], np.int32), fw.upstream(0, 3, WIDTH)
    value, (t, d) = islices.value_and_grad(squared(fw), (0, 1), per_sample=True)(fw.table(), w, ids, up)
    assert [tuple(fw.backend.shape(x)) for x in (value, d)] == [(0,), (0, WIDTH)]
    assert (t.dense_shape, len(t.values)) == ((0, ROWS, WIDTH), 0)
    if fw.name == "jax":
        step = islices.value_and_grad(lambda w, ids: fw.losses(w[ids]), sparse=True, per_sample=True)
        assert step(fw.table()._source.weights, ids)[1].dense_shape == (0, ROWS, WIDTH)


def test_what_per_sample_refuses(fw: Framework) -> None:
    def refuses(kind: type[Exception], words: str, fn: Any, table: Any) -> None:
        with pytest.raises(kind, match=words):
            islices.value_and_grad(fn, per_sample=True)(table)

    def two_sizes(t: Any) -> Any:
        return fw.losses(t[IDS]) + fw.sum(t[IDS.T], fw.upstream(3, 2, WIDTH))

    refuses(ValueError, r"per_sample: got lookups of \[2, 3\] samples", two_sizes, fw.table())
    refuses(ValueError, r"per_sample: got a lookup of ids of shape \(\)",
            lambda t: t[np.array(3)], fw.table())  # fmt: skip
    refuses(NotImplementedError, "scale_by_freq",
            lambda t: fw.losses(t[IDS]), fw.table(scale_by_freq=True))  # fmt: skip
    if fw.name != "mxnet":
        with pytest.raises(ValueError, match="per_sample: got 0 arrays beside the differentiated"):
            islices.value_and_grad(lambda w: w * w, per_sample=True)(fw.array([1.0]))


SQUARE = np.array([[1, 4, 4], [0, 8, 1], [2, 2, 3]], np.int32)
#: Functions that return three losses from a table, ids of shape (3, 3) and features, but let samples influence each
#: other.
INFLUENCES: dict[str, Any] = {
    "mean": lambda fw, t, ids, x: fw.losses(t[ids]) / ids.shape[0],
    "l2 term": lambda fw, t, ids, x: fw.losses(t[ids]) + fw.sum(t[ids], t[ids]) * 1e-4,
    "features of all": lambda fw, t, ids, x: fw.losses(t[ids][:, 0] * x / fw.sum(x, x)),
}


@pytest.mark.parametrize("name", INFLUENCES)
def test_samples_that_influence_each_other_are_found(fw: Framework, name: str) -> None:
    loss = lambda t, ids, x: INFLUENCES[name](fw, t, ids, x)  # noqa: E731
    args = (fw.table(), fw.array(SQUARE, np.int32), fw.array([[1, 2, 3], [5, 1, 4], [0, 7, 1]]))
    step = islices.value_and_grad(loss, per_sample=True)
    for _ in range(2):  # a call that raised does not count as checked
        with pytest.raises(ValueError, match=r"per_sample: got samples that influence each other: .* sample"):
            step(*args)
    islices.value_and_grad(loss, per_sample=True, check=False)(*args)


def test_a_gradient_that_is_nan_everywhere_is_no_influence(fw: Framework) -> None:
    """Check that gradients of NaN do not raise the error about samples that influence each other. At the root of 0,
    frameworks multiply 0 by infinity, which also affects other samples."""
    step = islices.value_and_grad(lambda t, ids: fw.losses(t[ids] * 0.0) ** 0.5, per_sample=True)
    _, g = step(fw.table(), fw.array(IDS, np.int32))
    assert np.isnan(host(g.values)).all()


def test_the_first_eager_call_is_checked_and_no_other(fw: Framework) -> None:
    calls = []

    def loss(t: Any, ids: Any) -> Any:
        calls.append(0)
        return fw.losses(t[ids])

    args = (fw.table(), fw.array(IDS, np.int32))
    one, step = (fw.table(), fw.array(IDS[:1], np.int32)), islices.value_and_grad(loss, per_sample=True)
    unchecked = islices.value_and_grad(loss, per_sample=True, check=False)
    counts = []
    for run, given in ((step, one), (step, args), (step, args), (unchecked, args)):
        calls.clear()
        run(*given)
        counts.append(len(calls))
    assert counts == [1, 5, 1, 1]  # one sample needs no check


def test_time_major_ids_have_their_samples_along_axis_1(fw: Framework) -> None:
    major, minor = fw.array(SQUARE.T, np.int32), fw.array(SQUARE, np.int32)
    x, table = fw.array([1.0, 2.0, 4.0]), fw.table(padding_idx=4)
    first = islices.value_and_grad(lambda t, ids, x: fw.losses(t[ids]) * x, per_sample=True)
    second = islices.value_and_grad(
        lambda t, ids, x: fw.losses(t[ids][0] + t[ids][1] + t[ids][2]) * x, per_sample=True, sample_axis=1
    )
    (losses, g), (again, h) = first(table, minor, x), second(table, major, x)
    assert_allclose(host(losses), host(again), rtol=1e-6)
    assert_array_equal(host(g.to_dense()), host(h.to_dense()))
    up = np.arange(3 * 3 * WIDTH, dtype=np.float32).reshape(3, 3, WIDTH)
    left = islices.per_sample(fw.array(up.swapaxes(0, 1)), major, ROWS, sample_axis=1)
    right = islices.per_sample(fw.array(up), minor, ROWS)
    assert host(left.samples).tolist() == [0, 1, 2] * 3
    assert_array_equal(host(left.to_dense()), host(right.to_dense()))


@pytest.mark.parametrize("fw", [name for name in FRAMEWORKS if name != "jax"], indirect=True)  # JAX arrays stay
def test_ids_may_be_filled_anew_between_lookups(fw: Framework) -> None:
    if fw.name == "tensorflow":
        import tensorflow as tf

        buffer: Any = tf.Variable([0, 0], dtype=tf.int32)
    else:
        buffer = fw.array([0, 0], np.int32)

    def fill(k: int) -> None:
        if fw.name == "tensorflow":
            buffer.assign([k, k])
        else:
            buffer[:] = k

    def loss(table: Any) -> Any:
        total = 0.0
        for k in (3, 1, 4):
            fill(k)
            total = total + fw.sum(islices.lookup(table, buffer), fw.upstream(2, WIDTH))
        return total

    _, g = islices.value_and_grad(loss)(fw.table())
    assert host(g.indices).tolist() == [3, 3, 1, 1, 4, 4]


# ---------------------------------------------------------------------- second derivatives
def test_second_derivatives_are_right_or_refused(fw: Framework) -> None:
    """Compare second derivatives with a formula. The inner loss is the sum of w r^3, and has the gradient 3 w r^2. The
    sum of the squares of this gradient has the gradient 36 w^2 r^3."""
    ones = fw.array(np.ones((2, 3, WIDTH)))

    def inner(table: Any, w: Any) -> Any:
        rows = islices.lookup(table, IDS)
        return fw.sum(rows * rows * rows * w, ones)

    def outer(table: Any, w: Any) -> Any:
        _, slices = islices.value_and_grad(inner)(table, w)
        return fw.sum(slices.values, slices.values)

    table, w = fw.table(), fw.array([1.0, 2.0, 1.0])
    if fw.name == "mxnet":
        with pytest.raises(NotImplementedError, match="MXNet cannot differentiate its gradients again"):
            islices.value_and_grad(outer, (0, 1))(table, w)
        return
    value, (t, d) = islices.value_and_grad(outer, (0, 1))(table, w)
    rows, weights = np.arange(ROWS * WIDTH).reshape(ROWS, WIDTH)[IDS].astype(np.float64), np.array([1.0, 2.0, 1.0])
    assert float(host(value)) == pytest.approx((9 * weights**2 * rows**4).sum())
    assert host(t.indices).tolist() == IDS.reshape(-1).tolist()
    assert_allclose(host(t.values), (36 * weights**2 * rows**3).reshape(-1, WIDTH), rtol=1e-6)
    assert_allclose(host(d), (18 * weights * rows**4).sum((0, 1)), rtol=1e-6)
