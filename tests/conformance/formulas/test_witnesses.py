"""Frameworks confirm the formulas that they document, each in its grade: they are witnesses, never what is expected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import islices
from islices.conformance.formulas.judge import judge
from islices.conformance.formulas.records import FORMULAS

#: islices' name of an option -> the framework's
TORCH = {"rho": "alpha", "initial_accumulator": "initial_accumulator_value"}
KERAS = {
    "lr": "learning_rate", "beta1": "beta_1", "beta2": "beta_2", "eps": "epsilon", "l1": "l1_regularization_strength",
    "initial_accumulator": "initial_accumulator_value", "l2": "l2_regularization_strength",
    "l2_shrinkage": "l2_shrinkage_regularization_strength",
}  # fmt: skip
OPTAX = {
    "lr": "learning_rate", "beta1": "b1", "beta2": "b2", "rho": "decay",
    "initial_accumulator": "initial_accumulator_value",
}  # fmt: skip


def renamed(options: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    return {names.get(name, name): value for name, value in options.items()}


def steps_of(framework: str) -> list[str]:
    """Its optimizers' formulas."""
    return [name for name, x in FORMULAS.items() if x.framework == framework and x.gives == "weights"]


# ---------------------------------------------------------------------- torch
TORCH_STATES = {
    "Adam": {"m": "exp_avg", "v": "exp_avg_sq", "v_max": "max_exp_avg_sq"},
    "AdamW": {"m": "exp_avg", "v": "exp_avg_sq", "v_max": "max_exp_avg_sq"},
    "SparseAdam": {"m": "exp_avg", "v": "exp_avg_sq"},
    "SGD": {"momentum": "momentum_buffer"},
    "Adagrad": {"accumulator": "sum"},
    "RMSprop": {"square": "square_avg", "mean": "grad_avg", "momentum": "momentum_buffer"},
    "Adadelta": {"square": "square_avg", "delta": "acc_delta"},
    "NAdam": {"m": "exp_avg", "v": "exp_avg_sq"},
    "RAdam": {"m": "exp_avg", "v": "exp_avg_sq"},
    "Adamax": {"m": "exp_avg", "u": "exp_inf"},
}


def torch_step(name: str, **chosen: Any) -> Callable[..., Any]:
    import torch

    def step(w: Any, g: Any, state: Any, t: int, **options: Any) -> Any:
        if t == 1:
            h = renamed(options, TORCH | ({"rho": "rho"} if name == "Adadelta" else {}))
            if "beta1" in h:
                h["betas"] = (h.pop("beta1"), h.pop("beta2"))
            state["p"] = torch.nn.Parameter(torch.from_numpy(w))
            state["optimizer"] = getattr(torch.optim, name)([state["p"]], **h, **chosen)
        p, optimizer = state["p"], state["optimizer"]
        optimizer.param_groups[0]["lr"] = options["lr"]
        if isinstance(g, np.ndarray):
            p.grad = torch.from_numpy(g)
        else:
            p.grad = torch.sparse_coo_tensor(torch.from_numpy(g.indices)[None], torch.from_numpy(g.values), w.shape)
        optimizer.step()
        held = optimizer.state[p]
        return p, {**state, **{own: held[theirs] for own, theirs in TORCH_STATES[name].items() if theirs in held}}

    return step


IMPLEMENTATIONS = ({"foreach": False}, {"foreach": True}, {"fused": True})


@pytest.mark.parametrize("chosen", IMPLEMENTATIONS, ids=["single", "foreach", "fused"])
@pytest.mark.parametrize("name", ["Adam", "AdamW", "SGD", "Adagrad", "RMSprop", "Adadelta", "Adamax", "NAdam", "RAdam"])
def test_torch(name: str, chosen: dict[str, bool]) -> None:
    if "fused" in chosen and name not in ("Adam", "AdamW", "SGD", "Adagrad"):
        pytest.skip("torch has no fused one")
    confirmed(f"torch.{name}", torch_step(name, **chosen), 1)


@pytest.mark.parametrize("name", ["SparseAdam", "SGD", "Adagrad"])
def test_torch_sparse(name: str) -> None:
    confirmed(f"torch.{name}{'' if name == 'SparseAdam' else ' sparse'}", torch_step(name), 1)


def confirmed(formula: str, step: Callable[..., Any], grade: int) -> None:
    found = judge(step, formula)
    assert found.grade is not None, str(found)
    assert found.grade <= grade, str(found)
    assert not found.unsupported, str(found)


# ---------------------------------------------------------------------- Keras, and TensorFlow 1
def dense_or_slices(g: Any) -> Any:
    import tensorflow as tf

    if isinstance(g, np.ndarray):
        return tf.constant(g)
    return tf.IndexedSlices(tf.constant(g.values), tf.constant(g.indices), tf.constant(g.dense_shape))


