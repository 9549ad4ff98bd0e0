"""Optimizers as other frameworks compute them: one module a framework, all in the form of `islices.optim.formulas`.

No framework is imported here: a preset is arithmetic. tests/islices/optim/presets/ holds each against the framework
itself. SPEC clauses 11 and 16.
"""

from __future__ import annotations

from collections.abc import Mapping

from islices.optim.formulas import FORMULAS, Preset
from islices.optim.presets import fbgemm, keras, mxnet, optax, tensorflow, torch

__all__ = ["PRESETS"]

_BY_SEMANTICS: Mapping[str, Mapping[str, Preset]] = {
    "islices": FORMULAS,
    "torch": torch.PRESETS,
    "keras": keras.PRESETS,
    "tensorflow": tensorflow.PRESETS,
    "mxnet": mxnet.PRESETS,
    "optax": optax.PRESETS,
    "fbgemm": fbgemm.PRESETS,
}

#: optimizer -> semantics -> its preset
PRESETS: Mapping[str, Mapping[str, Preset]] = {
    name: {semantics: presets[name] for semantics, presets in _BY_SEMANTICS.items() if name in presets}
    for name in FORMULAS
}
