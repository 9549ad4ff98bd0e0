"""Looking for counterexamples: a law on a backend in a mode, or the same calls on several of them.

Hypothesis draws the arguments, and shrinks those that break a law to the smallest it finds; what comes back is the
script that shows it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import hypothesis
import hypothesis.errors

import islices
from islices.backend import Backend
from islices.conformance.data import Array
from islices.conformance.execute import difference, read, reassemble, take_apart, to_backend
from islices.conformance.operations import UnsupportedError
from islices.conformance.properties import compare, laws_tables
from islices.conformance.properties.laws import LAWS, Law
from islices.conformance.properties.script import disagreement, law_broken
from islices.conformance.properties.strategies import Arguments, Optimizer

__all__ = ["LAWS", "Counterexample", "break_law", "columns", "compare_columns", "holds", "traced"]

assert laws_tables  # imported for the laws it adds to LAWS


class Counterexample(NamedTuple):
    """Arguments that break a law, shrunk."""

    law: Law
    where: str
    arguments: Arguments
    problem: str
    #: code to paste
    script: str


class Broken(Exception):  # noqa: N818 (it ends a search, nobody else sees it)
    """What tells Hypothesis that an example breaks the law."""


Column = tuple[Backend, str]


def columns(names: Sequence[str], modes: Sequence[str] = ("host", "framework")) -> list[Column]:
    """The modes of the backends, each a place where a law can be tried."""
    backends = [islices.get_backend(name) for name in names]
    return [(backend, mode) for backend in backends for mode in backend.modes() if mode in modes]


# ---------------------------------------------------------------------- one law, one place
def break_law(law: Law, backend: Backend, mode: str, examples: int, seed: int) -> Counterexample | None:
    """The smallest arguments found that break a law, or None."""
    found = _search(law, examples, seed, lambda arguments: holds(law, backend, mode, arguments))
    if found is None:
        return None
    arguments, problem = found
    script = law_broken(law, backend, mode, arguments, problem)
    return Counterexample(law, f"{backend.name}, {mode}", arguments, problem, script)


def holds(law: Law, backend: Backend, mode: str, arguments: Arguments) -> str:
    """What breaks the law for these arguments; empty if nothing does."""
    try:
        with backend.wide_types():
            results = call(law, backend, mode, arguments)
            return str(getattr(compare, law.compare)(*results))
    except UnsupportedError:
        hypothesis.reject()
    except Exception as error:
        return f"raised {type(error).__name__}: {error}"


def call(law: Law, backend: Backend, mode: str, arguments: Arguments) -> Any:
    """The law's results for plain arguments."""
    x: Any = arguments.get("x")
    if law.native_form and x.values.dtype not in backend.native_float_dtypes:
        raise UnsupportedError(f"the {backend.native_name} has no {x.values.dtype}")
    built = {name: build(backend, value) for name, value in arguments.items()}
    if mode == "traced":
        return traced(backend, law.call, **built)
    with islices.execution(mode):
        return law.call(**built)


def build(backend: Backend, x: Any) -> Any:
    """Plain data as a backend's arguments."""
    if isinstance(x, Optimizer):
        return functools.partial(getattr(islices.optim, x.name), **x.hyper)
    return to_backend(backend, x)


def traced(backend: Backend, fn: Callable[..., Any], **arguments: Any) -> Any:
    """fn compiled by the framework, and called: the arrays among the arguments are traced."""
    leaves: list[Any] = []
    shells: list[Any] = []
    form = {name: take_apart(x, leaves) if _holds_arrays(x) else x for name, x in arguments.items()}

    def flat(*arrays: Any) -> list[Any]:
        out: list[Any] = []
        inputs = iter(arrays)
        built = {k: reassemble(backend, x, inputs) if _holds_arrays(arguments[k]) else x for k, x in form.items()}
        shells.append(take_apart(fn(**built), out))
        return out

    results = backend.trace(flat)(*leaves)
    return reassemble(backend, shells[-1], iter(results))


def _holds_arrays(x: Any) -> bool:
    if isinstance(x, (list, tuple)):
        return any(map(_holds_arrays, x))
    return isinstance(x, islices.IndexedSlices) or hasattr(x, "dtype")


# ---------------------------------------------------------------------- one call, several places
def compare_columns(law: Law, places: Sequence[Column], examples: int, seed: int) -> Counterexample | None:
    """The smallest arguments found for which the law's calls give different bits in two of the places, or None.

    The first place is what the others are held against.
    """
    culprit: list[Column] = []

    def differs(arguments: Arguments) -> str:
        first, *others = places
        expected = outcome(law, *first, arguments)
        for place in others:
            got = outcome(law, *place, arguments)
            if got is None or expected is None:
                continue
            problem = difference(got, expected, path="got")
            if problem:
                culprit[:] = [place]
                return f"{place[0].name}, {place[1]}: {problem}"
        return ""

    found = _search(law, examples, seed, differs)
    if found is None:
        return None
    arguments, problem = found
    second = culprit[0]
    script = disagreement(law, places[0], second, arguments, problem)
    where = f"{places[0][0].name}, {places[0][1]} and {second[0].name}, {second[1]}"
    return Counterexample(law, where, arguments, problem, script)


def outcome(law: Law, backend: Backend, mode: str, arguments: Arguments) -> Any:
    """The results as plain data, the name of what was raised, or None where the backend lacks what they need."""
    try:
        with backend.wide_types():
            return read(call(law, backend, mode, arguments))
    except UnsupportedError:
        return None
    except Exception as error:
        return [Array("raised", (1,), [type(error).__name__])]


# ---------------------------------------------------------------------- the search
def _search(law: Law, examples: int, seed: int, problem_of: Callable[[Arguments], str]) -> tuple[Arguments, str] | None:
    """The last failing example of Hypothesis, which is its smallest."""
    last: list[tuple[Arguments, str]] = []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=examples, database=None, deadline=None, report_multiple_bugs=False, print_blob=False,
        suppress_health_check=list(hypothesis.HealthCheck), verbosity=hypothesis.Verbosity.quiet,  # pyright: ignore[reportArgumentType]
        phases=(hypothesis.Phase.generate, hypothesis.Phase.shrink),
    )  # fmt: skip
    @hypothesis.given(law.arguments)
    def search(arguments: Arguments) -> None:
        problem = problem_of(arguments)
        if problem:
            last[:] = [(arguments, problem)]
            raise Broken(problem)

    try:
        search()
    except Broken:
        return last[0]
    except hypothesis.errors.Flaky:  # it broke once, and not again: still worth reporting
        return last[0]
    return None
