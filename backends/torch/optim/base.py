"""Define `RowOptimizer`, a torch.optim.Optimizer whose steps `islices.optim` computes.

All formulas are in `islices.optim`. This module manages the groups of parameters. A step covers all groups, and checks
everything before it changes any parameter.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, TypedDict

import numpy as np
import torch
from torch import Tensor

from islices.backends.torch.optim import checkpoints
from islices.backends.torch.optim.hyperparameters import (
    Rate,
    check_group,
    complete,
    known_values,
    located,
    made_from,
    torch_names,
)
from islices.core.arguments import check_flag
from islices.core.registry import describe
from islices.core.warn import warn_caller
from islices.norms.clip_formulas import BY_GLOBAL_NORM, ClipFormula, Semantics, lookup_formula
from islices.norms.limits import Limit, limit_of
from islices.optim import Optimizer
from islices.optim.factory import Rows
from islices.optim.fused import clip_requests
from islices.optim.optimizer import check_requests, take_steps
from islices.optim.row_steps import Request


class Options(TypedDict, total=False):
    """The options that all classes accept. Groups of parameters accept all of them except max_norm. See
    `RowOptimizer`."""

    rows: Rows
    semantics: Semantics
    maximize: bool
    frozen: Any
    master: bool
    duplicates: Literal["sum", "raw"]
    max_norm: float | None
    foreach: bool | None
    fused: bool | None
    capturable: bool
    differentiable: bool


class Made(NamedTuple):
    """Two optimizers of islices.optim, for sparse and for dense gradients of a parameter group, and the group's values
    from which they were made."""

    sparse: Optimizer
    dense: Optimizer
    rate: Rate
    known: Mapping[str, Any]  # the group's values except lr
    frozen: Any  # a copy of the group's frozen rows, because users may change a mask in place


class RowOptimizer(torch.optim.Optimizer):
    """The base class of the optimizers. By default, a dense gradient updates all rows, and a sparse gradient updates
    only the rows that it contains. `rows` and `frozen` describe the exceptions.

    Use the subclasses in `islices.backends.torch.optim`. Each accepts its hyperparameters and these options. A group of
    parameters accepts the same options, except max_norm.

    Parameters
    ----------
    params : iterable of Tensor, of (name, Tensor), or of dict
        The parameters, or groups of parameters, in any form that torch.optim accepts.
    rows : {"touched", "all"}, optional
        The rows that a sparse gradient updates. With "touched", these are the rows that the gradient contains. With
        "all", the formula for dense gradients updates all rows. The default is "touched". If the semantics has no
        formula for "touched" with these hyperparameters, the default is "all", and the first step with a sparse
        gradient warns. If you pass "touched", and the formula may change rows whose gradient is zero, a step raises an
        error for a dense gradient.
    semantics : {"islices", "torch", ...}
        The library whose arithmetic is used; see docs/optimizers.md. The semantics also defines the defaults of
        hyperparameters that are None. "islices" uses torch's defaults if torch has the optimizer. For a dense gradient,
        the formula for rows="all" is used if the semantics has one.
    maximize : bool
        If True, the optimizer maximizes the objective: it uses the negative of each gradient.
    frozen : 1-D integer Tensor or list, or boolean mask, optional
        Rows that no step changes in any parameter of the group, not even by weight decay.
    master : bool
        If True, the optimizer keeps a float32 copy of each 16-bit parameter from the first step on, and computes steps
        on this copy.
    duplicates : {"sum", "raw"}
        With "sum", duplicate rows are summed before the step. With "raw", the step uses unsummed duplicates, as Keras
        on TensorFlow does. "raw" requires semantics="keras".
    max_norm : float, optional
        If max_norm is not None, each step clips by the norm of all gradients together. The steps have the same bits as
        after `islices.clip_by_global_norm` with the optimizer's semantics, or after `clip_grad_norm_` for
        semantics="torch". max_norm is faster than these functions, because it does not change ``p.grad``. max_norm is
        an attribute of the optimizer, which you may set between steps. Neither groups nor ``state_dict`` contain
        max_norm.
    foreach, fused : bool, optional
        These arguments are accepted for compatibility, and have no effect. In torch, these flags only select an
        implementation.
    capturable, differentiable : bool
        Only False is accepted, because the host counts steps, and autograd does not record a step.

    Raises
    ------
    TypeError, ValueError, IndexError
        A hyperparameter is invalid when the optimizer is made, a group is added or a state is loaded. A step also
        raises an error if a gradient, a group, a state or max_norm is invalid. The step then changes no parameter and
        no state.

    Attributes
    ----------
    max_norm : float or None
    total_norm : 0-d Tensor or None
        The norm of all gradients at the last step, before clipping. The value is None before the first step, or if
        max_norm was None at the last step.

    Notes
    -----
    SPEC clauses 10, 11 and 16.
    """

    #: the name of the optimizer's function in islices.optim
    rule: ClassVar[str]
    max_norm: float | None = None
    total_norm: Tensor | None = None

    def __init__(
        self,
        params: Any,
        given: Sequence[Any],
        *,
        rows: Rows = None,
        semantics: Semantics = "islices",
        maximize: bool = False,
        frozen: Any = None,
        master: bool = False,
        duplicates: Literal["sum", "raw"] = "sum",
        max_norm: float | None = None,
        foreach: bool | None = None,
        fused: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        options = {"rows": rows, "semantics": semantics, "maximize": maximize, "frozen": frozen, "master": master}
        hyper = dict(zip(torch_names(self.rule), given, strict=True))
        defaults = complete(self.rule, {**hyper, **options, "duplicates": duplicates}, {})
        check_group(self.rule, {**defaults, "capturable": capturable, "differentiable": differentiable})
        self._made: dict[int, Made] = {}
        self._warned: set[str] = set()
        self._of_torch: set[int] = set()  # the groups whose state a class of torch saved
        self.max_norm = max_norm
        self._clip_formula(defaults["semantics"])
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Check a group of parameters and its hyperparameters, and add the group."""
        if isinstance(param_group, dict):
            param_group = complete(self.rule, param_group, self.defaults)
            check_group(self.rule, param_group)
        super().add_param_group(param_group)
        params = self.param_groups[-1]["params"]
        if len(set(params)) < len(params):  # torch warns about a repeated parameter, and steps on it twice
            del self.param_groups[-1]
            raise ValueError("params: got one parameter twice in a group; accepted is each once")

    # ------------------------------------------------------------------ a step
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient, unless a GradScaler has found an overflow.

        Parameters
        ----------
        closure : callable, optional
            A function that recomputes the loss and the gradients, and returns the loss.

        Returns
        -------
        The result of `closure`, or None without a closure.

        Raises
        ------
        TypeError, ValueError, IndexError
            A gradient, a group, a state or max_norm is invalid. The message contains the position of the parameter or
            group, unless max_norm is invalid. The call changes no parameter and no state.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if (found := getattr(self, "found_inf", None)) is not None and found.item():
            return loss  # a GradScaler has found an overflow
        with torch.no_grad():
            self._step()
        return loss

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Return True if `step` must unscale gradients instead of the GradScaler. The result is True if any gradient
        is float16, because torch's GradScaler rejects float16 gradients.

        During a step that must unscale, torch sets the attributes ``grad_scale`` and ``found_inf`` of the optimizer.
        """
        params = [p for group in self.param_groups for p in group["params"]]
        return any(p.grad is not None and p.grad.dtype == torch.float16 for p in params)

    def _step(self) -> None:
        scale = getattr(self, "grad_scale", None)
        factor = None if scale is None else scale.double().reciprocal().float().item()  # as in unscale_
        # check all parameters of all groups before the first write
        requests, places, begun = [], [], []
        for number, group in enumerate(self.param_groups):
            for place, p, request, new in self._writes(number, group, factor):
                requests.append(request)
                places.append(place + ": ")
                if new:
                    begun.append((p, new))
        check_requests(requests, places)
        requests = self._clipped(requests)
        for p, new in begun:
            self.state[p].update(checkpoints.as_stored(self.rule, new, p))
        take_steps(requests)

    def _clip_formula(self, semantics: str) -> tuple[Limit, ClipFormula] | None:
        """Return (the limit, the formula) with which each step clips gradients, or None if max_norm is None. Raise an
        error if the limit or the semantics is invalid."""
        if self.max_norm is None:
            return None
        given = self.max_norm.detach() if isinstance(self.max_norm, Tensor) else self.max_norm
        return limit_of(given), lookup_formula(BY_GLOBAL_NORM, semantics, "max_norm")

    def _clipped(self, requests: list[Request]) -> list[Request]:
        """Compute the norm of all gradients, store it in `total_norm`, and return the steps with clipped gradients. The
        clipping factor is read when the steps run.

        If max_norm is None, `total_norm` becomes None, and the steps stay the same.
        """
        requested = self._clip_formula(self.defaults["semantics"])
        if requested is None:
            self.total_norm = None
            return requests
        if not requests:
            self.total_norm = torch.tensor(0.0)
            return requests
        requests, self.total_norm = clip_requests(requests, *requested)
        return requests

    def _writes(
        self, number: int, group: dict[str, Any], factor: float | None
    ) -> Iterator[tuple[str, Tensor, Request, Mapping[str, Tensor]]]:
        """Check the parameters of a group that have gradients. For each, yield (place for error messages, parameter,
        step, new arrays of the parameter's state).

        If `factor` is not None, each step uses the gradient times `factor`.
        """
        made = None
        for position, p in enumerate(group["params"]):
            if p.grad is None:
                continue
            if made is None:
                with located(f"param_groups[{number}]"):
                    made = self._optimizers(number, group)
                    check_flag(group["master"], "master")
            name = f" ({names[position]})" if (names := group.get("param_names")) else ""
            place = f"param_groups[{number}]['params'][{position}]{name}"
            try:
                if p.grad.is_sparse:
                    made.sparse._warn_of_all(place, self._warned)
                    if number in self._of_torch:
                        self._warn_of_torch(number, made.sparse)
                elif group["rows"] == "touched":
                    made.sparse._check_dense("nn.Embedding(sparse=True)")
                optimizer = made.sparse if p.grad.is_sparse else made.dense
                table, grad = p, _scaled(p.grad, factor)
                if p.ndim == 0:  # a 0-d parameter is a table of one row
                    table, grad = p.detach().reshape(1), grad.reshape(1)
                state, new = checkpoints.opened(optimizer, table, self.state.get(p, {}), master=group["master"])
                request = optimizer._prepared(table, grad, state, donate=False, apply=True)
            except (TypeError, ValueError, IndexError) as error:
                hint = "; frozen= holds for all parameters of a group: give this one another group"
                raise type(error)(f"{place}: {error}{hint if str(error).startswith('frozen:') else ''}") from None
            yield place, p, request, new

    def _warn_of_torch(self, number: int, optimizer: Optimizer) -> None:
        """Warn once if a group's state comes from torch's class, but the formula for its sparse gradients differs from
        the formula of torch."""
        self._of_torch.discard(number)
        if optimizer.semantics != "torch" and not optimizer._only_sums_squares:  # else the formula agrees with torch's
            warn_caller(
                f"param_groups[{number}]: the loaded state is of torch's class, but semantics={optimizer.semantics!r} "
                'has another formula for sparse gradients; pass semantics="torch" to continue as torch does'
            )

    def _optimizers(self, number: int, group: dict[str, Any]) -> Made:
        """Return the optimizers for the current values of a group. Schedulers and users may have changed these values
        since the last step."""
        made = self._made.get(number)
        if made is not None and (made.frozen is None or _equal(group["frozen"], made.frozen)):
            for name, x in made.known.items():  # a loop, because a generator would add calls to each step
                if group[name] is not x:
                    break
            else:
                if group["lr"] is not made.rate.value:
                    made.rate.set(group["lr"])
                return made
        rate, frozen = Rate(group["lr"], self.rule), group["frozen"]
        seen = frozen.clone() if isinstance(frozen, Tensor) else copy.copy(frozen)
        made = Made(*made_from(self.rule, group, rate), rate, known := known_values(self.rule, group), seen)
        if all(_is_constant(x) for name, x in known.items() if name != "frozen"):
            self._made[number] = made
        return made

    # ------------------------------------------------------------------ checkpoints
    def state_dict(self) -> dict[str, Any]:
        """Return the state and the groups as a dict, which this class can load. torch's class of the same name can load
        the dict if the arrays have the same meaning there.

        Returns
        -------
        dict
            A dict in the same form as in torch.optim. The arrays in the dict are the optimizer's arrays, not copies,
            except for "step". The dict's "step" is a 0-d float64 Tensor on the CPU, which all of torch's
            implementations accept. NAdam's "mu_product" is computed from the step count.
        """
        # prepended, so that this hook runs before the user's hooks
        handle = self.register_state_dict_post_hook(lambda _, saved: checkpoints.saved(self.rule, saved), prepend=True)
        try:
            return super().state_dict()
        finally:
            handle.remove()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state that this class, or torch's class of the same name, returned from `state_dict`.

        Parameters
        ----------
        state_dict : dict
            The optimizer copies the arrays to the devices of the parameters. Except for the int32 "step", the copies
            are float64 for float64 parameters, and float32 for all others. (torch's class would round the arrays to the
            parameters' dtypes.) All hyperparameters of the groups are loaded, even semantics and rows. If the state
            comes from torch's class and does not contain an option, the optimizer keeps its value of this option.

        Raises
        ------
        TypeError, ValueError, IndexError
            The state is invalid, or belongs to another optimizer or to parameters with different shapes. The call does
            not change the optimizer.
        """
        if not isinstance(state_dict, dict):
            raise TypeError(f"state_dict: got {describe(state_dict)}; accepted is what state_dict() returned")
        # torch would round the arrays to the parameters' dtypes, so hooks load them
        held: dict[Tensor, dict[str, Tensor]] = {}
        of_torch: set[int] = set()
        # the first hook runs after the user's hooks, the second before them
        handles = [
            self.register_load_state_dict_pre_hook(lambda _, given: checkpoints.checked(self, given, held, of_torch)),
            self.register_load_state_dict_post_hook(lambda _: self.state.update(held), prepend=True),
        ]
        try:
            super().load_state_dict(state_dict)
        finally:
            for handle in handles:
                handle.remove()
        self._of_torch = of_torch

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "max_norm": self.max_norm, "total_norm": self.total_norm}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._made, self._warned, self._of_torch = {}, set(), set()
        super().__setstate__(state)


def _scaled(grad: Tensor, factor: float | None) -> Tensor:
    """Multiply a gradient by a factor, unless the factor is None. To avoid underflow, a float16 gradient is first
    converted to float32."""
    if factor is None:
        return grad
    return (grad.float() if grad.dtype == torch.float16 else grad) * factor


def _is_constant(x: Any) -> bool:
    """Return True if a value of a group is of a type that cannot change in place."""
    return all(part is None or isinstance(part, (float, int, str)) for part in (x if type(x) is tuple else (x,)))


def _equal(frozen: Any, seen: Any) -> bool:
    return torch.equal(frozen, seen) if isinstance(frozen, Tensor) else bool(np.array_equal(frozen, seen))
