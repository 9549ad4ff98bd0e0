"""The two models: their batches, what they look up, and their gradient by hand, in NumPy.

The loss of each is written in each framework's own functions (`islices.conformance.tools.parity.torch` and the others,
the function of the model's name). The gradient by hand (`upstream`) serves twice: rounded to float32 it is the recorded
upstream gradient that all backends are given, since it belongs to no framework; with its errors it says how far two
frameworks' own gradients may be apart (`bound`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from islices.cli import UsageError
from islices.conformance.tools.parity.rounding import EPS, FUNCTION, Rounded
from islices.conformance.tools.parity.text import PADDING, Text, padded

__all__ = ["MODELS", "Batch", "Model", "Skipgram", "Translation", "Upstream"]

Array = np.ndarray[Any, Any]
Batch = dict[str, Any]
Loss = Callable[..., Any]


class Upstream(NamedTuple):
    """A batch's loss; (table, ids, gradient that arrives at the rows of these ids) of each lookup; dense gradients."""

    loss: float
    lookups: list[tuple[str, Array, Rounded]]
    dense: dict[str, Rounded]


class Model:
    """name; tables and dense: the names of the parameters; batches without end; the loss; its gradient by hand."""

    name: str
    tables: tuple[str, ...]
    dense: tuple[str, ...] = ()
    #: table -> the ids of a batch that are looked up in it
    reads: Mapping[str, tuple[str, ...]]
    #: optimizer -> a learning rate with which the loss falls
    rates: Mapping[str, float]

    def __init__(self, text: Text, batch_size: int, dim: int, seed: int) -> None:
        self.text, self.batch_size, self.dim, self.seed = text, batch_size, dim, seed

    def start(self) -> dict[str, Array]:
        """float32 parameters; the padding's row is zeros, and stays so as long as it gets no gradient."""
        rng = np.random.default_rng([self.seed, 0])
        rows = len(self.text.vocabulary)
        made = {name: rng.normal(0.0, 0.1, (rows, self.dim)).astype(np.float32) for name in self.tables}
        for table in made.values():
            table[PADDING] = 0.0
        shape = (self.dim, self.dim)
        return made | {name: rng.normal(0.0, self.dim**-0.5, shape).astype(np.float32) for name in self.dense}

    def batches(self) -> Iterator[Batch]:
        """Examples in a random order, without end; the last of a round that fill no batch are left out."""
        count = self.examples()
        if count < self.batch_size:
            raise UsageError(
                f"--batch-size: got {self.batch_size}; {self.text.name} has {count} examples for {self.name}"
            )
        return self._endless(count)

    def _endless(self, count: int) -> Iterator[Batch]:
        rng = np.random.default_rng([self.seed, 1])
        while True:
            order = rng.permutation(count)
            for first in range(0, count - self.batch_size + 1, self.batch_size):
                yield self.batch(order[first : first + self.batch_size], rng)

    def negatives(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Words drawn by frequency to the power 3/4 (Mikolov et al. 2013), never the padding."""
        weights = self.text.counts**0.75
        return rng.choice(len(weights), shape, p=weights / weights.sum()).astype(np.int32)

    def examples(self) -> int:
        """How many there are."""
        raise NotImplementedError

    def batch(self, which: Array, rng: np.random.Generator) -> Batch:
        """The batch of some examples: int32 ids, float32 numbers."""
        raise NotImplementedError

    def tokens(self, batch: Batch) -> int:
        """The words that a batch is asked for, padding not counted."""
        raise NotImplementedError

    def loss(self, of_rows: Loss, lookup: Callable[..., Any], parameters: Mapping[str, Any], batch: Batch) -> Any:
        """The loss, by a framework's function of looked-up rows; lookup(table, ids, mean=False) reads rows or means."""
        raise NotImplementedError

    def upstream(self, parameters: Mapping[str, Rounded], batch: Batch) -> Upstream:
        """The gradient of the loss that arrives at each looked-up row."""
        raise NotImplementedError


class Skipgram(Model):
    """Words beside words, by negative sampling (Mikolov et al. 2013).

    The loss is log(1 + exp(-sign * centre . context)), summed over the neighbours (+1) and negatives (-1) of a centre,
    meant over the centres.
    At a line's ends neighbours are padding. Nothing masks them: the padding's row of zeros adds log 2 to the loss and
    nothing to any gradient, as long as it gets none itself.
    """

    name = "skipgram"
    tables = ("centre", "context")
    reads = MappingProxyType({"centre": ("centre",), "context": ("context",)})
    rates = MappingProxyType({"sgd": 20.0, "adagrad": 0.1, "adam": 0.03})
    window, sampled = 2, 5

    def __init__(self, text: Text, batch_size: int, dim: int, seed: int) -> None:
        super().__init__(text, batch_size, dim, seed)
        self._centres = np.concatenate(text.lines)
        edge = np.full(self.window, PADDING, np.int32)
        around = [np.concatenate([edge, line, edge]) for line in text.lines]
        width = 2 * self.window + 1
        windows = np.concatenate([np.lib.stride_tricks.sliding_window_view(line, width) for line in around])
        self._neighbours = np.delete(windows, self.window, axis=1)

    def examples(self) -> int:
        return len(self._centres)

    def batch(self, which: Array, rng: np.random.Generator) -> Batch:
        near = self._neighbours[which]
        far = self.negatives(rng, (len(which), self.sampled))
        sign = np.repeat([1.0, -1.0], [near.shape[1], self.sampled]).astype(np.float32)
        return {"centre": self._centres[which], "context": np.concatenate([near, far], axis=1), "sign": sign}

    def tokens(self, batch: Batch) -> int:
        return int(np.count_nonzero(batch["context"][:, : 2 * self.window] != PADDING))

    def loss(self, of_rows: Loss, lookup: Callable[..., Any], parameters: Mapping[str, Any], batch: Batch) -> Any:
        centre, context = (lookup(parameters[name], batch[name]) for name in self.tables)
        return of_rows(centre, context, batch["sign"])

    def upstream(self, parameters: Mapping[str, Rounded], batch: Batch) -> Upstream:
        centre, context = (parameters[name][batch[name]] for name in self.tables)
        sign, each = batch["sign"].astype(np.float64), _quotient(1.0, len(batch["centre"]))
        score = (centre[:, None] * context).sum(-1)
        slope = (score * -sign).apply(_sigmoid, lambda x: _sigmoid(x) * _sigmoid(-x)) * each * -sign
        at_context = slope[..., None] * centre[:, None]
        at_centre = (slope[..., None] * context).sum(1)
        loss = float(np.logaddexp(0.0, -sign * score.value).sum() * each.value)
        return Upstream(loss, [("centre", batch["centre"], at_centre), ("context", batch["context"], at_context)], {})


class Translation(Model):
    """A line into the line after it: no translation, but the shape of one.

    tanh(mean of the source rows @ bridge) is scored against each word of the target line and the batch's negatives; the
    loss is a sampled softmax, meant over words.
    Lines are cut at 12 words and padded: the mean is of the words alone, and the padding's own loss counts nothing.
    """

    name = "translation"
    tables = ("source", "target")
    dense = ("bridge",)
    reads = MappingProxyType({"source": ("source",), "target": ("target", "negative")})
    rates = MappingProxyType({"sgd": 5.0, "adagrad": 0.1, "adam": 0.03})
    width, sampled = 12, 64

    def examples(self) -> int:
        return len(self.text.lines) - 1

    def batch(self, which: Array, rng: np.random.Generator) -> Batch:
        source, target = (padded([self.text.lines[k + after] for k in which], self.width) for after in (0, 1))
        real = (target != PADDING).astype(np.float32)
        share = real / real.sum(dtype=np.float32)
        return {"source": source, "target": target, "negative": self.negatives(rng, (self.sampled,)), "share": share}

    def tokens(self, batch: Batch) -> int:
        return int(np.count_nonzero(batch["target"] != PADDING))

    def loss(self, of_rows: Loss, lookup: Callable[..., Any], parameters: Mapping[str, Any], batch: Batch) -> Any:
        bag = lookup(parameters["source"], batch["source"], mean=True)
        target, negative = (lookup(parameters["target"], batch[name]) for name in ("target", "negative"))
        return of_rows(bag, parameters["bridge"], target, negative, batch["share"])

    def upstream(self, parameters: Mapping[str, Rounded], batch: Batch) -> Upstream:
        source, bridge = parameters["source"][batch["source"]], parameters["bridge"]
        target, negative = (parameters["target"][batch[name]] for name in ("target", "negative"))
        words = (batch["source"] != PADDING).astype(np.float64)
        each = _quotient(words, words.sum(1, keepdims=True))[..., None]
        bag = (source * each).sum(1)
        hidden = (bag @ bridge).apply(np.tanh, lambda x: 1 - np.tanh(x) ** 2)
        own, other = (hidden[:, None] * target).sum(-1), hidden @ negative.T
        share = batch["share"].astype(np.float64)
        loss, at_own, at_others = _sampled_softmax(own, other, share)
        at_target = at_own[..., None] * hidden[:, None]
        at_negative = at_others.T @ hidden
        at_hidden = (at_own[..., None] * target).sum(1) + at_others @ negative
        inside = at_hidden * (Rounded(np.ones(())) - hidden * hidden)
        at_rows = (inside @ bridge.T)[:, None] * each
        lookups = [
            ("source", batch["source"], at_rows),
            ("target", batch["target"], at_target),
            ("target", batch["negative"], at_negative),
        ]
        return Upstream(loss, lookups, {"bridge": bag.T @ inside})


MODELS: dict[str, type[Model]] = {model.name: model for model in (Skipgram, Translation)}


def _sigmoid(x: Array) -> Array:
    return np.exp(-np.logaddexp(0.0, -x))  # to the last digits far below 0 too


def _quotient(a: Any, b: Any) -> Rounded:
    """a / b of exact numbers, rounded: a framework may multiply by it where another divides by b."""
    value = a / np.asarray(b, np.float64)
    return Rounded(value, value / 2)


def _sampled_softmax(own: Rounded, other: Rounded, share: Array) -> tuple[float, Rounded, Rounded]:
    """The sum of share * (log(exp(own) + sum of exp(others)) - own); its gradients by own (B, L), by others (B, N)."""
    B, L = own.value.shape
    N = other.value.shape[1]

    def joined(a: Array, b: Array) -> Array:
        return np.concatenate([a[..., None], np.broadcast_to(b[:, None], (B, L, N))], -1)

    logits, radius = joined(own.value, other.value), EPS * joined(own.error, other.error)
    below = logits - logits.max(-1, keepdims=True)
    p = np.exp(below)
    total = p.sum(-1, keepdims=True)
    loss = float((share * (np.log(total) - below)[..., 0]).sum())
    p /= total
    # a logit's error moves its own p and, through the sum, all others: p' / p <= exp(radius) / sum of p exp(-radius)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        growth = np.expm1(radius) - (p * np.expm1(-radius)).sum(-1, keepdims=True)
        growth /= (p * np.exp(-radius)).sum(-1, keepdims=True)
    # p = exp(below - log(total)): the roundings of both differences, of log, of the exps, of their sum
    furthest = radius.max(-1, keepdims=True)
    of_total = FUNCTION + N / 2 + (p * (1 + growth) * -below).sum(-1, keepdims=True) / 2
    of_log = FUNCTION * np.log(total) + np.log(total) / 2 - below + (FUNCTION + 4) * furthest
    moved = p * (growth / EPS + (1 + growth) * (of_total + of_log + FUNCTION))
    # no p is below 0 or above 1; what has overflowed says no more than that
    slopes = Rounded(p, np.fmin(moved, 1 / EPS)) * share[..., None]
    return loss, slopes[..., 0] - Rounded(share), slopes[..., 1:].sum(1)
