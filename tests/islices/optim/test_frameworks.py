"""Compare each optimizer with those of the frameworks: its defaults, and the weights and state of 24 steps.

The unit of an element's difference is eps times (its start plus the sum of its changes, as absolute values); 0 units
mean equal bits. docs/formulas.md explains the bounds: FMA and MKL's root in torch, Eigen's reciprocal root, sums in
another order. If this file runs as a script, NumPy computes torch's roots, and the script prints the differences that
remain. A test runs the script with FMA turned off.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
import pytest

import islices
from islices import optim
from islices.conformance.oracle_optim import OPTIMIZERS
from islices.optim.record import RECORDS

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
#: ignore warnings about torch's coalesced tensors, sparse gradients that move all rows, and arrays of TensorFlow and
#: MXNet
pytestmark = pytest.mark.filterwarnings(
    "ignore:Sparse invariant checks", "ignore:.*moves all rows", "ignore:__array__ implementation"
)
ROWS, STEPS = 11, 24
Step = Callable[[islices.IndexedSlices], list[Any]]
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    **OPTIMIZERS,
    "heavy": ("sgd", {"lr": 0.1, "momentum": 0.9}),
    "heavy-nesterov": ("sgd", {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "adam-options": ("adam", {"lr": 0.1, "beta1": 0.3, "beta2": 0.97, "eps": 1e-3}),
    "ftrl-bare": ("ftrl", {"lr": 0.3, "beta": 0.0}),  # 0 / 0 for a zero gradient
    "rmsprop-large-eps": ("rmsprop", {"lr": 0.02, "rho": 0.3, "eps": 8.0, "centered": True, "momentum": 0.5}),
    "rowwise": ("rowwise_adagrad", {"lr": 0.1, "eps": 1e-3}),  # FBGEMM ignores the decay of a table of one feature
    "imprecise-number": ("sgd", {"lr": 1.2345e-5, "momentum": 0.9}),
}


class Row(NamedTuple):
    """An optimizer of islices, and settings for its comparison with the framework's optimizer. `hyper` omits
    hyperparameters that the semantics lacks."""

    semantics: str
    label: str
    within: float = 0.0
    rows: str | None = None
    #: form of the framework's gradients: "sparse", "summed" (sparse without duplicates) or "dense"
    gets: str = "sparse"
    duplicates: str = "sum"
    #: True if means and sums of squares must have equal bits, even if weights may differ
    exact: bool = False
    columns: int = 3
    dtype: str = "float32"

    @property
    def name(self) -> str:
        return SETTINGS[self.label][0]

    @property
    def hyper(self) -> dict[str, Any]:
        known = RECORDS[self.name].presets[self.semantics].defaults
        of_amsgrad = {"amsgrad": True} if (self.semantics, self.name) == ("keras", "adamw") else {}
        return {k: x for k, x in SETTINGS[self.label][1].items() if k in known and k not in of_amsgrad}


#: semantics, labels, and other fields of a Row
GROUPS: list[tuple[str, str, dict[str, Any]]] = [
    ("torch", "sgd", {"within": 8}),
    ("torch", "adagrad adagrad-plain adam adam-options", {"within": 8, "exact": True}),
    ("torch", "heavy heavy-nesterov", {"within": 40, "rows": "all"}),
    (
        "torch",
        "sgd-decay momentum heavy-nesterov adagrad adam adam-decay adam-options amsgrad adamw-decay amsgrad-decay "
        "rmsprop rmsprop-momentum rmsprop-both adamax-decay nadam-decay",
        {"within": 8, "rows": "all", "gets": "dense"},
    ),
    (
        "keras",
        "sgd sgd-decay heavy heavy-nesterov adagrad rmsprop rmsprop-momentum rmsprop-both adam adam-decay adamw-decay "
        "amsgrad ftrl-linear lion-decay",
        {"gets": "summed"},
    ),
    ("keras", "heavy rmsprop", {"gets": "dense"}),
    ("keras", "adamax-decay nadam-decay", {"gets": "dense", "within": 8}),
    ("keras", "ftrl ftrl-power", {"gets": "summed", "within": 300}),
    ("keras", "adam ftrl-linear", {"duplicates": "raw"}),
    ("keras", "sgd adagrad heavy rmsprop rmsprop-large-eps", {"duplicates": "raw", "within": 24}),
    ("tensorflow", "sgd", {"gets": "summed"}),
    ("tensorflow", "sgd", {"within": 8}),
    ("tensorflow", "heavy heavy-nesterov adagrad rmsprop rmsprop-both ftrl ftrl-linear ftrl-shrinkage", {}),
    ("tensorflow", "adam adam-options", {"rows": "all"}),
    ("tensorflow", "ftrl-power", {"within": 300}),
    ("tensorflow", "ftrl-power", {"within": 300, "dtype": "float64"}),
    ("tensorflow", "adagrad rmsprop", {"within": 8, "columns": 8}),
    ("tensorflow", "adagrad ftrl", {"within": 8, "columns": 1}),
    ("tensorflow", "heavy heavy-nesterov rmsprop-both ftrl-shrinkage", {"rows": "all", "gets": "dense"}),
    ("tensorflow", "adagrad adam", {"rows": "all", "gets": "dense", "within": 8}),
    ("mxnet", "sgd-decay momentum adam adam-decay adagrad-plain rowwise_adagrad ftrl ftrl-bare", {}),
    ("mxnet", "momentum adam-decay ftrl rmsprop rmsprop-both", {"rows": "all"}),
    ("mxnet", "sgd momentum adam-decay adagrad-plain", {"gets": "dense"}),
    ("mxnet", "sgd-decay", {"gets": "dense", "within": 24}),
    ("mxnet", "adam", {"rows": "all", "gets": "dense", "within": 8}),
    ("mxnet", "rowwise_adagrad", {"columns": 5, "within": 8}),
    ("mxnet", "imprecise-number", {"within": 8}),
    ("optax", "sgd heavy heavy-nesterov lion-decay", {"gets": "dense"}),
    (
        "optax",
        "adam adam-options amsgrad adamw-decay adagrad adagrad-plain rmsprop rmsprop-momentum rmsprop-both",
        {"gets": "dense", "within": 8, "exact": True},
    ),
    ("optax", "adamax-decay nadam-decay", {"gets": "dense", "within": 8}),
    ("fbgemm", "sgd", {"within": 2, "columns": 8}),
    ("fbgemm", "adagrad", {"within": 3, "columns": 8}),
    ("fbgemm", "rowwise", {"within": 5, "columns": 20}),
]
TABLE = [Row(semantics, label, **how) for semantics, labels, how in GROUPS for label in labels.split()]


# ---------------------------------------------------------------------- the frameworks' optimizers
def class_of(semantics: str, name: str, place: int = 0) -> Any:
    """Return the framework's class or function for an optimizer. A record may list several, from which `place` selects
    one."""
    root, *path = RECORDS[name].presets[semantics].source.split(", ")[place].split(".")
    if root == "EmbOptimType":
        module = pytest.importorskip("fbgemm_gpu.split_table_batched_embeddings_ops_training")
        return module.SplitTableBatchedEmbeddingBagsCodegen
    if root == "mx":
        if "mxnet" not in islices.list_backends():
            pytest.skip("mxnet is not installed")
        islices.get_backend("mxnet")  # imports MXNet with a current NumPy
    module = pytest.importorskip({"mx": "mxnet", "tf": "tensorflow"}.get(root, root))
    if root == "keras" and module.backend.backend() != "tensorflow":
        pytest.skip("Keras runs on another backend than TensorFlow")
    return functools.reduce(getattr, path, module)


def made(row: Row, *first: Any, **more: Any) -> Any:
    spelled = RECORDS[row.name].spelled(row.semantics)
    given = {spelled[k]: x for k, x in row.hyper.items()}
    place = 0 if row.gets != "dense" and row.rows != "all" else -1
    if row.semantics == "optax":
        place = -1 if given.pop("amsgrad", False) else 0
    if row.semantics == "tensorflow" and row.name == "sgd":
        place = -1 if "momentum" in given else 0
    if row.semantics == "torch" and {"betas[0]", "betas[1]"} & given.keys():
        given["betas"] = (given.pop("betas[0]", 0.9), given.pop("betas[1]", 0.999))
    return class_of(row.semantics, row.name, place)(*first, **given, **more)


def by_torch(row: Row, start: Any) -> Step:
    torch = pytest.importorskip("torch")
    p = torch.nn.Parameter(torch.from_numpy(start.copy()))
    optimizer = made(row, [p])

    def step(grad: Any) -> list[Any]:
        p.grad = torch.from_numpy(islices.to_dense(grad))
        if row.gets == "sparse":
            values, ids = torch.from_numpy(grad.values), torch.from_numpy(grad.indices[None])
            p.grad = torch.sparse_coo_tensor(ids, values, p.shape, check_invariants=False)
        optimizer.step()
        return [x.detach().to_dense() for x in (p, *optimizer.state[p].values()) if isinstance(x, torch.Tensor)]

    return step


def by_tensorflow(row: Row, start: Any) -> Step:
    optimizer = made(row)
    tf = importlib.import_module("tensorflow")
    keras = row.semantics == "keras"
    variable = importlib.import_module("keras").Variable(start) if keras else tf.Variable(start)

    def step(grad: Any) -> list[Any]:
        given = tf.IndexedSlices(tf.constant(grad.values), tf.constant(grad.indices), tf.constant(start.shape))
        given = tf.constant(islices.to_dense(grad)) if row.gets == "dense" else given
        optimizer.apply_gradients([(given, variable)])
        return [variable, *(optimizer.variables if keras else optimizer.variables())]

    return step


def by_mxnet(row: Row, start: Any) -> Step:
    cls = class_of("mxnet", row.name)
    lazy = {"lazy_update": row.rows != "all"} if "lazy_update" in inspect.signature(cls).parameters else {}
    optimizer, mx = made(row, **lazy), importlib.import_module("mxnet")
    kind = "row_sparse" if (row.name, row.rows) == ("ftrl", None) else "default"
    weights = mx.nd.array(start).tostype(kind)
    state = optimizer.create_state(0, weights)

    def step(grad: Any) -> list[Any]:
        given = islices.convert(islices.to_dense(grad) if row.gets == "dense" else grad, "mxnet")
        optimizer.update(0, weights, given if row.gets == "dense" else islices.to_native(given), state)
        held = state if isinstance(state, tuple) else (state,)
        return [x.asnumpy() for x in (weights, *held) if x is not None]

    return step


def by_optax(row: Row, start: Any) -> Step:
    optax, jax = pytest.importorskip("optax"), pytest.importorskip("jax")
    transformation, params = made(row), jax.numpy.asarray(start)
    state = transformation.init(params)

    def step(grad: Any) -> list[Any]:
        nonlocal params, state
        updates, state = transformation.update(jax.numpy.asarray(islices.to_dense(grad)), state, params)
        params = optax.apply_updates(params, updates)
        return [params, *jax.tree.leaves(state)]

    return step


def by_fbgemm(row: Row, start: Any) -> Step:
    cls, torch = class_of("fbgemm", row.name), pytest.importorskip("torch")
    space = inspect.getmodule(cls).__dict__
    place = space["EmbeddingLocation"].HOST, space["ComputeDevice"].CPU
    configs = importlib.import_module("fbgemm_gpu.split_embedding_configs")
    kind = getattr(configs.EmbOptimType, RECORDS[row.name].presets["fbgemm"].source.rpartition(".")[2])
    module = made(row, [(*start.shape, *place)], optimizer=kind)
    weights = module.split_embedding_weights()[0]
    weights.data.copy_(torch.from_numpy(start))

    def step(grad: Any) -> list[Any]:
        bags = module(torch.from_numpy(grad.indices), torch.arange(len(grad.indices) + 1))
        bags.backward(torch.from_numpy(grad.values))
        return [weights.detach(), *(x for held in module.split_optimizer_states() for x in held)]

    return step


RUNS: dict[str, Callable[[Row, Any], Step]] = {
    "torch": by_torch,
    "keras": by_tensorflow,
    "tensorflow": by_tensorflow,
    "mxnet": by_mxnet,
    "optax": by_optax,
    "fbgemm": by_fbgemm,
}


# ---------------------------------------------------------------------- steps
def gradients(row: Row) -> Iterator[islices.IndexedSlices]:
    """Yield gradients of different sizes. Some have duplicates, stored zeros, rows that cancel, or no rows. The last
    row of the table never occurs."""
    rng = np.random.default_rng(0)
    for t in range(STEPS):
        n = 0 if t == 4 else int(rng.integers(1, 9))
        values, ids = rng.standard_normal((n, row.columns)).astype(row.dtype), rng.integers(0, ROWS - 1, n)
        if t % 3 == 1 and n:
            values[0] = 0
        if t % 5 == 2 and n > 1:
            values[1], ids[1] = -values[0], ids[0]
        yield islices.IndexedSlices(values, ids, (ROWS, row.columns))


def difference(row: Row, around: Callable[[], Any] = nullcontext) -> dict[str, float]:
    """Return a dict with the largest difference over all steps, for the weights ("w") and for each array of the state
    except step."""
    start = np.random.default_rng(100).standard_normal((ROWS, row.columns)).astype(row.dtype)
    theirs = RUNS[row.semantics](row, start)
    how = {"semantics": row.semantics, "duplicates": row.duplicates}
    ours = getattr(optim, row.name)(**row.hyper, **how, **({} if row.rows is None else {"rows": row.rows}))
    table = start.copy()
    state = ours.init(table)
    worst, sizes, last = {}, {"w": np.abs(start)}, {"w": start}
    for grad in gradients(row):
        dense = row.gets == "dense" and ours.rows == "touched"
        table, state = ours.step(table, islices.to_dense(grad) if dense else grad, state)
        with around():
            native = [np.array(x) for x in theirs(islices.coalesce(grad) if row.gets == "summed" else grad)]
        for key, x in {"w": table, **state}.items():
            if key == "step":
                continue
            alike = native[:1] if key == "w" else [y.reshape(x.shape) for y in native[1:] if y.size == x.size]
            sizes[key] = sizes.get(key, 0) + np.abs(x - last.get(key, 0 * x))
            last[key] = x.copy()
            unit = np.finfo(row.dtype).eps * np.maximum(sizes[key], 1e-30)
            found = min(np.max(np.where(x == y, 0, np.abs(x - y) / unit)[~(np.isnan(x) & np.isnan(y))]) for y in alike)
            worst[key] = max(worst.get(key, 0.0), float(found))
            assert found == found, f"{key}: {x} beside {alike}"
    assert state["step"].tolist() == [STEPS]  # the step of the empty gradient counts
    assert not np.array_equal(table, start), "nothing moved"
    if ours.rows == "touched" and not dense:
        np.testing.assert_array_equal([table[-1], native[0][-1]], [start[-1]] * 2)
    return worst


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.semantics}-{row.label}-{row.gets}-{row.columns}")
def test_steps_are_the_frameworks_own(row: Row) -> None:
    found = difference(row)
    assert max(found.values()) <= row.within, found
    if row.exact:
        assert {k: x for k, x in found.items() if x and k not in ("w", "momentum", "v_max")} == {}


@pytest.mark.outside
def test_bits_of_torch_where_it_rounds_once() -> None:
    """Compare bits with torch on x86-64, where FMA can be turned off. Optimizers that add in another order than torch
    are omitted."""
    plain = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "OMP_NUM_THREADS": "1", "ISLICES_KERNELS": "0"}
    done = subprocess.run([sys.executable, __file__], env={**os.environ, **plain}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    contracts, found = json.loads(done.stdout)
    if contracts and platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("this processor contracts")
    assert not contracts
    assert {k: x for k, x in found.items() if x} == {}


def rounded_once() -> tuple[bool, dict[str, float]]:
    """Return two values: whether torch uses FMA, and a dict from names of rows of TABLE to differences from torch.
    NumPy computes torch's roots."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class RoundedRoot(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.ops.aten.sqrt.default:
                return torch.from_numpy(np.sqrt(args[0].numpy()))
            if func is torch.ops.aten.sqrt_.default:
                return args[0].copy_(torch.from_numpy(np.sqrt(args[0].numpy())))
            return func(*args, **(kwargs or {}))

    rows = [r for r in TABLE if r.semantics == "torch" and (r.name != "sgd" or r.gets == "dense")]
    found = {f"{r.label} {r.gets}": max(difference(r, RoundedRoot).values()) for r in rows}
    a = torch.linspace(0, 1, 4099)
    return not torch.equal(a.addcmul(a, a), a + a * a), found


