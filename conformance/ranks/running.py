"""Run the cases of `cases` and `mistakes` on one rank, and combine the outcomes of all ranks into one verdict."""

from __future__ import annotations

import contextlib
import hashlib
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import islices
from islices.backend import Backend
from islices.conformance.composite_operations import UnsupportedError
from islices.conformance.data import Slices, map_leaves
from islices.conformance.execute import HarnessError, difference, read, to_backend
from islices.conformance.ranks import plain
from islices.conformance.ranks.cases import CASES, Collective
from islices.conformance.ranks.mistakes import MISTAKES, Mistake
from islices.conformance.verdicts import MismatchError
from islices.distributed import Group, all_reduce
from islices.distributed.engines import engine_of, load_engine


class Said(NamedTuple):
    """The outcome of a case on one rank. `kind` is pass, unsupported, problem or harness error; `text` is the reason.
    `raised` is the name of an unexpected exception. `digest` is the digest of the result."""

    kind: str
    text: str = ""
    raised: str = ""
    digest: str = ""


def chosen(full: bool = False) -> list[Collective | Mistake]:
    every: list[Collective | Mistake] = [*CASES, *MISTAKES]
    return [c for c in every if full or not c.full]


def run_cases(group: Group, backend: str, ids: Sequence[str]) -> dict[str, Said]:
    """Run the cases with the given ids on this rank, and return {id: outcome}. All ranks must call this function with
    the same ids."""
    B = islices.get_backend(backend)
    wanted = set(ids)
    return {c.id: _one(group, B, c) for c in chosen(full=True) if c.id in wanted}


def _one(group: Group, B: Backend, c: Collective | Mistake) -> Said:
    with contextlib.ExitStack() as stack:
        if c.wide:
            stack.enter_context(B.wide_types())
        try:
            run: Callable[..., str] = _mistake if isinstance(c, Mistake) else _case
            return Said("pass", digest=run(group, B, c))
        except UnsupportedError as reason:
            return Said("unsupported", str(reason))
        except MismatchError as problem:
            return Said("problem", str(problem), problem.raised)
        except HarnessError as problem:
            return Said("harness error", str(problem))
        except Exception as error:
            last = traceback.format_exc().splitlines()[-3:]
            return Said("problem", f"raised {type(error).__name__}: {error} ({' '.join(last)})", type(error).__name__)


def _case(group: Group, B: Backend, c: Collective) -> str:
    """Check the result of a case on this rank, and return a digest of the result."""
    trees = [c.make(rank, group.size) for rank in range(group.size)]
    for tree in trees:  # a missing feature of the framework raises on all ranks
        gradients(B, tree, c.native)
    x = gradients(B, trees[group.rank], c.native)
    before = plain.digestible(result(x))
    with by_default(group, B) if c.default else contextlib.nullcontext(group) as given:
        got = all_reduce(x, c.op, given, strategy=c.strategy)
    if plain.digestible(result(x)) != before:
        raise MismatchError("all_reduce changed its argument")
    expected = plain.all_reduce(trees, c.op)
    found = result(got)
    problem = difference(found, expected) or _types(got, x)
    if not problem and plain.digestible(found) != plain.digestible(expected):
        problem = f"signs of zeros: got {found!r:.500}, expected {expected!r:.500}"
    if problem:
        raise MismatchError(problem, got=repr(found), expected=repr(expected))
    return hashlib.sha256(plain.digestible(found).encode()).hexdigest()[:16]


def _mistake(group: Group, B: Backend, c: Mistake) -> str:
    """Check that this rank raises the expected error. Return "" as the digest."""
    call = c.call(B, group.rank, group.size)
    kind, words = c.expected(group.rank, group.size)
    try:
        with by_default(group, B) if c.default else contextlib.nullcontext(group) as given:
            got = call(given)
    except UnsupportedError:
        raise
    except Exception as error:
        missing = [word for word in words if word not in str(error)]
        if type(error).__name__ != kind:
            text = f"raised {type(error).__name__}: {error}; expected {kind}"
            raise MismatchError(text, raised=type(error).__name__) from error
        if missing:
            raise MismatchError(f"the message lacks {missing}: {error}", raised=type(error).__name__) from error
        return ""
    raise MismatchError(f"got {got!r:.200}, expected {kind}")


@contextlib.contextmanager
def by_default(group: Group, B: Backend) -> Iterator[None]:
    """Check that this group is the default group for arrays of the framework. For TensorFlow, the context makes the
    group the default. Raise UnsupportedError if another group is the default."""
    # TensorFlow needs the scope of its strategy; the groups of other engines need no scope
    strategy = getattr(group, "strategy", None)
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        engine = load_engine(engine_of(B.name))
        if engine.running() is not group:
            raise UnsupportedError(f"the engine of {B.name}'s arrays is another than {group.engine}")
        yield


def gradients(B: Backend, tree: Any, native: bool) -> Any:
    """Convert plain data to gradients of the framework. With `native`, slices become sparse objects of the
    framework."""

    def made(leaf: Any) -> Any:
        if not native or not isinstance(leaf, Slices):
            return to_backend(B, leaf)
        if leaf.values.dtype not in B.native_float_dtypes:
            raise UnsupportedError(f"the {B.native_name} has no {leaf.values.dtype}")
        return islices.to_native(to_backend(B, leaf))

    return map_leaves(made, tree)


def result(x: Any) -> Any:
    """Convert gradients of the framework to plain data. Sparse objects of the framework become slices."""

    def plainly(leaf: Any) -> Any:
        if leaf is None or isinstance(leaf, islices.IndexedSlices) or not islices.get_backend(leaf).is_native(leaf):
            return read(leaf)
        return replace(read(islices.from_native(leaf)), coalesced=True)  # `difference` compares the order of rows

    return map_leaves(plainly, x)


def _types(got: Any, given: Any) -> str:
    """Describe the first difference between the types of a result and of the argument; return "" if there is none. The
    comparison covers leaves, containers and the order of keys in dicts."""
    if isinstance(given, dict):
        if list(got) != list(given):
            return f"the order of a dict: got {list(got)}, gave {list(given)}"
        return next((d for key in given if (d := _types(got[key], given[key]))), "")
    if isinstance(given, (list, tuple)):
        wrong = "" if type(got) is type(given) else f"type: got {type(got).__name__}, gave {type(given).__name__}"
        return wrong or next((d for g, e in zip(got, given, strict=True) if (d := _types(g, e))), "")
    if given is not None and type(got) is not type(given):
        return f"type: got {type(got)}, gave {type(given)}"
    return ""


def raise_verdict(statement: Sequence[Said]) -> None:
    """Raise an error with the reason, unless every rank passed with the same bits. `verdicts.judge` turns the error
    into a verdict."""
    for kind, error in (("harness error", HarnessError), ("unsupported", UnsupportedError)):
        for one in statement:
            if one.kind == kind:
                raise error(one.text)
    problems = [f"rank {rank}: {one.text}" for rank, one in enumerate(statement) if one.kind == "problem"]
    if problems:
        raised = next(one.raised for one in statement if one.kind == "problem")
        raise MismatchError("; ".join(problems)[:2000], raised=raised)
    if len({one.digest for one in statement}) != 1:
        raise MismatchError(f"the ranks' bits differ: digests {[one.digest for one in statement]}")
