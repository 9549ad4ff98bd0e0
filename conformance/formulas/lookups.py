"""Define the rules of lookups: bags of rows, and gradients with respect to the table and to the weights of ids.

The arguments of a rule are `Numbers`, `Bags`, the table and an empty state. The rules in the module `rules` get a
gradient instead of `Bags`.

May import: `numpy`, this folder.
"""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import Any

import numpy as np

from islices.conformance.formulas.inputs import Bags
from islices.conformance.formulas.numbers import Numbers
from islices.conformance.formulas.rules import Stepped


def bag(n: Numbers, x: Bags, w, s) -> Stepped:
    """Return one combined row per bag: the sum, the mean, the maximum, or for "sqrtn" the sum times the `share`. A bag
    without `members` has a row of zeros."""
    table = kept_rows(n, w)
    nothing = w[0] * n.number(0.0)
    return np.stack([_combined(n, x, table, k, nothing) for k in range(len(x.upstream))]), {}


def kept_rows(n: Numbers, w) -> Any:
    """Return the table. If max_norm is set, return a copy in which each row whose norm exceeds max_norm is multiplied
    by max_norm / norm."""
    if not n.h.get("max_norm"):
        return w
    norm, limit = n.sqrt(n.row_sum(w * w)), n["max_norm"]
    return n.off_by(limit / n.maximum(norm, limit), 3) * w


def _combined(n: Numbers, x: Bags, table, k: int, nothing) -> Any:
    places = members(n, x, k)
    if not places:
        return nothing
    weights, factor = _weights(n, x), share(n, x, k)
    rows = [table[x.ids[j]] if weights is None else weights[j] * table[x.ids[j]] for j in places]
    found = reduce(n.maximum, rows) if n.h["combiner"] == "max" else reduce(add, rows)
    return found if factor is None else n.shared(factor, found)


def members(n: Numbers, x: Bags, k: int) -> list[int]:
    """Return the positions of the ids of bag k, without ids equal to padding_idx."""
    found = [j for j in range(x.offsets[k], x.offsets[k + 1]) if x.ids[j] != n.h.get("padding_idx")]
    if n.h.get("repeats") == "once":  # a mistake
        return list({x.ids[j]: j for j in found}.values())
    return found


def share(n: Numbers, x: Bags, k: int) -> Any:
    """Return the factor by which the sum of bag k is multiplied. Return None if the bag has no `members`, or if the
    combiner is the sum or the maximum."""
    places, kind = members(n, x, k), n.h["combiner"]
    if kind not in ("mean", "sqrtn") or not places:
        return None
    weights = _weights(n, x)
    if weights is None or n.h["divisor"] == "count":
        counted = x.offsets[k + 1] - x.offsets[k] if n.h.get("counted") == "padding" else len(places)
        under = n.number(float(counted))
        return n.number(1.0) / (n.sqrt(under) if kind == "sqrtn" else under)
    squared = kind == "sqrtn" and n.h.get("under") != "sum"
    terms = [weights[j] * weights[j] if squared else weights[j] for j in places]
    under = reduce(add, terms)
    return n.number(1.0) / (n.sqrt(under) if kind == "sqrtn" else under)


def _weights(n: Numbers, x: Bags) -> Any:
    return None if n.h.get("weights") == "ignored" else x.weights


# ---------------------------------------------------------------------- gradients
def bag_gradient(n: Numbers, x: Bags, w, s) -> Stepped:
    """Return the gradient of sum(upstream * `bag`) with respect to the table. Each member of a bag adds to its row the
    product of the bag's upstream gradient, the bag's `share` and the member's weight. If the combiner is the maximum,
    only the row with the maximum of a column gets the gradient of the column. In the inputs, no two different rows of a
    bag tie. `by_frequency` may divide the rows of the gradient."""
    found = w * n.number(0.0)
    for k, upstream in enumerate(x.upstream):
        places = members(n, x, k)
        if n.h["combiner"] == "max" and places:
            at = n.largest(np.stack([w[x.ids[j]] for j in places]))
            for column, place in enumerate(at):
                row = x.ids[places[place]]
                found[row, column] = found[row, column] + upstream[column]
            continue
        factor = share(n, x, k)
        scaled = upstream if factor is None else factor * upstream
        for j in places:
            term = scaled if _weights(n, x) is None else _weights(n, x)[j] * scaled
            last = n.h.get("repeats") == "last"  # a mistake
            found[x.ids[j]] = term if last else found[x.ids[j]] + term
    return by_frequency(n, x, found), {}


def embedding_gradient(n: Numbers, x: Bags, w, s) -> Stepped:
    """Return the gradient of an embedding layer, which is `bag_gradient` for bags of one id each."""
    return bag_gradient(n, x, w, s)


def by_frequency(n: Numbers, x: Bags, found) -> Any:
    """Divide each row of a gradient by the number of occurrences of its id, if scale_grad_by_freq is on. Return the
    gradient."""
    if n.h.get("scale_grad_by_freq"):
        for row, count in zip(*np.unique(x.ids, return_counts=True), strict=True):
            found[row] = n.shared(n.number(1.0) / n.number(float(count)), found[row])
    return found


def weight_gradient(n: Numbers, x: Bags, w, s) -> Stepped:
    """Return the gradient with respect to the weight of each id. The gradient is the dot product of the id's row and
    the bag's upstream gradient, or 0 for padding_idx."""
    found = np.stack([w[0] * n.number(0.0)] * len(x.ids))[:, :1]
    for k, upstream in enumerate(x.upstream):
        for j in members(n, x, k):
            found[j] = n.row_sum((w[x.ids[j]] * upstream)[None])[0]
    return found, {}
