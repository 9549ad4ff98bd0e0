"""The line that a report gives mends the port: with it, `islices.diff` finds nothing."""

from __future__ import annotations

from typing import Any

import pytest
from port_programs import Program, mend_lines
from ported import STEPS, TWO_STEPS, Batch, summed

import islices

#: cause -> framework -> what a program does that the other does not, as its users write it
TREATED: dict[str, dict[str, str]] = {
    "clipped": {
        "numpy": "grads, _ = islices.clip_by_global_norm(grads, 0.2)",
        "torch": "torch.nn.utils.clip_grad_norm_(parameters, 0.2)",
        "tensorflow": "optimizer.global_clipnorm = 0.2",
        "jax": "optimizer = optax.chain(optax.clip_by_global_norm(0.2), optimizer)",
    },
    "clipped each": {
        "numpy": "grads = islices.clip_by_norm(grads, 0.2)",
        "torch": "for p in parameters: torch.nn.utils.clip_grad_norm_([p], 0.2)",
        "tensorflow": "optimizer.clipnorm = 0.2",
    },
    "value_clip": {
        "numpy": "grads = islices.clip_by_value(grads, -0.02, 0.02)",
        "torch": "torch.nn.utils.clip_grad_value_(parameters, 0.02)",
        "tensorflow": "optimizer.clipvalue = 0.02",
        "jax": "optimizer = optax.chain(optax.clip(0.02), optimizer)",
    },
    "row_clip": {
        "numpy": "grads = islices.clip_by_row_norm(grads, 0.05)",
        "tensorflow": "grad = tf.clip_by_norm(grad, 0.05, axes=[1])",
    },
    "regulariser": {
        "torch": "loss = loss + 0.0005 * (table ** 2).sum()",
        "tensorflow": "loss = loss + keras.regularizers.L2(0.0005)(table)",
        "jax": "loss = loss + 0.0005 * (table ** 2).sum()",
    },
    "regulariser l1": {
        "torch": "loss = loss + 0.001 * abs(table).sum()",
        "tensorflow": "loss = loss + keras.regularizers.L1(0.001)(table)",
        "jax": "loss = loss + 0.001 * abs(table).sum()",
    },
    "sixteen_bits float16": {
        "numpy": "grad = grad.astype('float16').astype('float32')",
        "torch": "grad = grad.half().float()",
        "tensorflow": "grad = tf.cast(tf.cast(grad, tf.float16), tf.float32)",
        "jax": "grad = grad.astype('float16').astype('float32')",
    },
    "sixteen_bits bfloat16": {
        "numpy": "grad = grad.astype(ml_dtypes.bfloat16).astype('float32')",
        "torch": "grad = grad.bfloat16().float()",
        "tensorflow": "grad = tf.cast(tf.cast(grad, tf.bfloat16), tf.float32)",
    },
    "sixteen_bits by 1024": {
        "numpy": "grad = (grad * 1024).astype('float16').astype('float32') / 1024",
        "torch": "grad = (grad * 1024).half().float() / 1024",
        "tensorflow": "grad = tf.cast(tf.cast(grad * 1024, tf.float16), tf.float32) / 1024",
    },
    "padding": {
        "torch": "rows = torch.nn.functional.embedding(ids, table, padding_idx=0)",
        "tensorflow": "rows = islices.lookup(table, ids, padding_idx=0)",
        "jax": "rows = islices.lookup(table, ids, padding_idx=0)",
    },
    "frequency": {"torch": "rows = torch.nn.functional.embedding(ids, table, scale_grad_by_freq=True)"},
    "mean": {"torch": "loss = loss / 4", "tensorflow": "loss = loss / 4", "jax": "loss = loss / 4"},
    "sign": {"torch": "loss = -loss", "tensorflow": "loss = -loss", "jax": "loss = -loss"},
    "factor": {"torch": "loss = loss * 0.37", "jax": "loss = loss * 0.37"},
    "off_by_one": {"torch": "ids = ids + 1", "jax": "ids = ids + 1"},
}  # fmt: skip
TOLD: dict[str, dict[str, Any]] = {
    "clipped": {"max_norm": 0.2}, "clipped each": {"max_norm": 0.2}, "padding": {"padding_idx": 0},
    "mean": {"batch_size": 4},
}  # fmt: skip
CASES = [(name, framework, port) for name, by in TREATED.items() for framework in by for port in ("lacks", "has")]


