"""Define the arguments that `islices diff` and `islices parity` share: facts about the compared trainings, and pairs of
names. The metadata of the compared files may also contain these facts.

May import: `islices.cli`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from islices.cli import UsageError

#: The facts that `islices.diff` and `islices.parity` accept as arguments.
FACTS = {"max_norm": float, "padding_idx": int, "batch_size": int, "tokens": int}


def shared_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--max-norm", type=float, metavar="X", help="the limit of clipping")
    add("--padding-idx", type=int, metavar="P", help="the padding row; negative counts from the end")
    add("--batch-size", type=int, metavar="N", help="samples in the batch")
    add("--tokens", type=int, metavar="N", help="tokens in the batch, padding included")
    add(
        "--pair", action="append", default=[], metavar="A=B", help="the names of one tensor in the first and the second"
    )


def pairs(options: argparse.Namespace) -> dict[str, str]:
    """Return {A: B} from all options ``--pair A=B``. Raise UsageError if an option has another form."""
    split = [text.partition("=") for text in options.pair]
    wrong = next(("".join(parts) for parts in split if not all(parts)), None)
    if wrong is not None:
        raise UsageError(f"--pair: got {wrong!r:.60}; accepted is A=B, a tensor's name on each side")
    return {a: b for a, _, b in split}


def short_names(a: str, b: str) -> tuple[str, str]:
    """Return short names of two paths for a report. The short names are the stems, or the file names if the stems are
    equal. If the file names are equal too, return the given paths."""
    paths = Path(a).resolve(), Path(b).resolve()
    for one, other in ((p.stem for p in paths), (p.name for p in paths)):
        if one != other:
            return one, other
    return a, b


def facts(
    options: argparse.Namespace, sides: Iterable[tuple[str, Mapping[str, str]]]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return ({fact: value of the option, or None}, {fact: value in the metadata}). The second dict has only facts
    whose option is None.

    `sides` yields (path, metadata). For these facts, raise UsageError if a metadata value does not have the type in
    `FACTS`, or if the sides have different values.
    """
    given = {name: getattr(options, name) for name in FACTS}
    found: dict[str, set[Any]] = {}
    for path, metadata in sides:
        for name, kind in FACTS.items():
            if given[name] is None and name in metadata:
                try:
                    found.setdefault(name, set()).add(kind(metadata[name]))
                except ValueError:
                    raise UsageError(f"{path}: metadata {name} is {metadata[name]!r:.60}, no number") from None
    for name, values in found.items():
        if len(values) > 1:
            option = name.replace("_", "-")
            raise UsageError(f"the sides' metadata disagree on {name}: {sorted(values)}; give --{option}")
    return given, {name: values.pop() for name, values in found.items()}
