"""Search for counterexamples to a law on one backend in one mode.

Hypothesis draws the arguments, and shrinks a counterexample to the smallest that Hypothesis finds.
"""

from __future__ import annotations

import functools
import inspect
import textwrap
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import hypothesis
import hypothesis.errors
from hypothesis import strategies as st

import islices
from islices.backend import Backend
from islices.conformance.composite_operations import UnsupportedError
from islices.conformance.data import leaves_of
from islices.conformance.execute import reassemble, take_apart, to_backend
from islices.conformance.properties import compare
from islices.conformance.properties.laws import LAWS, Law
from islices.conformance.properties.strategies import Arguments, Optimizer

T = TypeVar("T")


class Counterexample(NamedTuple):
    """Arguments that break a law, shrunk by Hypothesis. str() returns code that users can paste into Python."""

    law: Law
    backend: str
    mode: str
    arguments: Arguments
    problem: str

    def __str__(self) -> str:
        source = textwrap.indent(inspect.getsource(self.law.call), "# ")
        return SCRIPT.format(**self._asdict(), source=source, came=" ".join(self.problem.split()))


SCRIPT = """\
# The law {law.name}, SPEC clause {law.clause}, on {backend}, {mode}: {came}
{source}from math import inf, nan
from islices.conformance.data import Array, Slices
from islices.conformance.properties.running import Optimizer, again
problem = again({law.name!r}, {backend!r}, {mode!r}, {arguments})
assert not problem, problem
"""


class Broken(Exception):  # noqa: N818 (it only ends a search)
    """The error that shows Hypothesis that an example has a problem."""


Column = tuple[Backend, str]


def columns(names: Sequence[str], modes: Sequence[str] = ("host", "framework")) -> list[Column]:
    """Return pairs (backend, mode): for each backend, one pair per mode of the backend that is in `modes`."""
    backends = [islices.get_backend(name) for name in names]
    return [(backend, mode) for backend in backends for mode in backend.modes() if mode in modes]


# ---------------------------------------------------------------------- one law, one place
def break_law(law: Law, backend: Backend, mode: str, examples: int, seed: int) -> Counterexample | None:
    """Return a `Counterexample` to a law, or None if Hypothesis finds no arguments that break the law."""
    found = search(law.arguments, examples, seed, lambda arguments: holds(law, backend, mode, arguments))
    return Counterexample(law, backend.name, mode, *found) if found else None


def holds(law: Law, backend: Backend, mode: str, arguments: Arguments) -> str:
    """Return a description of how the arguments break the law, or "" if the law holds. If the backend lacks a feature,
    reject the example."""
    try:
        with backend.wide_types():
            results = call(law, backend, mode, arguments)
            return str(getattr(compare, law.compare)(*results))
    except UnsupportedError:
        hypothesis.reject()
    except Exception as error:
        return f"raised {type(error).__name__}: {error}"


def call(law: Law, backend: Backend, mode: str, arguments: Arguments) -> Any:
    x: Any = arguments.get("x")
    if law.native_form and x.values.dtype not in backend.native_float_dtypes:
        raise UnsupportedError(f"the {backend.native_name} has no {x.values.dtype}")
    built = {name: build(backend, value) for name, value in arguments.items()}
    if mode == "traced":
        return traced(backend, law.call, **built)
    with islices.config.execution(mode):
        return law.call(**built)


def build(backend: Backend, x: Any) -> Any:
    """Convert plain data to arguments for a backend. An `Optimizer` becomes a function that makes the optimizer."""
    if isinstance(x, Optimizer):
        return functools.partial(getattr(islices.optim, x.name), **x.hyper)
    return to_backend(backend, x)


def traced(backend: Backend, fn: Callable[..., Any], **arguments: Any) -> Any:
    """Compile `fn` with the framework and call the program. Arrays among the arguments are traced."""
    leaves: list[Any] = []
    shells: list[Any] = []
    form = {name: take_apart(x, leaves) if _holds_arrays(x) else x for name, x in arguments.items()}

    def flat(*arrays: Any) -> list[Any]:
        out: list[Any] = []
        inputs = iter(arrays)
        built = {k: reassemble(x, inputs) if _holds_arrays(arguments[k]) else x for k, x in form.items()}
        shells.append(take_apart(fn(**built), out))
        return out

    results = backend.trace(flat)(*leaves)
    return reassemble(shells[-1], iter(results))


def _holds_arrays(x: Any) -> bool:
    return any(isinstance(leaf, islices.IndexedSlices) or hasattr(leaf, "dtype") for leaf in leaves_of(x))


def again(law: str, backend: str, mode: str, arguments: Arguments) -> str:
    """Run a printed counterexample again. Return the problem, or "" if the law holds here."""
    return holds(LAWS[law], islices.get_backend(backend), mode, arguments)


# ---------------------------------------------------------------------- the search
def search(
    arguments: st.SearchStrategy[T], examples: int, seed: int, problem_of: Callable[[T], str]
) -> tuple[T, str] | None:
    """Return (example, problem) for the smallest example with a problem that Hypothesis finds, or None. `problem_of`
    returns "" for an example without a problem."""
    last: list[tuple[T, str]] = []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=examples, database=None, deadline=None, report_multiple_bugs=False, print_blob=False,
        suppress_health_check=list(hypothesis.HealthCheck), verbosity=hypothesis.Verbosity.quiet,  # pyright: ignore[reportArgumentType]
        phases=(hypothesis.Phase.generate, hypothesis.Phase.shrink),
    )  # fmt: skip
    @hypothesis.given(arguments)
    def search(drawn: T) -> None:
        problem = problem_of(drawn)
        if problem:
            last[:] = [(drawn, problem)]
            raise Broken(problem)

    try:
        search()
    except Broken:
        return last[0]
    except hypothesis.errors.Flaky:  # the problem occurred once but not again; it is reported all the same
        if last:
            return last[0]
        raise
    return None
