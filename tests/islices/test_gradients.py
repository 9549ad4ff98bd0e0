"""Gradients through norms and clips, by each framework's own tape, eager and compiled, beside the exact derivatives.

The exact ones are written out here from SPEC clauses 7, 9 and 10, in float64, with the bounds that those clauses state.
Data are whole numbers whose rows sum without rounding, so that the formulas see what the library sees.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from gradient_tapes import MODES, Tape

import islices

ROWS = 5
EPS = 2.0**-23


class Kind(NamedTuple):
    """A gradient: its stored values, and its indices unless it is dense. Its norm, where not 0, is 5."""

    values: Any
    ids: list[int] | None = None


KINDS = {
    "dense": Kind([[1, 2], [2, 4], [0, 0]]),
    "unique": Kind([[1, 2], [2, 4], [0, 0]], [3, 0, 2]),
    "duplicate": Kind([[1, 0], [2, 4], [0, 0]], [1, 1, 3]),
    "cancelling": Kind([[7, -2], [3, 4], [-7, 2]], [1, 4, 1]),
    "zero": Kind([[6, -1], [0, 0], [-6, 1]], [1, 2, 1]),
    "dense-zero": Kind([[0, 0], [0, 0]]),
    "one-element": Kind([[-5]], [2]),
    "no-slices": Kind(np.zeros((0, 2)), []),
}
#: max_norm; the gradients' norm is 5 or 0.
LIMITS = {"below": 1.25, "equal": 5.0, "above": 7.0}


def numbers(x: Any) -> np.ndarray:
    return np.array(x, np.float32)


def upstream(shape: tuple[int, ...]) -> np.ndarray:
    """Another whole number for each element."""
    return (np.arange(math.prod(shape)) * 3 % 7 - 2).reshape(shape).astype(np.float32)


def leaf_of(kind: Kind, values: Any, ids: Any) -> Any:
    if kind.ids is None:
        return values
    return islices.IndexedSlices(values, ids, (ROWS, *tuple(values.shape)[1:]))


def values_of(leaf: Any) -> Any:
    return leaf.values if isinstance(leaf, islices.IndexedSlices) else leaf


# ---------------------------------------------------------------------- exact
def summed(values: np.ndarray, ids: list[int] | None) -> np.ndarray:
    """The row of T at each slot."""
    if ids is None:
        return values
    return np.array([sum(v for v, j in zip(values, ids, strict=True) if j == i) for i in ids]).reshape(values.shape)


def norm_of(values: np.ndarray, ids: list[int] | None) -> float:
    table = dense(values, ids)
    return math.sqrt(float((table * table).sum()))


def dense(values: np.ndarray, ids: list[int] | None) -> np.ndarray:
    if ids is None:
        return values
    table = np.zeros((ROWS, *values.shape[1:]))
    np.add.at(table, np.array(ids, np.int64), values)
    return table


def slope(values: np.ndarray, ids: list[int] | None, ord: float = 2) -> np.ndarray:
    """The derivative of the norm by each stored value."""
    s, table = summed(values, ids), dense(values, ids)
    if not table.any():
        return np.zeros_like(values)
    if ord == 2:
        return s / norm_of(values, ids)
    if ord == 1:
        return np.sign(s)
    top = np.abs(table).max()
    return np.sign(s) * (np.abs(s) == top) / (np.abs(table) == top).sum()


def clip_slope(
    values: np.ndarray, ids: list[int] | None, g: np.ndarray, limit: float, norm: float, inner: float
) -> np.ndarray:
    """The gradient of a clipped leaf; norm and inner, <g, v>, over all leaves."""
    if norm <= limit:
        return g
    return g * (limit / norm) - limit / norm * (inner / norm) * (summed(values, ids) / norm)


def close(got: np.ndarray, expected: np.ndarray, terms: Any = 0.0, count: int = 0, what: str = "") -> None:
    """Within (count + 8) eps of the sum of |terms|."""
    bound = (count + 8) * EPS * (np.abs(expected) + terms)
    assert got.shape == expected.shape, what
    assert np.isfinite(got).all(), f"{what}: {got}"
    assert (np.abs(got - expected) <= bound).all(), f"{what}\ngot\n{got}\nexpected\n{expected}\nbound\n{bound}"


# ---------------------------------------------------------------------- the table
def cases(whole: str = "eager") -> list[Any]:
    """Every kind in one mode, one in the others: JAX and TensorFlow compile each. The suite has the other types."""
    found = [(framework, mode, kind) for framework, mode in MODES for kind in KINDS]
    return [x for x in found if x[1] == whole or x[2] == "duplicate"]


@pytest.mark.parametrize(("framework", "mode", "name"), cases())
def test_norms(framework: str, mode: str, name: str) -> None:
    kind, tape = KINDS[name], Tape(framework, mode)
    values, ids = numbers(kind.values), np.array(kind.ids or [], np.int64)
    exact = np.asarray(kind.values, np.float64)
    for ord in (1, 2, math.inf):
        got, _ = tape.gradients(
            lambda v, i, ord=ord: tape.weighted(
                [(islices.norm(leaf_of(kind, v, i), ord), tape.array(np.float32([3])))]
            ),
            values,
            ids,
        )
        close(got, 3 * slope(exact, kind.ids, ord), what=f"norm of order {ord}")
    other = numbers([[12.0], [0.0]])
    together = math.hypot(norm_of(exact, kind.ids), 12.0)
    got, _, got_other = tape.gradients(
        lambda v, i, w: tape.weighted(
            [(islices.global_norm([leaf_of(kind, v, i), None, w]), tape.array(np.float32([3])))]
        ),
        values,
        ids,
        other,
    )
    close(got, 3 * summed(exact, kind.ids) / together, what="global_norm")
    close(got_other, np.array([[36.0 / together], [0.0]]), what="global_norm, the dense leaf")


@pytest.mark.parametrize(
    ("framework", "mode", "name", "limit"),
    [(*x, limit) for limit in LIMITS for x in cases("eager" if limit == "below" else "")],
)
def test_clips_by_one_norm(framework: str, mode: str, name: str, limit: str) -> None:
    kind, tape, most = KINDS[name], Tape(framework, mode), LIMITS[limit]
    values, ids = numbers(kind.values), np.array(kind.ids or [], np.int64)
    exact, g = np.asarray(kind.values, np.float64), upstream(values.shape)

    def by_norm(v: Any, i: Any) -> Any:
        return tape.weighted([(values_of(islices.clip_by_norm(leaf_of(kind, v, i), most)), tape.array(g))])

    def bound(norm: float, inner: float) -> Any:
        return (
            0.0 if norm <= most else (np.abs(g) + np.abs(summed(exact, kind.ids)) / norm * inner / norm) * most / norm
        )

    norm = norm_of(exact, kind.ids)
    want = clip_slope(exact, kind.ids, g, most, norm, float((g * exact).sum()))
    got, _ = tape.gradients(by_norm, values, ids)
    close(got, want, bound(norm, float(np.abs(g * exact).sum())), g.size, "clip_by_norm")

    other, h = numbers([[12.0], [0.0]]), upstream((2, 1))

    def by_global_norm(v: Any, i: Any, w: Any) -> Any:
        (a, b, _), n = islices.clip_by_global_norm([leaf_of(kind, v, i), w, None], most)
        return tape.weighted([(values_of(a), tape.array(g)), (b, tape.array(h)), (n, tape.array(np.float32([2])))])

    together = math.hypot(norm, 12.0)
    far = np.array([[12.0], [0.0]])
    inner = float((g * exact).sum() + (h * far).sum())
    want = clip_slope(exact, kind.ids, g, most, together, inner) + 2 * summed(exact, kind.ids) / together
    got, _, got_other = tape.gradients(by_global_norm, values, ids, other)
    large = bound(together, float(np.abs(g * exact).sum() + np.abs(h * far).sum())) + 2.0
    close(got, want, large, g.size + 2, "clip_by_global_norm")
    want = clip_slope(far, None, h, most, together, inner) + 2 * far / together
    close(got_other, want, large.max(initial=2.0), g.size + 2, "clip_by_global_norm, the dense leaf")


#: (values, ids or None, samples): rows, or samples, of norm 5 (the limit), 10, 0 and 1.
ROW_VALUES = [[3, 4], [9, 2], [0, 0], [1, 0], [-3, 6]]


@pytest.mark.parametrize("duplicates", [False, True])
@pytest.mark.parametrize(("framework", "mode"), MODES)
def test_clips_by_rows_and_samples(framework: str, mode: str, duplicates: bool) -> None:
    tape = Tape(framework, mode)
    ids = [0, 3, 2, 1, 3] if duplicates else [0, 3, 2, 1, 4]
    exact = np.array(ROW_VALUES, np.float64)
    values, g = numbers(ROW_VALUES), upstream((5, 2))
    index = np.array(ids, np.int64)
    want, terms = np.zeros((5, 2)), np.zeros((5, 2))
    for row in set(ids):
        own = [k for k, i in enumerate(ids) if i == row]
        total = exact[own].sum(0)
        norm = float(np.sqrt((total**2).sum()))
        for k in own:
            inner = float((g[own] * exact[own]).sum())
            want[k] = g[k] if norm <= 5 else g[k] * 5 / norm - 5 / norm * inner / norm * total / norm
            terms[k] = np.abs(g[own] * exact[own]).sum() / max(norm, 1) + np.abs(g[k])

    def by_rows(v: Any, i: Any) -> Any:
        return tape.weighted(
            [(islices.clip_by_row_norm(islices.IndexedSlices(v, i, (5, 2)), 5.0).values, tape.array(g))]
        )

    got, _ = tape.gradients(by_rows, values, index)
    close(got, want, terms, 4, "clip_by_row_norm")
    if not duplicates:
        (got,) = tape.gradients(lambda v: tape.weighted([(islices.clip_by_row_norm(v, 5.0), tape.array(g))]), values)
        close(got, want, terms, 4, "clip_by_row_norm, dense")

    # the rows of a sample are those of one id here: its norm is the row's
    beside, h = numbers([[0.0], [0.0]]), upstream((2, 1))
    two, cut = (
        np.array([[0, 3, 2], [3, 3, 1]], np.int64),
        numbers([[[0, 4], [0, 0], [3, 0]], [[2, 0], [4, 4], [0, 0]]]),
    )
    up = upstream((6, 2))
    exact = np.array([[0, 4], [0, 0], [3, 0], [2, 0], [4, 4], [0, 0]], np.float64)
    totals = np.array([[0, 4], [0, 0], [3, 0], [6, 4], [6, 4], [0, 0]], np.float64)
    norms = [5.0, math.sqrt(52.0)]
    want, slopes = np.zeros((6, 2)), np.zeros((6, 2))
    for sample, norm in enumerate(norms):
        own = slice(3 * sample, 3 * sample + 3)
        inner = float((up[own] * exact[own]).sum())
        slopes[own] = totals[own] / norm
        want[own] = up[own] if norm <= 5 else up[own] * 5 / norm - 5 / norm * inner / norm * slopes[own]

    def by_sample(v: Any, i: Any, dense: Any) -> Any:
        found = islices.per_sample(v, i, 5)
        (clipped, other), n = islices.clip_per_sample([found, dense], 5.0)
        own = found.norms()
        weights = tape.array(np.array([2.0, 3.0], np.float32))
        one = tape.array(np.array([1.0, 1.0], np.float32))
        return tape.weighted([(clipped.values, tape.array(up)), (other, tape.array(h)), (n, weights), (own, one)])

    got, _, got_other = tape.gradients(by_sample, cut, two, beside)
    factor = np.array([3.0] * 3 + [4.0] * 3)[:, None]
    close(got.reshape(6, 2), want + factor * slopes, 30.0, 8, "clip_per_sample")
    close(got_other, h * np.array([[1.0], [5 / norms[1]]]), what="clip_per_sample, the dense leaf")


@pytest.mark.parametrize(("framework", "mode"), MODES)
def test_clip_by_value(framework: str, mode: str) -> None:
    tape = Tape(framework, mode)
    values, g = numbers([[-3, 2], [1, 4], [2, -1]]), upstream((3, 2))
    (got,) = tape.gradients(lambda v: tape.weighted([(islices.clip_by_value(v, -1, 2), tape.array(g))]), values)
    assert (got == g * [[0, 1], [1, 0], [1, 1]]).all(), "the bounds are within"
    ids, h = np.array([1, 1, 4], np.int64), upstream((2, 2))

    def sparse(v: Any, i: Any) -> Any:  # rows [-2, 6] and [2, -1]
        return tape.weighted(
            [(islices.clip_by_value(islices.IndexedSlices(v, i, (5, 2)), -2, 2).values, tape.array(h))]
        )

    if (framework, mode) != ("jax", "compiled"):  # whose result has a third, empty slot
        got, _ = tape.gradients(sparse, values, ids)
        assert (got == (h * [[1, 0], [1, 1]])[[0, 0, 1]]).all()


# ---------------------------------------------------------------------- presets
def own_formulas(framework: str) -> dict[str, Callable[[Any, float], Any]]:
    """semantics -> the framework's own function of a dense array, or its formula where the function has no gradient."""
    if framework == "torch":
        import torch

        def clip(x: Any, most: float) -> Any:  # torch.nn.utils.clip_grad_norm_, which runs under no_grad
            return x * torch.clamp(most / (torch.linalg.vector_norm(x) + 1e-6), max=1.0)

        return {"torch": clip}
    if framework == "tensorflow":
        import tensorflow as tf

        return {
            "tensorflow": lambda x, most: tf.clip_by_global_norm([x], most)[0][0],
            "tensorflow-norm": tf.clip_by_norm,
        }
    if framework == "jax":
        import optax

        def clip(x: Any, most: float) -> Any:
            how = optax.clip_by_global_norm(most)
            return how.update(x, how.init(x))[0]

        return {"optax": clip}
    return {}


@pytest.mark.parametrize("most", [0.5, 7.0, 5.0])
@pytest.mark.parametrize(("framework", "mode"), [m for m in MODES if m[0] != "mxnet"])
def test_presets_have_the_gradient_of_the_frameworks_own_function(framework: str, mode: str, most: float) -> None:
    tape = Tape(framework, mode)
    x = numbers([[1, 2], [2, 4]])
    g = upstream((2, 2))
    for semantics, own in own_formulas(framework).items():

        def ours(v: Any, semantics: str = semantics) -> Any:
            if semantics.endswith("-norm"):
                return islices.clip_by_norm(v, most, semantics=semantics.removesuffix("-norm"))
            return islices.clip_by_global_norm([v], most, semantics=semantics)[0][0]

        (got,) = tape.gradients(lambda v, f=ours: tape.weighted([(f(v), tape.array(g))]), x)
        (want,) = tape.gradients(lambda v, f=own: tape.weighted([(f(v, most), tape.array(g))]), x)
        np.testing.assert_allclose(got, want, rtol=0, atol=16 * EPS * np.abs(g).sum(), err_msg=semantics)