def keras_step(name: str) -> Callable[..., Any]:
    import keras
    import tensorflow as tf

    def step(w: Any, g: Any, state: Any, t: int, **options: Any) -> Any:
        if t == 1:
            h = {k: v for k, v in renamed(options, KERAS).items() if k != "weight_decay" or v}
            state["w"] = tf.Variable(w)
            state["optimizer"] = getattr(keras.optimizers, name)(**h)
        state["optimizer"].learning_rate = options["lr"]
        state["optimizer"].apply_gradients([(dense_or_slices(g), state["w"])])
        return state["w"].numpy()

    return step


@pytest.mark.repeats
@pytest.mark.parametrize("formula", steps_of("keras"))
def test_keras(formula: str) -> None:
    confirmed(formula, keras_step(formula.removeprefix("keras.").removesuffix(" sparse")), 2)


TF_NAMES = {
    "lr": "learning_rate", "eps": "epsilon", "rho": "decay", "nesterov": "use_nesterov",
    "initial_accumulator": "initial_accumulator_value", "l1": "l1_regularization_strength",
    "l2": "l2_regularization_strength", "l2_shrinkage": "l2_shrinkage_regularization_strength",
}  # fmt: skip


def tensorflow_step(name: str) -> Callable[..., Any]:
    import tensorflow as tf

    def step(w: Any, g: Any, state: Any, t: int, **options: Any) -> Any:
        if t == 1:
            state["rate"] = tf.Variable(0.0)
            h = renamed(options, TF_NAMES)
            if name != "FtrlOptimizer":
                h["learning_rate"] = lambda: state["rate"]
            state["w"] = tf.Variable(w, use_resource=True)
            state["optimizer"] = getattr(tf.compat.v1.train, name)(**h)
        if name == "FtrlOptimizer":  # it takes no function
            state["optimizer"]._learning_rate = options["lr"]
        state["rate"].assign(options["lr"])
        state["optimizer"].apply_gradients([(dense_or_slices(g), state["w"])])
        return state["w"].numpy()

    return step


@pytest.mark.repeats
@pytest.mark.parametrize("formula", [n for n in steps_of("tensorflow") if "Lazy" not in n])
def test_tensorflow(formula: str) -> None:
    name = formula.removeprefix("tensorflow.").removesuffix(" sparse")
    confirmed(formula, tensorflow_step(f"{name}Optimizer"), 2)


# ---------------------------------------------------------------------- optax
def optax_step(name: str) -> Callable[..., Any]:
    import jax.numpy as jnp
    import optax

    def step(w: Any, g: Any, state: Any, t: int, **options: Any) -> Any:
        h = renamed(options, OPTAX)
        if "momentum" in h and not h["momentum"]:
            h["momentum"] = None
        made = getattr(optax, name)(**h)
        w = jnp.asarray(w)
        held = state.get("held", None)
        updates, state["held"] = made.update(jnp.asarray(g), made.init(w) if held is None else held, w)
        return np.asarray(optax.apply_updates(w, updates))

    return step


@pytest.mark.repeats
@pytest.mark.parametrize("formula", steps_of("optax"))
def test_optax(formula: str) -> None:
    confirmed(formula, optax_step(formula.removeprefix("optax.")), 2)


# ---------------------------------------------------------------------- MXNet
MXNET = {"lr": "learning_rate", "eps": "epsilon", "weight_decay": "wd"}
MXNET_OTHERS = {
    "RMSProp": {"rho": "gamma1", "momentum": "gamma2"}, "Ftrl": {"l1": "lamda1", "l2": "wd"}, "AdaGrad": {"eps": "eps"},
    "GroupAdaGrad": {"eps": "eps"},
}  # fmt: skip


def mxnet() -> Any:
    """MXNet, imported as it has to be beside NumPy 2."""
    pytest.importorskip("islices.backends.mxnet")
    islices.get_backend("mxnet")
    import mxnet as mx

    return mx


def mxnet_step(name: str, sparse: bool, **chosen: Any) -> Callable[..., Any]:
    mx = mxnet()

    def step(w: Any, g: Any, state: Any, t: int, **options: Any) -> Any:
        if t == 1:
            h = renamed(options, {**MXNET, **MXNET_OTHERS.get(name, {})})
            module = mx.optimizer.contrib if name == "GroupAdaGrad" else mx.optimizer
            state["optimizer"] = getattr(module, name)(**h, **chosen)
            weight = mx.nd.array(w)
            state["w"] = weight.tostype("row_sparse") if sparse and name == "Ftrl" else weight
            state["held"] = state["optimizer"].create_state(0, state["w"])
        state["optimizer"].lr = options["lr"]
        if isinstance(g, np.ndarray):
            gradient = mx.nd.array(g)
        else:
            named, places = np.unique(g.indices, return_inverse=True)
            values = np.zeros((len(named), w.shape[1]), np.float32)
            np.add.at(values, places, g.values)
            gradient = mx.nd.sparse.row_sparse_array((values, named), shape=w.shape)
        state["optimizer"].update(0, state["w"], gradient, state["held"])
        return state["w"].asnumpy()

    return step


