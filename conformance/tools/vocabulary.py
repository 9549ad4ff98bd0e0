"""`islices vocabulary`: the tables of a file, and their optimizer's state, with other rows."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from islices.cli import Command, UsageError
from islices.vocabulary import RowMap, normal, renumber_file, uniform

__all__ = ["COMMAND"]

RANDOM = {"normal": normal, "uniform": uniform}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "examples:\n"
        "  islices vocabulary old.npz new.npz --rows 50000 --fill mean      more rows behind the last\n"
        "  islices vocabulary old.npz new.safetensors --map old_ids.json    rows renumbered, dropped, added\n"
        "  islices vocabulary old.npz new.npz --old-tokens old.txt --new-tokens new.txt --fill normal:0.02 --seed 1\n"
        "  islices vocabulary model.safetensors new.safetensors --map map.json --table embedding.weight --no-states\n"
        "  islices vocabulary step.npz new.npz --rows 50000 --state 'adam.*' --state-fill 0\n\n"
        "--map: a .npy of integers, or JSON: for each new row the old one ([4, null, 0]; null or -1: it is new), or\n"
        '{"old row": new row}. Tokens: one a line, or JSON: a list, or {"token": row}. Files: what islices.save and\n'
        "save_sharded (a folder) write, and others' .safetensors and .npz. Rows are read and written by pieces.\n"
        "exit codes: 0 written, 2 usage, or a file that cannot be read or written; then nothing has changed"
    )
    parser.add_argument("source", metavar="OLD", help="the file, or the folder of a sharded table")
    parser.add_argument("target", metavar="NEW", help="the file to write; it may be OLD")
    parser.add_argument("--map", metavar="FILE", help="which old row each new row takes")
    parser.add_argument("--rows", type=int, metavar="N", help="how many rows the new table has")
    parser.add_argument("--old-tokens", metavar="FILE", help="the old vocabulary, in the order of rows")
    parser.add_argument("--new-tokens", metavar="FILE", help="the new vocabulary")
    parser.add_argument(
        "--table", action="append", metavar="NAME", help="a table, by its name in the file ('*.weight')"
    )
    parser.add_argument("--state", action="append", metavar="NAME", help="an array of its optimizer's state ('adam.*')")
    parser.add_argument("--no-states", action="store_true", help="nothing beside the table belongs to it")
    parser.add_argument(
        "--fill", default="0", metavar="X", help="what new rows hold: a number, mean, normal:STDDEV or uniform:LIMIT"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="of normal and uniform")
    parser.add_argument(
        "--state-fill",
        action="append",
        metavar="X",
        help="what their state holds: a number, or NAME=number for one array",
    )
    parser.add_argument("--chunk", type=float, default=16.0, metavar="MIB", help="how much is in memory at a time (16)")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout instead of a line")


def change(options: argparse.Namespace) -> int:
    """Read, renumber, write."""
    if options.state and options.no_states:
        raise UsageError("--state and --no-states contradict each other")
    if not 0 < options.chunk < 2**40:
        raise UsageError(f"--chunk: got {options.chunk:g}; accepted are MiB > 0")
    mapping, rows = _mapping(options)
    try:
        found = renumber_file(
            options.source, options.target, mapping, rows=rows, tables=options.table,
            states=[] if options.no_states else options.state, fill=_fill(options), state_fill=_state_fill(options),
            foreign=True, chunk=max(1, int(options.chunk * 2**20)),
        )  # fmt: skip
    except OSError as error:
        raise UsageError(f"{error.filename or options.source}: {error.strerror or error}") from None
    except (TypeError, ValueError, IndexError, ModuleNotFoundError) as error:
        raise UsageError(str(error)) from None
    kept = found.rows - found.count_added
    counts = {"rows": found.rows, "old_rows": found.old_rows, "new": found.count_added}
    counts["dropped"] = None if found.old_rows is None else found.old_rows - kept
    if options.json:
        print(json.dumps({"files": [options.source, options.target], **counts}))
    else:
        print(
            f"{options.target}: {found.rows:,} rows of {found.old_rows:,}: {kept:,} kept, {counts['dropped']:,} "
            f"dropped, {found.count_added:,} new"
        )
    return 0


COMMAND = Command("renumber, drop and add rows of a saved table and of its optimizer's state", arguments, change)


# ---------------------------------------------------------------------- the mapping
def _mapping(options: argparse.Namespace) -> tuple[Any, int | None]:
    """(mapping, rows) as `renumber_file` takes them."""
    tokens = (options.old_tokens, options.new_tokens)
    if (None in tokens) != (tokens == (None, None)):
        raise UsageError("--old-tokens and --new-tokens go together")
    if sum((options.map is not None, options.old_tokens is not None)) > 1:
        raise UsageError("got --map and tokens; accepted is one of them")
    try:
        if options.old_tokens is not None:
            return _with_rows(RowMap.from_tokens(*map(_tokens, tokens)), options.rows), None
        if options.map is not None:
            return _with_rows(_read_map(options.map, options.rows), options.rows), None
    except (TypeError, ValueError, IndexError) as error:
        raise UsageError(f"{options.map or ' and '.join(tokens)}: {error}") from None
    if options.rows is None:
        raise UsageError("got no mapping; accepted is one of --map, --old-tokens with --new-tokens, --rows")
    return None, options.rows


def _with_rows(found: RowMap, rows: int | None) -> RowMap:
    if rows not in (None, found.rows):
        raise ValueError(f"--rows: got {rows} for a mapping of {found.rows} rows; accepted is their number")
    return found


def _read_map(path: str, rows: int | None) -> RowMap:
    if path.endswith(".npy"):
        try:
            return RowMap(np.load(path, allow_pickle=False))
        except OSError as error:
            raise ValueError(error.strerror or str(error)) from None
    found = json.loads(_text(path))
    if isinstance(found, Mapping):
        try:
            return RowMap.from_dict({int(old): new for old, new in found.items()}, rows=rows)
        except ValueError as error:
            raise ValueError(str(error)) from None
    if isinstance(found, list):
        return RowMap([-1 if row is None else row for row in found])
    raise ValueError(f"got JSON of a {type(found).__name__}; accepted is a list or an object")


def _tokens(path: str) -> Any:
    text = _text(path)
    if text.lstrip()[:1] in ("[", "{") and path.endswith(".json"):
        return json.loads(text)
    return text.removesuffix("\n").split("\n") if text else []


def _text(path: str) -> str:
    try:
        return Path(path).read_text("utf-8")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None


# ---------------------------------------------------------------------- fills
def _fill(options: argparse.Namespace) -> Any:
    name, colon, scale = options.fill.partition(":")
    if options.fill == "mean":
        return "mean"
    if name not in RANDOM:
        return _number("--fill", options.fill, "mean, normal:STDDEV, uniform:LIMIT")
    if not colon or options.seed is None:
        raise UsageError(f"--fill: got {options.fill!r:.60}; accepted is {name}:NUMBER, with --seed")
    try:
        return RANDOM[name](_number("--fill", scale, f"{name}:NUMBER"), seed=options.seed)
    except ValueError as error:
        raise UsageError(f"--fill: {error}") from None


def _state_fill(options: argparse.Namespace) -> Any:
    given = options.state_fill or []
    named = {}
    for text in given:
        name, equals, value = text.partition("=")
        if equals:
            named[name] = _number("--state-fill", value, "NAME=number")
        elif len(given) > 1:
            raise UsageError(f"--state-fill: got {text!r:.60} beside others; accepted is NAME=number for each array")
        else:
            return _number("--state-fill", text, "NAME=number")
    return named or None


def _number(option: str, text: str, others: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{option}: got {text!r:.60}; accepted is a number, or {others}") from None
