"""What the audit finds in TensorFlow and Keras: the findings that the specification argues with, asked again."""

from __future__ import annotations

import functools
import importlib.metadata
import re
from functools import reduce
from typing import Any

import pytest

import islices
from islices import optim
from islices.conformance.tools.audit.run import run_all

if "tensorflow" not in islices.list_backends():
    pytest.skip("tensorflow is not installed", allow_module_level=True)
pytest.importorskip("keras", reason="keras is not installed")

MODULES = ("tensorflow", "tensorflow_arithmetic", "tensorflow_clip", "tensorflow_rows", "keras", "keras_optimizers")
#: Where everything was measured; other versions are told about by the audit itself.
MEASURED = {"tensorflow-cpu": "2.21.0", "keras": "3.15.1"}


@functools.cache
def ask(*modules: str) -> list[dict[str, Any]]:
    return run_all(modules, "", lambda planned, done: None)


@pytest.fixture
def findings() -> list[dict[str, Any]]:
    return ask(*MODULES)


@pytest.mark.outside
def test_the_probes_of_clips_answer_as_measured() -> None:
    found = ask("tensorflow_clip")
    assert {f["module"] for f in found} == {"tensorflow_clip"}
    check(found)


@pytest.mark.repeats
def test_every_probe_answers_as_measured(findings: list[dict[str, Any]]) -> None:
    assert {f["module"] for f in findings} == set(MODULES)
    check(findings)
    assert len(findings) > 150


def check(findings: list[dict[str, Any]]) -> None:
    unanswered = [f for f in findings if f["outcome"] in ("broken", "not run") and f["library"] != "tf_keras"]
    assert not unanswered, unanswered
    installed = {name: _version(name) for name in MEASURED}
    if installed != MEASURED:
        pytest.skip(f"measured with {MEASURED}, installed are {installed}")
    other = [(f["number"], f["outcome"], f["got"]) for f in findings if f["status"] not in ("as measured", "")]
    assert not other, other


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "none"


@pytest.mark.repeats
def test_what_to_use_instead_exists(findings: list[dict[str, Any]]) -> None:
    for finding in findings:
        for path in re.findall(r"\bislices((?:\.\w+)+)\(", finding["instead"]):
            assert callable(reduce(getattr, path[1:].split("."), islices)), (finding["number"], path)


@pytest.mark.repeats
def test_optimizers_to_use_instead_can_be_made(findings: list[dict[str, Any]]) -> None:
    calls = {m for f in findings for m in re.findall(r"\b(optim\.\w+\(lr[^.)]*\))", f["instead"])}
    assert len(calls) > 8
    for call in calls:
        eval(call, {"optim": optim, "lr": 0.1})


#: (words of the call or the claim, outcome, how the answer begins)
FOUND = [
    ("nothing is checked when it is built", "differs", "accepted"),
    ("slices + slices: the operator does not exist", "raises", "TypeError"),
    ("tf.linalg.global_norm: the stored values' norm", "differs", "141.5"),
    ("tf.clip_by_global_norm: clips by the stored values' norm", "differs", "[[0, 0], [0, 0], [0, 0.07066"),
    ("tf.clip_by_value: duplicates are clipped one by one", "differs", "[[0, 0], [6, 0], [0, 3.5], [0, 0]]"),
    ("a bound of infinity, which clips nothing", "differs", "[nan, nan]"),
    ("an infinity or NaN anywhere makes every value NaN", "agrees", ""),
    ("float16 and float32 together are refused", "raises", "InvalidArgumentError"),
    ("a row of a negative index is dropped silently", "differs", "accepted"),
    ("reads the first or the last row", "differs", "[[1, 2], [7, 8]]"),
    ("the slices of all lookups stand one after the other", "agrees", ""),
    ("holds a negative number", "differs", ""),
    ("has written the rows before it", "differs", "partly written"),
    ("NumPy memory not at a multiple of 64 bytes", "corrupts", "the process ended by SIGABRT"),
    ("tf.math.segment_sum: ", "differs", ""),
    ("unsorted_segment_sum, tf.scatter_nd", "agrees", ""),
    ("taken as zeros, in float32", "differs", "[0, 0]"),
    ("keras.ops.add(slices, slices), unsorted indices", "differs", "[[11, 11], [0, 0], [20, 20], [0, 0]]"),
    ("the last row is read, and trained", "differs", "accepted"),
    ("row 0 gets a gradient", "differs", "[[2, 2], [1, 1], [1, 1], [0, 0]]"),
    ("keras.optimizers.Adam: duplicates are not summed", "differs", ""),
    ("keras.optimizers.Adam: rows that no gradient names", "differs", ""),
    ("keras.optimizers.Ftrl: rows that no gradient names", "differs", "[[0, 0], [0, 0], [0, 0]]"),
    ("(loss_scale_factor=...)", "raises", "TypeError"),
    ("is clipped before they are added", "differs", "2"),
]  # fmt: skip


@pytest.mark.repeats
@pytest.mark.parametrize(("words", "outcome", "got"), FOUND)
def test_found_again(findings: list[dict[str, Any]], words: str, outcome: str, got: str) -> None:
    found = [f for f in findings if words in f"{f['call']}: {f['claim']}"]
    assert len(found) == 1, [f["number"] for f in found]
    assert found[0]["outcome"] == outcome, found[0]
    assert outcome == "agrees" or found[0]["got"].startswith(got), found[0]