# ---------------------------------------------------------------------- defaults
PRESETS = [(name, semantics) for name, record in RECORDS.items() for semantics in RUNS if semantics in record.presets]
#: arguments of another class or function than the one whose signature is read
ELSEWHERE = {("optax", "adam", "amsgrad"), ("keras", "adamw", "amsgrad"), ("tensorflow", "sgd", "momentum")}


@pytest.mark.parametrize(("name", "semantics"), PRESETS)
def test_defaults_are_the_frameworks_own(name: str, semantics: str) -> None:
    record, cls = RECORDS[name], class_of(semantics, name, -1 if semantics in ("torch", "tensorflow") else 0)
    theirs = {**inspect.signature(cls).parameters}
    for ours, default in record.presets[semantics].defaults.items():
        argument, _, place = record.spelled(semantics)[ours].partition("[")
        if argument not in theirs and semantics == "mxnet":  # an argument of all MXNet optimizers
            assert default == {"learning_rate": 0.01}.get(argument, 0)
        elif (semantics, name, ours) not in ELSEWHERE:
            own = theirs[argument].default
            own = own[int(place[0])] if place else own
            assert default == (None if own is inspect.Parameter.empty else own or type(default)(0)), (ours, own)


if __name__ == "__main__":
    print(json.dumps(rounded_once()))
