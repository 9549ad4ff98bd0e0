"""Lines that mend causes of gradients. May import: `islices.clip_formulas`, `islices.compare`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from islices.clip_formulas import BY_NORM
from islices.compare.explanation import Finding
from islices.compare.mending.side import Port

__all__ = ["line_of_gradient"]


class Line(NamedTuple):
    """add: where the second side lacks what the first does. remove: where it does what the first does not.

    Both are formatted with `Fields`.
    """

    add: str
    remove: str


Fields: TypeAlias = Mapping[str, object]
#: framework ("" for any other) -> its line
Lines: TypeAlias = Mapping[str, Line]


def _both_ways(template: str) -> Line:
    """One line for either side: what stands in it says which way."""
    return Line(template, template)


#: All tensors clipped by their common norm.
GLOBAL: Lines = {
    "": Line("grads, _ = islices.clip_by_global_norm(grads, {limit})",
             "take `islices.clip_by_global_norm(grads, {limit})` out"),
    "torch": Line("torch.nn.utils.clip_grad_norm_(parameters, {limit})",
                  "take `torch.nn.utils.clip_grad_norm_(parameters, {limit})` out"),
    "tensorflow": Line("optimizer.global_clipnorm = {limit}", "optimizer.global_clipnorm = None"),
    "jax": Line("optimizer = optax.chain(optax.clip_by_global_norm({limit}), optimizer)",
                "take `optax.clip_by_global_norm({limit})` out"),
}  # fmt: skip
#: Each tensor clipped by its own norm.
EACH: Lines = {
    "": Line("grads = islices.clip_by_norm(grads, {limit})", "take `islices.clip_by_norm(grads, {limit})` out"),
    "torch": Line("for p in parameters: torch.nn.utils.clip_grad_norm_([p], {limit})",
                  "take `for p in parameters: torch.nn.utils.clip_grad_norm_([p], {limit})` out"),
    "tensorflow": Line("optimizer.clipnorm = {limit}", "optimizer.clipnorm = None"),
}  # fmt: skip
#: Each tensor against all together.
PER_TENSOR: Lines = {
    "": Line(EACH[""].add, GLOBAL[""].add),
    "torch": Line(EACH["torch"].add, GLOBAL["torch"].add),
    "tensorflow": Line("optimizer.clipnorm, optimizer.global_clipnorm = {limit}, None",
                       "optimizer.clipnorm, optimizer.global_clipnorm = None, {limit}"),
    "jax": Line(EACH[""].add, GLOBAL["jax"].add),
}  # fmt: skip
_OTHERS = "{{n: g for n, g in grads.items() if n != {tensor!r}}}"
#: One tensor is left as it is, or clipped by the norm of the others.
LEFT_ALONE: Lines = {
    "": Line("grads = {{**islices.clip_by_global_norm(" + _OTHERS + ", {limit})[0], {tensor!r}: grads[{tensor!r}]}}",
             GLOBAL[""].add),
    "torch": Line("torch.nn.utils.clip_grad_norm_([p for n, p in model.named_parameters() if n != {tensor!r}], "
                  "{limit})", GLOBAL["torch"].add),
}  # fmt: skip
LEFT_OUT: Lines = {
    "": Line("grads = islices.scale(grads, min(1.0, {limit} / float(islices.global_norm(" + _OTHERS + "))))",
             GLOBAL[""].add),
}  # fmt: skip
VALUES: Lines = {
    "": Line("grads = islices.clip_by_value(grads, -{limit}, {limit})",
             "take `islices.clip_by_value(grads, -{limit}, {limit})` out"),
    "torch": Line("torch.nn.utils.clip_grad_value_(parameters, {limit})",
                  "take `torch.nn.utils.clip_grad_value_(parameters, {limit})` out"),
    "tensorflow": Line("optimizer.clipvalue = {limit}", "optimizer.clipvalue = None"),
    "jax": Line("optimizer = optax.chain(optax.clip({limit}), optimizer)", "take `optax.clip({limit})` out"),
}  # fmt: skip
ROWS: Lines = {
    "": Line("grads = islices.clip_by_row_norm(grads, {limit})", "take `islices.clip_by_row_norm(grads, {limit})` out"),
    "tensorflow": Line("grad = tf.clip_by_norm(grad, {limit}, axes=[1])",
                       "take `tf.clip_by_norm(grad, {limit}, axes=[1])` out"),
}  # fmt: skip
#: Duplicates not summed before the norm is taken.
UNSUMMED: Lines = {
    "": Line("grads, _ = islices.clip_by_global_norm(grads, {limit}, semantics='tensorflow')", GLOBAL[""].add)
}
UNSUMMED_EACH: Lines = {"": Line("grads = islices.clip_by_norm(grads, {limit}, semantics='tensorflow')", EACH[""].add)}
EPSILON: Lines = {"": _both_ways("grads, _ = islices.clip_by_global_norm(grads, {limit}, semantics={semantics!r})")}
EPSILON_EACH: Lines = {"": _both_ways("grads = islices.clip_by_norm(grads, {limit}, semantics={semantics!r})")}
PADDING: Lines = {
    "": Line("rows = islices.lookup(table, ids, padding_idx={row})", "rows = islices.lookup(table, ids)"),
    "torch": Line("rows = torch.nn.functional.embedding(ids, table, padding_idx={row}, sparse={sparse})",
                  "rows = torch.nn.functional.embedding(ids, table, sparse={sparse})"),
}  # fmt: skip
FREQUENCY: Lines = {
    "": Line("grad = islices.scale_by_frequency(grad)", "take `islices.scale_by_frequency(grad)` out"),
    "torch": Line("rows = torch.nn.functional.embedding(ids, table, scale_grad_by_freq=True, sparse={sparse})",
                  "rows = torch.nn.functional.embedding(ids, table, sparse={sparse})"),
}  # fmt: skip
LAST: Lines = {
    "": Line("grad = np.zeros(shape, rows.dtype); grad[ids] = rows", "grad = islices.IndexedSlices(rows, ids, shape)"),
    "torch": Line("grad = torch.zeros(shape); grad[ids] = rows", "grad = torch.zeros(shape).index_add(0, ids, rows)"),
    "jax": Line("grad = jnp.zeros(shape).at[ids].set(rows)", "grad = jnp.zeros(shape).at[ids].add(rows)"),
    "tensorflow": Line("grad = tf.tensor_scatter_nd_update(tf.zeros(shape), ids[:, None], rows)",
                       "grad = tf.math.unsorted_segment_sum(rows, ids, shape[0])"),
}  # fmt: skip
L2: Lines = {
    "": Line("loss = loss + {half} * (table ** 2).sum()", "take `{half} * (table ** 2).sum()` off the loss"),
    "tensorflow": Line("loss = loss + keras.regularizers.L2({half})(table)", "take `L2({half})` out"),
}  # fmt: skip
L1: Lines = {
    "": Line("loss = loss + {strength} * abs(table).sum()", "take `{strength} * abs(table).sum()` off the loss"),
    "tensorflow": Line("loss = loss + keras.regularizers.L1({strength})(table)", "take `L1({strength})` out"),
}  # fmt: skip
AUTOCAST: Lines = {
    "": Line("compute the layers in {dtype}", "compute the layers in float32"),
    "torch": Line("run the layers under torch.autocast({device!r}, torch.{dtype})", "take `torch.autocast` out"),
    "tensorflow": Line("keras.config.set_dtype_policy('mixed_{dtype}')", "keras.config.set_dtype_policy('float32')"),
}  # fmt: skip
SIGN: Lines = {"": _both_ways("loss = -loss")}
FACTOR: Lines = {"": _both_ways("loss = loss {times}")}
RATE: Lines = {"": _both_ways("the learning rate {times}")}
IDS: Lines = {"": _both_ways("ids = ids {shift}")}


# ---------------------------------------------------------------------- what stands in a line
def _short(x: float) -> str:
    return f"{x:.6g}"


def _times(x: float, low: float, high: float) -> str:
    """Times a factor between bounds: by a whole number, or over one, where that may be."""
    whole, over = round(x), round(1 / x) if x else 0
    if whole > 1 and low <= whole <= high:
        return f"* {whole}"
    return f"/ {over}" if over > 1 and low <= 1 / over <= high else f"* {x:.9g}"


def _clipped(c: Finding, port: Port) -> Lines:
    if c.details.get("norm") == "each tensor":
        return EACH
    return LEFT_ALONE if "tensor" in c.details else GLOBAL


def _left_out(c: Finding, port: Port) -> Lines:
    return LEFT_OUT if c.details.get("clipped") else LEFT_ALONE


def _epsilon(c: Finding, port: Port) -> Lines:
    if c.details.get("norm") != "each tensor":
        return EPSILON
    return EPSILON_EACH if c.details["semantics"][0][0] in BY_NORM else {}  # of torch there is no function for it


def _unsummed(c: Finding, port: Port) -> Lines:
    return UNSUMMED if c.details.get("norm") == "global" else UNSUMMED_EACH


def _regulariser(c: Finding, port: Port) -> Lines:
    return L1 if c.details["kind"] == "l1" else L2


def _mean(c: Finding, port: Port) -> Lines:
    wanted, own = c.details["divided_by"]
    change = f"* {own}" * (own > 1) + " " * (own > 1 < wanted) + f"/ {wanted}" * (wanted > 1)
    return {"": _both_ways(f"loss = loss {change}")}


def _factor(c: Finding, port: Port) -> Lines:
    return RATE if c.details["steps"] else FACTOR


def _sixteen(c: Finding, port: Port) -> Lines:
    """Rounded, and widened again to what the gradient was; a scale's division follows."""
    if c.details["stochastic"]:  # random bits: no other program draws them
        return {}
    dtype, scale = c.details["dtype"], c.details["scale"]
    whole = "grad" if c.details["slots"] or not port.sparse else "islices.coalesce(grad)"
    if port.framework == "torch":
        cast = "({0})" + {"float16": ".half()", "bfloat16": ".bfloat16()"}[dtype]
        cast += ".double()" if port.dtype == "float64" else ".float()"
    elif port.framework == "tensorflow":
        cast = f"tf.cast(tf.cast({{0}}, tf.{dtype}), tf.{port.dtype})"
    else:
        narrow = {"float16": "'float16'", "bfloat16": "ml_dtypes.bfloat16"}[dtype]
        cast = f"({{0}}).astype({narrow}).astype('{port.dtype}')"
    inner = f"{whole}.values" if port.sparse and port.framework not in ("torch", "tensorflow") else whole
    scaled = inner if scale == 1 else f"{inner} * {scale:g}"
    rounded = cast.format(scaled) if scale != 1 else cast.replace("({0})", "{0}").format(scaled)
    rounded += "" if scale == 1 else f" / {scale:g}"
    line = f"{whole}.replace(values={rounded})" if inner != whole else rounded
    return {"": Line(f"grad = {line}", f"take `{rounded}` out: keep gradients in {port.dtype}")}


