"""TensorFlow.js on its CPU backend, under node, which NODE_PATH leads to the package; spoken to by tfjs.js."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from islices.conformance.formulas.judge import Step
from islices.conformance.tools.judged.entry import Entry, lacking

LIBRARY = "@tensorflow/tfjs"
#: function of tf.train -> (formula, its arguments in their order by islices' names)
FUNCTIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "sgd": ("tensorflow.GradientDescent", ("lr",)),
    "momentum": ("tensorflow.Momentum", ("lr", "momentum", "nesterov")),
    "adagrad": ("optax.adagrad", ("lr", "initial_accumulator")),
    "adadelta": ("torch.Adadelta", ("lr", "rho", "eps")),
    "adam": ("optax.adam", ("lr", "beta1", "beta2", "eps")),
    "adamax": ("keras.Adamax", ("lr", "beta1", "beta2", "eps")),
    "rmsprop": ("optax.rmsprop", ("lr", "rho", "momentum", "eps", "centered")),
}


def installed() -> str:
    """Its version; ModuleNotFoundError where node or the package is missing."""
    if shutil.which("node") is None:
        raise ModuleNotFoundError("node is not installed", name="node")
    package = Path(os.environ.get("NODE_PATH", "node_modules"), *LIBRARY.split("/"), "package.json")
    if not package.is_file():
        raise ModuleNotFoundError(f"{LIBRARY} is not installed", name=LIBRARY)
    return str(json.loads(package.read_text("utf-8"))["version"])


VERSION = installed()


@cache
def node() -> subprocess.Popen[str]:
    script = Path(__file__).with_suffix(".js")
    return subprocess.Popen(["node", str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8")


def asked(line: dict[str, Any]) -> dict[str, Any]:
    process = node()
    assert process.stdin is not None
    assert process.stdout is not None
    print(json.dumps(line), file=process.stdin, flush=True)
    found: dict[str, Any] = json.loads(process.stdout.readline())
    return found


def packed(x: Any) -> str:
    return base64.b64encode(np.ascontiguousarray(x, "<f4").tobytes()).decode()


def tfjs_step(name: str) -> Step:
    arguments = FUNCTIONS[name][1]

    def step(w: Any, g: Any, state: Any, t: int, **options: Any) -> Any:
        if missing := [x for x, value in options.items() if x not in (*arguments, "eps") and value]:
            raise NotImplementedError(f"it takes no {', '.join(missing)}")
        if "eps" not in arguments and options.get("eps", 1e-7) != 1e-7:
            raise NotImplementedError("epsilon is fixed at 1e-7")
        if t == 1:
            given = [options[x] for x in arguments]
            asked({"make": name, "args": given, "weights": packed(w), "shape": w.shape})
        found = asked({"grad": packed(g), "lr": options["lr"]})
        return np.frombuffer(base64.b64decode(found["weights"]), "<f4").reshape(w.shape)

    return step


def entries() -> Iterator[Entry]:
    for name, (formula, arguments) in FUNCTIONS.items():
        yield Entry(f"tf.train.{name}", formula, tfjs_step(name))
        if "centered" in arguments:
            yield Entry(f"tf.train.{name}", formula, lacking(tfjs_step(name), "centered"), "without centered")
