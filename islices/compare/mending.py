"""The line of code that mends a cause, in the framework of the side that has to change.

The first side is taken for what was meant, the second for the port: a line makes the second as the first is. Where a
framework has no such line of its own, it is islices'. May import: `islices.compare`, `islices.optim`, the core.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from islices.compare.explanation import Finding
from islices.optim.frameworks import SPELLED
from islices.optim.record import RECORDS

if TYPE_CHECKING:
    from islices.compare.difference import Difference

__all__ = ["mended"]

#: cause -> framework ("" for any other) -> the line, where the second side lacks what the first has, and where it has
#: what the first lacks.
Lines = Mapping[str, tuple[str, str]]
LINES: Mapping[str, Lines] = {
    "duplicates": {"": ("islices.clip_by_global_norm(grads, M)[0]", "islices.clip_by_global_norm(grads, M)[0]")},
    "padding": {
        "": ("islices.lookup(table, ids)", "islices.lookup(table, ids, padding_idx=P)"),
        "torch": ("torch.nn.Embedding(rows, d)", "torch.nn.Embedding(rows, d, padding_idx=P)"),
    },
    "regulariser": {
        "": ("loss = loss + L / 2 * (table ** 2).sum()", "take the penalty off the loss"),
        "torch": ("loss = loss + L / 2 * table.weight.square().sum()", "take the penalty off the loss"),
        "tensorflow": (
            "Embedding(..., embeddings_regularizer=keras.regularizers.L2(L / 2))", "embeddings_regularizer=None"
        ),
    },
    "sixteen_bits": {
        "": ("grad.astype(float16).astype(float32)", "keep gradients in float32"),
        "torch": ("grad = grad.half().float()", "keep gradients in float32: no .half(), no autocast around the lookup"),
    },
    "autocast": {"": ("compute in 16 bits", "compute in float32")},
    "last_duplicate": {
        "": ("table[ids] = rows", "islices.coalesce(grad)"),
        "torch": ("grad[ids] = rows", "grad.index_add_(0, ids, rows)"),
        "jax": ("grad.at[ids].set(rows)", "grad.at[ids].add(rows)"),
        "tensorflow": (
            "tf.tensor_scatter_nd_update(zeros, ids[:, None], rows)", "tf.math.unsorted_segment_sum(rows, ids, n)"
        ),
    },
    "value_clip": {
        "": ("islices.clip_by_value(grads, -M, M)", "take the clipping by value out"),
        "torch": ("torch.nn.utils.clip_grad_value_(parameters, M)", "take clip_grad_value_ out"),
        "tensorflow": ("optimizer = keras.optimizers.X(..., clipvalue=M)", "clipvalue=None"),
        "jax": ("optax.clip(M)", "take optax.clip out"),
    },
    "row_clip": {
        "": ("scale each row by min(1, M / its norm)", "take the clipping of rows out"),
        "tensorflow": ("tf.clip_by_norm(grad, M, axes=[1])", "take clip_by_norm(axes=[1]) out"),
    },
    "per_tensor": {
        "": ("for each tensor: islices.clip_by_global_norm([g], M)", "islices.clip_by_global_norm(all_grads, M)"),
        "torch": ("for p in parameters: clip_grad_norm_([p], M)", "torch.nn.utils.clip_grad_norm_(all_parameters, M)"),
        "tensorflow": ("keras.optimizers.X(..., clipnorm=M)", "keras.optimizers.X(..., global_clipnorm=M)"),
        "jax": ("for each tensor: islices.clip_by_global_norm([g], M)", "optax.clip_by_global_norm(M)"),
    },
    "left_out": {
        "": ("leave the tensor out of the list that is clipped", "islices.clip_by_global_norm(all_grads, M)"),
        "torch": ("leave it out of the list", "torch.nn.utils.clip_grad_norm_(model.parameters(), M)"),
    },
    "clipped": {
        "": ("islices.clip_by_global_norm(grads, M)", "take the clipping out"),
        "torch": ("torch.nn.utils.clip_grad_norm_(parameters, M)", "take clip_grad_norm_ out"),
        "tensorflow": ("keras.optimizers.X(..., global_clipnorm=M)", "global_clipnorm=None"),
        "jax": ("optax.clip_by_global_norm(M)", "take optax.clip_by_global_norm out"),
    },
}  # fmt: skip
#: Causes of steps that are one hyperparameter's: the name of it by islices.
HYPER = {
    "learning_rate": "lr", "step_epsilon": "eps", "initial_accumulator": "initial_accumulator", "momentum": "momentum",
    "beta1": "beta1", "beta2": "beta2", "rho": "rho", "weight_decay": "weight_decay",
}  # fmt: skip
#: Whose names an array's framework uses.
SEMANTICS = {"torch": "torch", "tensorflow": "keras", "keras": "keras", "jax": "optax", "mxnet": "mxnet"}
#: Causes of steps that no hyperparameter of another framework's optimizer mends.
FORMULAS = ("optimizer", "formula", "lazy_step", "step_duplicates", "bias_correction")
#: Framework -> an optimizer of islices in its idiom: class, function and arguments.
ISLICES = {
    "torch": "islices.backends.torch.optim.{title}({arguments})",
    "keras": "islices.backends.keras.Stepped(islices.optim.{name}({arguments}))",
    "tensorflow": "islices.backends.keras.Stepped(islices.optim.{name}({arguments}))",
    "jax": "islices.backends.jax.optax.from_optim(islices.optim.{name}({arguments}))",
}


def mended(found: Difference) -> list[str]:
    """A line for each cause of the first explanation that has one; of a step one line for all."""
    if not found.causes:
        return []
    kinds = [t.kinds[1].split()[0] for t in found.tensors if not t.equal]
    framework = found.framework or (kinds[0] if kinds else "")
    causes = found.causes[0].causes
    steps = [cause for cause in causes if cause.details.get("step")]
    lines = [_of_step(steps, framework)] if steps else []
    lines += [_of_gradient(cause, framework) for cause in causes if cause not in steps]
    return [f"mend: in {found.names[1]}, {line}" for line in lines if line]


def _of_gradient(cause: Finding, framework: str) -> str:
    lines = LINES.get(cause.name)
    if lines is None:
        return ""
    lacks, has = lines.get("tensorflow" if framework == "keras" else framework, lines[""])
    # causes that change rows name the side without it, those that are factors the side that has it
    without = "a" if cause.name in ("clipped", "per_tensor", "left_out", "duplicates", "padding") else "b"
    if cause.name == "duplicates":
        return lacks if cause.details.get("side") == "b" else "the other side has to sum its duplicates first"
    line = lacks if cause.details.get("side") == without else has
    strengths = cause.details.get("strengths") or {0: None}
    values = {"M": cause.details.get("max_norm", cause.details.get("limit")), "L": next(iter(strengths.values()))}
    values["P"] = next(iter(cause.details.get("rows") or [None]))
    for name, value in values.items():
        if value is not None:
            line = line.replace(f" {name})", f" {value:.6g})").replace(f"={name})", f"={value:.6g})")
            line = line.replace(f"({name})", f"({value:.6g})").replace(f"{name} / 2", f"{value:.6g} / 2")
    return line


def _of_step(causes: Sequence[Finding], framework: str) -> str:
    pair: Any = causes[0].details["step"]
    wanted, own = pair
    names = {cause.name for cause in causes}
    numbers = {HYPER[name]: float(wanted.get(HYPER[name], 0.0)) for name in HYPER if name in names}
    title = RECORDS[wanted["optimizer"]].title
    if not names & set(FORMULAS):
        semantics = str(SEMANTICS.get(framework, own["semantics"]))
        spelled = {SPELLED.get(semantics, {}).get(name, name): x for name, x in numbers.items()}
        called = wanted["optimizer"] if framework == "jax" else title
        return f"{called}(..., {', '.join(f'{name}={x:g}' for name, x in spelled.items())})" if spelled else ""
    if names == {"step_duplicates"} and wanted["duplicates"] == "sum":
        return (
            f"islices.backends.keras.{title}(...)" if framework == "keras" else "islices.coalesce(grad) before the step"
        )
    if framework == "torch":
        numbers = {SPELLED["torch"].get(name, name): x for name, x in numbers.items()}
    said = ["...", *(f"{name}={x:g}" for name, x in numbers.items())]
    said += [f"semantics={wanted['semantics']!r}", f"rows={wanted['rows']!r}"]
    if wanted["duplicates"] == "raw":
        said.append("duplicates='raw'")
    line = "islices.optim.{name}({arguments})"
    if not (framework == "jax" and wanted["duplicates"] == "raw"):  # which is no update that could be passed on
        line = ISLICES.get(framework, line)
    line = line.format(title=title, name=wanted["optimizer"], arguments=", ".join(said))
    return f"{line}, on sparse gradients" if wanted["duplicates"] == "raw" else line
