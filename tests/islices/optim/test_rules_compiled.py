"""Test that the optimizers' rules, compiled by numba from the same code objects, have the bits of the array path."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from islices import optim
from islices.conformance.oracle_optim import OPTIMIZERS
from islices.core import modes
from islices.optim.operators import bind, number_operators
from islices.optim.row_steps import array_rule

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
RULES = {(f.rule, *f.constants.items()): label for label, f in reversed(FORMULAS.items())}
#: What a number of a rule may be, another is a half; arrays are drawn between -2 and 2, or 0 and 2.
NUMBERS = {
    "lr": 0.05, "mu": 0.9, "gain": 0.3, "gain1": 0.1, "gain2": 0.001, "rho": 0.9, "rate": 0.02, "root": 0.7,
    "eps": 1e-7, "zero": 0.0, "l1": 0.6, "l2": 0.1, "beta": 0.2, "l2_shrinkage": 0.05, "exponent": 0.3, "one": 1.0,
}  # fmt: skip


@pytest.mark.parametrize("label", RULES.values())
def test_compiled_rules_have_the_bits_of_the_arrays(label: str) -> None:
    from islices.kernels.compiling import called, inline

    formula, n = FORMULAS[label], 4001
    rng = np.random.default_rng(0)
    arrays = ["g", *["q"] * bool(formula.squares), "w", *(spec.name for spec in formula.state)]
    positive = {"q", *(spec.name for spec in formula.state if spec.positive)}
    values = {x: rng.uniform(0 if x in positive else -2, 2, n).astype("float32") for x in arrays}
    numbers = {x: np.float32(NUMBERS.get(x, 0.5)) for x in formula.ahead()}
    rule = bind(formula.rule, number_operators("float32"), inline)
    inner = called(rule, (*arrays, *numbers), formula.constants)
    names = [f"x{k}" for k in range(len(arrays))] + [f"c{k}" for k in range(len(numbers))]
    call = f"inner({', '.join([f'{x}[i]' for x in names[: len(arrays)]] + names[len(arrays) :])})"
    source = f"def loop(out, {', '.join(names)}):\n    for i in range(out.shape[1]):\n        new = {call}\n"
    source += "".join(f"        out[{k}, i] = new[{k}]\n" for k in range(1 + len(formula.state)))
    space: dict[str, Any] = {"inner": inner}
    exec(source, space)  # numba compiles functions of a fixed number of arguments
    with modes.HOST.scope():
        ones = {x: np.full(1, c) for x, c in numbers.items()}
        expected = array_rule(formula.rule, modes.HOST)(**values, **ones, **formula.constants)
    out = np.empty((1 + len(formula.state), n), np.float32)
    numba.njit(space["loop"])(out, *values.values(), *numbers.values())
    for got, want in zip(out, [x for x in expected if x is not None], strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_rule_without_operators_says_so() -> None:
    with pytest.raises(TypeError, match="without operators"):
        FORMULAS["sgd"].rule(np.ones(1), np.ones(1), 0.1)
    with pytest.raises(TypeError, match="plain function"):
        bind(len, {})


def test_optimizers_share_the_kernel_of_a_rule() -> None:
    from islices.kernels.updating import step_kernel

    def kernel(*args: Any, **options: Any) -> Any:
        return step_kernel(optim.adam(*args, **options)._formula, "float32", "float32")

    assert kernel(0.1) is kernel(0.2, eps=1e-3) is kernel(lambda t: 1.0 / (t + 1), rows="all")
    others = [kernel(0.1), kernel(0.1, maximize=True), kernel(0.1, weight_decay=0.1), kernel(0.1, amsgrad=True)]
    assert len(set(map(id, others))) == len(others)
