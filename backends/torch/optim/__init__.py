"""torch.optim's classes for models with sparse gradients: one optimizer for a whole model, at the cost of what is used.

``from islices.backends.torch import optim`` and ``optim.Adam(model.parameters(), lr=1e-3)`` stand in the place of
torch.optim.Adam and torch.optim.SparseAdam. The formulas are those of `islices.optim`, with the same bits on every
framework; with semantics="torch" those of torch.optim. SPEC clause 16.

Every record of an optimizer (`islices.optim.record`) has a class, made here; __init__.pyi tells type checkers of them.
"""

from __future__ import annotations

import inspect
import re
from typing import Any, NoReturn, cast

import torch
from torch.optim import Optimizer as Optimizer  # torch's names, so that the import of optim is the only change
from torch.optim import lr_scheduler as lr_scheduler
from torch.optim import swa_utils as swa_utils

from islices import optim
from islices.backends.torch.optim.base import RowOptimizer
from islices.backends.torch.optim.hyperparameters import check_decoupled, defaults_of, torch_names
from islices.optim.record import RECORDS, Record

DOC = """\
{summary}

    Parameters
    ----------
    params : iterable of Tensor, of (name, Tensor), or of dict
    {parameters}
    **options
        rows, semantics, maximize, frozen, master ...: see `RowOptimizer`.

    Raises
    ------
    TypeError, ValueError, IndexError
        What does not fit; nothing has been changed then.

    Notes
    -----
    `islices.optim.{function}` has the formula. The state: {state}. SPEC clause 16.

    Examples
    --------
    >>> import torch
    >>> layer = torch.nn.Embedding.from_pretrained(torch.ones(3, 1), freeze=False, sparse=True)
    >>> optimizer = {title}(layer.parameters(), lr=0.5)
    >>> layer(torch.tensor([2, 2])).sum().backward()
    >>> optimizer.step()
    >>> layer.weight[:2].flatten().tolist()
    [1.0, 1.0]
    """


def class_of(record: Record) -> type[RowOptimizer]:
    """The class of a record: torch's names, order and defaults of hyperparameters."""
    names, kinds = torch_names(record.name), inspect.Parameter
    parameters = [kinds(name, kinds.POSITIONAL_OR_KEYWORD) for name in ("self", "params")]
    parameters += [kinds(name, kinds.POSITIONAL_OR_KEYWORD, default=None) for name in names]
    if record.decoupled is not None:
        parameters.append(kinds("decoupled_weight_decay", kinds.KEYWORD_ONLY, default=record.decoupled))
    signature = inspect.Signature([*parameters, kinds("options", kinds.VAR_KEYWORD)])

    def initialize(*args: Any, **kwargs: Any) -> None:
        given = signature.bind(*args, **kwargs).arguments
        check_decoupled(record.name, given.get("decoupled_weight_decay", False))
        hyper = {name: given.get(name) for name in names}
        RowOptimizer.__init__(given["self"], given["params"], hyper, **given.get("options", {}))

    initialize.__signature__ = signature  # type: ignore[attr-defined]
    base = globals()[RECORDS[record.variant_of].title] if record.variant_of else RowOptimizer
    members = {"rule": record.name, "__init__": initialize, "__doc__": _doc(record), "__module__": __name__}
    return cast("type[RowOptimizer]", type(record.title, (base,), members))


def _doc(record: Record) -> str:
    """Return the docstring of the function in islices.optim, with torch's names and defaults."""
    own = (inspect.getdoc(getattr(optim, record.name)) or "\n").partition("\nReturns\n")[0]
    said = {}
    for ours, text in re.findall(r"^(\w[\w, ]*) : .*\n((?: .*\n?)*)", own, re.MULTILINE):
        said |= dict.fromkeys(ours.split(", "), text)
    theirs, defaults, parameters = record.spelled("torch"), defaults_of(record.name, "islices"), []
    for name in torch_names(record.name):
        default = "" if defaults[name] is None else f", default {defaults[name]}"
        ours = next(x for x in theirs if theirs[x].partition("[")[0] == name)
        kind = {bool: "bool", tuple: "two floats or Tensors of one"}.get(type(defaults[name]), "float or Tensor of one")
        kind = "float" if ours in record.fixed else kind
        text = "" if name == "lr" else said.get(ours, "")
        parameters += [f"{name} : {kind}{default}", *text.splitlines()]
    if record.decoupled is not None:
        parameters += ["decoupled_weight_decay : bool", f"    As in torch; accepted is {record.decoupled}."]
    state = ["step", *(x.name for x in record.states({}))]
    quoted = ", ".join(f'"{record.stored.get(name, name)}"' for name in state)
    added = ", ".join(f'"{record.stored.get(name, name)}"' for name in record.added)
    return DOC.format(
        summary=own.partition("\n")[0],
        parameters="\n    ".join(parameters),
        function=record.name,
        state=f"{quoted}; options add {added}" if added else quoted,
        title=record.title,
    )


class SparseAdam(RowOptimizer):
    """torch.optim.SparseAdam: lazy Adam with torch's arithmetic; dense gradients raise, as there.

    ``Adam(params, semantics="torch")`` has the same steps, and Adam's for dense gradients.

    Parameters
    ----------
    params : iterable of Tensor, of (name, Tensor), or of dict
    lr : float or Tensor of one, default 0.001
    betas : two floats or Tensors of one, default (0.9, 0.999)
    eps : float or Tensor of one, default 1e-08
    maximize : bool
        Follow the gradient upwards.
    **options
        frozen, master, max_norm ...: see `RowOptimizer`. rows is "touched" and semantics is "torch" here.

    Raises
    ------
    TypeError, ValueError, IndexError
        An option or a gradient that does not fit; nothing has changed then.

    Notes
    -----
    SPEC clauses 16 and 24.

    Examples
    --------
    >>> import torch
    >>> layer = torch.nn.Embedding.from_pretrained(torch.ones(3, 1), freeze=False, sparse=True)
    >>> optimizer = SparseAdam(layer.parameters(), lr=0.5)
    >>> layer(torch.tensor([2, 2])).sum().backward()
    >>> optimizer.step()
    >>> layer.weight.flatten()
    tensor([1.0000, 1.0000, 0.5000], grad_fn=<ViewBackward0>)
    """

    rule = "adam"

    def __init__(
        self,
        params: Any,
        lr: float | torch.Tensor | None = None,
        betas: tuple[float | torch.Tensor, float | torch.Tensor] | None = None,
        eps: float | torch.Tensor | None = None,
        maximize: bool = False,
        **options: Any,
    ) -> None:
        given = {"lr": lr, "betas": betas, "eps": eps}
        super().__init__(params, given, maximize=maximize, **{"rows": "touched", "semantics": "torch", **options})


def __getattr__(name: str) -> NoReturn:
    if name in torch.optim.__all__:
        titles = ["SparseAdam", *(record.title for record in RECORDS.values())]
        raise AttributeError(
            f"optim.{name}: got a name of torch.optim that has no rule for rows; accepted are {', '.join(titles)} "
            f"here, and torch.optim.{name} for parameters with dense gradients"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["SparseAdam"]
for _record in RECORDS.values():
    globals()[_record.title] = class_of(_record)
    __all__ += [_record.title]
