"""Row-sparse gradients of NumPy, TensorFlow, PyTorch, JAX and MXNet: one meaning, one API.

Importing this imports NumPy and no framework; a backend loads when an array of it is first seen, and what few programs
use (`LATE`) when it is asked for.
"""

import os
from typing import TYPE_CHECKING, Any

from islices import optim
from islices.backend import PROTOCOL, Backend, NativeParts, not_implemented
from islices.core.conversion import convert, from_dense, from_native, to_native
from islices.core.linear import add, concat, scale
from islices.core.locks import load_module
from islices.core.modes import execution
from islices.core.registry import get_backend, list_backends
from islices.core.rows import coalesce, drop_rows, keep_rows, to_dense
from islices.core.scatter import scatter
from islices.core.slices import IndexedSlices
from islices.embedding.autodiff import value_and_grad
from islices.embedding.capture import Capture, capture
from islices.embedding.lookup_gradients import drop_padding, embedding_grad, scale_by_frequency
from islices.embedding.lookups import lookup
from islices.embedding.per_sample import PerSample, clip_per_sample, per_sample
from islices.embedding.renorm import renorm_rows
from islices.embedding.table import Table
from islices.kernels import get_num_threads, set_num_threads, use_kernels
from islices.norms.clip import clip_by_norm, clip_by_row_norm, clip_by_value
from islices.norms.clip_formulas import Semantics
from islices.norms.global_norms import clip_by_global_norm, global_norm
from islices.norms.norm import norm
from islices.norms.unitwise import adaptive_grad_clip, clip_by_block_rms

if TYPE_CHECKING:
    from islices import distributed as distributed
    from islices import files as files
    from islices import porting as porting
    from islices import vocabulary as vocabulary
    from islices.files import load, save
    from islices.porting import Difference, Parity, Recorder, diff, parity

__version__ = "0.1.0"

#: Name -> the module that it is, or is in. It loads when the name is first asked for: importing islices stays fast.
LATE = {
    "Difference": "islices.porting",
    "Parity": "islices.porting",
    "Recorder": "islices.porting",
    "diff": "islices.porting",
    "distributed": "islices.distributed",
    "files": "islices.files",
    "load": "islices.files",
    "parity": "islices.porting",
    "porting": "islices.porting",
    "save": "islices.files",
    "vocabulary": "islices.vocabulary",
}

_linked = os.path.join(__path__[0], "backends")  # in a checkout a link to the folder beside
if os.path.lexists(_linked) and not os.path.isdir(_linked):
    raise ImportError(
        f"islices: {_linked} leads nowhere; accepted is a checkout with its links (git config core.symlinks true, git "
        "checkout .) and with all of its folders, or an install"
    )

__all__ = [
    "PROTOCOL",
    "Backend",
    "Capture",
    "Difference",
    "IndexedSlices",
    "NativeParts",
    "Parity",
    "PerSample",
    "Recorder",
    "Semantics",
    "Table",
    "__version__",
    "adaptive_grad_clip",
    "add",
    "capture",
    "clip_by_block_rms",
    "clip_by_global_norm",
    "clip_by_norm",
    "clip_by_row_norm",
    "clip_by_value",
    "clip_per_sample",
    "coalesce",
    "concat",
    "convert",
    "diff",
    "drop_padding",
    "drop_rows",
    "embedding_grad",
    "execution",
    "from_dense",
    "from_native",
    "get_backend",
    "get_num_threads",
    "global_norm",
    "keep_rows",
    "list_backends",
    "load",
    "lookup",
    "norm",
    "not_implemented",
    "optim",
    "parity",
    "per_sample",
    "renorm_rows",
    "save",
    "scale",
    "scale_by_frequency",
    "scatter",
    "set_num_threads",
    "to_dense",
    "to_native",
    "use_kernels",
    "value_and_grad",
]


if not TYPE_CHECKING:  # unseen by type checkers, which would take any name for one of these

    def __getattr__(name: str) -> Any:
        if name not in LATE:
            raise AttributeError(f"module 'islices' has no attribute {name!r}")
        module = load_module(LATE[name])
        return module if LATE[name] == f"islices.{name}" else getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *LATE})
