"""Define `islices parity A B`, which compares two recorded trainings."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import islices
from islices.cli import Command, UsageError
from islices.conformance.outputs import check_picture, check_writable, print_text, write
from islices.conformance.tools.sides import facts, pairs, shared_arguments, short_names
from islices.files import read_metadata
from islices.porting.trajectory.folder import step_files
from islices.porting.trajectory.verdict import ORDER

EPILOG = """\
Each folder holds the steps of a training, written by islices.Recorder or the recorders for torch, Keras and
JAX. parity stops at the first step that rounding does not explain. It names the first position that differs in this
step (batch, start, between, outputs, loss, gradients, clipped, step, state) and the cause (docs/parity.md).

examples
  islices parity keras/ torch/
  islices parity keras/ torch/ --pair embedding/embeddings=emb.weight --plot curves.png --json run.json

Options that you leave out come from the metadata of the recordings.

exit codes: 0 rounding explains all differences, 1 it does not, 2 usage error
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    add = parser.add_argument
    add("folders", nargs=2, metavar="FOLDER", help="the two recordings to compare")
    shared_arguments(parser)
    add(
        "--json", metavar="FILE", nargs="?", const="-", help="write everything to FILE (stdout, which then has no text)"
    )
    add("--plot", metavar="FILE.png", help="draw losses and gaps (needs matplotlib)")
    add(
        "--ignore",
        action="append",
        default=[],
        choices=ORDER,
        metavar="POSITION",
        help="do not judge this position (may be repeated)",
    )


def compare(options: argparse.Namespace) -> int:
    """Compare two recordings and show the result. Return 0 if rounding explains all differences at the judged
    positions, else 1."""
    if options.plot:
        check_picture("--plot", options.plot)
    if options.json:
        check_writable("--json", options.json)
    try:
        given, taken = facts(options, [(folder, _metadata(folder)) for folder in options.folders])
        known = given | taken
        names = short_names(*options.folders)
        found = islices.parity(*options.folders, names=names, pair=pairs(options), ignore=options.ignore, **known)
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from None
    except OSError as error:
        raise UsageError(f"{error.filename}: {error.strerror}" if error.strerror else str(error)) from None
    if options.json:
        whole = {"folders": options.folders, "options": known, **found.to_json()}
        write("--json", options.json, json.dumps(whole, indent=1) + "\n")
    if options.json != "-":
        print_text(str(found))
    if options.plot:
        found.plot(options.plot)
    return 0 if found.equal else 1


def _metadata(folder: str) -> dict[str, str]:
    """Return the metadata of the first step file in a folder, or {} if there is no such file."""
    files = step_files(folder) if Path(folder).is_dir() else []
    return read_metadata(files[0][1]) if files else {}


COMMAND = Command("compare two recorded trainings step by step; report the first difference", arguments, compare)
