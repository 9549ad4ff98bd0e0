"""Written by tests/docs/test_optimizers.py from the records of the optimizers."""

from typing import Any, TypeAlias, Unpack

import torch
from torch.optim import Optimizer as Optimizer
from torch.optim import lr_scheduler as lr_scheduler
from torch.optim import swa_utils as swa_utils

from islices.backends.torch.optim.base import Options, RowOptimizer

Number: TypeAlias = float | torch.Tensor

class Adagrad(RowOptimizer):
    def __init__(
        self,
        params: Any,
        lr: Number | None = None,
        lr_decay: Number | None = None,
        weight_decay: Number | None = None,
        initial_accumulator_value: Number | None = None,
        eps: Number | None = None,
        **options: Unpack[Options],
    ) -> None: ...

class RowwiseAdagrad(RowOptimizer):
    def __init__(
        self,
        params: Any,
        lr: Number | None = None,
        weight_decay: Number | None = None,
        initial_accumulator_value: Number | None = None,
        eps: Number | None = None,
        **options: Unpack[Options],
    ) -> None: ...

class Adam(RowOptimizer):
    def __init__(
        self,
        params: Any,
        lr: Number | None = None,
        betas: tuple[Number, Number] | None = None,
        eps: Number | None = None,
        weight_decay: Number | None = None,
        amsgrad: bool | None = None,
        *,
        decoupled_weight_decay: bool = False,
        **options: Unpack[Options],
    ) -> None: ...

class AdamW(Adam):
    def __init__(
        self,
        params: Any,
        lr: Number | None = None,
        betas: tuple[Number, Number] | None = None,
        eps: Number | None = None,
        weight_decay: Number | None = None,
        amsgrad: bool | None = None,
        *,
        decoupled_weight_decay: bool = True,
        **options: Unpack[Options],
    ) -> None: ...

class Adamax(RowOptimizer):
    def __init__(
        self,
        params: Any,
        lr: Number | None = None,
        betas: tuple[Number, Number] | None = None,
        eps: Number | None = None,
        weight_decay: Number | None = None,
        **options: Unpack[Options],
    ) -> None: ...

class Ftrl(RowOptimizer):
    def __init__(
        self,
        params: Any,
        lr: Number | None = None,
        l1: Number | None = None,
        l2: Number | None = None,
        beta: Number | None = None,
        lr_power: Number | None = None,
        initial_accumulator_value: Number | None = None,
        l2_shrinkage: Number | None = None,
        **options: Unpack[Options],
    ) -> None: ...

class Lion(RowOptimizer):
    def __init__(
        self,
        params: Any,
        lr: Number | None = None,
        betas: tuple[Number, Number] | None = None,
        weight_decay: Number | None = None,
        **options: Unpack[Options],
    ) -> None: ...

class NAdam(RowOptimizer):
    def __init__(
        self,
        params: Any,
        lr: Number | None = None,
        betas: tuple[Number, Number] | None = None,
        eps: Number | None = None,
        weight_decay: Number | None = None,
        momentum_decay: Number | None = None,
        decoupled_weight_decay: bool | None = None,
        **options: Unpack[Options],
    ) -> None: ...

class RMSprop(RowOptimizer):
    def __init__(
        self,
        params: Any,
        lr: Number | None = None,
        alpha: Number | None = None,
        eps: Number | None = None,
        weight_decay: Number | None = None,
        momentum: Number | None = None,
        centered: bool | None = None,
        **options: Unpack[Options],
    ) -> None: ...

class SGD(RowOptimizer):
    def __init__(
        self,
        params: Any,
        lr: Number | None = None,
        momentum: Number | None = None,
        dampening: Number | None = None,
        weight_decay: Number | None = None,
        nesterov: bool | None = None,
        **options: Unpack[Options],
    ) -> None: ...

class SparseAdam(RowOptimizer):
    def __init__(
        self,
        params: Any,
        lr: Number | None = None,
        betas: tuple[Number, Number] | None = None,
        eps: Number | None = None,
        maximize: bool = False,
        **options: Any,
    ) -> None: ...
