"""`islices parity A B`: two recordings compared, by `islices.parity`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import islices
from islices.cli import UsageError
from islices.conformance.outputs import check_picture, check_writable, print_text, write
from islices.conformance.tools.sides import as_pair, from_metadata
from islices.io import read_metadata
from islices.trajectory.folder import step_files
from islices.trajectory.verdict import ORDER, Verdict

__all__ = ["arguments", "check_unused", "compare"]

#: What the files' own metadata may say in place of an option.
FROM_METADATA = {"max_norm": float, "padding_idx": int, "batch_size": int, "tokens": int}
#: Options of recordings alone -> what they are where nobody gave them.
OWN: dict[str, Any] = {"pair": [], "only": None, "ignore": [], "padding_idx": None, "tokens": None}
#: Options of the models alone -> the same.
OF_MODELS: dict[str, Any] = {
    "text": None, "model": "skipgram", "optimizer": "adam", "semantics": "islices", "upstream": "own", "backend": None,
    "own": False, "seed": 0, "dim": 16, "lr": None,
}  # fmt: skip


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--pair", action="append", default=[], metavar="A=B", help="the tensor called A in one folder is B in the other"
    )
    add("--only", metavar="NAME", help="compare this tensor of A alone")
    add("--ignore", action="append", default=[], choices=ORDER, help="do not judge this position (may be repeated)")
    add("--padding-idx", type=int, metavar="P", help="the padding row; negative counts from the end")
    add("--tokens", type=int, metavar="N", help="tokens in the batch, padding included")


def check_unused(options: argparse.Namespace) -> None:
    """UsageError for options that only recordings have."""
    _refuse(options, OWN, "without two folders")


def _refuse(options: argparse.Namespace, defaults: dict[str, Any], where: str) -> None:
    for name, default in defaults.items():
        if getattr(options, name) != default:
            raise UsageError(f"--{name.replace('_', '-')}: not {where}")


def compare(options: argparse.Namespace) -> int:
    """Read, compare, show; 0 where rounding explains everything, else 1."""
    _refuse(options, OF_MODELS, "with two folders")
    if len(options.folders) != 2:
        raise UsageError(f"got {len(options.folders)} folder; accepted are two, or none")
    if options.plot:
        check_picture("--plot", options.plot)
    if options.json:
        check_writable("--json", options.json)
    known = {name: getattr(options, name) for name in FROM_METADATA}
    try:
        stated = [(folder, _metadata(folder)) for folder in options.folders]
        known |= from_metadata(stated, FROM_METADATA, known, "folder")
        pair = dict(as_pair(text, "folder") for text in options.pair)
        found = islices.parity(
            *options.folders, names=_names(*options.folders), pair=pair, only=options.only,
            ignore=options.ignore, steps=options.steps, tell=_progress(options.json == "-"), **known,
        )  # fmt: skip
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from None
    except OSError as error:
        raise UsageError(f"{error.filename}: {error.strerror}" if error.strerror else str(error)) from None
    if options.json:
        said = {"folders": options.folders, "options": known, **found.to_json()}
        write("--json", options.json, json.dumps(said, indent=1) + "\n")
    if options.json != "-":
        print_text(str(found))
    if options.plot:
        found.plot(options.plot)
    return 0 if found.equal else 1


def _progress(silent: bool) -> Any:
    """On a terminal, the step that was compared last."""
    if silent or not sys.stderr.isatty():
        return None

    def tell(verdict: Verdict) -> None:
        end = "\r" if verdict.stop is None else "\n"
        print(f"step {verdict.step}", end=end, file=sys.stderr, flush=True)

    return tell


def _names(a: str, b: str) -> tuple[str, str]:
    """What the report calls the folders: their names, as far as they differ."""
    short = Path(a).resolve().name, Path(b).resolve().name
    return short if short[0] != short[1] else (a, b)


def _metadata(folder: str) -> dict[str, str]:
    """That of the folder's first file."""
    files = step_files(folder) if Path(folder).is_dir() else []
    return read_metadata(files[0][1]) if files else {}