@pytest.mark.repeats
@pytest.mark.parametrize("formula", steps_of("mxnet"))
def test_mxnet(formula: str) -> None:
    sparse = FORMULAS[formula].gradients != "dense"
    name = formula.removeprefix("mxnet.").removesuffix(" sparse").removesuffix(" centered")
    chosen = {"centered": True} if "centered" in formula else {"lazy_update": True} if name in ("SGD", "Adam") else {}
    confirmed(formula, mxnet_step(name, sparse, **chosen), 2)


# ---------------------------------------------------------------------- FBGEMM
def fbgemm_step(name: str) -> Callable[..., Any]:
    torch = pytest.importorskip("torch")
    pytest.importorskip("fbgemm_gpu")
    from fbgemm_gpu import split_table_batched_embeddings_ops_training as ops
    from fbgemm_gpu.split_embedding_configs import EmbOptimType

    def step(w: Any, g: Any, state: Any, t: int, *, lr: float, eps: float = 1e-8) -> Any:
        rows, width = w.shape
        if t == 1:
            state["op"] = ops.SplitTableBatchedEmbeddingBagsCodegen(
                [(rows, width, ops.EmbeddingLocation.HOST, ops.ComputeDevice.CPU)],
                optimizer=getattr(EmbOptimType, name), learning_rate=lr, eps=eps,
            )  # fmt: skip
            state["op"].split_embedding_weights()[0].copy_(torch.from_numpy(w))
        op = state["op"]
        op.set_learning_rate(lr)
        if len(g.indices):  # a bag each
            offsets = torch.arange(len(g.indices) + 1)
            op(torch.from_numpy(g.indices), offsets).backward(torch.from_numpy(g.values))
        return op.split_embedding_weights()[0].detach().numpy().copy()

    return step


@pytest.mark.repeats
@pytest.mark.parametrize("name", ["EXACT_SGD", "EXACT_ADAGRAD", "EXACT_ROWWISE_ADAGRAD"])
def test_fbgemm(name: str) -> None:
    found = judge(fbgemm_step(name), f"fbgemm.{name}")
    assert found.grade in (1, 2), str(found)
    # the CPU kernel ignores the weight decay of a table that one feature uses
    assert list(found.unsupported) == (["decay"] if name == "EXACT_ROWWISE_ADAGRAD" else [])


# ---------------------------------------------------------------------- clips
def torch_clip(w: Any, g: Any, state: Any, t: int, *, max_norm: float) -> Any:
    import torch

    p = torch.nn.Parameter(torch.from_numpy(w))
    p.grad = torch.from_numpy(g)
    torch.nn.utils.clip_grad_norm_([p], max_norm)
    return p.grad


def torch_renorm(w: Any, g: Any, state: Any, t: int, *, max_norm: float) -> Any:
    import torch

    table = torch.from_numpy(w)
    torch.nn.functional.embedding(torch.from_numpy(g.indices), table, max_norm=max_norm)
    return table


def tensorflow_clip(w: Any, g: Any, state: Any, t: int, *, max_norm: float) -> Any:
    import tensorflow as tf

    return tf.clip_by_global_norm([tf.constant(g)], max_norm)[0][0]


def optax_clip(w: Any, g: Any, state: Any, t: int, *, max_norm: float) -> Any:
    import optax

    made = optax.clip_by_global_norm(max_norm)
    return made.update(g, made.init(g))[0]


def mxnet_clip(w: Any, g: Any, state: Any, t: int, *, max_norm: float) -> Any:
    mx = mxnet()
    found = mx.nd.array(g)
    mx.gluon.utils.clip_global_norm([found], max_norm)
    return found.asnumpy()


@pytest.mark.repeats_where(lambda formula: not formula.startswith("torch"))
@pytest.mark.parametrize(
    ("formula", "step"),
    [
        ("torch.clip_grad_norm_", torch_clip),
        ("torch.embedding_renorm_", torch_renorm),
        ("tensorflow.clip_by_global_norm", tensorflow_clip),
        ("optax.clip_by_global_norm", optax_clip),
        ("mxnet.clip_global_norm", mxnet_clip),
    ],
)
def test_clips(formula: str, step: Callable[..., Any]) -> None:
    confirmed(formula, step, 1)
