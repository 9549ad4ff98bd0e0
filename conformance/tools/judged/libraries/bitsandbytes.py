"""The optimizers of bitsandbytes with 32-bit states, on the CPU. Adam and Adam32bit are compared with torch.Adam."""

from __future__ import annotations

from collections.abc import Iterator

import bitsandbytes as bnb

from islices.conformance.formulas.judge import Step
from islices.conformance.tools.judged.entry import Judged, lacking
from islices.conformance.tools.judged.libraries.torch import stepping

LIBRARY = "bitsandbytes"
MOMENTS = {"m": "state1", "v": "state2"}
#: class -> (formula, {state of the formula: name in the library}, {option of the formula: name in the library})
CLASSES: dict[str, tuple[str, dict[str, str], dict[str, str]]] = {
    "AdamW32bit": ("bitsandbytes.AdamW", MOMENTS, {}),
    "AdamW": ("bitsandbytes.AdamW", MOMENTS, {}),
    "Adam32bit": ("torch.Adam", MOMENTS, {}),
    "Adam": ("torch.Adam", MOMENTS, {}),
    "SGD32bit": ("bitsandbytes.SGD", {"momentum": "state1"}, {}),
    "RMSprop32bit": ("bitsandbytes.RMSprop", {"square": "state1"}, {"rho": "alpha"}),
    "Adagrad32bit": ("bitsandbytes.Adagrad", {"accumulator": "state1"}, {}),
    "Lion32bit": ("bitsandbytes.Lion", {"m": "state1"}, {}),
}


def bitsandbytes_step(name: str) -> Step:
    _, states, names = CLASSES[name]
    return stepping(getattr(bnb.optim, name), states, names)


def entries() -> Iterator[Judged]:
    for name, (formula, _, _) in CLASSES.items():
        yield Judged(f"bnb.optim.{name}", formula, bitsandbytes_step(name))
        if formula == "torch.Adam":
            step = bitsandbytes_step(name)
            yield Judged(f"bnb.optim.{name}", formula, lacking(step, "amsgrad"), "without amsgrad")
            yield Judged(f"bnb.optim.{name}", formula, lacking(step, "amsgrad", "weight_decay"), "nor weight_decay")
