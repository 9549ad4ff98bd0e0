"""An adapter in Python, of NumPy arrays: `islices conform --command "python adapter.py"`. It needs nothing of islices."""

import json
import math
import struct
import sys

import numpy as np


class UnsupportedError(Exception):
    pass


def array(x):
    if x["array"] not in ("float32", "float64", "int32", "int64"):
        raise UnsupportedError(x["array"])
    return np.frombuffer(bytes.fromhex(x["bits"]), x["array"]).reshape(x["shape"])


def wire(x):
    return {"array": x.dtype.name, "shape": list(x.shape), "bits": x.tobytes().hex()}


def number(x):
    return struct.unpack("<d", bytes.fromhex(x["float"]))[0] if "float" in x else int.from_bytes(bytes.fromhex(x["int"]), "little")


def summed(s):
    """Rows by their index, ascending: each the sum of its slices, added in the order of occurrence (SPEC, clause 4)."""
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
    if s["dense_shape"][0] is None:
        raise ValueError("dense_shape: got unknown rows; accepted is a number of rows")
    dense = np.zeros(s["dense_shape"], s["slices"]["array"])
    for index, row in summed(s).items():
        dense[index] = row
    return wire(dense)


def norm(x, ord=None):
    if ord not in (None, {"int": "0200000000000000"}) or x.get("slices", x)["array"] != "float32":
        raise UnsupportedError("norms of order 2 of float32 alone")
    numbers = np.array(list(summed(x).values()) if "slices" in x else array(x), np.float64).ravel()
    if not np.isfinite(numbers).all():
        raise UnsupportedError("norms of what is not finite")
    return wire(np.array(math.sqrt(math.fsum(numbers * numbers)), np.float32))


def optimizer_steps(name, hyper, table, grads, rows="touched", steps=None):
    """SPEC, clause 16: numbers in float64, rounded to the table's type; then each operation in that type."""
    hyper = {key: number(x) for key, x in hyper["dict"].items()}
    if name != "sgd" or hyper.keys() != {"lr"} or table["array"] not in ("float32", "float64"):
        raise UnsupportedError(f"{name} with {', '.join(hyper)}")
    w = array(table).copy()
    count = number(steps) if steps else len(grads)
    for k in range(count):
        for index, g in summed(grads[k % len(grads)]).items() if "slices" in grads[k % len(grads)] else enumerate(array(grads[k])):
            w[index] = w[index] - w.dtype.type(hyper["lr"]) * g
    return {"dict": {"table": wire(w), "step": wire(np.array([count], np.int32))}}


OPERATIONS = {f.__name__: f for f in (coalesce, to_dense, norm, optimizer_steps)}

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
