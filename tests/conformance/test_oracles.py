"""Test that an independent implementation agrees with the golden vectors. Generation must give the bytes of the vector
files, and the schema must describe the files."""

from __future__ import annotations

import ast
import json
import math
from fractions import Fraction
from importlib import resources
from pathlib import Path
from typing import Any

import from_text
import numpy as np
import pytest
from from_text.answers import answer

from islices.conformance import generate
from islices.conformance.data import Case, case_from_json, load_cases, vector_files
from islices.conformance.execute import difference
from islices.conformance.oracle import FORMATS, round_to, square_root
from islices.conformance.oracles import ORACLES
from islices.conformance.packing import pack, unpack
from islices.conformance.protocol.wire import from_wire, to_wire

CASES = [case for case in load_cases() if case.group != "errors"]
SCHEMA = resources.files("islices.conformance") / "vectors" / "schema.json"


# ---------------------------------------------------------------------- two witnesses
@pytest.mark.parametrize("group", sorted({case.group for case in CASES}))
def test_a_reader_of_the_text_alone_agrees_with_every_vector(group: str) -> None:
    cases = [case for case in CASES if case.group == group]
    problems = [f"{case.id}: {problem}" for case in cases if (problem := _disagreement(case))]
    assert problems == []


def _disagreement(case: Case) -> str:
    line = {"op": case.op, "args": [to_wire(x) for x in case.args]}
    reported = answer({**line, "kwargs": {name: to_wire(x) for name, x in case.kwargs.items()}})
    return difference(from_wire(reported["ok"]), case.expect) if "ok" in reported else str(reported)


def test_every_group_is_there_and_every_oracle_is_used() -> None:
    assert {case.group for case in load_cases()} == {file.name.removesuffix(".json") for file in vector_files()}
    used = {case.op for case in CASES}
    assert set(ORACLES) <= used
    assert len(CASES) > 1000


def _imported(path: Path) -> set[str]:
    tree = ast.parse(path.read_text("utf-8"))
    found = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    return found | {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}


def test_they_share_no_code() -> None:
    suite = Path(str(resources.files("islices.conformance")))
    for path in (*suite.glob("oracle*.py"), suite / "ranks" / "plain.py"):
        allowed = ("islices.conformance.data", "islices.conformance.ranks.plain", "islices.conformance.oracle")
        if path.name == "oracle_optim.py":  # defaults and names of states, but no arithmetic
            allowed += ("islices.optim.record",)
        imported = _imported(path)
        assert {m for m in imported if m.startswith("islices") and not m.startswith(allowed)} == set(), path
        assert path.parent.name == "ranks" or not {m for m in imported if m.startswith("numpy")}, path
    for path in Path(from_text.__path__[0]).glob("*.py"):
        assert not {m for m in _imported(path) if m.startswith("islices")}, path


# ---------------------------------------------------------------------- the files
def test_regenerating_gives_the_same_bytes(tmp_path: Path) -> None:
    generate.write(tmp_path)
    committed = {file.name: file.read_bytes() for file in vector_files()}
    written = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert written.keys() == committed.keys()
    assert [name for name in written if written[name] != committed[name]] == []


def test_a_wheels_packed_vectors_are_the_same_cases() -> None:
    names = ("algebra.json", "errors.json", "norms.json")
    digest, lines = unpack(pack([file.read_bytes() for file in vector_files() if file.name in names]))
    assert len(digest) == 64
    packed = {case.id: repr(case) for case in map(case_from_json, map(json.loads, lines))}
    assert packed == {case.id: repr(case) for case in load_cases(lambda entry: f"{entry.group}.json" in names)}


