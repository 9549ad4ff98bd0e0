"""Define a torch.amp.GradScaler that finds overflow in the sums of duplicate rows of sparse gradients."""

from __future__ import annotations

import torch

from islices.backends.torch.optim.base import RowOptimizer
from islices.backends.torch.optim.hyperparameters import located
from islices.core.rows import coalesce


class GradScaler(torch.amp.GradScaler):
    """A torch.amp.GradScaler that sums duplicate rows before it looks for infinities.

    torch's class sums duplicates only in float16. If finite duplicates in float32 or bfloat16 have an infinite sum,
    torch's class misses the overflow, and the step writes infinity into the table.

    Notes
    -----
    Arguments, state and use are those of torch's class. Sparse gradients of the optimizer become coalesced; duplicates
    are summed in order of occurrence. For optimizers of `islices.backends.torch.optim`, ``unscale_`` accepts float16
    gradients and keeps their type, so unscaled values below 3e-8 become 0. If you do not call ``unscale_``, the step
    unscales float16 gradients in float32. SPEC clauses 3, 4 and 16.

    Examples
    --------
    >>> import torch
    >>> from islices.backends.torch import optim
    >>> layer = torch.nn.Embedding(4, 1, sparse=True)
    >>> optimizer, scaler = optim.SGD(layer.parameters(), lr=1.0), GradScaler("cpu", init_scale=4.0)
    >>> scaler.scale(1e38 * layer(torch.tensor([1, 1])).sum()).backward()  # 4e38 is more than a float32 holds
    >>> before = layer.weight.detach().clone()
    >>> scaler.step(optimizer)
    >>> scaler.update()
    >>> torch.equal(layer.weight, before), scaler.get_scale()
    (True, 2.0)
    """

    def _unscale_grads_(
        self, optimizer: torch.optim.Optimizer, inv_scale: torch.Tensor, found_inf: torch.Tensor, allow_fp16: bool
    ) -> dict[torch.device, torch.Tensor]:
        """Sum duplicates, then unscale as torch does. The methods `unscale_` and `step` of torch's class call this
        method.

        If a sparse gradient is invalid (an index out of range, for example), this method raises TypeError, ValueError
        or IndexError, and changes no gradient. The message names the parameter.
        """
        summed = []
        for number, group in enumerate(optimizer.param_groups):
            for position, p in enumerate(group["params"]):
                if p.grad is None or not p.grad.is_sparse:
                    continue
                with located(f"param_groups[{number}]['params'][{position}]"):
                    summed.append((p, coalesce(p.grad.detach())))
        for p, grad in summed:
            p.grad = grad
        allowed = allow_fp16 or isinstance(optimizer, RowOptimizer)
        return super()._unscale_grads_(optimizer, inv_scale, found_inf, allowed)
