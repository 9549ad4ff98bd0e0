"""The PyTorch backend, and the fronts in PyTorch's own idiom.

`clip_grad_norm_` and `clip_grad_value_` replace the functions of torch.nn.utils, which refuse sparse gradients.
"""

from islices.backends.torch.adapter import TorchBackend, backend
from islices.backends.torch.compiling import shield
from islices.backends.torch.nn_utils import clip_grad_norm_, clip_grad_value_

__all__ = ["TorchBackend", "backend", "clip_grad_norm_", "clip_grad_value_"]

shield()