#: cause -> its lines
MENDS: Mapping[str, Lines | Callable[[Finding, Port], Lines]] = {
    "duplicates": _unsummed, "padding": PADDING, "regulariser": _regulariser, "sixteen_bits": _sixteen,
    "autocast": AUTOCAST, "last_duplicate": LAST, "value_clip": VALUES, "row_clip": ROWS, "per_tensor": PER_TENSOR,
    "left_out": _left_out, "clipped": _clipped, "epsilon": _epsilon, "frequency": FREQUENCY, "mean": _mean,
    "sign": SIGN, "factor": _factor, "off_by_one": IDS,
}  # fmt: skip
#: Their side is the one that does what the other does not; that of all others is the one that does not.
DOES = ("clipped", "per_tensor", "left_out", "duplicates")


def _fields(c: Finding, port: Port) -> dict[str, object]:
    """What the lines of a cause are formatted with, as far as the cause says it."""
    told: Mapping[str, Any] = c.details
    fields: dict[str, object] = {"sparse": port.sparse, "device": "cpu"}
    limit = told.get("max_norm", told.get("limit"))
    if limit is not None:
        fields["limit"] = _short(limit)
    if "tensor" in told:
        fields["tensor"] = told["tensor"]
    if "dtype" in told:
        fields["dtype"] = told["dtype"]
    if "factor" in told:
        fields["times"] = _times(told["factor"], told.get("low", math.inf), told.get("high", -math.inf))
    if "shift" in told:
        fields["shift"] = "- 1" if told["shift"] > 0 else "+ 1"
    if told.get("semantics"):
        fields["semantics"] = told["semantics"][0][0]
    if c.name == "padding":
        fields["row"] = told["rows"][0]
    return fields


def line_of_gradient(c: Finding, port: Port) -> str:
    """The line that mends a cause; "" where there is none."""
    known = MENDS.get(c.name)
    lines = known(c, port) if callable(known) else known
    if not lines:
        return ""
    adds = c.details.get("side", "a") == ("a" if c.name in DOES else "b")
    line = lines.get(port.framework, lines[""])
    template = line.add if adds else line.remove
    fields = _fields(c, port)
    if c.name == "regulariser":
        return "; ".join(_penalties(c, template))
    try:
        return template.format(**fields)
    except KeyError:  # the cause does not say what stands in the line
        return ""


def _penalties(c: Finding, template: str) -> list[str]:
    """One for each strength, with the tables that it is of where there are several."""
    of: dict[float, list[str]] = {}
    for name, strength in c.details["strengths"].items():
        of.setdefault(strength, []).append(name)
    lines = [template.format(strength=_short(s), half=_short(s / 2)) for s in of]
    if len(of) == 1:
        return lines
    return [f"{line} of {', '.join(names)}" for line, names in zip(lines, of.values(), strict=True)]
