"""Record the steps of a torch training for `islices.parity`, with hooks of the model, its parameters and the optimizer.

May import: `torch`, the core, `islices.backends.torch.optim`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from typing import Any, Self

import torch

from islices.backends.torch.optim.states import describe_optimizer, state_of
from islices.core.registry import describe
from islices.porting.trajectory import Recorder


class TorchRecorder(Recorder):
    """A recorder that needs no changes to the code of the training loop. The recorder stores the batch, outputs,
    gradients before and after clipping, tables, state and hyperparameters of each recorded step.

    Parameters
    ----------
    folder : str or path
        The folder for the recorded steps; see `islices.Recorder`.
    model : torch.nn.Module
    optimizer : torch.optim.Optimizer
        An optimizer of torch.optim or of `islices.backends.torch.optim`, whose parameters belong to the model.
    **options
        The options of `islices.Recorder`: every, overwrite, metadata.

    Raises
    ------
    TypeError, ValueError, OSError
        `model`, `optimizer` or an option is invalid, or a parameter of the optimizer is not in the model. Or the folder
        already contains steps and `overwrite` is False, or the folder is not writable.

    Notes
    -----
    Each `optimizer.step()` ends a step. The batch and the outputs are the tensors in the arguments and results of all
    calls of the model in the step. Calls under torch.no_grad or torch.inference_mode are left out. The recorder reads
    each gradient after the backward pass, and again when the optimizer begins its step. If the two values of any
    gradient differ, the later values of all gradients are recorded as the clipped gradients. Hooks do not see the loss,
    so call ``recorder.add(loss=loss)`` to record it. With a `GradScaler`, the recorded gradients before clipping are
    gradients of the scaled loss. SPEC clause 23.

    Examples
    --------
    >>> import tempfile, torch, islices
    >>> from islices.backends.torch import TorchRecorder
    >>> model = torch.nn.Sequential(torch.nn.Embedding(9, 2, sparse=True))
    >>> optimizer = torch.optim.SparseAdam(model.parameters())
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with TorchRecorder(folder, model, optimizer):
    ...         model(torch.tensor([3, 5])).sum().backward()
    ...         optimizer.step()
    ...     found = islices.parity(folder, folder)
    >>> list(found.pairs), found.same_bits
    (['0.weight'], 1)
    """

    framework = "torch"

    def __init__(self, folder: str | os.PathLike[str], model: Any, optimizer: Any, **options: Any) -> None:
        if not isinstance(model, torch.nn.Module):
            raise TypeError(f"model: got {describe(model)}; accepted is a torch.nn.Module")
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(f"optimizer: got {describe(optimizer)}; accepted is a torch.optim.Optimizer")
        self._model, self._optimizer = model, optimizer
        stepped = {id(p) for group in optimizer.param_groups for p in group["params"]}
        self._names = {name: p for name, p in model.named_parameters() if id(p) in stepped}
        if len(self._names) < len(stepped):
            raise ValueError(
                f"optimizer: got {len(stepped)} parameters, of which the model has {len(self._names)}; accepted are "
                "the model's own"
            )
        super().__init__(folder, **options)
        self._handles: list[Any] = []
        self._calls: list[tuple[Any, Any]] = []
        self._raw: dict[str, torch.Tensor] = {}

    def __enter__(self) -> Self:
        self._handles = [
            self._model.register_forward_hook(self._called, with_kwargs=True),
            self._optimizer.register_step_pre_hook(self._begins),
            self._optimizer.register_step_post_hook(self._ended),
            *(p.register_post_accumulate_grad_hook(partial(self._keep, name)) for name, p in self._names.items()),
        ]
        return self

    def __exit__(self, *raised: object) -> None:
        while self._handles:
            self._handles.pop().remove()
        self._calls.clear()
        self._raw.clear()
        super().__exit__(*raised)

    # ------------------------------------------------------------------ hooks
    def _called(self, module: Any, args: Any, kwargs: Any, output: Any) -> None:
        if torch.is_grad_enabled() and self.wanted:
            self._calls.append(([*_tensors(args), *_tensors(kwargs)], list(_tensors(output))))

    def _keep(self, name: str, p: torch.Tensor) -> None:
        if self.wanted and p.grad is not None:
            self._raw[name] = p.grad.detach().clone()

    def _begins(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not self.wanted:
            return
        applied = {name: p.grad for name, p in self._names.items() if p.grad is not None}
        raw = {name: self._raw.get(name, x) for name, x in applied.items()}
        self._found = describe_optimizer(optimizer, self._names, applied)
        self.add(tables=self._names, state=state_of(optimizer, self._names), gradients=raw)
        if any(not _same(raw[name], x) for name, x in applied.items()):
            self.add(clipped=applied)
        if self._calls:
            one = len(self._calls) == 1
            batch, outputs = zip(*self._calls, strict=True)
            self.add(batch=batch[0] if one else list(batch), outputs=outputs[0] if one else list(outputs))

    def _ended(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        after = {"tables_after": self._names, "state_after": state_of(optimizer, self._names)} if self.wanted else {}
        self._calls.clear()
        self._raw.clear()
        self.step(**after)


def _tensors(x: Any) -> Iterator[torch.Tensor]:
    """Yield detached copies of the tensors in nested tuples, lists and dicts."""
    if isinstance(x, torch.Tensor):
        yield x.detach().clone()
    elif isinstance(x, (list, tuple, dict)):
        for item in x.values() if isinstance(x, dict) else x:
            yield from _tensors(item)


def _same(x: torch.Tensor, y: torch.Tensor) -> bool:
    if x.layout != y.layout:
        return False
    if x.layout is torch.sparse_coo:
        pairs = [(x._indices(), y._indices()), (x._values(), y._values())]
        return all(p.shape == q.shape and torch.equal(p, q) for p, q in pairs)
    return torch.equal(x, y)
