"""Test the PaddlePaddle plug-in (conformance/paddle_backend). Where Paddle is not installed, the tests that need Paddle
are skipped."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from suite_runs import ROOT, install, python, run_suite

import islices

PLUGIN = ROOT / "conformance" / "paddle_backend"


@pytest.fixture(scope="module")
def paddle() -> Any:
    found = pytest.importorskip("paddle", reason="Paddle is not installed here: it has an environment of its own")
    pytest.importorskip("islices_paddle", reason="pip install conformance/paddle_backend")
    return found


# ---------------------------------------------------------------------- tests without Paddle


@pytest.mark.outside
@pytest.mark.skipif(int(version("setuptools").partition(".")[0]) < 77, reason="needs setuptools 77 to be built")
def test_installed_without_paddle_it_disturbs_nobody(tmp_path: Path) -> None:
    site = install(PLUGIN, tmp_path / "site", tmp_path)
    listed = python("-c", "import islices; print(islices.list_backends())", path=site)
    assert listed.stdout.strip() == str(islices.list_backends()), listed.stderr
    if "paddle" not in islices.list_backends():
        done = python("-m", "islices", "conform", "-b", "paddle", path=site)
        assert (done.returncode, done.stdout) == (2, "")
        assert "'paddle', whose adapter is installed, but no module paddle is found" in done.stderr


# ---------------------------------------------------------------------- the suite
def test_it_conforms(paddle: Any, tmp_path: Path) -> None:
    run = run_suite(tmp_path, "paddle", "-k", "captured or conversion or memory", path=tmp_path)
    assert run.status == 0, run.output[-3000:]
    assert set(run.counts) == {"pass"}
    assert {case["mode"] for case in run.cases} == {"host", "framework"}


# ---------------------------------------------------------------------- workarounds of the adapter
def rows(paddle: Any, *ids: int) -> Any:
    return paddle.to_tensor(np.array(ids, np.int64))


def sparse_layer(paddle: Any, ids: list[int], **options: Any) -> Any:
    """Return an embedding layer with weights of shape (4, 2) after a backward pass of sum(layer(ids))."""
    layer = paddle.nn.Embedding(4, 2, sparse=True, **options)
    layer(rows(paddle, *ids)).sum().backward()
    return layer


# ---------------------------------------------------------------------- SelectedRows
def test_a_gradient_goes_through_islices_back_into_paddles_optimizer(paddle: Any) -> None:
    layer = sparse_layer(paddle, [1, 3, 1])
    before = layer.weight.numpy()
    (clipped,), norm = islices.clip_by_global_norm([layer.weight.grad], 1.0)
    layer.weight.grad = clipped
    paddle.optimizer.SGD(1.0, parameters=[layer.weight]).step()
    gradient = np.array([[0, 0], [2, 2], [0, 0], [1, 1]], np.float32)
    assert float(norm) == np.sqrt(np.float32(10))
    np.testing.assert_allclose(before - layer.weight.numpy(), gradient / np.sqrt(10), rtol=1e-6)


# ---------------------------------------------------------------------- differentiation


def test_rows_changed_in_place_and_tables_kept_too_long_are_refused(paddle: Any) -> None:
    kept = []

    def changes(table: Any) -> Any:
        kept.append(table)
        found = islices.lookup(table, rows(paddle, 1)) * 1
        with paddle.no_grad():
            islices.lookup(table, rows(paddle, 1)).scale_(2.0)
        return found.sum()

    table = islices.Table(paddle.ones([3, 2]))
    assert islices.value_and_grad(changes)(table)[1].values.tolist() == [[1, 1]], "constants may change"
    with pytest.raises(TypeError, match="had returned"):
        islices.lookup(kept[0], rows(paddle, 1))

    def changes_rows(table: Any) -> Any:
        found = islices.lookup(table, rows(paddle, 1))
        loss = (found * 2).sum()
        with paddle.no_grad():
            found.scale_(2.0)
        return loss

    with pytest.raises(TypeError, match="changed rows in place"):
        islices.value_and_grad(changes_rows)(table)


# ---------------------------------------------------------------------- models, tables, compiled code
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"sparse": True}, {"padding_idx": 2}, {"padding_idx": -1, "sparse": True}], ids=str
)
def test_captured_gradients_are_the_layers_own(paddle: Any, options: dict[str, Any], frozen: bool) -> None:
    ids = paddle.to_tensor(np.array([[1, 2, 2], [5, 1, 9]]))
    layer, head = paddle.nn.Embedding(10, 3, **options), paddle.nn.Linear(3, 1)
    head(layer(ids)).sum().backward()
    own = layer.weight.grad
    if own.is_selected_rows() and "padding_idx" in options:
        own = islices.drop_padding(own, options["padding_idx"])
    layer = paddle.nn.Embedding(10, 3, **options)
    layer.weight.stop_gradient = frozen
    model = paddle.nn.Sequential(layer, head)
    with islices.capture(model) as captured:
        model(ids).sum().backward()
    got = captured.gradients()["0"]
    np.testing.assert_array_equal(islices.to_dense(got).numpy(), islices.to_dense(own).numpy())
    assert captured.per_sample()["0"].norms().shape == [2]
    assert frozen == (layer.weight.grad is None)
    assert not layer._forward_post_hooks


@pytest.mark.parametrize("mode", ["host", "framework"])
def test_parameters_change_in_place_and_record_nothing(paddle: Any, mode: str) -> None:
    table = paddle.create_parameter([4, 2], "float32")
    table.set_value(np.ones((4, 2), np.float32))
    optimizer = islices.optim.sgd(0.5)
    s = islices.IndexedSlices(paddle.ones([2, 2]), rows(paddle, 1, 1), (4, 2))
    with islices.config.execution(mode):
        after, _ = optimizer.step(table, s, optimizer.init(table))
        assert islices.scatter(table, s) is after is table
    assert table.numpy()[:, 0].tolist() == [1, 2, 1, 1]
    assert table.is_leaf
    assert not table.stop_gradient
