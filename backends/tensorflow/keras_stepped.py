"""Optimizers of `islices.optim` in the place of Keras' own, micro-batches included, at the cost of the rows in use.

Keras adds micro-batches up in dense arrays of each table's size. `Sum` holds what was added so far as coalesced slices
instead, in variables whose number of rows changes: Keras' own course of accumulation runs on it unchanged.

May import: `keras`, `tensorflow`, `numpy`, the core, this folder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from islices import optim
from islices.arguments import check_name
from islices.backends.tensorflow.host_calls import compiled_by_xla
from islices.backends.tensorflow.keras_coalesced import Coalesced, adopted
from islices.conversion import to_native
from islices.linear import add, concat, scale_values
from islices.norms import parts
from islices.optim.inputs import check_frozen
from islices.optim.record import RECORDS
from islices.registry import describe
from islices.rows import coalesce
from islices.slices import IndexedSlices

__all__ = ["Stepped"]

#: What Keras names the variables that hold the sums of micro-batches, of which `Sum` takes the place.
ACCUMULATOR = "gradient_accumulator"
SCHEDULES = keras.optimizers.schedules
SCHEDULE = SCHEDULES.LearningRateSchedule


@keras.saving.register_keras_serializable("islices")
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
        clipvalue, loss_scale_factor, gradient_accumulation_steps, use_ema, ema_momentum, ema_overwrite_frequency; with
        a rule of rows="all" also weight_decay, which moves every row; and the semantics and nonfinite of `Coalesced`,
        which are those of the clip, as those of the step are the rule's.

    Raises
    ------
    TypeError
        A rule that is none, or with a hyperparameter that Keras cannot hold: a function that is no schedule.
    ValueError
        Keras' weight_decay beside a rule of rows="touched" (the rule has its own); gradient_accumulation_steps under a
        strategy of several replicas, where Keras has none; jit_compile=True, since XLA cannot step on some rows.
    IndexError
        Frozen rows that a weight does not have.

    Notes
    -----
    Keras holds the learning rate as float32. The variables hold what ``rule.init`` makes, for each weight in turn;
    dense gradients name every row, a single number is one row. A gradient is cast to the type of its variable first, as
    Keras does it (float32 for a variable of 16 bits). ``exclude_from_weight_decay`` holds for the rule's decay too.

    With ``gradient_accumulation_steps=k`` a step is taken on every k-th call: on the coalesced sum of the k gradients,
    added in float32 for variables of 16 bits, divided by k; then it is clipped. What has been added up costs the rows
    it names. A variable whose gradient is None in some of the calls steps on the others'. SPEC clauses 16 and 24.

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
        if rule.rows == "touched" and kwargs.get("weight_decay") is not None:
            raise ValueError(
                f"weight_decay: got {kwargs['weight_decay']}; accepted beside a rule of rows='touched' is None: Keras' "
                "moves every row, that of the rule the rows of the gradient"
            )
        rate = kwargs.pop("learning_rate", None)
        _described(rule)  # refuses what cannot be saved
        super().__init__(_keras_rate(rule) if rate is None else rate, **kwargs)
        self.rule = rule

    def build(self, variables: Sequence[Any]) -> None:
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        if self.gradient_accumulation_steps and replicas > 1:
            raise ValueError(
                f"gradient_accumulation_steps: got {self.gradient_accumulation_steps} under a strategy of {replicas} "
                "replicas; accepted there is None, since Keras adds micro-batches up on one replica"
            )
        super().build(variables)
        if self.gradient_accumulation_steps:
            self._sums = [s for s in self._accumulated_gradients if isinstance(s, Sum)]  # for tf.train.Checkpoint
        self._states = [self._new_state(v) for v in variables]

    def add_variable_from_reference(self, reference_variable: Any, name: Any = None, initializer: Any = "zeros") -> Any:
        if name == ACCUMULATOR and not self._overwrite_variable_with_gradient(reference_variable):
            return Sum(reference_variable)
        return super().add_variable_from_reference(reference_variable, name, initializer)

    def _new_state(self, variable: Any) -> dict[str, Any]:
        name, shape = getattr(variable, "path", variable.name), _shape_of_rows(variable)
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

    # ------------------------------------------------------------------ a step
    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Apply gradients as Keras does, all of them checked before any variable changes."""
        if compiled_by_xla():
            raise ValueError("jit_compile: got True; accepted by Stepped is False, since shapes are fixed in XLA")
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
        grads, variables = list(grads), trainable_variables or self._trainable_variables
        if len(set(map(id, variables))) < len(variables):
            name = next(x.name for k, x in enumerate(variables) if any(x is y for y in variables[:k]))
            raise ValueError(
                f"trainable_variables: got {name!r} twice; accepted is each once, with the sum of its gradients"
            )
        for k, variable in enumerate(variables[: len(grads)]):
            grads[k] = self._missing(variable) if grads[k] is None else _cast(grads[k], variable)
        super().apply(grads, trainable_variables)

    def _missing(self, variable: Any) -> Any:
        """What stands for the gradient None: nothing, or no rows where micro-batches may have named some."""
        if not (self.gradient_accumulation_steps and self.built):
            return None
        index = self._trainable_variables_indices.get(self._var_key(variable))
        total = None if index is None else self._accumulated_gradients[index]
        return total.no_rows() if isinstance(total, Sum) and total.in_use else None

    def _backend_apply_gradients(self, grads: Sequence[Any], trainable_variables: Sequence[Any]) -> None:
        if self.gradient_accumulation_steps:
            grads = [Share(g) for g in grads]  # which Keras adds to a Sum, and divides
        super()._backend_apply_gradients(grads, trainable_variables)

    def _backend_increment_gradient_accumulators(self, grads: Sequence[Any], acc_grads: Sequence[Any]) -> None:
        for share, total in zip(grads, acc_grads, strict=True):
            total.assign((share + total).gradient)

    def _backend_reset_gradient_accumulators(self) -> None:
        for total in self._accumulated_gradients:
            if isinstance(total, Sum):
                total.clear()
            else:  # of a variable that its gradient overwrites
                total.assign(tf.zeros_like(total.value))

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """One step of the rule, at the learning rate Keras says."""
        rate = tf.convert_to_tensor(learning_rate)
        described = _described(self.rule)
        if "weight_decay" in described and not self._use_weight_decay(variable):
            described["weight_decay"] = 0.0
        rule = _made_anew(described, lambda step: rate)
        state = {part: x.value for part, x in self._states[self._get_variable_index(variable)].items()}
        if variable.shape.rank:
            rule.step(variable, gradient, state)
            return
        row, gradient = tf.reshape(variable, [1]), tf.reshape(gradient, [1])
        row, new = rule.step(row, gradient, {part: x.read_value() for part, x in state.items()})
        variable.assign(tf.reshape(row, []))
        for part, x in state.items():
            x.assign(new[part])

    # ------------------------------------------------------------------ what is kept
    def save_own_variables(self, store: Any) -> None:
        """Keras' own, and the sums of the micro-batches since the last step."""
        super().save_own_variables(store)
        for k, total in enumerate(getattr(self, "_sums", ())):
            store[f"{ACCUMULATOR}_{k}_values"] = total.values.numpy()
            store[f"{ACCUMULATOR}_{k}_indices"] = total.indices.numpy()

    def load_own_variables(self, store: Any) -> None:
        """Load what `save_own_variables` stored; a store without sums of micro-batches starts with none."""
        own = {name: store[name] for name in store.keys() if not name.startswith(ACCUMULATOR)}  # noqa: SIM118
        super().load_own_variables(own)
        for k, total in enumerate(getattr(self, "_sums", ())):
            if f"{ACCUMULATOR}_{k}_values" in store:
                total.values.assign(store[f"{ACCUMULATOR}_{k}_values"][()])
                total.indices.assign(store[f"{ACCUMULATOR}_{k}_indices"][()])
                total.in_use = True

    def get_config(self) -> dict[str, Any]:
        rule = {k: SCHEDULES.serialize(x) if isinstance(x, SCHEDULE) else x for k, x in _described(self.rule).items()}
        if rule["frozen"] is not None:
            rule["frozen"] = rule["frozen"].tolist()
        return {**super().get_config(), "rule": rule}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None) -> Stepped:
        rate = config.get("learning_rate")
        described = {
            k: SCHEDULES.deserialize(x, custom_objects) if isinstance(x, dict) else x for k, x in config["rule"].items()
        }
        # a learning rate that is a schedule is Keras' to read; some optimizers have none that is 0
        rule = _made_anew(described, rate if isinstance(rate, float) else 1.0)
        return super().from_config({**config, "rule": rule}, custom_objects)  # type: ignore[no-any-return]


