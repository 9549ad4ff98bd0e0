"""A counterexample as code to paste into Python: the arrays of its framework, the law's own lines, what came.

The script needs islices and the framework, and says at its end whether the law holds here.
"""

from __future__ import annotations

import textwrap
from typing import Any

import islices
from islices.backend import Backend
from islices.conformance.data import Array, Slices
from islices.conformance.properties.laws import Law
from islices.conformance.properties.strategies import Arguments, Optimizer

__all__ = ["disagreement", "law_broken"]

#: How each framework's users write an array: (imports, the array). Others' are made by the adapter.
ARRAYS = {
    "numpy": ("import numpy as np", "np.array({data}, {dtype!r}).reshape({shape})"),
    "torch": ("import torch", "torch.tensor({data}, dtype=torch.{dtype}).reshape({shape})"),
    "tensorflow": ("import tensorflow as tf", "tf.constant({data}, tf.{dtype}, {shape})"),
    "jax": ("import jax\nimport jax.numpy as jnp", "jnp.array({data}, jnp.{dtype}).reshape({shape})"),
}
ANY = "islices.get_backend({name!r}).asarray(np.array({data}, {dtype!r}).reshape({shape}))"
ANY_BFLOAT16 = "islices.get_backend({name!r}).asarray(np.array({data}, ml_dtypes.bfloat16).reshape({shape}))"
BFLOAT16 = "np.array({data}, ml_dtypes.bfloat16).reshape({shape})"
HEADER = """\
# {title}
# islices {version}, {frameworks}; {came}
import functools
from math import inf, nan
{imports}
import islices
from islices.conformance.properties.compare import {compare}
"""


def law_broken(law: Law, backend: Backend, mode: str, arguments: Arguments, problem: str) -> str:
    """The script that shows a law broken in one mode of a backend."""
    head = _header(
        f"The law {law.name}, SPEC clause {law.clause}, {backend.name}, {mode}", [backend], law, arguments, problem
    )
    return "\n".join([
        head, law.source, _assignments(backend, arguments), _call(law, backend, mode, arguments, "results"),
        f"problem = {law.compare}(*results)", "print('results:', *results, sep='\\n')",
        f"assert not problem, problem\nprint('the law {law.name} holds here')", "",
    ])  # fmt: skip


def disagreement(
    law: Law, first: tuple[Backend, str], second: tuple[Backend, str], arguments: Arguments, problem: str
) -> str:
    """The script that shows two backends, or two modes, giving different bits for one call."""
    where = " and ".join(f"{backend.name}, {mode}" for backend, mode in (first, second))
    head = _header(
        f"The calls of {law.name} on {where}", [first[0], second[0]], law, arguments, problem, compare="same_bits"
    )
    body = [head, law.source]
    for name, (backend, mode) in (("one", first), ("other", second)):
        body += [
            f"# {backend.name}, {mode}",
            _assignments(backend, arguments),
            _call(law, backend, mode, arguments, name),
            "",
        ]
    return "\n".join([
        *body, "problem = same_bits(other, one)", "assert not problem, problem", "print('the two agree here')", "",
    ])  # fmt: skip


def _header(
    title: str, backends: list[Backend], law: Law, arguments: Arguments, problem: str, compare: str = ""
) -> str:
    imports = ["import numpy as np", *(ARRAYS[b.name][0] for b in backends if b.name in ARRAYS)]
    if "bfloat16" in repr(arguments):
        imports.append("import ml_dtypes")
    if any(b.name == "jax" for b in backends):
        imports.append("jax.config.update('jax_enable_x64', True)")
    frameworks = ", ".join(f"{b.name} {b.version()}" for b in backends)
    return HEADER.format(
        title=title, version=islices.__version__, frameworks=frameworks, came=" ".join(problem.split()),
        imports="\n".join(dict.fromkeys(imports)), compare=compare or law.compare,
    )  # fmt: skip


def _assignments(backend: Backend, arguments: Arguments) -> str:
    return "\n".join(f"{name} = {literal(backend, value)}" for name, value in arguments.items())


def _call(law: Law, backend: Backend, mode: str, arguments: Arguments, name: str) -> str:
    call = f"{name} = {law.name}({', '.join(arguments)})"
    if mode != "traced":
        return f"with islices.execution({mode!r}):\n    {call}"
    pairs = ", ".join(f"{k}={k}" for k in arguments)
    return (
        "from islices.conformance.properties.running import traced\n"
        f"{name} = traced(islices.get_backend({backend.name!r}), {law.name}, {pairs})"
    )


def literal(backend: Backend, x: Any) -> str:
    """Plain data as the expression of what it becomes on a backend."""
    if isinstance(x, Array):
        form = ARRAYS[backend.name][1] if backend.name in ARRAYS else ANY
        if x.dtype == "bfloat16" and backend.name not in ARRAYS:
            form = ANY_BFLOAT16
        elif x.dtype == "bfloat16" and backend.name == "numpy":
            form = BFLOAT16
        return form.format(name=backend.name, data=x.data, dtype=x.dtype, shape=x.shape)
    if isinstance(x, Slices):
        values, indices = literal(backend, x.values), literal(backend, x.indices)
        flags = ", coalesced=True" if x.coalesced else ""
        return f"islices.IndexedSlices(\n    {values},\n    {indices},\n    {x.dense_shape}{flags},\n)"
    if isinstance(x, Optimizer):
        return f"functools.partial(islices.optim.{x.name}, **{x.hyper})"
    if isinstance(x, list):
        return f"[{', '.join(textwrap.dedent(literal(backend, item)) for item in x)}]"
    return repr(x)
