"""Use optimizers of `islices.optim` in Keras, also with micro-batches. With a lazy optimizer, the cost of a step grows
with the number of rows in the gradients, not with the size of the tables.

Keras sums the gradients of micro-batches in dense arrays of each table's size. On TensorFlow and torch, `Sum` stores
slices instead. On JAX, `DenseSum` has the table's size, too. May import: `keras`, `numpy`, the core, this folder.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from islices import optim
from islices.backends.keras.coalesced import Coalesced
from islices.backends.keras.micro_batches import Share, Sum
from islices.backends.keras.native import BACKEND, native
from islices.core.arguments import check_name
from islices.core.conversion import is_sparse
from islices.core.registry import describe
from islices.optim.custom import NamedNumbers
from islices.optim.inputs import check_frozen, frozen_argument
from islices.optim.record import RECORDS

#: Keras's name for the variables that contain sums of micro-batches. `Total` replaces these variables.
ACCUMULATOR = "gradient_accumulator"
#: `Stepped` warns if a table with at least this many rows has a dense gradient.
MANY_ROWS = 100_000
#: The class of sums of micro-batches. In a compiled step on JAX, shapes are fixed, so a sum has the table's size.
Total: Any = native.DenseSum if BACKEND == "jax" else Sum
SCHEDULES = keras.optimizers.schedules
SCHEDULE = SCHEDULES.LearningRateSchedule


@keras.saving.register_keras_serializable("islices")
class Stepped(Coalesced):
    """A Keras optimizer that computes its steps with an optimizer of `islices.optim`, for example lazy Adam or row-wise
    Adagrad.

    Parameters
    ----------
    rule : islices.optim.Optimizer
        The optimizer that computes the steps of all weights. The learning rate of `rule`, a number or a schedule of
        keras.optimizers.schedules, becomes Keras's learning rate. Callbacks may change a learning rate that is a
        number. Other hyperparameters may also be schedules; the argument of these schedules is the number of completed
        steps of the weight.
    **kwargs
        Keyword arguments of any Keras optimizer: name, learning_rate (replaces the learning rate of `rule`), clipnorm,
        global_clipnorm, clipvalue, loss_scale_factor, gradient_accumulation_steps, use_ema, ema_momentum,
        ema_overwrite_frequency. If `rule` has rows="all", weight_decay is also accepted, and changes every row.
        `Coalesced` describes the arguments semantics and nonfinite. These two arguments affect only clipping. The
        semantics of `rule` affects the step.

    Warns
    -----
    UserWarning
        The first dense gradient of a table with at least 100,000 rows causes one warning. Each weight whose sparse
        gradient updates all rows also causes one warning, if you did not make `rule` with rows="all".

    Raises
    ------
    TypeError
        `rule` is not an optimizer of islices.optim, or one of its hyperparameters is a function but not a Keras
        schedule.
    ValueError
        Keras's weight_decay is set, and `rule` has rows="touched"; use the weight_decay of `rule` instead. `build`
        raises if gradient_accumulation_steps is set together with a strategy of several replicas, or on JAX with
        use_ema. `build` also raises if a frozen mask does not have one entry per row of a weight. `apply` raises if
        jit_compile is True on TensorFlow, because shapes are fixed in XLA. `apply` also raises if a variable is passed
        twice, or if a dense gradient would change rows that `rule` must not change (rows="touched"). For arguments and
        gradients, see also the errors of `Coalesced`.
    IndexError
        A frozen row does not exist in one of the weights, or, in eager code, an index of a gradient is out of range.

    Notes
    -----
    Keras stores the learning rate in the dtype ``keras.config.floatx()``, which is float32 by default. For each weight,
    the optimizer has variables for the state that ``rule.init`` returns. Dense gradients update every row that is not
    frozen, and a weight that is a single number has one row. As in Keras, each gradient is first cast to the dtype of
    its variable; only float32 gradients of 16-bit variables stay float32. ``exclude_from_weight_decay`` also applies to
    the weight decay of `rule`.

    With ``gradient_accumulation_steps=k``, every k-th call takes a step. The step's gradient is the coalesced sum of k
    gradients, divided by k and then clipped. The sum is float32 for 16-bit variables. The accumulator stores only the
    rows that the k gradients contain, but on JAX it is an array of the table's size. As in Keras, a call ignores a
    variable whose gradient is None. SPEC clauses 16 and 24.

    Examples
    --------
    >>> import tensorflow as tf
    >>> from islices import optim
    >>> from islices.backends.keras import Stepped
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
                f"weight_decay: got {kwargs['weight_decay']}; accepted with a rule of rows='touched' is None: Keras's "
                "moves every row, that of the rule the rows of the gradient"
            )
        rate = kwargs.pop("learning_rate", None)
        _described(rule)  # raises an error if the rule cannot be saved
        super().__init__(_held("lr", rule.hyper["lr"]) if rate is None else rate, **kwargs)
        self.rule = rule
        self._warned = False

    def build(self, variables: Sequence[Any]) -> None:
        if BACKEND == "jax" and self.gradient_accumulation_steps and self.use_ema:
            raise ValueError(
                "use_ema: got True with gradient_accumulation_steps; Stepped on JAX accepts one of the two"
            )
        super().build(variables)
        self._states = [self._new_state(v) for v in variables]
        if BACKEND == "tensorflow":
            self._sums: Any = [x for s in self._totals() for x in (s.values, s.indices)]  # for tf.train.Checkpoint
        elif BACKEND == "jax":
            for total in self._totals():
                total.build(self)

    def add_variable_from_reference(self, reference_variable: Any, name: Any = None, initializer: Any = "zeros") -> Any:
        if name == ACCUMULATOR and not self._overwrite_variable_with_gradient(reference_variable):
            dtype = _dtype(reference_variable)  # 16-bit gradients are summed in float32 (SPEC clause 3)
            return Total(reference_variable, _shape_of_rows(reference_variable), "float32" if is_half(dtype) else dtype)
        return super().add_variable_from_reference(reference_variable, name, initializer)

    def _new_state(self, variable: Any) -> dict[str, Any]:
        name, shape = getattr(variable, "path", variable.name), _shape_of_rows(variable)
        try:
            check_frozen(*self.rule._frozen, shape[0])
        except (ValueError, IndexError) as error:
            hint = "frozen= holds for all variables: give this one another optimizer with MultiOptimizer"
            raise type(error)(f"{name}: {error}; {hint}") from None
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
        """Apply gradients as Keras does, and check all gradients before any variable changes."""
        if BACKEND == "tensorflow":
            native.check_step()
        variables = [] if trainable_variables is None else list(trainable_variables)
        if len(set(map(id, variables))) < len(variables):
            name = next(x.name for k, x in enumerate(variables) if any(x is y for y in variables[:k]))
            raise ValueError(
                f"trainable_variables: got {name!r} twice; accepted is each once, with the sum of its gradients"
            )
        super().apply(grads, variables or None)

    def _checked(self, grad: Any, variable: Any) -> Any:
        if grad is None:
            return None
        grad, name = _cast(grad, variable), getattr(variable, "path", variable.name)
        if is_sparse(grad):
            self.rule._warn_of_all(name)
        else:
            try:
                self.rule._check_dense("islices.backends.keras.row_sparse(model) makes one")
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
            self._warn_of_dense(name, tuple(variable.shape))
        return super()._checked(grad, variable)

    def _warn_of_dense(self, name: str, shape: tuple[int, ...]) -> None:
        """Warn once if a large table has a dense gradient, because the user may have forgotten to call `row_sparse`."""
        if len(shape) < 2 or shape[0] < MANY_ROWS or self._warned:
            return
        self._warned = True
        warnings.warn(
            f"{name}: got a dense gradient of {' x '.join(f'{n:,}' for n in shape)}, so each step costs what the table "
            "costs. If the model looks its rows up, call islices.backends.keras.row_sparse(model) before fit. (A "
            "regularizer of the table and tied output layers make its gradient dense, too.)",
            stacklevel=2,
        )

    def _backend_apply_gradients(self, grads: Sequence[Any], trainable_variables: Sequence[Any]) -> None:
        if self.gradient_accumulation_steps and BACKEND == "jax":
            native.accumulate(self, grads, trainable_variables)
            return
        if self.gradient_accumulation_steps:
            grads = [Share(g) for g in grads]  # Keras adds each Share to a Sum, and divides the total
        super()._backend_apply_gradients(grads, trainable_variables)

    def _backend_increment_gradient_accumulators(self, grads: Sequence[Any], acc_grads: Sequence[Any]) -> None:
        for share, total in zip(grads, acc_grads, strict=True):
            total.assign((share + total).gradient)

    def _backend_reset_gradient_accumulators(self) -> None:
        for total in self._accumulated_gradients:
            if isinstance(total, Total):
                total.clear()
            else:  # Keras replaces the value of the variable by the gradient
                total.assign(keras.ops.zeros_like(total.value))

    def _sums_first(self) -> bool:
        """Return True if duplicates must be summed before the step. Only clipping needs the sums."""
        return any(bound is not None for bound in (self.clipnorm, self.global_clipnorm, self.clipvalue))

    def _for_rule(self, grad: Any) -> Any:
        return grad

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update a variable with a step of the rule at Keras's learning rate."""
        rate = keras.ops.convert_to_tensor(learning_rate)
        changed: dict[str, Any] = {"lr": lambda step: rate, "rows": self.rule.rows}
        if "weight_decay" in self.rule.hyper and not self._use_weight_decay(variable):
            changed["weight_decay"] = 0.0
        rule = self.rule._remake(frozen=frozen_argument(*self.rule._frozen), **changed)
        state = self._states[self._get_variable_index(variable)]
        if len(variable.shape):
            take_step(self, rule, variable, gradient, state)
            return
        ops = keras.ops  # a single number is a table of one row
        row, gradient = (ops.reshape(ops.convert_to_tensor(x), (1,)) for x in (variable, gradient))
        held = {part: ops.copy(x) for part, x in state.items()}  # on TensorFlow, copies are tensors, like the row
        row, new = rule.step(row, gradient, held)
        variable.assign(ops.reshape(row, ()))
        _assign(state, new)

    # ------------------------------------------------------------------ what is kept
    def _totals(self) -> list[Any]:
        totals = self._accumulated_gradients if self.gradient_accumulation_steps and self.built else ()
        return [total for total in totals if isinstance(total, Total)]

    def _saved(self) -> list[Any]:
        """Return the variables to save, which are the same on all backends. On JAX, `self.variables` also contains
        the sums of micro-batches, which `save_own_variables` stores as slices on every backend."""
        sums = {id(x) for total in self._totals() if BACKEND == "jax" for x in (total.values, total.named)}
        return [v for v in self.variables if id(v) not in sums]

    def save_own_variables(self, store: Any) -> None:
        """Store the optimizer's variables, and the sums of micro-batches since the last step."""
        for k, variable in enumerate(self._saved()):
            store[str(k)] = variable.numpy()
        for k, total in enumerate(self._totals()):
            store[f"{ACCUMULATOR}_{k}_values"], store[f"{ACCUMULATOR}_{k}_indices"] = total.save()

    def load_own_variables(self, store: Any) -> None:
        """Load the variables that `save_own_variables` stored. If the store contains no sums of micro-batches, the sums
        become empty."""
        own = {k: store[k] for k in store.keys() if not k.startswith(ACCUMULATOR)}  # noqa: SIM118
        if len(own) == len(self._saved()):
            for k, variable in enumerate(self._saved()):
                variable.assign(own[str(k)])
        else:
            super().load_own_variables(own)  # Keras warns
        for k, total in enumerate(self._totals()):
            if f"{ACCUMULATOR}_{k}_values" in store:
                total.load(store[f"{ACCUMULATOR}_{k}_values"][()], store[f"{ACCUMULATOR}_{k}_indices"][()])
            else:
                total.clear()

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
        if described["rows"] == "touched":
            described["rows"] = None  # some rules do not accept "touched", only the default
        # If the learning rate is a schedule, Keras itself reads it. The placeholder is 1, because some optimizers raise
        # errors for 0.
        described["lr"] = rate if isinstance(rate, float) else 1.0
        name: Any = described.pop("name")
        if "states" in described:
            states = described.pop("states")
            described["state"] = {x: initial for x, initial, per_row in states if not per_row}
            described["row_state"] = {x: initial for x, initial, per_row in states if per_row}
            rule = optim.custom(_function_of(name, custom_objects), **described)
        else:
            rule = getattr(optim, check_name(name, [*RECORDS], "rule"))(**described)
        return super().from_config({**config, "rule": rule}, custom_objects)  # type: ignore[no-any-return]


