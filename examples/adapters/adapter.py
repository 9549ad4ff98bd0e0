"""Answer calls of `islices conform --command "python adapter.py"` and of `islices judge`. The program does not import
islices."""

import json
import math
import struct
import sys

import numpy as np


class UnsupportedError(Exception):
    pass


def array(x):
    if not isinstance(x, dict) or "array" not in x:
        raise TypeError(f"got {x}; accepted is an array")
    if x["array"] not in ("float32", "float64", "int32", "int64"):
        raise UnsupportedError(x["array"])
    return np.frombuffer(bytes.fromhex(x["bits"]), x["array"]).reshape(x["shape"])


def wire(x):
    return {"array": x.dtype.name, "shape": list(x.shape), "bits": x.tobytes().hex()}


def number(x):
    if not isinstance(x, dict) or not {"float", "int"} & x.keys():
        raise UnsupportedError("what is no number")
    return struct.unpack("<d" if "float" in x else "<q", bytes.fromhex(x.get("float") or x["int"]))[0]


def summed(s):
    """Return a dict from each row to the sum of the row's slices, in ascending order of rows. Slices are added in order
    of occurrence (SPEC clause 4)."""
    if not isinstance(s, dict) or "slices" not in s:
        raise UnsupportedError("dense arrays") if "array" in (s or ()) else TypeError(f"got {s}; accepted are slices")
    values, indices, rows = array(s["slices"]), array(s["indices"]), {}
    for value, index in zip(values, indices.tolist(), strict=True):
        limit = s["dense_shape"][0]
        if s.get("padded") and index == limit:
            continue
        if index < 0 or (limit is not None and index >= limit):
            raise IndexError(f"indices: got {index}; accepted is 0 <= index < {limit}")
        rows[index] = rows[index] + value if index in rows else value
    return dict(sorted(rows.items()))


def coalesce(s):
    rows, like = summed(s), array(s["slices"])
    values = np.array(list(rows.values()), like.dtype).reshape(len(rows), *like.shape[1:])
    indices = np.array(list(rows), s["indices"]["array"])
    return {"slices": wire(values), "indices": wire(indices), "dense_shape": s["dense_shape"], "coalesced": True}


def to_dense(s):
    rows = summed(s)
    if s["dense_shape"][0] is None:
        raise ValueError("dense_shape: got unknown rows; accepted is a number of rows")
    dense = np.zeros(s["dense_shape"], s["slices"]["array"])
    for index, row in rows.items():
        dense[index] = row
    return wire(dense)


def norm(x, ord=None):
    if ord not in (None, {"int": "0200000000000000"}):
        raise UnsupportedError("norms of other orders")
    found = list(summed(x).values()) if "slices" in (x or ()) else array(x)
    numbers = np.array(found, np.float64).ravel()
    if not np.isfinite(numbers).all() or array(x.get("slices", x)).dtype != np.float32:
        raise UnsupportedError("norms of what is not finite, or not float32")
    return wire(np.array(math.sqrt(math.fsum(numbers * numbers)), np.float32))


def optimizer_steps(name, hyper, table, grads, steps=None, **options):
    """Take the steps of SGD (SPEC clause 16). The learning rate and the result of each operation are rounded to the
    table's type."""
    if name != "sgd" or hyper["dict"].keys() != {"lr"} or options not in ({}, {"rows": "touched"}):
        raise UnsupportedError("other optimizers and options")
    w, lr = array(table).copy(), number(hyper["dict"]["lr"])
    if w.dtype.kind != "f":
        raise TypeError(f"table: got {w.dtype}; accepted are floats")
    if not lr >= 0:
        raise ValueError(f"lr: got {lr}; accepted is a number of at least 0")
    for g in grads:
        if not isinstance(g, dict) or "slices" not in g:
            raise UnsupportedError("dense gradients") if "array" in (g or ()) else TypeError(f"grads: got {g}")
        if array(g["slices"]).dtype != w.dtype:
            raise TypeError(f"grads: got {g['slices']['array']}; accepted is the table's dtype, {w.dtype}")
        if g["dense_shape"] != list(w.shape):
            raise ValueError(f"grads: got the shape {g['dense_shape']}; accepted is the table's, {w.shape}")
    count = number(steps) if steps else len(grads)
    for k in range(count):
        for index, g in summed(grads[k % len(grads)]).items():
            w[index] = w[index] - w.dtype.type(lr) * g
    return {"dict": {"table": wire(w), "step": wire(np.array([count], np.int32))}}


def formula_step(formula, t, options, weights, gradient, state):
    """Take one step of FBGEMM's row-wise Adagrad, which has one accumulator per row, for `islices judge`."""
    if formula != "fbgemm.EXACT_ROWWISE_ADAGRAD":
        raise UnsupportedError(formula)
    lr, eps, decay = (np.float32(number(options["dict"][name])) for name in ("lr", "eps", "weight_decay"))
    w, sums = array(weights).copy(), array(state["dict"]["accumulator"]).copy()
    for index, g in summed(gradient).items():
        g = g + decay * w[index]
        sums[index] += np.mean(g * g)
        w[index] -= lr / (np.sqrt(sums[index]) + eps) * g
    return {"dict": {"weights": wire(w), "accumulator": wire(sums)}}


OPERATIONS = {f.__name__: f for f in (coalesce, to_dense, norm, optimizer_steps, formula_step)}

for line in map(json.loads, sys.stdin):
    if "hello" in line:
        answer = {"hello": "adapter.py", "version": f"numpy {np.__version__}", "protocol": 1, "ops": list(OPERATIONS)}
    else:
        try:
            answer = {"call": line["call"], "ok": OPERATIONS[line["op"]](*line["args"], **line["kwargs"])}
        except UnsupportedError as why:
            answer = {"call": line["call"], "unsupported": str(why)}
        except (IndexError, ValueError, TypeError, MemoryError) as error:
            answer = {"call": line["call"], "error": type(error).__name__, "message": str(error)}
    print(json.dumps(answer), flush=True)
