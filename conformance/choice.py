"""Chooses the cases of the quick profile: ``python -m islices.conformance.choice`` writes quick.json.

The full profile crosses everything with everything; most of its cases run code that others have run. Here each case is
run once while it is recorded what it does: which place of islices calls which function, and which primitive of the
adapter gets which dtypes. A greedy cover then takes the cheapest cases that together do nearly all that is done:

    framework   recorded on torch, eager; a case costs what compilers have to make anew for it, a program for each
                primitive with dtypes and shapes that none before it had
    traced      recorded on JAX while it traces, without XLA, of cases that hold every word of all ids; a case costs the
                size of its program
    host        from the ids alone: every word that an id of an operation has; there cases cost next to nothing

Bad input costs nothing either: all of it runs. Run it anew where cases or much of the code have changed; what the
choice catches is measured by tests/conformance/test_mutants.py.
"""

from __future__ import annotations

import heapq
import inspect
import json
import os
import sys
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import islices
from islices.backend import Backend
from islices.conformance import execute, progress
from islices.conformance.data import Entry, entries
from islices.conformance.execute import run_case
from islices.conformance.generate import LAYOUTS
from islices.conformance.operations import UnsupportedError

__all__ = ["main"]

Features = frozenset[Hashable]

FLOATS = ("float16", "bfloat16", "float32", "float64")
#: What a differentiation adds to a case's cost, in programs: the loss is traced and each of its operations compiled.
GRADIENT = 200
#: What compiling an optimizer's step adds to it.
STEP = 60
#: Parts of an id's words that speak of numbers which are treated apart: each once in a group.
SPECIAL = {"nan", "tie", "ties", "saturation", "huge", "tiny", "zeros"}
#: Features for a unit of cost below which a case is left to the full profile.
LEAST = 0.15
#: The steps that run on the host: each is a kernel, and seconds of compilation. All formulas run in mode framework.
STEPS = (
    *(
        f"optimizers/step/{x}/touched/float32/int64"
        for x in ("adam", "adagrad", "momentum", "nesterov", "ftrl-power", "rmsprop-both")
    ),
    "optimizers/step/rowwise_adagrad/touched/float32/int64",
    "optimizers/step/rowwise_adagrad/all/bfloat16/int32",
    "optimizers/step/adam/touched/float64/int32",
    "optimizers/frozen-step/touched",
    "optimizers/frozen-step/all",
    "optimizers/mixed-precision/bfloat16/float32/master",
    "optimizers/array-hyperparameters/adagrad",
)
#: What each of these adds to the cost of a case on the host, in cases: it may need a kernel of its own.
RARE = {"float16", "bfloat16", "float64", "int32"}
#: The bug that everybody has, and faults that only the golden numbers show: a minimum or maximum that drops NaN too.
ALWAYS = (
    "norms/norm2/duplicates-by-hand",
    "algebra/scale/float64-17-digits",
    "embedding/bags/max-nan-first/lookup",
    "clipping/by_value/nan-stays",
)
#: Gradients are a hundred programs to JAX, operation by operation: they are found in mode traced, where each is one. In
#: mode framework one stands for them.
CHEAP_GRADIENTS = ("embedding/gradient/", "optimizers/")
GRADIENT_BY_OPERATIONS = "gradients/by_value/cancelling/float32"
#: Of bad input, what imports a second framework.
SLOW = ("errors/indices-of-another-framework", "errors/lookup-ids-framework")
#: Methods of adapters that do no arithmetic.
PLAIN = {
    *("is_array", "is_native", "is_traced", "is_model", "dtype", "shape", "records_gradient", "scope", "wide_types"),
    *("trace", "forget_compiled", "modes", "devices", "on_device", "user_code", "flatten_tree", "capture", "look"),
    *("blocks", "in_place", "memory_span", "host_view", "version", "lacks", "block"),
}


class Did(NamedTuple):
    """What a case did: its features, and the programs that it needs."""

    features: Features
    programs: Features


