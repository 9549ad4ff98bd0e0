"""Capture gradients of the embedding layers of an unchanged model.

The adapter hooks the layers (`Backend.capture`). This module converts the layers' lookups and gradients to slices.
SPEC clauses 12, 14 and 19.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Any

from islices.backend import Array, Backend, LayerUse, OtherUse, ProductUse, Use
from islices.core.registry import describe, loaded_backends
from islices.core.slices import IndexedSlices
from islices.embedding.bags import BagMembers, reduce_bags_backward
from islices.embedding.ids import check_ids, flat_ids
from islices.embedding.layouts import BagLayout, bags_at_offsets, bags_of_last_axis
from islices.embedding.lookup import members
from islices.embedding.lookup_gradients import flat_slices, table_gradient
from islices.embedding.per_sample import (
    PerSample,
    by_sample,
    check_axis,
    join,
    whole_gradient,
)


def capture(model: Any) -> Capture:
    """Return a context that hooks a model's embedding layers, to capture the gradients of their weights.

    Parameters
    ----------
    model : torch.nn.Module, keras.Model or Layer (Keras on TensorFlow), mxnet.gluon.Block
        A model with torch.nn.Embedding or EmbeddingBag, keras.layers.Embedding, or gluon.nn.Embedding anywhere in it.
        The model's code and weights do not change. The framework's gradients may be sparse or dense. On torch and Keras
        the weights may be tied to an output layer (torch.nn.Linear, keras.layers.ReversibleEmbedding). For JAX, where
        models are functions, use `value_and_grad` with ``sparse=``.

    Returns
    -------
    Capture
        A context manager. Run the model and an ordinary backward pass within the context. Then `Capture.gradients` and
        `Capture.per_sample` return the gradients, even after the context has ended. If a Keras model runs in a
        tf.function, call these methods in the same function.

    Raises
    ------
    TypeError
        The model's type is not supported. Entering the context raises TypeError if the model has no stock embedding
        layers, or if a layer cannot be hooked.
    RuntimeError
        The context is entered again before it has ended, or is entered within a function that torch.compile compiles.

    Notes
    -----
    The framework still computes its gradient of the weights, which is dense for torch layers with sparse=False. Freeze
    the layer (requires_grad=False, trainable=False, grad_req="null") to get only the captured gradient. The captured
    gradient covers only the captured layers. `Capture.gradients` and `Capture.per_sample` raise TypeError if a gradient
    within the context came from another use of the weights. On Gluon, another use raises TypeError at once.
    SPEC clause 12 defines scaling by frequency, which torch's EmbeddingBag(scale_grad_by_freq=True) computes
    differently. Clause 14 defines the gradients of tied weights per sample.

    Examples
    --------
    >>> import torch, islices
    >>> model = torch.nn.Sequential(torch.nn.Embedding(1000, 2), torch.nn.Linear(2, 1))
    >>> with islices.capture(model) as captured:
    ...     model(torch.tensor([[5, 7], [5, 5]])).sum().backward()
    >>> captured.gradients()
    {'0': IndexedSlices(n=4, dense_shape=(1000, 2), float32, int64, torch)}
    >>> captured.per_sample()["0"].slices(1).indices.tolist()
    [5, 5]
    """
    for B in loaded_backends():
        if B.is_model(model):
            return Capture(B, model)
    raise TypeError(
        f"model: got {describe(model)}; accepted are torch.nn.Module, keras models and layers, and mxnet.gluon.Block "
        "(JAX: value_and_grad with sparse=)"
    )


@contextmanager
def replaced(x: Any, name: str, by: Any) -> Iterator[None]:
    """Replace a method of an instance within a ``with`` block. Adapters hook layers with this context."""
    before = {name: vars(x)[name]} if name in vars(x) else {}
    vars(x)[name] = by  # not by assignment, which some frameworks track
    try:
        yield
    finally:
        del vars(x)[name]
        vars(x).update(before)


class Capture:
    """The uses of a model's embedding weights within a ``with`` block, and the gradients that reached the uses.

    `capture` returns an instance. The gradients of several forward and backward passes accumulate until `clear`.
    SPEC clauses 12 and 14.

    Examples
    --------
    >>> import torch, islices
    >>> model = torch.nn.Sequential(torch.nn.Embedding(1000, 2))
    >>> with islices.capture(model) as captured:
    ...     model(torch.tensor([[5, 7], [5, 5]])).sum().backward()
    >>> captured
    <islices.Capture: 1 layers, 1 lookups>
    >>> captured.clear()
    >>> captured.gradients()["0"].indices.tolist()
    []
    """

    def __init__(self, backend: Backend, model: Any) -> None:
        self.backend = backend
        self._model = model
        self._uses: list[Use] = []
        self._weights: dict[str, Array] = {}
        self._seen = False
        self._context: AbstractContextManager[dict[str, Array]] | None = None

    def __enter__(self) -> Capture:
        if self._context is not None:
            raise RuntimeError("capture: entered twice; accepted is one `with` block at a time")
        context = self.backend.capture(self._model, self._uses)
        self._weights = context.__enter__()
        self._context = context
        if not self._weights:
            self.__exit__(None, None, None)
            raise TypeError(
                f"model: got {describe(self._model)} without stock embedding layers; accepted is a model with some"
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        context, self._context = self._context, None
        if context is not None:
            context.__exit__(kind, error, trace)

    def __repr__(self) -> str:
        return f"<islices.Capture: {len(self._weights)} layers, {len(self._uses)} lookups>"

    def clear(self) -> None:
        """Forget the captured lookups and gradients. Call `clear` between steps, like zero_grad.

        On torch, a forward pass whose backward pass has not run yet is kept, because loops such as Lightning's zero the
        gradients between the two passes.
        """
        self._seen = self._seen or bool(self._uses)
        self._uses[:] = [use for use in self._uses if _is_pending(use)]

    def gradients(self) -> dict[str, Any]:
        """Return a dict from each layer's name in the model to the gradient of the layer's weights.

        Returns
        -------
        dict of str to IndexedSlices, or to a dense array
            Slices are not coalesced: a gradient has one slice for each looked-up row except padding, in the order of
            the forward passes. A layer that was not used, or that no gradient reached, has an empty gradient. If an
            output layer used the weights too, the gradient is a dense array. Weights that several layers share have one
            gradient, under the first layer's name.

        Raises
        ------
        RuntimeError
            No captured layer has run.
        TypeError
            Another operation also used the weights, and its gradient would be missing here. Or a Keras model ran in a
            tf.function that has ended.
        """
        made = {}
        for name, lookups, products in self._arrived():
            parts = [table_gradient(self._slices(use)[0], use.padding_idx, use.scale_by_freq) for use in lookups]
            made[name] = whole_gradient(self.backend, self._weights[name], parts, products)
        return made

    def per_sample(self, *, sample_axis: int = 0) -> dict[str, PerSample]:
        """Return each sample's gradient of each layer's weights.

        The loss must be the sum, not the mean, over the samples of one batch; call `clear` between batches. The loss of
        a sample must not depend on other samples, which rules out batch norm. A capture does not see the losses, so it
        cannot check that samples are independent; `value_and_grad` with per_sample=True can. Ids that the batch shares,
        such as positions or negative examples, belong to no sample. Before the lookup, expand shared ids to the shape
        (batch, length), so that each sample has its ids.

        Parameters
        ----------
        sample_axis : int
            The axis of the samples in the ids of the layers, and in the inputs of output layers with the same weights.
            For time-major ids (L, B), pass 1. An array with fewer axes has its samples along its last axis. The last
            axis of ids of bags, and of inputs of output layers, does not count. For ids with offsets, the bags are the
            samples; for torch's nested ids, the rows are the samples.

        Returns
        -------
        dict of str to PerSample
            Layers that no gradient reached are left out. Weights that several layers share have one gradient, under
            the first layer's name.

        Raises
        ------
        RuntimeError
            No captured layer has run.
        NotImplementedError
            A layer scales by frequency.
        TypeError
            sample_axis is not an int. Or another operation also used the weights, and its gradient cannot be split by
            sample. Or a Keras model ran in a tf.function that has ended.
        ValueError
            sample_axis is negative, lookups or products have different numbers of samples, or ids have the shape ().
        """
        axis, made = check_axis(sample_axis), {}
        for name, lookups, products in self._arrived():
            parts = [self._samples(use, axis) for use in lookups]
            found = join(self.backend, self._weights[name], parts, products, axis, f"per_sample: layer {name!r}")
            if found is not None:
                made[name] = found
        counts = {name: g.dense_shape[0] for name, g in made.items()}
        if len(set(counts.values())) > 1:
            raise ValueError(
                f"per_sample: got numbers of samples {counts}; accepted is one number for all layers (ids that the "
                "batch shares, as positions, are expanded to (batch, length) before they are looked up)"
            )
        return made

    def _arrived(self) -> Iterator[tuple[str, list[LayerUse], list[ProductUse]]]:
        """Yield (layer's name, lookups, products) for each layer's weights, with only the uses that a gradient reached.

        Raise RuntimeError if no layer has run, so that an empty result means that no gradient arrived. Raise TypeError
        if another operation used the weights.
        """
        if not self._seen and not self._uses:
            raise RuntimeError(
                "capture: no embedding layer of the model has run since; accepted is a forward and backward pass "
                "within the `with` block (a graph compiled before it does not call the layers again)"
            )
        for name in self._weights:
            lookups, products = list[LayerUse](), list[ProductUse]()
            for use in self._uses:
                if use.layer != name:
                    continue
                if isinstance(use, OtherUse):
                    raise TypeError(
                        f"capture: the weights of layer {name!r} {use.subject}, and what that adds to their gradient "
                        "is not captured; accepted are stock embedding layers, and stock output layers that share "
                        "their weights"
                    )
                if use.upstream is not None:
                    (lookups if isinstance(use, LayerUse) else products).append(use)  # type: ignore[arg-type]
            yield name, lookups, products

    def _samples(self, use: LayerUse, axis: int) -> PerSample:
        if use.scale_by_freq:
            raise NotImplementedError(
                f"per_sample: layer {use.layer!r} scales by frequency: one sample's gradient depends on the others"
            )
        s, ids, layout = self._slices(use)
        B = self.backend
        if not B.shape(ids):
            raise ValueError(f"per_sample: layer {use.layer!r}: got ids of shape (); accepted is (B, ...)")
        given = None if use.offsets is None or layout is None else (layout.segments, layout.bags)
        return by_sample(s, ids, axis, use.padding_idx, bags=use.combiner is not None, given=given)

    def _slices(self, use: LayerUse) -> tuple[IndexedSlices, Array, BagLayout | None]:
        """Return (slices including padding, ids, the layout of bags or samples, or None) for one use of a layer."""
        B, upstream = self.backend, use.upstream
        ids = check_ids(B, use.ids, upstream)
        layout, flat = None, ids
        if use.offsets is not None:
            layout = bags_at_offsets(B, use.offsets, ids)
        elif use.combiner is not None:
            layout = bags_of_last_axis(B, ids)
        if use.combiner is not None and layout is not None:
            keep = members(B, ids, None, use.padding_idx, use.num_rows)
            keep, weights, flat = (flat_ids(B, x) for x in (keep, use.weights, ids))
            rows = use.rows
            if rows is None:  # the values of the rows do not matter then
                with B.scope():
                    rows = B.take(B.zeros_like(upstream), layout.segments)
            bags = BagMembers(layout.segments, layout.bags, use.combiner, keep, weights)
            upstream = reduce_bags_backward(B, upstream, rows, bags)
        return flat_slices(B, upstream, flat, use.num_rows), ids, layout


def _is_pending(use: Use) -> bool:
    """Return True if a use has no gradient yet, and a backward pass may still set it."""
    if isinstance(use, OtherUse) or use.upstream is not None:
        return False
    return use.awaited is not None and use.awaited() is not None
