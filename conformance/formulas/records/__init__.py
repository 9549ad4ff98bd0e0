"""Collect the formulas of all frameworks from the modules of this folder.

The formulas of optimizers were chosen by use: the optimizers that each framework's documentation shows first, then the
optimizers of recommender and language models. The formulas do not cover, for example, LAMB, LARS, Adafactor,
Muon, Rprop, LBFGS, ASGD and schedule-free optimizers. They also exclude 8-bit states, 16-bit states and 16-bit weights,
which would need other bounds.

May import: this folder, `islices.conformance.formulas.formula`.
"""

from __future__ import annotations

from islices.conformance.formulas.formula import Formula
from islices.conformance.formulas.records.clips import CLIPS
from islices.conformance.formulas.records.keras import KERAS
from islices.conformance.formulas.records.lookups import LOOKUPS
from islices.conformance.formulas.records.mxnet import MXNET
from islices.conformance.formulas.records.optax import OPTAX
from islices.conformance.formulas.records.others import BITSANDBYTES, DEEPSPEED, FBGEMM, SPARSECORE
from islices.conformance.formulas.records.tensorflow import TENSORFLOW
from islices.conformance.formulas.records.torch import TORCH

__all__ = ["FORMULAS"]

TABLES = (TORCH, KERAS, TENSORFLOW, MXNET, OPTAX, FBGEMM, BITSANDBYTES, DEEPSPEED, SPARSECORE, CLIPS, LOOKUPS)
#: name -> formula
FORMULAS: dict[str, Formula] = {formula.name: formula for table in TABLES for formula in table}
