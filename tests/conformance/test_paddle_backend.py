"""The PaddlePaddle plug-in (conformance/paddle_backend). Paddle has an environment of its own, where all of this runs;
elsewhere the tests that need it are reported as not run.
"""

from __future__ import annotations

import ast
import threading
import tomllib
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from suite_runs import ROOT, install, python, run_suite

import islices
from islices.backend import Backend

PLUGIN = ROOT / "conformance" / "paddle_backend"
PACKAGE = PLUGIN / "islices_paddle"
MODULES = sorted(PACKAGE.glob("*.py"))


@pytest.fixture(scope="module")
def paddle() -> Any:
    found = pytest.importorskip("paddle", reason="Paddle is not installed here: it has an environment of its own")
    pytest.importorskip("islices_paddle", reason="pip install conformance/paddle_backend")
    return found


# ---------------------------------------------------------------------- what can be said without Paddle
def tree_of(module: Path) -> ast.Module:
    return ast.parse(module.read_text("utf-8"))


def imported(module: Path) -> set[str]:
    nodes = list(ast.walk(tree_of(module)))
    names = {name.name for node in nodes if isinstance(node, ast.Import) for name in node.names}
    return names | {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}


def test_the_entry_point_is_named_like_the_module_that_must_be_imported() -> None:
    settings = tomllib.loads((PLUGIN / "pyproject.toml").read_text("utf-8"))
    assert settings["project"]["entry-points"]["islices.backends"] == {"paddle": "islices_paddle:backend"}
    assert settings["tool"]["setuptools"]["packages"] == [PACKAGE.name]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.stem)
def test_modules_are_short_and_import_what_an_outsider_may(module: Path) -> None:
    assert len(module.read_text("utf-8").splitlines()) < 400
    own = {name for name in imported(module) if name.partition(".")[0] == "islices"}
    allowed = {"memory": {"islices.memory"}, "own_calls": set()}.get(module.stem, {"islices.backend"})
    assert own <= allowed, "the plug-in stands on the protocol"


def test_every_method_of_the_adapter_is_one_of_the_protocol() -> None:
    (adapter,) = (n for n in tree_of(PACKAGE / "adapter.py").body if isinstance(n, ast.ClassDef))
    methods = {node.name for node in adapter.body if isinstance(node, ast.FunctionDef)}
    methods |= {target.id for node in adapter.body if isinstance(node, ast.Assign) for target in node.targets}  # type: ignore[attr-defined]
    assert len(methods) > 50
    assert {name for name in methods if not hasattr(Backend, name)} <= {"name", "module"}


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


# ---------------------------------------------------------------------- what the adapter works around
def rows(paddle: Any, *ids: int) -> Any:
    return paddle.to_tensor(np.array(ids, np.int64))


def sparse_layer(paddle: Any, ids: list[int], **options: Any) -> Any:
    """A layer of 4 x 2 weights after a backward pass of sum(layer(ids))."""
    layer = paddle.nn.Embedding(4, 2, sparse=True, **options)
    layer(rows(paddle, *ids)).sum().backward()
    return layer


def float32_roots(paddle: Any) -> bool:
    x = np.linspace(1, 2, 10_000, dtype=np.float32)
    return bool((paddle.sqrt(paddle.to_tensor(x)).numpy() != np.sqrt(x)).any())


def float64_to_float16(paddle: Any) -> bool:
    x = np.array([1 + 2**-11 + 2**-40])
    return bool(paddle.to_tensor(x).astype("float16").numpy()[0] != x.astype(np.float16)[0])


def amax_of_nan(paddle: Any) -> bool:
    low, values = paddle.full([1, 1], -1.0), paddle.to_tensor(np.array([[np.nan], [1]], np.float32))
    place = paddle.to_tensor(np.zeros((2, 1), np.int64))
    return not bool(paddle.isnan(paddle.put_along_axis(low, place, values, 0, "amax")).any())


def reads_beyond(paddle: Any) -> bool:
    first = paddle.arange(12)[:6]
    return first[rows(paddle, 8)].tolist() == [8]


def float16_of_gather(paddle: Any) -> bool:
    try:
        paddle.gather(paddle.ones([2, 2], "float16"), rows(paddle, 0))
    except RuntimeError:
        return True
    return False


