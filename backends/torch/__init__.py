"""The PyTorch backend, and replacements for functions and classes of PyTorch. The page docs/torch.md
describes the backend and the replacements.

`clip_grad_norm_`, `clip_grad_value_`, `get_total_norm` and `clip_grads_with_norm_` replace functions of torch.nn.utils,
and also accept sparse gradients. The module `optim` contains replacements for several classes of torch.optim, and
`GradScaler` replaces torch.amp.GradScaler. `register_ddp_hook` makes a DistributedDataParallel average its sparse
gradients with islices. `TorchRecorder` records the steps of a training for `islices.parity`. `state_of` returns an
optimizer's state as named arrays, and `start_from` lets an optimizer continue from named arrays.
"""

from islices.core.registry import require

require("torch")

from islices.backends.torch import optim
from islices.backends.torch.adapter import TorchBackend, backend
from islices.backends.torch.amp import GradScaler
from islices.backends.torch.ddp import register_ddp_hook
from islices.backends.torch.dynamo import shield
from islices.backends.torch.nn_utils import clip_grad_norm_, clip_grad_value_, clip_grads_with_norm_, get_total_norm
from islices.backends.torch.optim.states import start_from, state_of
from islices.backends.torch.recorder import TorchRecorder

__all__ = [
    "GradScaler",
    "TorchBackend",
    "TorchRecorder",
    "backend",
    "clip_grad_norm_",
    "clip_grad_value_",
    "clip_grads_with_norm_",
    "get_total_norm",
    "optim",
    "register_ddp_hook",
    "start_from",
    "state_of",
]

shield()
