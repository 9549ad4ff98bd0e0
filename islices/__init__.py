"""Work with row-sparse gradients of NumPy, TensorFlow, PyTorch, JAX and MXNet through one API.

`import islices` loads no other module of the package. When a program first uses a public name, the module that defines
the name is loaded. A framework's backend is loaded when it is first needed, for example when islices receives an array
of the framework.
"""

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from islices import backend as backend
    from islices import config as config
    from islices import distributed as distributed
    from islices import files as files
    from islices import norms as norms
    from islices import optim as optim
    from islices import porting as porting
    from islices import testing as testing
    from islices import vocabulary as vocabulary
    from islices.core.conversion import convert, from_dense, from_native, is_sparse, leaves, map_leaves, to_native
    from islices.core.linear import add, concat, scale
    from islices.core.registry import get_backend, list_backends
    from islices.core.rows import coalesce, drop_rows, keep_rows, to_dense
    from islices.core.scatter import scatter
    from islices.core.slices import IndexedSlices
    from islices.embedding.autodiff import value_and_grad
    from islices.embedding.capture import capture
    from islices.embedding.lookup import lookup
    from islices.embedding.lookup_gradients import drop_padding, embedding_grad, scale_by_frequency
    from islices.embedding.per_sample import clip_per_sample, per_sample
    from islices.embedding.renorm import renorm_rows
    from islices.embedding.table import Table
    from islices.files import load, save
    from islices.norms.clip import clip_by_norm, clip_by_row_norm, clip_by_value
    from islices.norms.global_norms import clip_by_global_norm, global_norm
    from islices.norms.norm import norm, row_norms, top_k_rows
    from islices.porting import Recorder, diff, parity

__version__ = "0.1.0"

#: Module -> the public names that `islices` takes from the module.
_HOMES = {
    "islices.core.conversion": "convert from_dense from_native is_sparse leaves map_leaves to_native",
    "islices.core.linear": "add concat scale",
    "islices.core.registry": "get_backend list_backends",
    "islices.core.rows": "coalesce drop_rows keep_rows to_dense",
    "islices.core.scatter": "scatter",
    "islices.core.slices": "IndexedSlices",
    "islices.embedding.autodiff": "value_and_grad",
    "islices.embedding.capture": "capture",
    "islices.embedding.lookup_gradients": "drop_padding embedding_grad scale_by_frequency",
    "islices.embedding.lookup": "lookup",
    "islices.embedding.per_sample": "clip_per_sample per_sample",
    "islices.embedding.renorm": "renorm_rows",
    "islices.embedding.table": "Table",
    "islices.files": "load save",
    "islices.norms.clip": "clip_by_norm clip_by_row_norm clip_by_value",
    "islices.norms.global_norms": "clip_by_global_norm global_norm",
    "islices.norms.norm": "norm row_norms top_k_rows",
    "islices.porting": "Recorder diff parity",
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names.split()}
_MODULES = ("backend", "config", "distributed", "files", "norms", "optim", "porting", "testing", "vocabulary")

_linked = os.path.join(__path__[0], "backends")  # in a checkout, a link to the folder next to `islices`
if os.path.lexists(_linked) and not os.path.isdir(_linked):
    raise ImportError(
        f"islices: {_linked} leads nowhere; accepted is a checkout with its links (git config core.symlinks true, git "
        "checkout .) and with all of its folders, or an install"
    )

__all__ = [
    "IndexedSlices",
    "Recorder",
    "Table",
    "__version__",
    "add",
    "backend",
    "capture",
    "clip_by_global_norm",
    "clip_by_norm",
    "clip_by_row_norm",
    "clip_by_value",
    "clip_per_sample",
    "coalesce",
    "concat",
    "config",
    "convert",
    "diff",
    "distributed",
    "drop_padding",
    "drop_rows",
    "embedding_grad",
    "files",
    "from_dense",
    "from_native",
    "get_backend",
    "global_norm",
    "is_sparse",
    "keep_rows",
    "leaves",
    "list_backends",
    "load",
    "lookup",
    "map_leaves",
    "norm",
    "norms",
    "optim",
    "parity",
    "per_sample",
    "porting",
    "renorm_rows",
    "row_norms",
    "save",
    "scale",
    "scale_by_frequency",
    "scatter",
    "testing",
    "to_dense",
    "to_native",
    "top_k_rows",
    "value_and_grad",
    "vocabulary",
]


if not TYPE_CHECKING:  # hidden from type checkers, which would otherwise accept any name

    def __getattr__(name: str) -> Any:
        from islices.core.locks import load_module

        if name in _MODULES:
            return load_module(f"islices.{name}")
        if name not in _HOME_OF:
            raise AttributeError(f"module 'islices' has no attribute {name!r}")
        found = globals()[name] = getattr(load_module(_HOME_OF[name]), name)
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
