"""`islices parity`: two recordings compared, or a model trained on every backend in step; what is asked for, and where
the results go."""

from __future__ import annotations

import argparse
import datetime
import importlib
import importlib.util
import json
import math
import time
import traceback
from typing import Any

from islices.cli import Command, UsageError, stderr_aside
from islices.conformance.outputs import check_backends, check_picture, check_writable, need_rich, write
from islices.conformance.progress import bar
from islices.conformance.tools.parity import recorded, report
from islices.conformance.tools.parity.models import MODELS
from islices.conformance.tools.parity.plot import draw
from islices.conformance.tools.parity.run import train
from islices.conformance.tools.parity.text import default_text, read_text, text_of
from islices.conformance.tools.parity.training import OPTIMIZERS, SEMANTICS, Recipe, Training, has_losses
from islices.conformance.tools.parity.why import explain
from islices.deprecation import warn_renamed
from islices.registry import BUILTIN, list_backends

__all__ = ["COMMAND"]

EPILOG = """\
two folders
  Each holds the steps of a training, as islices.Recorder and its fronts for torch, Keras, JAX and Gluon write them, on
  this machine or another. It ends at the first step that rounding does not explain, bisected: batch, start, outputs,
  loss, gradients, clipped, step, state; and says why, as `islices diff` does (docs/parity.md).

no folders: one of these models, on every installed backend
  skipgram     words beside words: two tables, negative sampling, padding at the ends of lines
  translation  a line into the next one: the mean of source rows, a dense matrix, a sampled softmax over target rows
All backends begin with the same tables and get the same batches and negatives; one global norm clips.

upstream
  own      each backend has its own autodiff, through the loss in its framework's own functions. Gaps come from
           rounding; the bound of each step follows from the loss and the optimizer (docs/parity.md, SPEC clause 23).
  shared   all get the same upstream gradients, worked out by hand in NumPy, which takes part. All bits must stay the
           same.
It ends at the first step whose gap is above the bound (shared: not zero), and says why, as `islices diff` does.

columns
  gap         largest difference of an element from the first backend's, over all steps, and the step
  of bound    the largest quotient of an element's difference and what is allowed for it, over all steps
  units       in eps * (|start| + sum of |steps|) of the element, eps 2^-23
  same bits   the first steps with exactly the first backend's parameters and state

examples
  islices parity keras/ torch/                             two recordings of a model of one's own
  islices parity keras/ torch/ --pair embedding/embeddings=emb.weight --plot curves.png --json run.json
  islices parity                                           four backends, 200 steps of adam
  islices parity --upstream shared --model translation     five backends, the same bits
  islices parity --text book.txt --optimizer adagrad --plot curves.png --json run.json
  islices parity --own -b torch -b tensorflow              beside it what the frameworks' own functions make of it
  islices parity --semantics keras                         the arithmetic of Keras everywhere

exit codes: 0 within what rounding explains, 1 beyond it, 2 usage, 3 a backend or the harness broke
"""


#: Of the models, where nobody gave them.
DEFAULTS = {"steps": 200, "batch_size": 64, "max_norm": 0.15}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    add = parser.add_argument
    add("folders", nargs="*", metavar="FOLDER", help="two recordings to compare; none: the models below are trained")
    recorded.arguments(parser)
    add("--text", metavar="FILE", help="a UTF-8 text to train on (default: the help on topics that CPython carries)")
    add("--model", choices=tuple(MODELS), default="skipgram", help="(default: %(default)s)")
    add("--optimizer", choices=OPTIMIZERS, default="adam", help="(default: %(default)s)")
    add("--semantics", choices=SEMANTICS, default="islices",
        help="whose formulas clip and step (default: %(default)s)")  # fmt: skip
    add("--upstream", choices=("own", "shared"), default="own", help="whose gradients (default: %(default)s)")
    add("-b", "--backend", action="append", metavar="NAME", help="only this backend (may be repeated)")
    add("--own", action="store_true", help="beside it, training by each framework's own functions, without islices")
    add("--native", dest="own", action="store_const", const="--native", help=argparse.SUPPRESS)
    add("--steps", type=_count, metavar="N", help="(default: 200; of recordings all)")
    add("--seed", type=_seed, default=0, metavar="N", help="of start, batches and negatives (default: %(default)s)")
    add("--batch-size", type=_count, metavar="N", help="(default: 64; of recordings what their metadata say)")
    add("--dim", type=_count, default=16, metavar="N", help="elements of a row (default: %(default)s)")
    add("--lr", type=_positive, metavar="X", help="learning rate (default: one that suits model and optimizer)")
    add("--max-norm", type=_positive, metavar="X",
        help="inf does not clip (default: 0.15; of recordings what their metadata say)")  # fmt: skip
    add(
        "--json", metavar="FILE", nargs="?", const="-", help="write everything to FILE (stdout, which then has no text)"
    )
    add("--plot", metavar="FILE.png", help="draw losses and gaps (needs matplotlib)")


