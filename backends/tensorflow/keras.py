"""Keras' optimizers on row-sparse gradients: duplicates are summed, then clipped, then Keras takes its own step.

Keras 3 hands an optimizer the `tf.IndexedSlices` of an embedding as they come from the tape, and no optimizer of its
own sums the duplicates in them. The classes here are Keras' optimizers, state and arithmetic included, which see the
gradient itself. Everything happens where the gradients of all replicas have just been added up: behind the loss scale
and the accumulation of micro-batches, before the rule of the optimizer.

May import: Keras, TensorFlow, the core. Importing the adapter does not import this module.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from islices import optim
from islices.arguments import check_name, is_real
from islices.clip import clip_by_global_norm, clip_by_norm, clip_by_value
from islices.native import from_native, to_native
from islices.optim.inputs import check_frozen
from islices.presets import BY_GLOBAL_NORM, BY_NORM, BY_VALUE, Semantics, lookup_formula
from islices.registry import describe
from islices.rows import coalesce
from islices.slices import IndexedSlices

__all__ = [
    "SGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Coalesced",
    "Ftrl",
    "Lamb",
    "Lion",
    "Nadam",
    "RMSprop",
    "Stepped",
]

if keras.backend.backend() != "tensorflow":
    raise ImportError(
        f"islices.backends.tensorflow.keras: got Keras on the backend {keras.backend.backend()!r}; accepted is "
        "'tensorflow', the only one on which Keras has sparse gradients (the environment variable KERAS_BACKEND sets "
        "it before Keras is imported)"
    )

#: What Keras calls between the gradients and its own rule, and `Coalesced` stands in for.
HOOKS = ("_all_reduce_sum_gradients", "_clip_gradients")
if not all(hasattr(keras.optimizers.Optimizer, name) for name in HOOKS):
    raise ImportError(
        f"islices.backends.tensorflow.keras: got Keras {keras.__version__}, whose optimizers have no "
        f"{' and '.join(HOOKS)}; accepted is Keras 3 as it is up to 3.15"
    )

#: The clip that each argument of Keras asks for, with the semantics it has.
CLIPS = {"clipnorm": BY_NORM, "global_clipnorm": BY_GLOBAL_NORM, "clipvalue": BY_VALUE}


class Coalesced(keras.optimizers.Optimizer):  # type: ignore[misc]
    """What makes an optimizer of Keras see row-sparse gradients as they are meant; to be named before its class.

    Parameters
    ----------
    *args, **kwargs
        Those of the optimizer. ``clipnorm`` is the norm that each variable's gradient is clipped to by
        `islices.clip_by_norm`, ``global_clipnorm`` that of all by `islices.clip_by_global_norm`, ``clipvalue`` the
        bound of each element by `islices.clip_by_value`; at most one of them, None or above 0.
    semantics : str
        Whose factor clips: "islices", or another that the function of islices has, such as "keras". Duplicates are
        summed first in any case. SPEC clause 11.
    nonfinite : {"propagate", "skip"}
        What a NaN or infinite norm does where one is clipped: every stored value NaN, or a step with zeros. SPEC
        clause 10.

    Raises
    ------
    TypeError, ValueError
        A bound that is none, a semantics that the function has not; what the optimizer itself refuses.

    Notes
    -----
    The optimizer has the variables, in the order and under the names, of the class of Keras it is made from: what
    one saved the other loads. Under a strategy with several replicas the norm is that of the sum of their gradients
    (Keras clips each replica's share).

    Compiled by XLA, duplicates stay as slots of zeros, since shapes are fixed there.

    Examples
    --------
    An optimizer of one's own, and a bound on two duplicates of a row, whose norm is 2:

    >>> import keras, tensorflow as tf
    >>> from islices.backends.tensorflow.keras import Coalesced
    >>> @keras.saving.register_keras_serializable("mine")
    ... class SGD(Coalesced, keras.optimizers.SGD):
    ...     pass
    >>> table = tf.Variable([[0.0], [0.0], [0.0]])
    >>> gradient = tf.IndexedSlices(tf.ones((2, 1)), tf.constant([1, 1]), tf.constant([3, 1]))
    >>> SGD(1.0, global_clipnorm=0.5).apply([gradient], [table])
    >>> table.numpy().ravel().tolist()
    [0.0, -0.5, 0.0]
    """

    def __init__(
        self, *args: Any, semantics: Semantics = "islices", nonfinite: str = "propagate", **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        for name, formulas in CLIPS.items():
            bound = getattr(self, name)
            if bound is not None:
                _check_bound(name, bound)
                lookup_formula(formulas, semantics, name)
        lookup_formula({**BY_GLOBAL_NORM, **BY_NORM, **BY_VALUE}, semantics, "clipping")
        self.semantics = semantics
        self.nonfinite = check_name(nonfinite, ("propagate", "skip"), "nonfinite")  # a graph cannot raise

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "semantics": self.semantics, "nonfinite": self.nonfinite}

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Keras' own, on gradients looked at before any variable changes."""
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
        grads, variables = list(grads), trainable_variables or self._trainable_variables
        for grad, variable in zip(grads, variables, strict=False):  # Keras says what is missing
            _adopted(grad, variable, validate=True)
        super().apply([_divisible(g) for g in grads], trainable_variables)

    def _clip_gradients(self, grads: list[Any]) -> list[Any]:
        return grads  # not yet: the shares of other replicas are missing

    def _all_reduce_sum_gradients(self, grads_and_vars: Sequence[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        pairs = list(super()._all_reduce_sum_gradients(grads_and_vars))
        grads = self._clip([_sum_duplicates(g, v) for g, v in pairs])
        natives = [to_native(g) if isinstance(g, IndexedSlices) else g for g in grads]
        return [(g, v) for g, (_, v) in zip(natives, pairs, strict=True)]

    def _clip(self, grads: list[Any]) -> list[Any]:
        by = {"semantics": self.semantics, "nonfinite": self.nonfinite}
        if self.clipnorm is not None:
            return clip_by_norm(grads, self.clipnorm, **by)  # type: ignore[no-any-return]
        if self.global_clipnorm is not None:
            return clip_by_global_norm(grads, self.global_clipnorm, **by)[0]  # type: ignore[no-any-return]
        if self.clipvalue is not None:
            return clip_by_value(grads, -self.clipvalue, self.clipvalue, semantics=self.semantics)  # type: ignore[no-any-return]
        return grads


def _check_bound(name: str, bound: Any) -> None:
    if isinstance(bound, bool) or not is_real(bound):
        raise TypeError(f"{name}: got {describe(bound)}; accepted are None and a number above 0")
    if not bound > 0:
        raise ValueError(f"{name}: got {bound}; accepted are None, which does not clip, and a number above 0")


#: A saved model names its optimizer's class: this module is imported before one is loaded.
_saved = keras.saving.register_keras_serializable("islices")


@_saved
class Stepped(Coalesced):
    """An optimizer of `islices.optim` in the place of Keras' own: lazy Adam, row-wise Adagrad, frozen rows.

    Parameters
    ----------
    rule : islices.optim.Optimizer
        What takes the steps, on all weights it is given. Its learning rate becomes that of Keras, for callbacks to
        change: a number, or one of keras.optimizers.schedules. Its other hyperparameters may be schedules too, of the
        steps that a weight has taken.
    **kwargs
        By keyword, as of any Keras optimizer: name, learning_rate (in place of the rule's), clipnorm, global_clipnorm,
        clipvalue, loss_scale_factor, use_ema, ema_momentum, ema_overwrite_frequency; and the semantics and nonfinite
        of `Coalesced`, which are those of the clip, as those of the step are the rule's.

    Raises
    ------
    TypeError
        A rule that is none, or with a hyperparameter that Keras cannot hold: a function that is no schedule.
    ValueError
        Keras' weight_decay (the rule has its own) or gradient_accumulation_steps (which keep dense sums, so that every
        row has a gradient); a weight that is a single number; jit_compile=True, since XLA cannot step on some rows.
    IndexError
        Frozen rows that a weight does not have.

    Notes
    -----
    Keras holds the learning rate as float32. The variables hold what ``rule.init`` makes, for each weight in turn;
    dense gradients name every row. SPEC clause 16.

    Examples
    --------
    >>> import tensorflow as tf
    >>> from islices import optim
    >>> from islices.backends.tensorflow.keras import Stepped
    >>> table = tf.Variable([[0.0], [0.0], [0.0]])
    >>> gradient = tf.IndexedSlices(tf.ones((2, 1)), tf.constant([1, 1]), tf.constant([3, 1]))
    >>> optimizer = Stepped(optim.adagrad(0.5))
    >>> optimizer.apply([gradient], [table])
    >>> table.numpy().ravel().tolist()
    [0.0, -0.5, 0.0]
    """

    def __init__(self, rule: optim.Optimizer, **kwargs: Any) -> None:
        if not isinstance(rule, optim.Optimizer):
            raise TypeError(f"rule: got {describe(rule)}; accepted is an optimizer of islices.optim")
        for name, accepted in REFUSED.items():
            if kwargs.pop(name, None) is not None:
                raise ValueError(f"{name}: accepted by Stepped is None; {accepted}")
        rate = kwargs.pop("learning_rate", None)
        _described(rule)  # refuses what cannot be saved
        super().__init__(_keras_rate(rule) if rate is None else rate, **kwargs)
        self.rule = rule

    def build(self, variables: Sequence[Any]) -> None:
        super().build(variables)
        self._states = [self._new_state(v) for v in variables]

    def _new_state(self, variable: Any) -> dict[str, Any]:
        name, shape = getattr(variable, "path", variable.name), tuple(variable.shape)
        if not shape:
            raise ValueError(f"variables: got {name}, a single number; accepted are weights of rows")
        check_frozen(*self.rule._frozen, shape[0])
        row = np.zeros((1, *shape[1:]), keras.backend.standardize_dtype(variable.dtype))
        return {
            part: self.add_variable(
                shape=x.shape if part == "step" else (shape[0], *x.shape[1:]),
                initializer=keras.initializers.Constant(x.flat[0] if x.size else 0),
                dtype=x.dtype.name,
                name=f"{name}_{part}".replace("/", "_").replace(":", "_"),
            )
            for part, x in self.rule.init(row).items()
        }

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """One step of the rule, at the learning rate Keras says."""
        if _compiled_by_xla():
            raise ValueError("jit_compile: got True; accepted by Stepped is False, since shapes are fixed in XLA")
        rate = tf.convert_to_tensor(learning_rate)
        state = {part: x.value for part, x in self._states[self._get_variable_index(variable)].items()}
        _made_anew(_described(self.rule), lambda step: rate).step(variable, gradient, state)

    def get_config(self) -> dict[str, Any]:
        config = {name: x for name, x in super().get_config().items() if name not in REFUSED}
        rule = {k: SCHEDULES.serialize(x) if isinstance(x, SCHEDULE) else x for k, x in _described(self.rule).items()}
        if rule["frozen"] is not None:
            rule["frozen"] = rule["frozen"].tolist()
        return {**config, "rule": rule}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None) -> Stepped:
        rate = config.get("learning_rate")
        described = {
            k: SCHEDULES.deserialize(x, custom_objects) if isinstance(x, dict) else x for k, x in config["rule"].items()
        }
        # a learning rate that is a schedule is Keras' to read; ftrl has none that is 0
        rule = _made_anew(described, rate if isinstance(rate, float) else 1.0)
        return super().from_config({**config, "rule": rule}, custom_objects)  # type: ignore[no-any-return]


SCHEDULES = keras.optimizers.schedules
SCHEDULE = SCHEDULES.LearningRateSchedule
#: What Keras does around the rule of an optimizer that would not be that rule.
REFUSED = {
    "weight_decay": "Keras' moves every row, the rule has one of its own",
    "gradient_accumulation_steps": "Keras adds up in dense arrays, which name every row",
}


def _keras_rate(rule: optim.Optimizer) -> Any:
    return _held("lr", rule.hyper["lr"])


def _held(name: str, x: Any) -> Any:
    """A hyperparameter as Keras holds it: a flag, a float, a schedule."""
    if isinstance(x, (bool, np.bool_)):
        return bool(x)
    if isinstance(x, SCHEDULE):
        return x
    if callable(x):
        what = "learning rate" if name == "lr" else name
        raise TypeError(
            f"rule: got a {what} that is a {type(x).__name__}; accepted are numbers and keras.optimizers.schedules"
        )
    return float(np.asarray(x).reshape(()))


def _described(rule: optim.Optimizer) -> dict[str, Any]:
    """What makes the rule anew but for its learning rate: numbers, flags and schedules (frozen: an array)."""
    hyper = {name: _held(name, x) for name, x in rule.hyper.items() if name != "lr"}
    options = {"rows": rule.rows, "semantics": rule.semantics, "maximize": rule.maximize, "frozen": rule._frozen[0]}
    return {"name": rule.name, **hyper, **options, **({"duplicates": "raw"} if rule._formula.raw else {})}


def _made_anew(described: dict[str, Any], rate: float | Callable[[Any], Any]) -> optim.Optimizer:
    name = check_name(described.get("name"), [n for n in optim.__all__ if n.islower()], "rule")
    rest = {k: v for k, v in described.items() if k != "name"}
    return getattr(optim, name)(lr=rate, **rest)  # type: ignore[no-any-return]


# ---------------------------------------------------------------------- gradients on their way through Keras
class DivisibleSlices(tf.IndexedSlices):  # type: ignore[misc]
    """tf.IndexedSlices that may be divided by a number, as Keras does by its loss_scale_factor."""

    def __truediv__(self, c: float) -> DivisibleSlices:
        return DivisibleSlices(self.values / c, self.indices, self.dense_shape)


def _divisible(grad: Any) -> Any:
    if not isinstance(grad, tf.IndexedSlices):
        return grad
    return DivisibleSlices(grad.values, grad.indices, grad.dense_shape)


def _adopted(grad: Any, variable: Any, *, validate: bool) -> Any:
    """A gradient for islices: slices of the variable's shape, or the dense tensor."""
    if not isinstance(grad, tf.IndexedSlices):
        return grad
    return from_native(grad, dense_shape=tuple(variable.shape), validate=validate)


def _sum_duplicates(grad: Any, variable: Any) -> Any:
    leaf = _adopted(grad, variable, validate=False)
    if not isinstance(leaf, IndexedSlices):
        return leaf
    return _sum_in_place(leaf) if _compiled_by_xla() else coalesce(leaf)


def _compiled_by_xla() -> bool:
    graph = tf.compat.v1.get_default_graph()
    return bool(control_flow_util.GraphOrParentsInXlaContext(graph))


def _sum_in_place(s: IndexedSlices) -> IndexedSlices:
    """Slices of as many slots, sorted: the first of each row holds its sum, the others hold zeros.

    XLA has no operation whose result is as long as its values say. Rows out of range hold zeros too (SPEC clause 2).
    """
    order = tf.argsort(s.indices, stable=True)
    ids, values = tf.gather(s.indices, order), tf.gather(s.values, order)
    first = tf.concat([tf.ones_like(ids[:1], tf.bool), ids[1:] != ids[:-1]], 0)
    place = tf.cumsum(tf.cast(first, tf.int32)) - 1
    wide = tf.float32 if values.dtype.size == 2 else values.dtype  # SPEC clause 3
    sums = tf.cast(tf.math.unsorted_segment_sum(tf.cast(values, wide), place, tf.shape(ids)[0]), values.dtype)
    holds = tf.reshape(first & (ids >= 0) & (ids < s.dense_shape[0]), [-1] + [1] * (len(values.shape) - 1))
    kept = tf.where(holds, tf.gather(sums, place), tf.zeros((), values.dtype))
    return IndexedSlices(kept, ids, s.dense_shape, coalesced=True, validate=False)


# ---------------------------------------------------------------------- Keras' optimizers
@_saved
class SGD(Coalesced, keras.optimizers.SGD):  # type: ignore[misc]
    """keras.optimizers.SGD on coalesced gradients; see `Coalesced` for the arguments it has beside its own."""


@_saved
class RMSprop(Coalesced, keras.optimizers.RMSprop):  # type: ignore[misc]
    """keras.optimizers.RMSprop on coalesced gradients; see `Coalesced` for the arguments it has beside its own."""


@_saved
class Adagrad(Coalesced, keras.optimizers.Adagrad):  # type: ignore[misc]
    """keras.optimizers.Adagrad on coalesced gradients; see `Coalesced` for the arguments it has beside its own."""


@_saved
class Adadelta(Coalesced, keras.optimizers.Adadelta):  # type: ignore[misc]
    """keras.optimizers.Adadelta on coalesced gradients; see `Coalesced` for the arguments it has beside its own."""


@_saved
class Adam(Coalesced, keras.optimizers.Adam):  # type: ignore[misc]
    """keras.optimizers.Adam on coalesced gradients; see `Coalesced` for the arguments it has beside its own."""


@_saved
class AdamW(Coalesced, keras.optimizers.AdamW):  # type: ignore[misc]
    """keras.optimizers.AdamW on coalesced gradients; see `Coalesced` for the arguments it has beside its own."""


@_saved
class Adamax(Coalesced, keras.optimizers.Adamax):  # type: ignore[misc]
    """keras.optimizers.Adamax on coalesced gradients; see `Coalesced` for the arguments it has beside its own."""


@_saved
class Nadam(Coalesced, keras.optimizers.Nadam):  # type: ignore[misc]
    """keras.optimizers.Nadam on coalesced gradients; see `Coalesced` for the arguments it has beside its own."""


@_saved
class Adafactor(Coalesced, keras.optimizers.Adafactor):  # type: ignore[misc]
    """keras.optimizers.Adafactor on coalesced gradients; see `Coalesced` for the arguments it has beside its own."""


@_saved
class Ftrl(Coalesced, keras.optimizers.Ftrl):  # type: ignore[misc]
    """keras.optimizers.Ftrl on coalesced gradients; see `Coalesced` for the arguments it has beside its own."""


@_saved
class Lion(Coalesced, keras.optimizers.Lion):  # type: ignore[misc]
    """keras.optimizers.Lion on coalesced gradients; see `Coalesced` for the arguments it has beside its own."""


@_saved
class Lamb(Coalesced, keras.optimizers.Lamb):  # type: ignore[misc]
    """keras.optimizers.Lamb on coalesced gradients; see `Coalesced` for the arguments it has beside its own."""
