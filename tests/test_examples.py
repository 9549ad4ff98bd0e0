"""Every example runs, shows what it says, and stays short."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import islices

FOLDER = Path(__file__).parent.parent / "examples"
#: example -> the frameworks it needs
NEEDS = {
    "clip_translation": ["torch"],
    "four_frameworks": ["torch", "tensorflow", "jax", "mxnet"],
    "padding_and_mask": ["torch", "tensorflow"],
    "per_sample_gradients": ["torch"],
    "port_an_optimizer": ["tensorflow", "torch"],
    "train_some_rows": ["jax"],
}


def run(name: str) -> Any:
    missing = [needed for needed in NEEDS[name] if needed not in islices.list_backends()]
    if missing:
        pytest.skip(f"needs {' and '.join(missing)}")
    spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main()


def test_every_example_is_run_here_and_short() -> None:
    files = {path.stem: path for path in FOLDER.glob("*.py")}
    assert set(files) == set(NEEDS)
    for path in files.values():
        assert len(path.read_text("utf-8").splitlines()) <= 60, path.name


def test_clip_translation(capsys: pytest.CaptureFixture[str]) -> None:
    figures = run("clip_translation")
    assert figures["stored values"] != pytest.approx(figures["duplicates summed"], rel=0.05)
    assert figures["global norm"] > 0.1
    assert figures["clipped"] == pytest.approx(0.1, rel=1e-5)
    assert "after:" in capsys.readouterr().out


def test_padding_and_mask() -> None:
    assert list(run("padding_and_mask").values()) == [False, True, True, True]


def test_train_some_rows() -> None:
    start, end, losses = run("train_some_rows")
    assert losses[-1] < 0.85 * losses[0]
    np.testing.assert_array_equal(start[:1000], end[:1000])
    assert (start[1000:] != end[1000:]).any(axis=1).all()


def test_port_an_optimizer() -> None:
    gaps = run("port_an_optimizer")
    assert gaps["islices"] < 1e-6 < 1e-4 < gaps["torch"]


def test_per_sample_gradients() -> None:
    before, after, gradient = run("per_sample_gradients")
    limit = float(before.median())
    assert float(before.max()) > limit
    assert float(after.max()) <= limit * (1 + 1e-6)
    within = before <= limit
    assert (before[within] == after[within]).all()
    assert gradient.dense_shape == (200_000, 32)


def test_four_frameworks() -> None:
    tables = list(run("four_frameworks").values())
    assert len(tables) == 4
    for table in tables[1:]:
        np.testing.assert_array_equal(table, tables[0])
