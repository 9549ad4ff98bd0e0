"""Define the values of a conformance case, independent of any framework, and convert them from and to JSON.

`Array` and `Slices` hold plain Python numbers, so that the oracle can work on them exactly. The vector files store a
float in its shortest decimal form, which identifies each float64 exactly. Every narrower float is also a float64. NaN
and infinities are objects, such as ``{"float": "nan"}``. The packed cases of a wheel store most float arrays as bits.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, NamedTuple

from islices.conformance.packing import numbers, unpack

Shape = tuple[int, ...]
#: The version of SPEC.md that the cases check.
SPEC_VERSION = "1.11"
#: dtype -> the spacing of its numbers at 1
EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}
#: The keys of arguments that only the errors group uses: an array of another framework, a set, a complex number.
SPECIAL = {"foreign", "set", "complex"}
#: (the word in the ids of cases, the value of nonfinite=). Ids do not change when an option is renamed.
NONFINITE = (("propagate", "propagate"), ("skip", "zero"))
#: The groups of cases, in the order of the matrix.
GROUPS = (
    "densify",
    "coalesce",
    "algebra",
    "norms",
    "clipping",
    "gradients",
    "padding",
    "embedding",
    "updates",
    "optimizers",
    "conversion",
    "captured",
    "ranks",
    "errors",
)


@dataclass(frozen=True)
class Array:
    """A dense array: the name of its dtype, its shape, and its elements as Python numbers in C order."""

    dtype: str
    shape: Shape
    data: list[Any]

    def __post_init__(self) -> None:
        if math.prod(self.shape) != len(self.data):
            raise ValueError(f"an array of shape {self.shape} has {len(self.data)} elements")

    def rows(self) -> list[list[Any]]:
        width = math.prod(self.shape[1:])
        return [self.data[k * width : (k + 1) * width] for k in range(self.shape[0])]


@dataclass(frozen=True)
class Slices:
    """The contents of an IndexedSlices as plain data."""

    values: Array
    indices: Array
    dense_shape: tuple[Any, ...]
    coalesced: bool = False
    padded: bool = False

    @property
    def flags(self) -> dict[str, bool]:
        """Return a dict {flag: True} with all flags that are set."""
        return {flag: True for flag in ("coalesced", "padded") if getattr(self, flag)}

    def holding(self, indices: list[int], data: list[Any], **flags: bool) -> Slices:
        """Return slices with the types and dense shape of these slices, but with other rows and flags. `data` contains
        the numbers of all rows."""
        values = Array(self.values.dtype, (len(indices), *self.values.shape[1:]), data)
        return Slices(values, Array(self.indices.dtype, (len(indices),), indices), self.dense_shape, **flags)

    def at(self, places: Sequence[int], **flags: bool) -> Slices:
        """Return the slices at the given positions, in the order of the positions. Flags are False unless given."""
        rows = self.values.rows()
        return self.holding([self.indices.data[k] for k in places], [v for k in places for v in rows[k]], **flags)


@dataclass(frozen=True)
class Case:
    """One call and its expected outcome.

    ``expect`` is the result or, in the errors group, ``{"raises": name, "message": [words]}``. The only possible flag
    is "eager". This flag marks a case that the suite does not run in traced mode.
    """

    id: str
    clause: str
    op: str
    args: list[Any]
    kwargs: dict[str, Any]
    expect: Any
    flags: list[str] = field(default_factory=list)

    @property
    def group(self) -> str:
        return self.id.partition("/")[0]

    @property
    def call(self) -> str:
        """Return the call as a text similar to Python code."""
        args = [_show(a) for a in self.args] + [f"{k}={_show(v)}" for k, v in self.kwargs.items()]
        return f"{self.op}({', '.join(args)})"


def _show(x: Any) -> str:
    if isinstance(x, Array):
        return f"{x.dtype}{x.data}" if len(x.shape) == 1 else f"{x.dtype}{x.rows() if x.shape else x.data}"
    if isinstance(x, Slices):
        flags = "".join(f", {flag}=True" for flag in x.flags)
        return f"IndexedSlices({_show(x.values)}, {_show(x.indices)}, {x.dense_shape}{flags})"
    if isinstance(x, list):
        return f"[{', '.join(map(_show, x))}]"
    if isinstance(x, tuple):
        return f"({', '.join(map(_show, x))})"
    if isinstance(x, dict):
        return "{" + ", ".join(f"{k!r}: {_show(v)}" for k, v in x.items()) + "}"
    return repr(x)


# ---------------------------------------------------------------------- nested values
def map_leaves(fn: Callable[[Any], Any], x: Any) -> Any:
    """Return a copy of nested lists, tuples and dicts with fn applied to each leaf. Every other object is a leaf, and
    so is None."""
    if isinstance(x, dict):
        return {key: map_leaves(fn, item) for key, item in x.items()}
    if isinstance(x, (list, tuple)):
        return getattr(x, "_make", type(x))(map_leaves(fn, item) for item in x)
    return fn(x)


def leaves_of(x: Any) -> Iterator[Any]:
    if not isinstance(x, (dict, list, tuple)):
        yield x
        return
    for item in x.values() if isinstance(x, dict) else x:
        yield from leaves_of(item)


def arrays_of(x: Any, *, indices: bool = False) -> Iterator[Array]:
    """Yield the arrays among the leaves. Slices yield their values, and with ``indices`` also their indices."""
    for leaf in leaves_of(x):
        if isinstance(leaf, Slices):
            yield leaf.values
            if indices:
                yield leaf.indices
        elif isinstance(leaf, Array):
            yield leaf


# ---------------------------------------------------------------------- JSON
def encode(x: Any) -> Any:
    if isinstance(x, Array):
        return {"array": x.dtype, "shape": list(x.shape), "data": [encode(v) for v in x.data]}
    if isinstance(x, Slices):
        out: dict[str, Any] = {
            "slices": encode(x.values), "indices": encode(x.indices), "dense_shape": list(x.dense_shape),
        }  # fmt: skip
        return out | x.flags
    if isinstance(x, dict):
        if x and x.keys() <= SPECIAL:
            return {k: encode(v) for k, v in x.items()}
        return {"dict": {k: encode(v) for k, v in x.items()}}
    if isinstance(x, tuple):
        return {"tuple": [encode(v) for v in x]}
    if isinstance(x, list):
        return [encode(v) for v in x]
    if isinstance(x, float) and not math.isfinite(x):
        return {"float": repr(x)}
    return x


def decode(x: Any) -> Any:
    if isinstance(x, list):
        return [decode(v) for v in x]
    if not isinstance(x, dict):
        return x
    if "array" in x:
        data = numbers(x["array"], x["bits"]) if "bits" in x else [decode(v) for v in x["data"]]
        return Array(x["array"], tuple(x["shape"]), data)
    if "slices" in x:
        return Slices(
            decode(x["slices"]), decode(x["indices"]), tuple(x["dense_shape"]),
            x.get("coalesced", False), x.get("padded", False),
        )  # fmt: skip
    if "tuple" in x:
        return tuple(decode(v) for v in x["tuple"])
    if "float" in x:
        return float(x["float"])
    if "dict" in x:
        return {k: decode(v) for k, v in x["dict"].items()}
    return {k: decode(v) for k, v in x.items()}


def case_to_json(case: Case) -> dict[str, Any]:
    return {
        "id": case.id, "clause": case.clause, "flags": case.flags, "op": case.op,
        "args": [encode(a) for a in case.args], "kwargs": {k: encode(v) for k, v in case.kwargs.items()},
        "expect": case.expect if case.group == "errors" else encode(case.expect),
    }  # fmt: skip


def case_from_json(x: dict[str, Any]) -> Case:
    expect = x["expect"] if x["id"].startswith("errors/") else decode(x["expect"])
    return Case(
        x["id"], x["clause"], x["op"], [decode(a) for a in x["args"]],
        {k: decode(v) for k, v in x["kwargs"].items()}, expect, x["flags"],
    )  # fmt: skip


def vector_files() -> list[Any]:
    folder = resources.files("islices.conformance") / "vectors"
    return sorted((f for f in folder.iterdir() if f.name.endswith(".json") and f.name != "schema.json"), key=str)


@functools.cache
def _vectors() -> tuple[str, list[str]]:
    """Return (SHA-256 of the vector files, a list of lines that includes one line per case). In a wheel, one packed
    file contains the hash and the lines."""
    packed = resources.files("islices.conformance") / "vectors.xz"
    if packed.is_file():
        return unpack(packed.read_bytes())
    files = [file.read_bytes() for file in vector_files()]
    return hashlib.sha256(b"".join(files)).hexdigest(), [x for file in files for x in file.decode().splitlines()]


class Entry(NamedTuple):
    """A golden case whose JSON is not yet decoded. The property `case` decodes the JSON."""

    id: str
    clause: str
    flags: tuple[str, ...]
    text: str

    @property
    def group(self) -> str:
        return self.id.partition("/")[0]

    @property
    def case(self) -> Case:
        return case_from_json(json.loads(self.text))


#: The beginning of a case's line. Vector files have one case per line, with these fields first.
HEAD = re.compile(r'\{"id":"([^"]+)","clause":"(\d+)","flags":\[([^]]*)\]')


@functools.cache
def entries() -> tuple[Entry, ...]:
    """Return all golden cases in the order of GROUPS. The JSON of the cases stays undecoded, because decoding takes ten
    times as long as reading the lines."""
    found = []
    for line in _vectors()[1]:
        if head := HEAD.match(line):
            flags = tuple(json.loads(f"[{head[3]}]"))
            found.append(Entry(head[1], head[2], flags, line.removesuffix(",")))
    return tuple(sorted(found, key=lambda entry: GROUPS.index(entry.group)))


def load_cases(wanted: Callable[[Entry], bool] = lambda entry: True) -> list[Case]:
    return [entry.case for entry in entries() if wanted(entry)]


@functools.cache
def quick_ids(mode: str) -> frozenset[str]:
    """Return the ids of the golden cases that the quick profile runs in a mode.

    quick.json lists cases for each mode. If the file lists no case of an operation, the quick profile runs the
    operation's first case. In modes host and framework, the quick profile also runs the cases of bad input, because
    most of them raise an error before any computation. The quick profile omits the "slow errors" in quick.json, because
    these cases import a second framework or differentiate a loss per sample.
    """
    marked = json.loads((resources.files("islices.conformance") / "quick.json").read_text("utf-8"))
    bad = {entry.id for entry in entries() if entry.group == "errors" and mode in ("host", "framework")}
    listed = {_operation(id) for ids in marked.values() for id in ids}
    firsts = {_operation(x.id): x.id for x in reversed(entries()) if x.group != "errors"}
    new = {id for operation, id in firsts.items() if operation not in listed}
    return frozenset(marked.get(mode, ())) | (bad - {*marked["slow errors"]}) | new


def _operation(id: str) -> tuple[str, ...]:
    """Return the group and the operation in a case's id."""
    return tuple(id.split("/")[:2])


def vectors_hash() -> str:
    """Return the SHA-256 of the vector files. Reports are comparable only if their vectors have the same hash."""
    return _vectors()[0]
