"""Test that every script of examples/ runs, gives the expected results, and stays short."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import islices

FOLDER = Path(__file__).parents[2] / "examples"
#: example -> the frameworks that it needs
NEEDS = {
    "clip_translation": ["torch"],
    "continue_training": ["torch"],
    "cost_of_reducing": ["numpy"],
    "custom_optimizer": ["torch", "jax"],
    "data_parallel": ["torch"],
    "dlrm": ["torch"],
    "four_frameworks": ["torch", "tensorflow", "jax", "mxnet"],
    "growth": ["numpy"],
    "keras_fit": ["tensorflow", "torch", "jax"],
    "padding_and_mask": ["torch", "tensorflow"],
    "per_sample_gradients": ["torch"],
    "port_an_optimizer": ["tensorflow", "torch"],
    "sharded_embeddings": ["numpy"],
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


def test_continue_training() -> None:
    assert run("continue_training")


def test_cost_of_reducing() -> None:
    for times in run("cost_of_reducing").values():
        assert times["chosen"] == min(times[name] for name in ("gather", "ranges")) < times["raw slices"]


def test_padding_and_mask() -> None:
    assert list(run("padding_and_mask").values()) == [False, True, True, True]


def test_custom_optimizer() -> None:
    tables = run("custom_optimizer")
    for table in tables.values():
        np.testing.assert_array_equal(table, tables["numpy"])
        moved = np.sqrt(np.mean((table - 1) ** 2, axis=1))
        assert moved[5] == pytest.approx(0.15, rel=1e-5)


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


@pytest.mark.outside
@pytest.mark.parametrize(
    "backend", ["torch", *(pytest.param(x, marks=pytest.mark.soak) for x in ("tensorflow", "jax"))]
)
def test_keras_fit(backend: str) -> None:
    """Check that Keras and islices give nearly equal tables for all optimizers except Adam. Keras's Adam changes all
    rows, and Adam of islices only the rows of the batch."""
    command = [sys.executable, str(FOLDER / "keras_fit.py"), "5000", "8", backend]
    done = subprocess.run(command, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [re.split(r"  +", line.strip()) for line in done.stdout.splitlines()]
    assert [line[:3] for line in lines] == [
        [backend, name, who] for name in ("SGD", "Adagrad", "Adam") for who in ("keras", "islices")
    ]
    gaps = {line[1]: float(line[-1]) for line in lines if line[2] == "islices"}
    assert max(gaps["SGD"], gaps["Adagrad"]) < 1e-5 < 1e-4 < gaps["Adam"]


@pytest.mark.outside
def test_growth(tmp_path: Path) -> None:
    command = [sys.executable, str(FOLDER / "growth.py"), str(tmp_path / "growth.svg"), "100000", "100000"]
    done = subprocess.run(command, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = dict(line.split(": ") for line in done.stdout.splitlines())
    assert len(lines) == 12
    few, _, many = map(float, lines["coalesce             by stored rows, MiB at the peak"].split(", "))
    on_few_rows = float(lines["coalesce             by rows of the table, MiB at the peak"])
    assert few < 1 < many
    assert 0.5 * many < on_few_rows < 2 * many, "for a table of a hundredth of the rows"
    assert (tmp_path / "growth.svg").stat().st_size > 10_000


def test_four_frameworks() -> None:
    tables = list(run("four_frameworks").values())
    assert len(tables) == 4
    for table in tables[1:]:
        np.testing.assert_array_equal(table, tables[0])


#: A program with the interface of the public DLRM program: an optimizer from a module, a sparse table and a dense
#: layer.
PROGRAM = """
import sys, torch
import optim.rwsadagrad as rowwise
torch.manual_seed(0)
table, head = torch.nn.EmbeddingBag(20, 4, mode="sum", sparse=True), torch.nn.Linear(4, 1)
kinds = {"rwsadagrad": rowwise.RWSAdagrad}
(kind,) = (x.partition("=")[2] for x in sys.argv if x.startswith("--optimizer="))
optimizer = kinds[kind]([*table.parameters(), *head.parameters()], lr=0.1)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
for _ in range(6):
    loss = (head(table(torch.tensor([[1, 2, 1], [3, 1, 4]]))) - torch.tensor([[1.0], [-1.0]])).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    print(f"loss {loss.item():.5f} {type(optimizer).__module__}")
"""
ROWWISE = """
import torch
class RWSAdagrad(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})
        self.sums = {}
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                g = p.grad.coalesce().to_dense() if p.grad.is_sparse else p.grad
                squares = g.square().mean(1, keepdim=True) if p.grad.is_sparse else g.square()
                self.sums[p] = self.sums.get(p, 0) + squares
                p.data -= group["lr"] * g / (self.sums[p].sqrt() + 1e-10)
"""


@pytest.mark.outside
def test_dlrm(tmp_path: Path) -> None:
    """Check that a program like the public DLRM has nearly the same losses with the program's optimizer and with that
    of islices."""
    pytest.importorskip("torch")
    (tmp_path / "optim").mkdir()
    (tmp_path / "optim" / "rwsadagrad.py").write_text(ROWWISE)
    (tmp_path / "dlrm_s_pytorch.py").write_text(PROGRAM)
    found = {}
    for by in ("islices", "torch"):
        command = [sys.executable, str(FOLDER / "dlrm.py"), str(tmp_path), f"--by={by}", "--optimizer=rwsadagrad"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        found[by] = re.findall(r"loss ([\d.]+) (\S+)", done.stdout)
    losses = {by: [float(loss) for loss, _ in lines] for by, lines in found.items()}
    assert len(losses["torch"]) == 6
    assert losses["torch"][-1] < 0.9 * losses["torch"][0]
    np.testing.assert_allclose(losses["islices"], losses["torch"], rtol=1e-3, atol=2e-5)
    assert found["islices"][0][1].startswith(("islices", "__main__", "dlrm"))
    assert not found["torch"][0][1].startswith("islices")


def launched(name: str, *launcher: str) -> str:
    command = [sys.executable, *launcher, str(FOLDER / f"{name}.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.outside
def test_data_parallel() -> None:
    pytest.importorskip("torch")
    alone = launched("data_parallel")
    assert re.fullmatch(r"rank 0 of 1: table [0-9a-f]{16}, received 0 bytes\n", alone)
    together = launched("data_parallel", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    ranks = re.findall(r"rank (\d) of 2: table ([0-9a-f]{16}), received ([\d,]+) bytes", together)
    assert sorted(rank for rank, _, _ in ranks) == ["0", "1"]
    (table,) = {table for _, table, _ in ranks}
    assert table not in alone
    raw = 20 * 64 * 50 * (32 * 4 + 8)  # the bytes of a gather of every slice
    assert all(0 < int(received.replace(",", "")) < 0.8 * raw for _, _, received in ranks)


@pytest.mark.outside
def test_sharded_embeddings() -> None:
    pytest.importorskip("mpi4py")
    losses = run("sharded_embeddings")
    assert losses[-1] < 0.9 * losses[0]
