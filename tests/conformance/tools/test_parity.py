"""Test the exit codes, the report and the errors of `islices parity A B`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import islices
from islices.cli import main


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, factor in (("a", 1.0), ("b", 0.5)):
        recorder = islices.Recorder(tmp_path / name, metadata={"batch_size": "2"})
        gradient = np.arange(1, 41, dtype=np.float32).reshape(10, 4) * np.float32(factor)
        recorder.step(batch=np.array([1]), gradients={"w": gradient})
    assert main(["parity", str(tmp_path / "a"), str(tmp_path / "a")]) == 0
    assert "same" in capsys.readouterr().out
    assert main(["parity", str(tmp_path / "a"), str(tmp_path / "b")]) == 1
    reported = capsys.readouterr().out
    assert "a and b differ from step 1, in gradients" in reported
    assert "divided by 2 (batch size)" in reported
    for words, message in (
        (["x", "y"], "accepted is a folder of steps"),
        (["a", "b", "--batch-size", "0"], "batch_size: got 0; accepted is an int >= 1"),
        (["a", "b", "--pair", "v=w"], "pair: got 'v'; accepted are the names in a"),
        (["a"], "FOLDER"),
    ):
        given = [str(tmp_path / word) if word in ("a", "b", "x", "y") else word for word in words]
        assert main(["parity", *given]) == 2
        assert message in capsys.readouterr().err