def _count(text: str) -> int:
    number = _seed(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"got {text}; accepted is a number of at least 1")
    return number


def _seed(text: str) -> int:
    try:
        number = int(text.replace(",", ""))
    except ValueError:
        number = -1
    if number < 0:
        raise argparse.ArgumentTypeError(f"got {text}; accepted is a whole number of at least 0")
    return number


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not number > 0:
        raise argparse.ArgumentTypeError(f"got {text}; accepted is a number above 0")
    return number


def parity(options: argparse.Namespace) -> int:
    """Compare two recordings; or train, show, and say why where it ended early."""
    if options.folders:
        return recorded.compare(options)
    recorded.check_unused(options)
    for name, number in DEFAULTS.items():
        if getattr(options, name) is None:
            setattr(options, name, number)
    need_rich()
    _check(options)
    names = _backends(options)
    started = time.monotonic()
    made = _prepared(options)
    try:
        result, versions = _train(options, names, *made)
    except UsageError:
        raise
    except Exception:  # whatever a framework says: it is no verdict on parity
        traceback.print_exc()
        return 3
    recipe, text = made
    run = report.as_json(result, {**_of_models(options), "lr": recipe.lr}, text, versions)
    run |= {"date": datetime.date.today().isoformat(), "seconds": round(time.monotonic() - started, 1)}
    difference = None
    if result.stop:
        difference = explain(result.stop, recipe)
        run["stop"] |= {"difference": difference.to_json()}
    if options.json:
        write("--json", options.json, json.dumps(run, indent=1) + "\n")
    if options.json != "-":
        report.show(run, difference)
    if options.plot:
        draw(run, options.plot)
    return 1 if result.stop else 0


def _of_models(options: argparse.Namespace) -> dict[str, Any]:
    return {name: x for name, x in vars(options).items() if name not in (*recorded.OWN, "folders")}


COMMAND = Command(
    "compare two trainings step by step, recorded ones or a model on every backend; say where they part",
    arguments,
    parity,
)


# ---------------------------------------------------------------------- what is asked for
def _check(options: argparse.Namespace) -> None:
    """What is wrong with the call is said before a minute of work, not after."""
    if options.own == "--native":
        warn_renamed("--native", "--own")
    if options.own and options.upstream == "shared":
        raise UsageError("--own: not with --upstream shared: the frameworks' own functions take no recorded gradients")
    if options.lr == math.inf:
        raise UsageError("--lr: got inf; accepted is a finite number above 0")
    if options.plot:
        check_picture("--plot", options.plot)
    if options.json:
        check_writable("--json", options.json)


def _backends(options: argparse.Namespace) -> list[str]:
    installed = list_backends()
    able = installed if options.upstream == "shared" else [name for name in installed if has_losses(name)]
    check_backends(options.backend, installed)
    for name in options.backend or ():
        if name not in able:
            raise UsageError(
                f"--backend: {name} has no autodiff of its own that parity knows; it takes part with --upstream shared"
            )
    chosen = list(dict.fromkeys(options.backend or able))
    if len(chosen) < 2 and not (chosen and options.own):
        lines = ", ".join(line for name, line in BUILTIN.items() if name not in installed and name != "numpy")
        hint = f"; more with {lines}" if lines else ""
        raise UsageError(
            f"at least two backends are compared, got {', '.join(chosen) or 'none that can train these models'}{hint}"
        )
    return chosen


# ---------------------------------------------------------------------- what is done
def _prepared(options: argparse.Namespace) -> tuple[Any, Any]:
    """(recipe, text)."""
    given = options.text is not None
    text = text_of(options.text if given else "pydoc_data.topics", read_text(options.text) if given else default_text())
    model = MODELS[options.model](text, options.batch_size, options.dim, options.seed)
    model.batches()  # a text too small for a batch is said now
    lr = options.lr or model.rates[options.optimizer]
    return Recipe(model, options.optimizer, lr, options.max_norm, options.semantics), text


def _train(options: argparse.Namespace, names: list[str], recipe: Any, text: Any) -> tuple[Any, dict[str, str]]:
    start = recipe.model.start()
    with bar("loading the frameworks", options.steps) as step:
        with stderr_aside():  # what the frameworks say while they load
            trainings = [Training(name, recipe, start) for name in names]
            own = {name: _own_training(name, recipe, start) for name in names} if options.own else {}
        step.tell("the first step: compiling")
        result = train(
            recipe, start, recipe.model.batches(), options.steps, trainings,
            shared=options.upstream == "shared", own=own, tell=lambda: step("training in step"),
        )  # fmt: skip
    return result, {t.name: t.B.version() for t in trainings}


def _own_training(name: str, recipe: Any, start: Any) -> Any:
    module = importlib.import_module(f"islices.conformance.tools.parity.{name}")
    return module.OwnTraining(recipe.model, start, recipe.optimizer, recipe.lr, recipe.max_norm)