def take_step(
    optimizer: Any,
    rule: optim.Optimizer,
    variable: Any,
    gradient: Any,
    state: dict[str, Any],
    steps: Any | None = None,
) -> None:
    """Update a Keras variable and its state with a step of a rule. If `state` does not contain "step", pass the number
    of earlier steps as `steps`, an array of shape (1,)."""
    held = {part: x.value for part, x in state.items()}
    if steps is not None:
        held["step"] = steps
    if BACKEND != "jax":
        rule.step(native.writable(variable), gradient, held)
        return
    table, new = rule.step(variable.value, gradient, held, apply=native.taken())
    variable.assign(table)
    _assign(state, new)
    if not (optimizer.weight_decay or optimizer.ema_overwrite_frequency or variable.constraint):
        native.keep([variable, *state.values()])


# ---------------------------------------------------------------------- the rule, and what Keras knows of it
def _held(name: str, x: Any) -> Any:
    """Convert a hyperparameter to a form that Keras can save: a bool, a float or a schedule."""
    if isinstance(x, (bool, np.bool_)):
        return bool(x)
    if isinstance(x, SCHEDULE):
        return x
    if callable(x):
        subject = "learning rate" if name == "lr" else name
        raise TypeError(
            f"rule: got a {subject} that is a {type(x).__name__}; accepted are numbers and keras.optimizers.schedules"
        )
    return float(np.asarray(x).reshape(()))


