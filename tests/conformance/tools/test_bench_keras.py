"""The part "keras" of `islices bench`, in small: what it finds, and ways that part."""

from __future__ import annotations

import json
from typing import Any

import pytest

keras = pytest.importorskip("keras", minversion="3")

from islices.conformance.tools.bench import keras_fit  # noqa: E402
from islices.conformance.tools.bench.report_keras import tables  # noqa: E402

BACKEND = keras.backend.backend()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setenv("KERAS_BACKEND", BACKEND)
    for name, number in (("ROWS", 500), ("DIM", 3), ("BATCH", 4), ("IDS", 5), ("STEPS", 2)):
        monkeypatch.setattr(keras_fit, name, number)
    return {"part": "keras", "backend": BACKEND, "threads": 2, "repeat": 2, "seconds": 0}


@pytest.mark.skipif(BACKEND not in keras_fit.BACKENDS, reason="Keras runs on another backend")
@pytest.mark.parametrize("cases", [["adam"], pytest.param(list(keras_fit.CASES), marks=pytest.mark.soak)], ids=len)
def test_every_way_is_measured(small: dict[str, Any], cases: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keras_fit, "CASES", {name: keras_fit.CASES[name] for name in cases})
    records: list[dict[str, Any]] = []
    keras_fit.run(small, lambda **found: records.append(json.loads(json.dumps(found))))
    assert [r["operation"] for r in records] == list(keras_fit.CASES)
    for r in records:
        ways = {keras_fit.STOCK, *keras_fit.CASES[r["operation"]].rules}
        assert r["milliseconds"].keys() == r["peaks"].keys() == ways
        assert r["apart"].keys() == ways - {keras_fit.STOCK}
        assert r["ratios"][keras_fit.STOCK].keys() == ways - {keras_fit.STOCK}
        assert all(ms > 0 for ms in r["milliseconds"].values())
    common = {"backend": BACKEND, "version": "1", "part": "keras", "others": 0.0}
    (table,) = tables({"records": [common | r for r in records]})
    assert len(table.rows) == sum(1 + len(case.rules) for case in keras_fit.CASES.values())
    assert {len(row) for row in table.rows} == {len(table.heads)}


@pytest.mark.repeats
@pytest.mark.skipif(BACKEND not in keras_fit.BACKENDS, reason="Keras runs on another backend")
def test_a_way_that_parts_from_keras_is_no_measurement(small: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = keras_fit.Case("SGD", 0.1, {keras_fit.OURS: {"semantics": "keras", "momentum": 0.9}})
    monkeypatch.setattr(keras_fit, "CASES", {"sgd": wrong})
    with pytest.raises(RuntimeError, match=r"sgd, islices: the table is .* from Keras's; expected 0.0001"):
        keras_fit.run(small, lambda **_: None)