@pytest.fixture(scope="module")
def validator() -> Any:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(SCHEMA.read_text("utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("file", vector_files(), ids=lambda file: file.name)
def test_the_schema_describes_the_file(file: Any, validator: Any) -> None:
    document = json.loads(file.read_text("utf-8"))
    # validation is slow: one case of each operation and form is enough
    forms: dict[str, Any] = {}
    for case in document["cases"]:
        short = _shortened(case)
        forms.setdefault(json.dumps({**short, "id": ""}), short)
    assert [error.message for error in validator.iter_errors({**document, "cases": list(forms.values())})] == []
    assert document["group"] == file.name.removesuffix(".json")


def _shortened(x: Any) -> Any:
    """Return a short copy of a case, in which each array has at most one element of each type."""
    if isinstance(x, list):
        return [_shortened(v) for v in x]
    if not isinstance(x, dict):
        return x
    if "array" in x and isinstance(x["data"], list):
        kinds = {type(v): v for v in x["data"]}
        return {**x, "shape": x["shape"][:1] + [1] * (len(x["shape"]) - 1), "data": list(kinds.values())}
    return {k: _shortened(v) for k, v in x.items()}


GOOD = {
    "id": "norms/x", "clause": "7", "flags": [], "op": "norm",
    "args": [{"slices": {"array": "float32", "shape": [1, 1], "data": [1.0]},
              "indices": {"array": "int64", "shape": [1], "data": [0]}, "dense_shape": [2, 1]}],
    "kwargs": {}, "expect": {"array": "float32", "shape": [], "data": [1.0]},
}  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"id": "no-group"}, {"flags": ["full"]}, {"surplus": 1}, {"expect": {"float": "infinity"}},
        {"args": [{"array": "float8", "shape": [0], "data": []}]},
        {"args": [{"array": "int32", "shape": [1], "data": [0.5]}]},
    ],
    ids=str,
)  # fmt: skip
def test_the_schema_refuses_what_the_suite_cannot_read(change: dict[str, Any], validator: Any) -> None:
    document = {"format": 1, "group": "norms", "cases": [GOOD]}
    assert validator.is_valid(document)
    assert not validator.is_valid({**document, "cases": [{**GOOD, **change}]})


# ---------------------------------------------------------------------- the oracle's arithmetic


@pytest.mark.parametrize("dtype", FORMATS)
def test_rounding_at_ties_and_at_the_ends(dtype: str) -> None:
    precision, emin, emax = FORMATS[dtype]
    ulp = Fraction(2) ** (1 - precision)
    largest = (2 - ulp) * Fraction(2) ** emax
    smallest = Fraction(2) ** (emin - precision + 1)
    tiny = ulp / 2**80
    for x, expected in [
        (1 + ulp / 2, 1), (1 + ulp / 2 + tiny, 1 + ulp), (1 + ulp / 2 - tiny, 1), (1 + 3 * ulp / 2, 1 + 2 * ulp),
        (-1 - ulp / 2, -1), (largest, largest), (smallest, smallest), (smallest / 2, 0),
        (smallest / 2 + tiny * smallest, smallest), (3 * smallest / 2, 2 * smallest), (0, 0), (Fraction(1, 3) * 3, 1),
    ]:  # fmt: skip
        assert round_to(Fraction(x), dtype) == expected, x
    halfway = largest + Fraction(2) ** (emax - precision)
    assert round_to(halfway - tiny, dtype) == largest
    assert round_to(halfway, dtype) == math.inf
    assert round_to(-halfway, dtype) == -math.inf
    assert round_to(math.inf, dtype) == math.inf
    assert math.isnan(round_to(math.nan, dtype))


def test_square_roots_are_correctly_rounded() -> None:
    rng = np.random.default_rng(4)
    x = np.concatenate([rng.uniform(0, 4, 500), np.ldexp(rng.uniform(1, 2, 500), rng.integers(-900, 900, 500))])
    assert [square_root(v) for v in x.tolist()] == [math.sqrt(v) for v in x.tolist()]
    for value in (0.0, 1.0, 4.0, math.inf, 2.0**-1000, 2.0**1023, math.nextafter(1.0, 2.0), math.nextafter(1.0, 0.0)):
        assert square_root(value) == math.sqrt(value)
    assert math.isnan(square_root(math.nan))