def gradient_of_bits(paddle: Any) -> bool:
    x = paddle.ones([2], "float16")
    x.stop_gradient = False
    paddle.gather(x.view("int16"), rows(paddle, 0, 0)).view("float16").astype("float32").sum().backward()
    return x.grad.tolist() != [2, 0]


FACTS: dict[str, Callable[[Any], bool]] = {
    "float32 roots are not correctly rounded": float32_roots,
    "float64 becomes float16 by way of float32": float64_to_float16,
    "amax overlooks NaN": amax_of_nan,
    "x[ids] reads beyond x": reads_beyond,
    "gather takes no float16": float16_of_gather,
    "the gradient of float16 gathered as int16 is a sum of bit patterns": gradient_of_bits,
    "padding's rows are in a sparse gradient": lambda paddle: (
        sparse_layer(paddle, [1, 2], padding_idx=2).weight.grad.get_selected_rows().height() == 4
        and islices.from_native(sparse_layer(paddle, [1, 2], padding_idx=2).weight.grad).indices.tolist() == [1, 2]
    ),
    "square acts on each of the duplicates": lambda paddle: (
        paddle.square(sparse_layer(paddle, [1, 1]).weight.grad).numpy().tolist() == [[1, 1], [1, 1]]
    ),
}


@pytest.mark.parametrize("fact", FACTS)
def test_paddle_still_does_what_the_adapter_works_around(paddle: Any, fact: str) -> None:
    assert FACTS[fact](paddle), "a newer Paddle? Then the adapter can be simpler, and its README says too much"


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


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int32", "int64"])
@pytest.mark.parametrize("row_shape", [(), (3,), (2, 2), (0,)], ids=str)
def test_a_selected_rows_shares_the_values(paddle: Any, dtype: str, row_shape: tuple[int, ...]) -> None:
    values = paddle.ones([3, *row_shape]).astype(dtype)
    s = islices.IndexedSlices(values, rows(paddle, 4, 0, 4), (10**9, *row_shape))
    native = islices.to_native(s)
    back = islices.from_native(native)
    assert (back.dense_shape, back.dtype, back.indices.tolist()) == (s.dense_shape, values.dtype, [4, 0, 4])
    assert back.values.data_ptr() == values.data_ptr()
    assert not values.size or islices.coalesce(native).get_selected_rows().rows() == [0, 4]


def test_what_a_selected_rows_cannot_hold_is_refused(paddle: Any) -> None:
    values = paddle.ones([1, 2])
    with pytest.raises(ValueError, match="needs the number of rows"):
        islices.to_native(islices.IndexedSlices(values, rows(paddle, 0), (None, 2)))
    values.stop_gradient = False
    with pytest.raises(ValueError, match="whose gradient is being recorded"):
        islices.to_native(islices.IndexedSlices(values, rows(paddle, 0), (4, 2)))


# ---------------------------------------------------------------------- differentiation
def squares(paddle: Any, table: Any, *ids: int) -> Any:
    found = islices.lookup(table, rows(paddle, *ids))
    return (found * found).sum()