def _function_of(name: str, custom_objects: dict[str, Any] | None) -> Any:
    """Return the function for `optim.custom` whose name a configuration contains."""
    function = keras.saving.get_registered_object(name, custom_objects)
    if function is None:
        raise ValueError(
            f"rule: got {name!r}, a function of optim.custom; accepted is a known one: load_model(path, "
            f"custom_objects={{{name!r}: {name}}})"
        )
    return function


def _described(rule: optim.Optimizer) -> dict[str, Any]:
    """Return the name of the rule, and the arguments from which the rule can be made again, except the learning rate.

    In the result, hyperparameters are numbers, bools or schedules, and "frozen" is an array or None.
    """
    hyper = {name: _held(name, x) for name, x in rule.hyper.items() if name != "lr"}
    options = {"rows": rule.rows, "maximize": rule.maximize, "frozen": rule._frozen[0]}
    if rule._formula.numbers is NamedNumbers:  # a rule of optim.custom
        options["states"] = [[x.name, x.initial, x.per_row] for x in rule._formula.state]
    else:
        options["semantics"] = rule.semantics
    return {"name": rule.name, **hyper, **options, **({"duplicates": "raw"} if rule._formula.raw else {})}


def _assign(state: dict[str, Any], new: dict[str, Any]) -> None:
    for part, x in state.items():
        x.assign(new[part])


# ---------------------------------------------------------------------- gradients
def _shape_of_rows(variable: Any) -> tuple[int, ...]:
    """Return the shape of a variable. A single number counts as one row, so its shape is (1,)."""
    return tuple(variable.shape) or (1,)


def _cast(grad: Any, variable: Any) -> Any:
    """Convert the gradient to the dtype of the variable. If the variable is 16-bit, a float32 gradient stays
    unchanged."""
    own = _dtype(variable)
    if not is_sparse(grad):
        grad = keras.ops.convert_to_tensor(grad)
    given = keras.backend.standardize_dtype(grad.dtype if hasattr(grad, "dtype") else grad.values.dtype)
    return grad if is_half(own) and given == "float32" else native.cast(grad, own)


def _dtype(variable: Any) -> str:
    return keras.backend.standardize_dtype(variable.dtype)  # type: ignore[no-any-return]


def is_half(dtype: str) -> bool:
    return dtype in ("float16", "bfloat16")