# ---------------------------------------------------------------------- the rule, and what Keras knows of it
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
    name: Any = check_name(described.get("name"), [*RECORDS], "rule")
    rest = {k: v for k, v in described.items() if k != "name"}
    return getattr(optim, name)(lr=rate, **rest)  # type: ignore[no-any-return]


# ---------------------------------------------------------------------- gradients and their sums
def _shape_of_rows(variable: Any) -> tuple[int, ...]:
    """The variable's shape; a single number is a row of its own."""
    return tuple(variable.shape) or (1,)


def _cast(grad: Any, variable: Any) -> Any:
    """A gradient of the variable's type; float32 stays as it is beside 16 bits, which a step takes."""
    grad = grad if isinstance(grad, tf.IndexedSlices) else tf.convert_to_tensor(grad)
    own = _dtype(variable)
    return grad if own.size == 2 and grad.dtype == tf.float32 else _of_type(grad, own)


def _dtype(variable: Any) -> tf.DType:
    return tf.as_dtype(keras.backend.standardize_dtype(variable.dtype))


def _of_type(grad: Any, dtype: tf.DType) -> Any:
    if grad.dtype == dtype:
        return grad
    if isinstance(grad, tf.IndexedSlices):
        return tf.IndexedSlices(tf.cast(grad.values, dtype), grad.indices, grad.dense_shape)
    return tf.cast(grad, dtype)


