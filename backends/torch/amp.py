"""Define a torch.amp.GradScaler that also detects overflow in the sums of duplicate rows."""

from __future__ import annotations

import torch

from islices.backends.torch.optim.base import RowOptimizer
from islices.backends.torch.optim.hyperparameters import located
from islices.core.rows import coalesce


class GradScaler(torch.amp.GradScaler):
    """A torch.amp.GradScaler that sums duplicate rows before it looks for infinities and NaN.

    torch's class sums duplicates only if they are float16. In float32 or bfloat16, finite duplicates may have an
    infinite sum. torch's class does not detect this overflow, and the step then writes infinity or NaN to the table.

    Notes
    -----
    Use this class like torch's class; arguments and state are the same. The scaler coalesces the sparse gradients of
    the optimizer's parameters, and sums duplicates in order of occurrence. For optimizers of
    `islices.backends.torch.optim`, ``unscale_`` also accepts float16 gradients. These gradients stay float16, so
    unscaled values of magnitude below 3e-8 become 0. If you do not call ``unscale_``, the step of these optimizers
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
        """Sum duplicates, and then unscale as torch does. torch's methods `unscale_` and `step` call this method.

        If a sparse gradient is invalid, for example because an index is out of range, raise TypeError, ValueError or
        IndexError. Then no gradient is changed. The message contains the parameter's position in param_groups.
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
