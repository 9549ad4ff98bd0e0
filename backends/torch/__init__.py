"""The PyTorch backend, and the fronts in PyTorch's own idiom: docs/torch.md.

`clip_grad_norm_`, `clip_grad_value_`, `get_total_norm` and `clip_grads_with_norm_` replace the functions of
torch.nn.utils, which refuse sparse gradients; `optim` has the classes of torch.optim; `GradScaler` that of torch.amp.
"""

from islices.backends.torch import optim
from islices.backends.torch.adapter import TorchBackend, backend
from islices.backends.torch.amp import GradScaler
from islices.backends.torch.compiling import shield
from islices.backends.torch.ddp import register_ddp_hook
from islices.backends.torch.nn_utils import clip_grad_norm_, clip_grad_value_, clip_grads_with_norm_, get_total_norm

__all__ = [
    "GradScaler",
    "TorchBackend",
    "backend",
    "clip_grad_norm_",
    "clip_grad_value_",
    "clip_grads_with_norm_",
    "get_total_norm",
    "optim",
    "register_ddp_hook",
]

shield()