class Share:
    """The gradient of one micro-batch: what Keras' own course of accumulation adds to a `Sum`, and divides."""

    def __init__(self, gradient: Any) -> None:
        self.gradient = gradient  # of TensorFlow; behind an addition, slices are islices' own

    def __add__(self, total: Sum) -> Share:
        return Share(total.plus(self.gradient))

    def __truediv__(self, steps: int) -> Any:
        B, values = parts(self.gradient)
        mean = scale_values(B, values, [("div", float(steps))])  # TensorFlow may multiply by the reciprocal
        return to_native(self.gradient.replace(values=mean)) if isinstance(self.gradient, IndexedSlices) else mean


class Sum(tf.Module):  # type: ignore[misc]
    """The sum of some gradients of a variable, as coalesced slices in variables as long as the rows are many."""

    def __init__(self, variable: Any) -> None:
        super().__init__()
        self.shape = _shape_of_rows(variable)
        self.dtype = tf.float32 if _dtype(variable).size == 2 else _dtype(variable)  # SPEC clause 3
        self.in_use = False  # whether a gradient has been added, or will be in a graph
        with tf.init_scope():
            self.values = tf.Variable(tf.zeros((0, *self.shape[1:]), self.dtype), shape=(None, *self.shape[1:]))
            self.indices = tf.Variable(tf.zeros(0, tf.int64), shape=(None,))

    def stored(self) -> IndexedSlices:
        values, indices = self.values.read_value(), self.indices.read_value()
        return IndexedSlices(values, indices, self.shape, coalesced=True, validate=False)

    def plus(self, gradient: Any) -> Any:
        """What is stored and a gradient behind it: coalesced slices, or a tensor where the gradient is one."""
        self.in_use = True
        own, gradient = self.stored(), _of_type(gradient, self.dtype)
        if isinstance(gradient, tf.IndexedSlices):
            return coalesce(concat([own, adopted(gradient, self, validate=False)]))
        gradient = tf.reshape(gradient, self.shape)
        every_row = tf.shape(own.indices)[0] == self.shape[0]
        return tf.cond(
            every_row, lambda: tf.ensure_shape(own.values, self.shape) + gradient, lambda: add(own, gradient)
        )

    def assign(self, gradient: Any) -> None:
        """Store what `plus` gave."""
        slices = isinstance(gradient, IndexedSlices)
        self.values.assign(gradient.values if slices else gradient)
        self.indices.assign(tf.cast(gradient.indices, tf.int64) if slices else tf.range(self.shape[0], dtype=tf.int64))

    def no_rows(self) -> tf.IndexedSlices:
        nothing = tf.zeros((0, *self.shape[1:]), self.dtype)
        return tf.IndexedSlices(nothing, tf.zeros(0, tf.int64), tf.constant(self.shape, tf.int64))

    def clear(self) -> None:
        nothing = self.no_rows()
        self.values.assign(nothing.values)
        self.indices.assign(nothing.indices)