def test_threads_take_gradients_at_the_same_time(paddle: Any) -> None:
    """`paddle.grad` in two threads ends the process; what the adapter does itself waits its turn."""
    found: dict[int, list[Any]] = {}

    def work(k: int) -> None:
        table = islices.Table(paddle.full([5, 2], float(k)))
        for _ in range(30):
            found[k] = islices.value_and_grad(lambda t: squares(paddle, t, k))(table)[1].values.tolist()

    threads = [threading.Thread(target=work, args=(k,)) for k in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {k: [[2.0 * k, 2.0 * k]] for k in range(5)}


def test_second_derivatives(paddle: Any) -> None:
    """inner: the sum of r^2, so slices of 2 r; outer: the sum of their squares, whose slices are 8 r."""

    def outer(table: Any) -> Any:
        slices = islices.value_and_grad(lambda t: squares(paddle, t, 1, 1))(table)[1]
        return (slices.values * slices.values).sum()

    table = islices.Table(paddle.to_tensor(np.arange(6, dtype=np.float32).reshape(3, 2)))
    value, slices = islices.value_and_grad(outer)(table)
    assert float(value) == 2 * (4 * 4 + 6 * 6)
    assert slices.indices.tolist() == [1, 1]
    assert slices.values.tolist() == [[16, 24], [16, 24]]


def test_errors_of_gradient_functions_arrive_as_they_were_raised(paddle: Any) -> None:
    def wrong(arrays: Any, upstream: Any) -> Any:
        raise KeyError("mine")

    double = islices.get_backend("paddle").custom_gradient(lambda x: x * 2, wrong)
    with pytest.raises(KeyError, match="mine"):
        islices.value_and_grad(lambda x: double(x).sum())(paddle.ones([2]))


def test_given_gradients_of_inputs_that_come_back_or_take_none(paddle: Any) -> None:
    B = islices.get_backend("paddle")
    same = B.custom_gradient(lambda x: x, lambda arrays, upstream: (upstream * 3,))
    product = B.custom_gradient(lambda a, b: a * b, lambda arrays, up: (up * arrays[1], up * arrays[0]))
    fn = islices.value_and_grad(lambda x: (same(x) + product(x, paddle.full([2], 5.0))).sum())
    assert fn(paddle.ones([2]))[1].tolist() == [8, 8]


def test_recompute_is_right_or_refused(paddle: Any) -> None:
    from paddle.distributed.fleet.utils import recompute

    def loss(table: Any, reentrant: bool) -> Any:
        one = paddle.ones([1, 2])
        one.stop_gradient = False
        fn = lambda x: squares(paddle, table, 1, 2) * x.sum()  # noqa: E731
        return recompute(fn, one, use_reentrant=reentrant)

    table = islices.Table(paddle.to_tensor(np.arange(6, dtype=np.float32).reshape(3, 2)))
    assert islices.value_and_grad(loss)(table, False)[1].values.tolist() == [[8, 12], [16, 20]]
    with pytest.raises(NotImplementedError, match="use_reentrant=False"):
        islices.value_and_grad(loss)(table, True)


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


def test_a_layer_with_a_forward_of_its_own_is_refused(paddle: Any) -> None:
    class Scaled(paddle.nn.Embedding):
        def forward(self, x: Any) -> Any:
            return super().forward(x) * 2

    with (
        pytest.raises(TypeError, match="'0', a Scaled with a forward of its own"),
        islices.capture(paddle.nn.Sequential(Scaled(3, 2))),
    ):
        pass


@pytest.mark.parametrize("mode", ["host", "framework"])
def test_parameters_change_in_place_and_record_nothing(paddle: Any, mode: str) -> None:
    table = paddle.create_parameter([4, 2], "float32")
    table.set_value(np.ones((4, 2), np.float32))
    optimizer = islices.optim.sgd(0.5)
    s = islices.IndexedSlices(paddle.ones([2, 2]), rows(paddle, 1, 1), (4, 2))
    with islices.execution(mode):
        after, _ = optimizer.step(table, s, optimizer.init(table))
        assert islices.scatter_add(table, s) is after is table
    assert table.numpy()[:, 0].tolist() == [1, 2, 1, 1]
    assert table.is_leaf
    assert not table.stop_gradient


def test_a_table_whose_rows_share_memory_is_not_written_to(paddle: Any) -> None:
    table = paddle.as_strided(paddle.ones([2]), [4, 2], [0, 1])
    with pytest.raises(ValueError, match="rows share memory"):
        islices.scatter_add(table, islices.IndexedSlices(paddle.ones([1, 2]), rows(paddle, 1), (4, 2)))


def test_compiled_code_gives_the_same_or_a_clear_error(paddle: Any) -> None:
    def dense(values: Any, ids: Any) -> Any:
        return islices.to_dense(islices.coalesce(islices.IndexedSlices(values, ids, (4, 2)))) * 2

    values, ids = paddle.ones([3, 2]), rows(paddle, 1, 1, 0)
    assert paddle.jit.to_static(dense)(values, ids).tolist() == dense(values, ids).tolist()
    with pytest.raises(TypeError, match="accepted is a dense array"):
        paddle.jit.to_static(dense, full_graph=True)(values, ids)
