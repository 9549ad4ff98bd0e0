"""DeepSpeed's optimizers for offloaded states: C++ that is built for this CPU when it is first used."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from deepspeed.ops.adagrad import DeepSpeedCPUAdagrad
from deepspeed.ops.adam import DeepSpeedCPUAdam
from deepspeed.ops.lion import DeepSpeedCPULion

from islices.conformance.tools.judged.entry import Entry
from islices.conformance.tools.judged.libraries.torch import stepping

LIBRARY = "deepspeed"
MOMENTS = {"m": "exp_avg", "v": "exp_avg_sq"}


def entries() -> Iterator[Entry]:
    adam: Any = partial(DeepSpeedCPUAdam, adamw_mode=False)
    yield Entry("DeepSpeedCPUAdam(adamw_mode=False)", "deepspeed.CPUAdam", stepping(adam, MOMENTS, {}))
    yield Entry("DeepSpeedCPUAdam(adamw_mode=True)", "deepspeed.CPUAdamW", stepping(DeepSpeedCPUAdam, MOMENTS, {}))
    adagrad = stepping(DeepSpeedCPUAdagrad, {"accumulator": "exp_avg_sq"}, {})
    yield Entry("DeepSpeedCPUAdagrad", "deepspeed.CPUAdagrad", adagrad)
    yield Entry("DeepSpeedCPULion", "keras.Lion", stepping(DeepSpeedCPULion, {"m": "exp_avg"}, {}))
