"""`islices parity A B` on models of others: GloVe in JAX, a recommender in Keras and in torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import islices
from islices.cli import main

PROGRAMS = Path(__file__).parents[2] / "shared" / "own_models"
ROOT = Path(islices.__file__).parents[1]
#: Another environment's Python, with another JAX: conformance/environments/older.txt.
OLDER = os.environ.get("ISLICES_OLDER_PYTHON", "")


def record(program: str, *words: object, python: str = sys.executable, **environment: str) -> None:
    done = subprocess.run(
        [python, PROGRAMS / program, *map(str, words)], capture_output=True, text=True, check=False, timeout=300,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3", **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]


def compared(tmp_path: Path, a: str, b: str, *words: str) -> dict[str, Any]:
    """The command's JSON of two recordings."""
    target = tmp_path / "run.json"
    code = main(["parity", str(tmp_path / a), str(tmp_path / b), "--json", str(target), *words])
    found = json.loads(target.read_text("utf-8"))
    assert code == (0 if found["equal"] else 1)
    return found


def causes(found: dict[str, Any]) -> set[str]:
    """The causes that are named, at the position and of others of its step."""
    stop = found["stop"]
    differences = [stop["difference"], *stop["also"].values()]
    return {cause["name"] for d in differences for e in d["causes"] for cause in e["causes"]}


@pytest.fixture(scope="module")
def keras_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("tensorflow")
    folder = tmp_path_factory.mktemp("recommender")
    record("recommender_keras.py", folder / "keras")
    return folder


@pytest.mark.outside
def test_keras_and_torch(keras_run: Path) -> None:
    """The port with Keras's Adam stays within rounding: 20 steps, all positions."""
    pytest.importorskip("torch")
    record("recommender_torch.py", keras_run / "torch")
    found = compared(keras_run, "keras", "torch")
    assert found["equal"], found["stop"]
    assert len(found["steps"]) == 20
    assert set(found["steps"][-1]["positions"]) == {"batch", "outputs", "loss", "gradients", "clipped", "step", "state"}
    assert len(found["pairs"]) == 4


@pytest.mark.outside
@pytest.mark.parametrize(
    ("fault", "position", "cause"),
    [("sum", {"loss"}, None), ("l2", {"loss"}, None), ("adam", {"step"}, "formula")],
)
def test_wrong_ports(fault: str, position: set[str], cause: str | None, keras_run: Path) -> None:
    pytest.importorskip("torch")
    record("recommender_torch.py", keras_run / f"torch-{fault}", fault)
    found = compared(keras_run, "keras", f"torch-{fault}")
    assert found["stop"]["step"] == 1
    assert found["stop"]["position"] in position
    assert cause is None or cause in causes(found)


@pytest.mark.outside
def test_duplicates_squared_one_by_one(keras_run: Path) -> None:
    """Keras's stock Adam, beside one that sums them first: each replays its own steps alone."""
    record("recommender_keras.py", keras_run / "stock", "stock")
    found = compared(keras_run, "stock", "keras")
    assert (found["stop"]["step"], found["stop"]["position"]) == (1, "step")
    assert "duplicates" in str(causes(found))


@pytest.mark.outside
@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_backends_of_keras(backend: str, keras_run: Path) -> None:
    pytest.importorskip(backend)
    record("recommender_keras.py", keras_run / f"keras-{backend}", KERAS_BACKEND=backend)
    found = compared(keras_run, "keras", f"keras-{backend}")
    assert found["equal"], found["stop"]
    assert len(found["steps"]) == 20


@pytest.mark.outside
@pytest.mark.parametrize(("fault", "position", "cause"), [("mean", "loss", "mean"), ("lr", "step", None)])
def test_glove(fault: str, position: str, cause: str | None, tmp_path: Path) -> None:
    """Recorded in jax.jit; a program and itself with a fault."""
    pytest.importorskip("jax")
    for name in ("", fault):
        record("glove_jax.py", tmp_path / f"jax{name}", name)
    assert compared(tmp_path, "jax", "jax")["same_bits"] == 30
    found = compared(tmp_path, "jax", f"jax{fault}")
    assert (found["stop"]["step"], found["stop"]["position"]) == (1, position)
    assert cause is None or cause in causes(found)


@pytest.mark.outside
@pytest.mark.skipif(not OLDER, reason="needs ISLICES_OLDER_PYTHON, the Python of an environment with another JAX")
def test_two_environments(tmp_path: Path) -> None:
    record("glove_jax.py", tmp_path / "new")
    record("glove_jax.py", tmp_path / "old", python=OLDER)
    found = compared(tmp_path, "old", "new")
    assert found["equal"], found["stop"]
    assert len(found["steps"]) == 30


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import numpy as np

    for name, factor in (("a", 1.0), ("b", 0.5)):
        recorder = islices.Recorder(tmp_path / name, metadata={"batch_size": "2"})
        gradient = np.arange(1, 41, dtype=np.float32).reshape(10, 4) * np.float32(factor)
        recorder.step(batch=np.array([1]), gradients={"w": gradient})
    assert main(["parity", str(tmp_path / "a"), str(tmp_path / "a")]) == 0
    assert "same" in capsys.readouterr().out
    assert main(["parity", str(tmp_path / "a"), str(tmp_path / "b")]) == 1
    told = capsys.readouterr().out
    assert "a and b part at step 1, in gradients" in told
    assert "divided by 2 (batch size)" in told
    for words, message in (
        (["x", "y"], "accepted is a folder of steps"),
        (["a", "b", "--steps", "0"], "got 0; accepted is a number of at least 1"),
        (["a", "b", "--max-norm", "nan"], "got nan; accepted is a number above 0"),
        (["a", "b", "--pair", "w"], "--pair: got 'w'"),
        (["a", "b", "--pair", "v=w"], "pair: got 'v'; accepted are the names in a"),
        (["a"], "FOLDER"),
    ):
        given = [str(tmp_path / word) if word in ("a", "b", "x", "y") else word for word in words]
        assert main(["parity", *given]) == 2
        assert message in capsys.readouterr().err