# ---------------------------------------------------------------------- recording
class Recorder:
    """Runs cases on a backend and notes what each does."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.features: set[Hashable] = set()
        self.programs: set[Hashable] = set()
        self.inside = False
        self.parts: dict[str, str] = {}
        for name in dir(type(backend)):
            method = getattr(backend, name, None)
            if not name.startswith("_") and name not in PLAIN and inspect.ismethod(method):
                setattr(backend, name, self._noting(name, method))

    def record(self, entry: Entry, mode: str) -> Did | None:
        """What a case did; None if the backend does not have what it needs."""
        self.features.clear()
        self.programs.clear()
        sys.setprofile(self._called)
        try:
            run_case(self.backend, entry.case, mode)
        except (UnsupportedError, NotImplementedError):
            return None
        except execute.HarnessError:
            raise
        except Exception as error:  # a traced case ends where its result would be read
            if mode != "traced":
                raise RuntimeError(f"{entry.id} does not pass: {error}") from error
        finally:
            sys.setprofile(None)
        return Did(frozenset(self.features | names(entry)), frozenset(self.programs))

    def _called(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and (part := self._part(frame.f_code.co_filename)):
            caller = frame.f_back
            place = self._part(caller.f_code.co_filename) if caller else ""
            self.features.add((place, caller.f_lineno if caller and place else 0, part, frame.f_code.co_qualname))

    def _part(self, file: str) -> str:
        """A file of islices, of what the suite judges; "" for others."""
        if file not in self.parts:
            inside = os.path.relpath(os.path.realpath(file), os.path.realpath(islices.__path__[0]))
            judged = not inside.startswith(os.pardir) or inside.startswith(os.path.join(os.pardir, "backends"))
            self.parts[file] = inside if judged else ""
        return self.parts[file]

    def _noting(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **options: Any) -> Any:
            if self.inside:
                return method(*args, **options)
            given = [self._form(x) for x in (*args, *options.values())]
            self.programs.add((name, *given))
            self.features.update((name, dtype) for dtype in _dtypes(given))
            if any(isinstance(form, float) for form in given):  # which frameworks take by ways of their own
                self.features.update((name, dtype, "by a number") for dtype in _dtypes(given))
            self.inside = True
            try:
                return method(*args, **options)
            finally:
                self.inside = False

        return noted

    def _form(self, x: Any) -> Hashable:
        if isinstance(x, (tuple, list)):
            return tuple(map(self._form, x))
        if self.backend.is_array(x):
            return (self.backend.dtype(x), tuple(self.backend.shape(x)))
        return x if isinstance(x, (str, bool, int, float, type(None))) else type(x).__name__


def _dtypes(forms: Iterable[Any]) -> Iterator[str]:
    for form in forms:
        if isinstance(form, str) and (form in FLOATS or form.startswith("int")):
            yield form
        elif isinstance(form, tuple):
            yield from _dtypes(form)


def names(entry: Entry) -> Features:
    """What the id says: its operation, whether that meets duplicates, and its group with each dtype, layout and special
    number."""
    group, operation, *rest = entry.id.split("/")
    found: set[Hashable] = {(group, operation)}
    found.update((group, word) for word in rest if word in FLOATS or word in LAYOUTS)
    if any("duplicates" in word for word in rest):
        found.add((group, operation, "duplicates"))
    found.update((group, part) for word in rest for part in SPECIAL.intersection(word.split("-")))
    return frozenset(found)


def words(entry: Entry) -> Features:
    """Every word of the id, as one of its operation."""
    group, operation, *rest = entry.id.split("/")
    return frozenset([(group, operation), *((group, operation, word) for word in rest)])


def words_on_the_host(entry: Entry) -> Features:
    """The same, but of an update as one of its group, for each compiles a kernel; none of what differentiates, and
    nothing of optimizers, whose kernels are chosen by name."""
    group, operation, *rest = entry.id.split("/")
    if group == "optimizers":
        return frozenset()
    if is_gradient(entry.id):
        return frozenset([(group, operation)])
    if group == "updates":
        return frozenset([(group, operation), *((group, "", word) for word in rest)])
    return words(entry)


def is_gradient(id: str) -> bool:
    return "gradient" in id


def traced_alone() -> Backend:
    """JAX, whose programs from now on are traced and not compiled."""
    import jax

    backend = islices.get_backend("jax")
    backend.trace = lambda fn: lambda *arrays: jax.eval_shape(fn, *arrays)  # type: ignore[method-assign]
    return backend


# ---------------------------------------------------------------------- choosing
def cover(
    did: dict[str, Did], cost: Callable[[str, int], float], least: float = 0.0, must: Features = frozenset()
) -> list[str]:
    """Cases, greedily by new features for cost(id, new programs), until every feature has one, or the best is worth
    less than the least; what must be there is found for that, too."""
    needed: set[Hashable] = set().union(*(one.features for one in did.values()))
    made: set[Hashable] = set()
    chosen: list[str] = []

    def worth(id: str) -> float:
        new = len(did[id].features & needed)
        return new / cost(id, len(did[id].programs - made)) if new else 0.0

    def take(heap: list[tuple[float, str]]) -> None:
        heapq.heapify(heap)
        while needed and heap:
            _, id = heapq.heappop(heap)
            now = worth(id)
            if heap and now < -heap[0][0] - 1e-12:
                heapq.heappush(heap, (-now, id))
            elif now < least or not now:
                return
            else:
                chosen.append(id)
                needed.difference_update(did[id].features)
                made.update(did[id].programs)

    take([(-worth(id), id) for id in sorted(did)])
    needed &= must
    least = 0.0
    take([(-worth(id), id) for id in sorted(did)])
    return chosen


def choose() -> dict[str, list[str]]:
    """The ids for each mode."""
    valid = {entry.id: entry for entry in entries() if entry.group != "errors"}
    bad = [entry.id for entry in entries() if entry.group == "errors" and entry.id not in SLOW]
    can = {id: entry for id, entry in valid.items() if "eager" not in entry.flags}

    told = {id: names(entry) for id, entry in valid.items()}

    def all_told(*groups: str) -> Features:
        none: Features = frozenset()
        return none.union(*(features for id, features in told.items() if id.startswith(groups)))

    must = all_told("") - all_told("gradients/")
    did = _recorded(islices.get_backend("torch"), "framework", valid.values())
    did = {id: one for id, one in did.items() if not is_gradient(id) or id.startswith(CHEAP_GRADIENTS)}
    framework = cover(did, lambda id, new: new + 0.5 + GRADIENT * is_gradient(id), LEAST, must)

    spread = cover({id: Did(words(entry), frozenset()) for id, entry in can.items()}, lambda id, new: 1.0)
    did = _recorded(traced_alone(), "traced", [can[id] for id in spread])
    traced = cover(did, lambda id, new: _to_compile(id, did[id]), 2 * LEAST, must - all_told("optimizers/"))

    short = {
        id: Did(words_on_the_host(entry), frozenset()) for id, entry in valid.items() if "/hundred-steps/" not in id
    }
    host = cover(short, _on_the_host)
    chosen = {"host": [*host, *STEPS, *bad], "framework": [*framework, GRADIENT_BY_OPERATIONS, *bad], "traced": traced}
    return {mode: sorted({*ids, *ALWAYS}) for mode, ids in chosen.items()}


def _on_the_host(id: str, new: int) -> float:
    return 1.0 + len(RARE & set(id.split("/"))) + 4.0 * is_gradient(id)


def _to_compile(id: str, did: Did) -> float:
    return 3 + len(did.programs) / 6 + GRADIENT / 20 * is_gradient(id) + STEP * id.startswith("optimizers/")


def _recorded(backend: Backend, mode: str, wanted: Collection[Entry]) -> dict[str, Did]:
    recorder = Recorder(backend)
    with progress.bar(f"recording {mode}", len(wanted)) as step:
        found = {}
        for entry in wanted:
            found[entry.id] = recorder.record(entry, mode)
            step(f"recording {mode}")
    return {id: did for id, did in found.items() if did is not None}


def main() -> int:
    chosen = choose()
    target = Path(__file__).with_name("quick.json")
    target.write_text(json.dumps(chosen, indent=0) + "\n", "utf-8")
    print(", ".join(f"{len(ids)} in mode {mode}" for mode, ids in chosen.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
