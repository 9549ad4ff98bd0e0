"""Clip the dense or row_sparse gradients of Gluon in place, with a function or in a Trainer.

mxnet.gluon.utils.clip_global_norm multiplies gradients by a dense array, and in MXNet the product of a row_sparse array
and a dense array is dense. So MXNet's function makes a dense copy of the whole table, and if the norm is NaN, all rows
become NaN. With this module, gradients keep their type and rows. In a script that calls MXNet's function, you need only
change the import.

May import: the core, this folder. `ndarrays` imports MXNet with a stand-in for NumPy.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

from islices.backend import FLOATS
from islices.backends.mxnet.mxnet_autograd import is_recorded
from islices.backends.mxnet.ndarrays import mx
from islices.core.arguments import check_flag, is_real, show
from islices.core.registry import describe, get_backend
from islices.norms.clip_formulas import BY_GLOBAL_NORM, Semantics, lookup_formula
from islices.norms.global_norms import clip_by_global_norm
from islices.norms.limits import check_max_norm
from islices.norms.nonfinite import Nonfinite, check_nonfinite

__all__ = ["Trainer", "clip_global_norm"]


def clip_global_norm(
    arrays: Sequence[Any],
    max_norm: float,
    check_isfinite: bool = True,
    *,
    semantics: Semantics = "mxnet",
    nonfinite: Nonfinite = "propagate",
) -> Any:
    """Scale arrays in place, so that the norm of all arrays together is at most `max_norm`.

    Parameters
    ----------
    arrays : list of NDArray
        Dense or row_sparse arrays of floating dtypes, on any contexts.
    max_norm : float
        The largest norm, which must not be negative.
    check_isfinite : bool
        If True, warn if the norm is NaN or infinite. The check waits until the arrays are computed.
    semantics : {"mxnet", "islices", "tensorflow", "keras", "torch", "optax"}
        The library whose formula computes the factor. The default "mxnet" uses min(1, max_norm / (norm + 1e-8)), so
        that the results of existing trainings do not change. "islices" uses max_norm / norm if the norm exceeds
        max_norm. SPEC clauses 10 and 11.
    nonfinite : {"propagate", "raise", "zero"}
        Defines what happens if the norm is NaN or infinite. "propagate" multiplies the stored values by the factor;
        with semantics "islices", all of them become NaN. "raise" raises FloatingPointError, and "zero" replaces the
        values by zeros.

    Returns
    -------
    float, or NDArray of shape (1,) if check_isfinite is False
        The norm before clipping. The norm is float64 if any array is float64, else float32.

    Raises
    ------
    TypeError, ValueError, IndexError
        An argument or an array is invalid. No array has changed.
    FloatingPointError
        `nonfinite` is "raise", and the norm is NaN or infinite. No array has changed.

    Examples
    --------
    >>> from islices.backends.mxnet.gluon import clip_global_norm
    >>> import mxnet as mx
    >>> grad = mx.nd.sparse.row_sparse_array((mx.nd.array([[3, 4]]), [1]), shape=(3, 2))
    >>> float(clip_global_norm([grad], 1.0)), grad.stype, grad.data.asnumpy().round(4).tolist()
    (5.0, 'row_sparse', [[0.6000000238418579, 0.800000011920929]])
    """
    accepted = "accepted is a list of one NDArray or more"
    if not isinstance(arrays, (list, tuple)):
        raise TypeError(f"arrays: got {describe(arrays)}; {accepted}")
    if not arrays:
        raise ValueError(f"arrays: got an empty {type(arrays).__name__}; {accepted}")
    arrays = [_legacy(x, position) for position, x in enumerate(arrays)]
    check_isfinite = check_flag(check_isfinite, "check_isfinite")
    clipped, norm = clip_by_global_norm(arrays, max_norm, semantics=semantics, nonfinite=nonfinite)
    if check_isfinite and not math.isfinite(norm.asscalar()):
        become = "are set to zeros" if nonfinite == "zero" else "hold nothing of use once they are clipped"
        warnings.warn(f"the norm of the arrays is {norm.asscalar()}: they {become}", stacklevel=2)
    for x, new in zip(arrays, clipped, strict=True):
        if new is not x:
            new.copyto(x)
    return norm.asscalar() if check_isfinite else norm


def _legacy(x: Any, position: int) -> Any:
    """Return `x`, or an mx.nd array that shares its memory if `x` is an mx.np array. Raise TypeError or ValueError if
    `x` is invalid."""
    accepted = "accepted are NDArrays of floats, dense or row_sparse"
    if not isinstance(x, mx.nd.NDArray):
        raise TypeError(f"arrays: got {describe(x)} at position {position}; {accepted}")
    legacy = x.as_nd_ndarray() if isinstance(x, mx.np.ndarray) else x
    if legacy.stype == "csr":
        raise ValueError(f"arrays: got a csr array of shape {legacy.shape} at position {position}; {accepted}")
    if get_backend("mxnet").dtype(legacy) not in FLOATS:
        raise TypeError(f"arrays: got {describe(x)} at position {position}; {accepted}")
    if is_recorded(legacy):
        raise ValueError(
            f"arrays: got one at position {position} that autograd.record() has in its graph; accepted is clipping "
            "outside of the record section, since the backward pass would read the changed values"
        )
    return legacy


class Trainer(mx.gluon.Trainer):  # type: ignore[misc]
    """An mxnet.gluon.Trainer that clips the gradients of all parameters together before each update.

    Parameters
    ----------
    params, optimizer, optimizer_params, kvstore, compression_params, update_on_kvstore
        Arguments of mxnet.gluon.Trainer. If clip_global_norm is set, update_on_kvstore=None means False. A kvstore
        would add up and apply the gradients in one operation, so that their sum could not be clipped.
    clip_global_norm : float, optional
        The largest norm of the gradients after MXNet's rescaling. MXNet multiplies gradients by the optimizer's
        rescale_grad, and divides them by the batch size and by the loss scale of mxnet.contrib.amp. If None, gradients
        are not clipped.
    semantics, nonfinite
        Arguments of the function `clip_global_norm`. With nonfinite="zero", the optimizer gets zeros, but momentum
        still changes the weights. If mxnet.contrib.amp scales the loss, nonfinite has no effect, because amp itself
        checks the gradients for overflow.

    Raises
    ------
    TypeError, ValueError
        clip_global_norm is negative or not a number, or semantics or nonfinite is unknown. If clip_global_norm is set,
        the Trainer also raises if update_on_kvstore is True, a weight is row_sparse, or the batch size is not above 0.
        MXNet would update row_sparse weights in the kvstore.
    FloatingPointError
        In `step` or `update`, `nonfinite` is "raise", and the norm is NaN or infinite.

    Notes
    -----
    The Trainer clips after it has added up the gradients of all contexts, but before weight decay and the optimizer's
    clip_gradient. Only parameters that the update changes count in the norm. Parameters with grad_req "null", and
    parameters with stale gradients under ignore_stale_grad, do not count. The gradients change in place. Sparse
    gradients stay row_sparse, so lazy updates stay lazy.

    Examples
    --------
    >>> from islices.backends.mxnet.gluon import Trainer
    >>> import mxnet as mx
    >>> layer = mx.gluon.nn.Embedding(3, 1, sparse_grad=True)
    >>> layer.initialize(mx.init.Zero())
    >>> trainer = Trainer(layer.collect_params(), "sgd", {"learning_rate": 1.0}, clip_global_norm=0.5)
    >>> with mx.autograd.record():
    ...     loss = layer(mx.nd.array([1, 1])).sum()
    >>> loss.backward()
    >>> trainer.step(2)
    >>> layer.weight.data().asnumpy().ravel().tolist()
    [0.0, -0.5, 0.0]
    """

    def __init__(
        self,
        params: Any,
        optimizer: Any,
        optimizer_params: dict[str, Any] | None = None,
        kvstore: Any = "device",
        compression_params: dict[str, Any] | None = None,
        update_on_kvstore: bool | None = None,
        *,
        clip_global_norm: float | None = None,
        semantics: Semantics = "mxnet",
        nonfinite: Nonfinite = "propagate",
    ) -> None:
        if clip_global_norm is not None:
            check_max_norm(clip_global_norm, "clip_global_norm")
            if update_on_kvstore:
                raise ValueError(
                    "update_on_kvstore: got True; accepted with clip_global_norm are None and False, since the kvstore "
                    "adds gradients up and applies them in one go"
                )
            update_on_kvstore = False
        lookup_formula(BY_GLOBAL_NORM, semantics, "clip_global_norm")
        nonfinite = check_nonfinite(nonfinite)
        super().__init__(params, optimizer, optimizer_params, kvstore, compression_params, update_on_kvstore)
        sparse = [p.name for p in self._params if p._stype != "default"]
        if clip_global_norm is not None and sparse:
            raise ValueError(
                f"params: got {sparse[0]}, whose weight is row_sparse; accepted with clip_global_norm are dense "
                "weights (their gradients may be row_sparse), since MXNet updates sparse ones in the kvstore"
            )
        self.clip_global_norm = clip_global_norm
        self._semantics: Semantics = semantics
        self._nonfinite: Nonfinite = nonfinite

    def step(self, batch_size: int, ignore_stale_grad: bool = False) -> None:
        """Add up the gradients of all contexts, divide them by `batch_size`, clip them, and update the parameters."""
        if self.clip_global_norm is None:
            super().step(batch_size, ignore_stale_grad)
            return
        self.allreduce_grads()
        self.update(batch_size, ignore_stale_grad)

    def update(self, batch_size: int, ignore_stale_grad: bool = False) -> None:
        """Divide the gradients by `batch_size`, clip them, and update the parameters. Call `allreduce_grads` first."""
        if self.clip_global_norm is not None:
            if not is_real(batch_size):
                raise TypeError(f"batch_size: got {describe(batch_size)}; accepted is a number above 0")
            if not batch_size > 0:
                raise ValueError(f"batch_size: got {show(batch_size)}; accepted is a number above 0")
            self._clip(self.clip_global_norm * batch_size / self._scale, ignore_stale_grad)
        super().update(batch_size, ignore_stale_grad)

    def _clip(self, limit: float, ignore_stale_grad: bool) -> None:
        moving = [p for p in self._params if p.grad_req != "null"]
        # after this method, amp checks the gradients for overflow, and may lower its loss scale
        amp = getattr(self, "_amp_loss_scaler", None) is not None
        nonfinite = "propagate" if amp else self._nonfinite
        for pairs in zip(*[zip(p.list_data(), p.list_grad(), strict=True) for p in moving], strict=True):
            fresh = [grad for data, grad in pairs if data._fresh_grad]
            # unless stale gradients are ignored, MXNet's update raises an error for them
            if fresh and (ignore_stale_grad or len(fresh) == len(pairs)):
                clip_global_norm(fresh, limit, False, semantics=self._semantics, nonfinite=nonfinite)
