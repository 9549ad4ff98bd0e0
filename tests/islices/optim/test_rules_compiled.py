"""The rules of the optimizers, compiled by numba from the same code objects: the bits of the array path."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from islices import optim
from islices.conformance.oracle_optim import OPTIMIZERS
from islices.core import modes
from islices.optim import rules
from islices.optim.operators import array_operators, bind, number_operators

numba = pytest.importorskip("numba", reason="numba is not installed")
OF_FRAMEWORKS = [
    ("torch", "adam"),
    ("keras", "ftrl"),
    ("tensorflow", "rmsprop"),
    ("mxnet", "ftrl"),
    ("optax", "rmsprop"),
]
FORMULAS = {
    **{label: getattr(optim, name)(**hyper)._formula for label, (name, hyper) in OPTIMIZERS.items()},
    **{f"{s} {name}": getattr(optim, name)(0.1, semantics=s, rows="all")._formula for s, name in OF_FRAMEWORKS},
}
#: each once, by the first optimizer that has it
RULES = {"coupled": rules.coupled, "decoupled": rules.decoupled} | {
    label: rule for rule, label in {f.rule: k for k, f in reversed(FORMULAS.items())}.items()
}
STATES = {spec.name: spec for formula in FORMULAS.values() for spec in formula.state}
#: What a number of a rule may be, another is a half; arrays are drawn between -2 and 2, or 0 and 2.
NUMBERS = {
    "lr": 0.05, "mu": 0.9, "gain": 0.3, "gain1": 0.1, "gain2": 0.001, "rho": 0.9, "rate": 0.02, "root": 0.7,
    "eps": 1e-7, "zero": 0.0, "l1": 0.6, "l2": 0.1, "beta": 0.2, "decay": 0.03, "keep": 0.999,
    "l2_shrinkage": 0.05, "exponent": 0.3, "one": 1.0,
}  # fmt: skip


def compiled(rule: Callable[..., Any], arrays: int, numbers: int, outputs: int, dtype: str) -> Callable[..., Any]:
    """A loop over elements around the rule, as a kernel of `islices[fast]` will have it."""
    inner = numba.njit(bind(rule, number_operators(dtype)))
    names = [f"x{k}" for k in range(arrays)] + [f"c{k}" for k in range(numbers)]
    call = f"inner({', '.join([f'x{k}[i]' for k in range(arrays)] + names[arrays:])})"
    single = rule in (rules.coupled, rules.decoupled)  # which give no tuple
    targets = ["out[0, i] = new"] if single else [f"out[{k}, i] = new[{k}]" for k in range(outputs)]
    source = f"def loop(out, {', '.join(names)}):\n    for i in range(out.shape[1]):\n        new = {call}\n"
    source += "".join(f"        {line}\n" for line in targets)
    space: dict[str, Any] = {"inner": inner}
    exec(source, space)  # numba compiles functions of a fixed number of arguments
    return numba.njit(space["loop"])


@pytest.mark.parametrize("name", RULES)
def test_compiled_rules_have_the_bits_of_the_arrays(name: str) -> None:
    rule, dtype = RULES[name], "float32"
    rng = np.random.default_rng(0)
    parameters = list(inspect.signature(rule).parameters)
    arrays = [p for p in parameters if p in STATES or p in ("g", "q", "w")]
    assert parameters == arrays + parameters[len(arrays) :], "arrays come first, as numba's loop hands them over"
    n = 4001
    values = {
        p: rng.uniform(0 if p == "q" or (p in STATES and STATES[p].positive) else -2, 2, n).astype(dtype)
        for p in arrays
    }
    numbers = {p: np.asarray(NUMBERS.get(p, 0.5), dtype)[()] for p in parameters if p not in arrays}
    with modes.HOST.scope():
        expected = bind(rule, array_operators(modes.HOST))(**values, **{p: np.full(1, x) for p, x in numbers.items()})
    expected = expected if isinstance(expected, tuple) else (expected,)
    out = np.empty((len(expected), n), dtype)
    compiled(rule, len(arrays), len(numbers), len(expected), dtype)(out, *values.values(), *numbers.values())
    for got, want in zip(out, expected, strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_rule_without_operators_says_so() -> None:
    with pytest.raises(TypeError, match="without operators"):
        RULES["sgd"](np.ones(1), np.ones(1), 0.1)
    with pytest.raises(TypeError, match="plain function"):
        bind(len, {})


def test_optimizers_share_the_kernel_of_a_rule() -> None:
    from islices.kernels.updating import step_kernel

    def kernel(*args: Any, **options: Any) -> Any:
        return step_kernel(optim.adam(*args, **options)._formula, "float32", "float32")

    assert kernel(0.1) is kernel(0.2, eps=1e-3) is kernel(lambda t: 1.0 / (t + 1), rows="all")
    others = [kernel(0.1), kernel(0.1, maximize=True), kernel(0.1, weight_decay=0.1), kernel(0.1, amsgrad=True)]
    assert len(set(map(id, others))) == len(others)
