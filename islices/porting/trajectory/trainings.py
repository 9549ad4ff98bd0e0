"""Define `parity`, which compares two trainings step by step, and stops at the first difference that rounding does not
explain.

May import: `numpy`, the core, `islices.porting.compare`, this folder.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from islices.core.arguments import check_name
from islices.core.registry import describe
from islices.porting.compare.difference import Difference, diff, side_names
from islices.porting.compare.explanation import name_sides
from islices.porting.reports import Reported
from islices.porting.trajectory.descriptions import optimizers_of, other_class
from islices.porting.trajectory.explaining import Known, explain
from islices.porting.trajectory.folder import is_folder, read_folder
from islices.porting.trajectory.movements import Past
from islices.porting.trajectory.parity_report import draw, report
from islices.porting.trajectory.positions import BEFORE, Step, Steps, read_step
from islices.porting.trajectory.tensor_names import Pairing, settle_names
from islices.porting.trajectory.verdict import ORDER, Verdict, judge


@dataclass(frozen=True, eq=False)
class Stop:
    """The position at which two trainings diverge, and the causes.

    Attributes
    ----------
    step : int
    position : {"batch", "start", "between", "outputs", "loss", "gradients", "clipped", "step", "state"}
        The first position where rounding does not explain the difference. Rounding explains all earlier differences
        that were judged.
    tensor : str
        The name of the tensor, or of the state's array, that exceeds its allowance most. If clipped gradients are
        judged all together, this is the tensor whose sides have the largest distance.
    apart, allowed : float
        The distance between the sides, and the largest distance that rounding may cause (see
        `islices.porting.trajectory.movements.Found`).
    difference : Difference
        The difference of both sides at the position, with its causes.
    also : dict of str to Difference
        Differences at other positions of the step for which a cause is known. If a cause is known at `position`, the
        dict is empty.
    """

    step: int
    position: str
    tensor: str
    apart: float
    allowed: float
    difference: Difference
    also: Mapping[str, Difference]


@dataclass(frozen=True, eq=False)
class Parity(Reported):
    """The result of `parity`. str() returns the report.

    Attributes
    ----------
    equal : bool
        True if rounding explains the differences at all judged positions of all steps.
    stop : Stop or None
        The position at which the trainings diverge, or None if `equal` is True.
    steps : tuple of Verdict
        One verdict per compared step. If the trainings diverge, the last verdict contains only the positions up to the
        divergence.
    same_bits : int
        The number of steps, from the first on, in which all values that exist on both sides are equal. Their dtypes may
        differ.
    names : (str, str)
        The names of the sides.
    pairs : dict of str to str
        A mapping from the tensors' names in a to their names in b.
    transposed : tuple of str
        The tensors that b stores in transposed form, with their names in a.
    notes : tuple of str
        Remarks for the reader, such as the names of tensors that only one side has.
    """

    equal: bool
    stop: Stop | None
    steps: tuple[Verdict, ...]
    names: tuple[str, str]
    pairs: Mapping[str, str]
    transposed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def same_bits(self) -> int:
        """Return the number of steps, from the first on, in which all values that both sides have are equal."""
        return next((k for k, step in enumerate(self.steps) if not step.same_bits), len(self.steps))

    def report(self) -> str:
        """Return the report as plain text.

        Returns
        -------
        str
        """
        return report(self)

    def to_json(self) -> dict[str, Any]:
        """Return a dict that json.dumps accepts. The dict contains the fields by name, and `same_bits`."""
        return {**super().to_json(), "same_bits": self.same_bits}

    def _figure(self) -> Any:
        return draw(self)


def parity(
    a: Any,
    b: Any,
    *,
    names: Sequence[str] = ("a", "b"),
    optimizer: Any = None,
    pair: Mapping[str, str] | None = None,
    ignore: Sequence[str] = (),
    max_norm: float | None = None,
    padding_idx: int | None = None,
    batch_size: int | None = None,
    tokens: int | None = None,
) -> Parity:
    """Compare two trainings step by step, and report where and why they diverge.

    Parameters
    ----------
    a, b : folder, or iterable of steps
        A folder that `Recorder` wrote, a folder with files step-1.safetensors ... that `islices.save` wrote, or an
        iterable of steps. A step is a dict whose keys are positions of `Recorder.step`: ``batch``, ``tables``,
        ``state``, ``outputs``, ``loss``, ``gradients``, ``clipped``, ``tables_after`` and ``state_after``. A step may
        also contain its number ``step``, and ``optimizer``. The first step must contain gradients or tables.
    names : (str, str)
        The names of the sides in the report.
    optimizer : islices.optim.Optimizer, dict, or a pair of them, optional
        The optimizer of the tables, or a dict from tensors' names to optimizers. Pass a pair if the sides differ.
        `parity` uses the optimizers to judge and explain steps. By default, `parity` reads the optimizers from the
        steps of a and b.
    pair : mapping of str to str, optional
        A mapping from names in a to names in b, for tensors that have different names.
    ignore : sequence of str
        Positions to skip, from "batch", "start", "between", "outputs", "loss", "gradients", "clipped", "step" and
        "state".
    max_norm, padding_idx, batch_size, tokens
        Options of `islices.diff`.

    Returns
    -------
    Parity

    Raises
    ------
    TypeError, ValueError, IndexError
        An argument or a step is invalid, a name does not exist, or the sides have no step or no tensor in common.
    FileNotFoundError, OSError
        A folder cannot be read.
    ImportError
        safetensors, which reads the files of a folder, is missing or too old.

    Notes
    -----
    `parity` first judges the batch, and the tables and states at the start. The next positions are, in this order, the
    outputs, loss, gradients, clipped gradients, tables after the step, and states after the step. The comparison stops
    at the first position where rounding does not explain the difference. In later steps, `parity` judges changes of
    tables between two steps instead of the start. The allowance for rounding depends on the position (SPEC clause 23,
    docs/parity.md).

    Examples
    --------
    >>> import numpy as np, islices
    >>> def training(rate):
    ...     table = np.ones((4, 2), np.float32)
    ...     for row in (1, 2, 1):
    ...         grad = islices.IndexedSlices(np.full((1, 2), 0.1, np.float32), np.array([row]), (4, 2))
    ...         before, table = table, islices.scatter(table.copy(), islices.scale(grad, rate), op="sub")
    ...         yield {"tables": {"w": before}, "gradients": {"w": grad}, "tables_after": {"w": table}}
    >>> islices.parity(training(0.5), training(0.5)).equal
    True
    >>> found = islices.parity(training(0.5), training(0.25))
    >>> found.stop.step, found.stop.position
    (1, 'step')
    """
    called = side_names(names)
    ignored = frozenset(check_name(name, ORDER, "ignore") for name in ignore)
    known: Known = {
        "names": called, "max_norm": max_norm, "padding_idx": padding_idx, "batch_size": batch_size, "tokens": tokens
    }  # fmt: skip
    # raise errors now, not only when the trainings diverge
    diff(np.zeros(1, np.float32), np.zeros(1, np.float32), **known)
    two = optimizer if isinstance(optimizer, (list, tuple)) else (optimizer, optimizer)
    if len(two) != 2:
        raise ValueError(f"optimizer: got {len(two)}; accepted is one, or two: a's and b's")
    optimizers = [optimizers_of(x, "optimizer") for x in two]
    pairing: Pairing | None = None
    verdicts: list[Verdict] = []
    stop, notes, past = None, dict[str, str](), Past()
    for x, y in _together(_read(a, "a", optimizers[0]), _read(b, "b", optimizers[1]), notes):
        if pairing is None:
            pairing = settle_names(x, y, pair)
            notes |= _description_of(pairing, called, x, y)
        now = Steps(x, pairing.renamed(y, x))
        verdict = judge(now, past, ignored, notes)
        verdicts.append(verdict)
        if verdict.stop is not None:
            found = verdict.positions[verdict.stop]
            why = explain(verdict.stop, found.tensor, now, known)
            stop = Stop(x.number, verdict.stop, found.tensor, found.apart, found.allowed, *why)
            break
    if pairing is None:
        raise ValueError("a, b: got no step that both have; accepted are sides that have some of the same numbers")
    texts = tuple(name_sides(note, called) for note in notes.values())
    pairs = {p: q for q, p in pairing.names.items()}
    return Parity(stop is None, stop, tuple(verdicts), called, pairs, tuple(sorted(pairing.transposed)), texts)


# ---------------------------------------------------------------------- the steps of both sides
def _read(given: Any, argument: str, optimizers: Mapping[str, Any]) -> Iterator[Step]:
    if is_folder(given):
        steps = read_folder(given, argument)
    elif isinstance(given, Mapping) or not isinstance(given, Iterable):
        raise TypeError(f"{argument}: got {describe(given)}; accepted is a folder, or an iterable of steps")
    else:
        steps = _numbered(given, argument)
    return _linked(replace(step, optimizers={**step.optimizers, **optimizers}) for step in steps)


def _numbered(given: Iterable[Any], argument: str) -> Iterator[Step]:
    number = 0
    for x in given:
        step = read_step(x, argument, number + 1)
        if step.number <= number and number:
            raise ValueError(f"{argument}: got step {step.number} after step {number}; accepted are rising numbers")
        number = step.number
        yield step


def _linked(steps: Iterable[Step]) -> Iterator[Step]:
    """Yield the steps with missing tables and states filled in. If two steps have consecutive numbers, the values after
    the first step are also the values before the second step."""
    held: Step | None = None
    for step in steps:
        if held is not None:
            if step.number == held.number + 1:
                for after, before in BEFORE.items():
                    if before not in step.trees and after in held.trees:
                        step.trees[before] = held.trees[after]
                    elif after not in held.trees and before in step.trees and before in held.trees:
                        held.trees[after] = step.trees[before]
            yield held
        held = step
    if held is not None:
        yield held


def _together(a: Iterator[Step], b: Iterator[Step], notes: dict[str, str]) -> Iterator[tuple[Step, Step]]:
    """Yield pairs of steps with the same number. Skip steps that only one side has, and add a remark about them to
    `notes`."""
    skipped = 0
    x, y = next(a, None), next(b, None)
    while x is not None and y is not None:
        one, other = x.number, y.number
        if one == other:
            yield x, y
        skipped += one != other
        x, y = next(a, None) if one <= other else x, next(b, None) if other <= one else y
    if skipped:
        notes["skipped"] = f"{skipped} step{'s' * (skipped > 1)} that one side alone has left out"
    if x is not None or y is not None:
        notes["goes on"] = f"{{{'a' if y is None else 'b'}}} goes on: the other side has no more steps"


def _description_of(pairing: Pairing, names: tuple[str, str], x: Step, y: Step) -> dict[str, str]:
    notes = {}
    for name, alone, step in zip(names, (pairing.only_a, pairing.only_b), (x, y), strict=True):
        if alone:
            notes[f"only {name}"] = f"tensors only in {name}, not compared: {', '.join(alone)}"
        for other in filter(None, map(other_class, step.optimizers.values())):
            notes[f"{name} {other}"] = f"{name} steps by {other}, which islices.optim does not have"
    if pairing.transposed:
        notes["transposed"] = f"{names[1]} holds these transposed: {', '.join(sorted(pairing.transposed))}"
    return notes
