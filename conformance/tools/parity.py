"""Compare two recorded trainings on the command line: `islices parity A B`."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import islices
from islices.cli import Command, UsageError
from islices.conformance.outputs import check_picture, check_writable, print_text, write
from islices.conformance.tools.sides import as_pair, from_metadata
from islices.files import read_metadata
from islices.porting.trajectory.folder import step_files
from islices.porting.trajectory.verdict import ORDER

EPILOG = """\
Each folder holds the steps of a training, as islices.Recorder and the Recorders for torch, Keras, JAX and Gluon write
them, on this machine or another. The comparison ends at the first step that rounding does not explain, names the first
position in it that differs (batch, start, outputs, loss, gradients, clipped, step, state), and says why, as
`islices diff` does (docs/parity.md).

examples
  islices parity keras/ torch/
  islices parity keras/ torch/ --pair embedding/embeddings=emb.weight --plot curves.png --json run.json

exit codes: 0 within what rounding explains, 1 beyond it, 2 usage
"""

#: Options that the files' metadata may give.
FROM_METADATA = {"max_norm": float, "padding_idx": int, "batch_size": int, "tokens": int}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    add = parser.add_argument
    add("folders", nargs=2, metavar="FOLDER", help="the two recordings to compare")
    add("--batch-size", type=_count, metavar="N", help="(default: what the recordings' metadata say)")
    add("--max-norm", type=_positive, metavar="X", help="(default: what the recordings' metadata say)")
    add(
        "--json", metavar="FILE", nargs="?", const="-", help="write everything to FILE (stdout, which then has no text)"
    )
    add("--plot", metavar="FILE.png", help="draw losses and gaps (needs matplotlib)")
    add(
        "--pair", action="append", default=[], metavar="A=B", help="the tensor called A in one folder is B in the other"
    )
    add("--ignore", action="append", default=[], choices=ORDER, help="do not judge this position (may be repeated)")
    add("--padding-idx", type=int, metavar="P", help="the padding row; negative counts from the end")
    add("--tokens", type=int, metavar="N", help="tokens in the batch, padding included")


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"got {text}; accepted is a number of at least 1")
    return int(text)


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not number > 0:
        raise argparse.ArgumentTypeError(f"got {text}; accepted is a number above 0")
    return number


def compare(options: argparse.Namespace) -> int:
    """Read, compare and show the recordings. Return 0 if rounding explains all differences, else 1."""
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
            *options.folders, names=_names(*options.folders), pair=pair,
            ignore=options.ignore, **known,
        )  # fmt: skip
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from None
    except OSError as error:
        raise UsageError(f"{error.filename}: {error.strerror}" if error.strerror else str(error)) from None
    if options.json:
        statement = {"folders": options.folders, "options": known, **found.to_json()}
        write("--json", options.json, json.dumps(statement, indent=1) + "\n")
    if options.json != "-":
        print_text(str(found))
    if options.plot:
        found.plot(options.plot)
    return 0 if found.equal else 1


def _names(a: str, b: str) -> tuple[str, str]:
    """Return the names of the folders in the report, which are the last parts of their paths if these differ."""
    short = Path(a).resolve().name, Path(b).resolve().name
    return short if short[0] != short[1] else (a, b)


def _metadata(folder: str) -> dict[str, str]:
    """Return the metadata of the folder's first file."""
    files = step_files(folder) if Path(folder).is_dir() else []
    return read_metadata(files[0][1]) if files else {}


COMMAND = Command("compare two recorded trainings step by step; report the first difference", arguments, compare)
