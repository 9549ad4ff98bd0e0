"""Small programs whose gradients are compared, as lines of source by stage, into which mend lines are put.

Three tables, looked up and weighed; the stages are those at which a line may act: the ids, the rows looked up, the loss
of a table, a gradient, all gradients, the optimizer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any

import ml_dtypes
import numpy as np
from ported import NAMES, Batch

import islices

__all__ = ["Program", "mend_lines"]

Tree = dict[str, Any]
STAGES = ("ids", "rows", "loss", "grad", "grads", "optimizer")
ROWS = {
    "torch": "rows = torch.nn.functional.embedding(ids, table)",
    "tensorflow": "rows = tf.gather(table, ids)",
    "jax": "rows = table[ids]",
}


@dataclass(frozen=True)
class Program:
    """One of a framework: "numpy" has no losses, and begins with slices."""

    framework: str
    lines: dict[str, tuple[str, ...]] = field(default_factory=dict)
    sparse: bool = False

    def adding(self, line: str) -> Program:
        """With a line where it acts; what makes the rows anew stands in place of what made them."""
        stage = stage_of(line)
        kept = () if stage == "rows" else self.lines.get(stage, ())
        return replace(self, lines={**self.lines, stage: (*kept, line)})

    def mended(self, line: str) -> Program:
        """With a mend line added; or, if it says so, without what stands between its backticks."""
        if not line.startswith("take "):
            return self.adding(line)
        (out,) = re.findall("`(.*?)`", line)
        hits = [(s, k) for s, lines in self.lines.items() for k, text in enumerate(lines) if out in text]
        assert len(hits) == 1, f"{out!r} stands {len(hits)} times in {self.lines}"
        ((stage, k),) = hits
        kept = list(self.lines[stage])
        del kept[k]  # each line here does one thing
        return replace(self, lines={**self.lines, stage: tuple(kept)})

    def run(self, d: Batch) -> Tree:
        """Its gradients."""
        names = {"islices": islices, "np": np, "ml_dtypes": ml_dtypes}
        return {"numpy": by_numpy, "torch": by_torch, "tensorflow": by_tensorflow, "jax": by_jax}[self.framework](
            self, d, names
        )

    def stage(self, stage: str, names: Tree) -> None:
        for line in self.lines.get(stage, ()):
            exec(line, names)

    def loss(self, tables: Tree, ids: Tree, upstream: Tree, names: Tree) -> Any:
        """Of all tables, each under the names that lines use."""
        total = 0.0
        for n in NAMES:
            names |= {"table": tables[n], "ids": ids[n], "upstream": upstream[n]}
            self.stage("ids", names)
            for line in self.lines.get("rows", (ROWS[self.framework],)):
                exec(line, names)
            product = names["rows"] * upstream[n]
            names["loss"] = names["tf"].reduce_sum(product) if "tf" in names else product.sum()
            self.stage("loss", names)
            total = total + names["loss"]
        return total

    def changed(self, grads: Tree, ids: Tree, upstream: Tree, d: Batch, names: Tree) -> Tree:
        """Gradients after what is done to each, and to all."""
        out = {}
        for n in NAMES:
            names |= {"grad": grads[n], "rows": upstream[n], "ids": ids[n], "shape": d.tables[n].shape}
            self.stage("grad", names)
            out[n] = names["grad"]
        names["grads"] = out
        self.stage("grads", names)
        return names["grads"]


def stage_of(line: str) -> str:
    if re.match(r"torch\.nn\.utils|for p in parameters", line):
        return "grads"
    named = re.match(r"(\w+)", line)
    assert named is not None, line
    assert named[1] in STAGES, f"{line!r} changes no stage of a program"
    return named[1]


def mend_lines(found: Any) -> list[str]:
    """What the report says of the second side, without its lead."""
    lead = f"mend: in {found.names[1]}, "
    return [line.strip().removeprefix(lead) for line in str(found).splitlines() if line.strip().startswith(lead)]


# ---------------------------------------------------------------------- by each framework
def by_numpy(p: Program, d: Batch, names: Tree) -> Tree:
    grads = d.raw if p.sparse else {n: np.asarray(islices.to_dense(x)) for n, x in d.raw.items()}
    return p.changed(grads, d.ids, d.rows, d, names)


def by_torch(p: Program, d: Batch, names: Tree) -> Tree:
    import torch

    names["torch"] = torch
    model = torch.nn.ParameterDict({n: torch.nn.Parameter(torch.from_numpy(d.tables[n].copy())) for n in NAMES})
    ids, rows = ({n: torch.from_numpy(x[n]) for n in NAMES} for x in (d.ids, d.rows))
    p.loss({n: model[n] for n in NAMES}, ids, rows, names).backward()
    names |= {"model": model, "parameters": [model[n] for n in NAMES]}
    given = {n: model[n].grad for n in NAMES}
    with torch.no_grad():
        changed = p.changed(given, ids, rows, d, names)
    return changed if changed is not given else {n: model[n].grad for n in NAMES}


def by_tensorflow(p: Program, d: Batch, names: Tree) -> Tree:
    import keras
    import tensorflow as tf

    names |= {"tf": tf, "keras": keras}
    tables = {n: tf.Variable(d.tables[n]) for n in NAMES}
    ids, rows = ({n: tf.constant(x[n]) for n in NAMES} for x in (d.ids, d.rows))
    with tf.GradientTape() as tape:
        loss = p.loss(tables, ids, rows, names)
    grads = dict(zip(NAMES, tape.gradient(loss, list(tables.values())), strict=True))
    if not p.sparse:
        grads = {n: tf.convert_to_tensor(g) for n, g in grads.items()}
    grads = p.changed(grads, ids, rows, d, names)
    if not p.lines.get("optimizer"):
        return grads
    names["optimizer"] = keras.optimizers.SGD(1.0)
    p.stage("optimizer", names)
    zeros = [keras.Variable(np.zeros_like(d.tables[n])) for n in NAMES]
    names["optimizer"].apply(list(grads.values()), zeros)  # a step of SGD by 1 from 0
    return {n: -z.value for n, z in zip(NAMES, zeros, strict=True)}


def by_jax(p: Program, d: Batch, names: Tree) -> Tree:
    import jax
    import jax.numpy as jnp
    import optax

    names |= {"jnp": jnp, "optax": optax}
    ids, rows = ({n: jnp.asarray(x[n]) for n in NAMES} for x in (d.ids, d.rows))
    grads = jax.grad(lambda tables: p.loss(tables, ids, rows, names))(jax.tree.map(jnp.asarray, d.tables))
    grads = p.changed(grads, ids, rows, d, names)
    names["optimizer"] = optax.identity()
    p.stage("optimizer", names)
    updates, _ = names["optimizer"].update(grads, names["optimizer"].init(grads))
    return dict(updates)
