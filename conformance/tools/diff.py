"""Define `islices diff`, which compares two saved gradients or tables and reports why they differ."""

from __future__ import annotations

import argparse
import json
from typing import Any

from islices.cli import Command, UsageError
from islices.conformance.outputs import check_picture, print_text
from islices.conformance.tools.sides import facts, pairs, shared_arguments, short_names
from islices.files import load, read_metadata
from islices.porting.compare.causes import CAUSES
from islices.porting.compare.difference import Difference, diff

TREES = ("a", "b", "before", "tables")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "examples:\n"
        "  islices diff torch.safetensors keras.safetensors\n"
        "  islices diff a.safetensors b.safetensors --before unclipped.safetensors --max-norm 1.0\n"
        "  islices diff a.safetensors b.safetensors --pair weight=embeddings\n"
        "  islices diff a.safetensors b.safetensors --json | python -m json.tool\n\n"
        "Files are .safetensors, written by islices.save or by other programs, whose tensors are dense. Options that "
        "you leave out come from the metadata of the files: islices.save(..., metadata={'padding_idx': '0'}).\n\n"
        f"diff tries these causes, alone and in pairs (docs/diff.md explains each): {', '.join(CAUSES)}. It does not "
        "report causes that too few elements show.\n\n"
        "exit codes: 0 equal, 1 different, 2 usage error, or a file that cannot be read"
    )
    add = parser.add_argument
    add("a", metavar="A", help="a file of gradients or tables")
    add("b", metavar="B", help="the file to compare it with")
    add("--before", metavar="F", help="the gradients before clipping")
    shared_arguments(parser)
    add("--tables", metavar="F", help="the tables, to find a missing regularizer")
    add("-v", "--verbose", action="store_true", help="every tensor, with the rows that differ")
    add("--json", action="store_true", help="one JSON object on stdout instead of the report")
    add("--plot", metavar="FILE.png", help="draw the rows that differ (needs matplotlib)")


def compare(options: argparse.Namespace) -> int:
    """Read two files, compare them, and show the difference. Return 0 if both files have the same tensors with the same
    bits, else 1."""
    if options.plot is not None:
        check_picture("--plot", options.plot)
    trees = {name: _load(getattr(options, name)) for name in TREES if getattr(options, name)}
    given, taken = facts(options, [(path, read_metadata(path, foreign=True)) for path in (options.a, options.b)])
    try:
        found = diff(
            trees["a"], trees["b"], names=short_names(options.a, options.b), before=trees.get("before"),
            tables=trees.get("tables"), pair=pairs(options), **(given | taken),
        )  # fmt: skip
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from None
    if not found.tensors and not found.only_a and not found.only_b:
        raise UsageError(f"{options.a} and {options.b} hold no tensors")
    if options.json:
        print(json.dumps({"files": [options.a, options.b], "from_metadata": taken, **found.to_json()}))
    else:
        _print(found, taken, options.verbose)
    if options.plot is not None:
        found.plot(options.plot)
    return 0 if found.equal else 1


COMMAND = Command("compare two saved gradients or tables and say why they differ", arguments, compare)


def _print(found: Difference, taken: dict[str, Any], verbose: bool) -> None:
    if taken:
        print("from the files' metadata: " + ", ".join(f"{name} {value}" for name, value in taken.items()))
    print_text(found.report(verbose=verbose))


# ---------------------------------------------------------------------- files
def _load(path: str) -> Any:
    try:
        return load(path, foreign=True)
    except (OSError, ValueError, TypeError, ModuleNotFoundError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError(reason if path in reason else f"{path}: {reason}") from None