def same(found: Any) -> bool:
    return not found.causes and (found.equal or found.rounding)


@pytest.mark.parametrize(("name", "framework", "port"), CASES, ids=map(", ".join, CASES))
def test_the_line_mends_the_port(name: str, framework: str, port: str) -> None:
    d = Batch(1)
    plain = Program(framework)
    treated = plain.adding(TREATED[name][framework])
    meant, wrong = (treated, plain) if port == "lacks" else (plain, treated)
    told = {**TOLD.get(name, {}), **({"tables": d.tables} if "regulariser" in name else {})}
    if name == "frequency":
        told["before"] = d.raw
    a = meant.run(d)
    found = islices.diff(a, wrong.run(d), **told)
    assert found.causes, str(found)
    assert found.causes[0].names[0] == name.split()[0], str(found)
    lines = mend_lines(found)
    assert len(lines) == 1, str(found)
    now = islices.diff(a, wrong.mended(lines[0]).run(d), **told)
    assert same(now), f"{lines[0]}\n{now}"


#: (what was meant, what the port does) by framework, where both do something
BETWEEN: dict[str, tuple[str, str, str]] = {
    "each tensor instead of all, torch": ("torch", TREATED["clipped"]["torch"], TREATED["clipped each"]["torch"]),
    "all tensors instead of each, torch": ("torch", TREATED["clipped each"]["torch"], TREATED["clipped"]["torch"]),
    "each tensor instead of all, keras": (
        "tensorflow", TREATED["clipped"]["tensorflow"], TREATED["clipped each"]["tensorflow"]
    ),
    "all tensors instead of each, keras": (
        "tensorflow", TREATED["clipped each"]["tensorflow"], TREATED["clipped"]["tensorflow"]
    ),
    "a tensor left out, torch": (
        "torch", TREATED["clipped"]["torch"],
        "torch.nn.utils.clip_grad_norm_([p for n, p in model.named_parameters() if n != 'v'], 0.2)",
    ),
    "a tensor not left out, torch": (
        "torch", "torch.nn.utils.clip_grad_norm_([p for n, p in model.named_parameters() if n != 'v'], 0.2)",
        TREATED["clipped"]["torch"],
    ),
    "a tensor not left out": (
        "numpy",
        "grads = {**islices.clip_by_global_norm({n: grads[n] for n in 'uw'}, 0.2)[0], 'v': grads['v']}",
        TREATED["clipped"]["numpy"],
    ),
    "a tensor not left out, but clipped": (
        "numpy", "grads = islices.scale(grads, 0.2 / float(islices.global_norm({n: grads[n] for n in 'uw'})))",
        TREATED["clipped"]["numpy"],
    ),
    "the last duplicate, torch": (
        "torch", "grad = torch.zeros(shape).index_add(0, ids, rows)", "grad = torch.zeros(shape); grad[ids] = rows"
    ),
    "the last duplicate, jax": (
        "jax", "grad = jnp.zeros(shape).at[ids].add(rows)", "grad = jnp.zeros(shape).at[ids].set(rows)"
    ),
    "the last duplicate, tensorflow": (
        "tensorflow", "grad = tf.math.unsorted_segment_sum(rows, ids, shape[0])",
        "grad = tf.tensor_scatter_nd_update(tf.zeros(shape), ids[:, None], rows)",
    ),
    "the last duplicate": (
        "numpy", "grad = islices.IndexedSlices(rows, ids, shape)",
        "grad = np.zeros(shape, rows.dtype); grad[ids] = rows",
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", ["there", "back"])
@pytest.mark.parametrize("name", BETWEEN)
def test_the_line_mends_what_was_done_otherwise(name: str, way: str) -> None:
    framework, meant, done = BETWEEN[name]
    d = Batch(1)
    if way == "back":
        meant, done = done, meant
    told = {} if "duplicate" in name else {"max_norm": 0.2}
    a, b = (Program(framework).adding(line).run(d) for line in (meant, done))
    found = islices.diff(a, b, before=d.raw, **told)
    assert found.causes, str(found)
    (line,) = mend_lines(found)
    now = islices.diff(a, Program(framework).adding(line).run(d), before=d.raw, **told)
    assert same(now), f"{line}\n{now}"


@pytest.mark.parametrize("semantics", ["islices", "tensorflow"])
def test_the_line_mends_duplicates_that_nobody_summed(semantics: str) -> None:
    d = Batch(1)
    other = {"islices": "tensorflow", "tensorflow": "islices"}[semantics]
    lines = [f"grads, _ = islices.clip_by_global_norm(grads, 0.2, semantics={s!r})" for s in (semantics, other)]
    a, b = (Program("numpy", sparse=True).adding(line).run(d) for line in lines)
    found = islices.diff(a, b, before=d.raw)
    assert found.causes[0].names == ("duplicates",), str(found)
    (line,) = mend_lines(found)
    now = islices.diff(a, Program("numpy", sparse=True).adding(line).run(d), before=d.raw)
    assert same(now), f"{line}\n{now}"


# ---------------------------------------------------------------------- steps
def stepped(line: str, d: Batch, g: Any) -> Any:
    """Tables after a step by the optimizer that a line makes."""
    import jax
    import jax.numpy as jnp
    import keras
    import numpy as np
    import optax
    import torch
    from ported import NAMES, keras_step, optax_step, torch_step

    names = {"islices": islices, "keras": keras, "optax": optax, "torch": torch, "jax": jax, "jnp": jnp}
    if "torch.optim" in line:

        def made(parameters: Any) -> Any:
            exec(line, names | (held := {"parameters": parameters}), held)
            return held["optimizer"]

        return torch_step(d, made, g, sparse="SparseAdam" in line)
    exec(line, names)
    optimizer: Any = names["optimizer"]
    if "keras" in line.split("(")[0]:
        return keras_step(d, optimizer, g)
    if "optax" in line.split("(")[0]:
        return optax_step(d, optimizer, g)
    slices = d.raw
    out = {}
    for n in NAMES:
        table = np.array(d.tables[n])
        out[n] = optimizer.step(table, slices[n], optimizer.init(table))[0]
    return out


#: Between frameworks whose formulas place an epsilon otherwise, too: no number of one makes the other's step, and no
#: line is given.
UNMENDED = {"SparseAdam and Keras's Adam", "initial accumulator", "accumulator and rate"}


@pytest.mark.parametrize("way", ["there", "back"])
@pytest.mark.parametrize("name", [*STEPS, *(pytest.param(n, marks=pytest.mark.repeats) for n in TWO_STEPS)])
def test_the_line_mends_the_step(name: str, way: str) -> None:
    d = Batch(2)
    one, other, _ = (STEPS | TWO_STEPS)[name]
    g = summed(d)
    a, b = one(d, g), other(d, g)
    if way == "back":
        a, b = b, a
    found = islices.diff(a, b, before=d.tables, grad=d.raw)
    lines = mend_lines(found)
    assert (not lines) == (name in UNMENDED), str(found)
    if not lines:
        return
    (line,) = lines
    now = islices.diff(a, stepped(line, d, g), before=d.tables, grad=d.raw)
    assert not now.causes, f"{line}\n{now}"
    assert now.equal or now.rounding or now.arithmetic is not None, f"{line}\n{now}"
