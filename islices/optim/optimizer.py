"""Define `Optimizer`, the class of the objects that the functions of `islices.optim` return. SPEC clause 16."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NoReturn, TypeVar

import numpy as np

from islices.backend import Array, Host
from islices.core import modes
from islices.core.arguments import check_flag
from islices.core.deferred import native_look
from islices.core.linear import as_float, wide_dtype
from islices.core.registry import describe
from islices.core.sharing import Part, check_apart
from islices.core.slices import IndexedSlices
from islices.core.slots import arrays_of
from islices.core.trees import aligned, flatten, opened, rebuild
from islices.core.warn import warn_caller
from islices.optim.formulas import Formula
from islices.optim.fused import fused_steps
from islices.optim.hyperparameters import is_on
from islices.optim.inputs import (
    accept_float_table,
    accept_gradient,
    accept_tables,
    check_frozen,
    frozen_argument,
    frozen_rows,
    is_taken,
    state_shapes,
)
from islices.optim.numbers import step_numbers
from islices.optim.row_steps import Request, Stepped, rows_step

T = TypeVar("T")
S = TypeVar("S")


class Optimizer:
    """An optimizer for tables with row-sparse gradients. An instance has hyperparameters and a formula, but no state.

    The functions of `islices.optim` return instances. `init` returns the state, a plain dict of arrays of the table's
    framework. So each framework's checkpoints can store the state, and `islices.convert` converts the state to another
    framework. SPEC clause 16.

    Attributes
    ----------
    name, rows, semantics : str
    hyper : mapping of str to number, bool, array or function
        The hyperparameters, with defaults filled in.
    maximize : bool

    Examples
    --------
    >>> import numpy as np
    >>> from islices import IndexedSlices, optim
    >>> table = np.zeros((4, 1), np.float32)
    >>> optimizer = optim.adagrad(0.5)
    >>> state = optimizer.init(table)
    >>> gradient = IndexedSlices(np.ones((2, 1), np.float32), np.array([3, 3]), (4, 1))
    >>> table, state = optimizer.step(table, gradient, state)
    >>> table.ravel().tolist(), state["accumulator"].ravel().tolist(), state["step"].tolist()
    ([0.0, 0.0, 0.0, -0.5], [0.0, 0.0, 0.0, 4.0], [1])
    """

    name: str
    hyper: Mapping[str, Any]
    rows: str
    semantics: str
    maximize: bool
    _formula: Formula
    _requested: str | None  # the user's argument rows
    _remake: Callable[..., Optimizer]  # makes the same optimizer with another value of `frozen`
    _warned: set[str]  # the names of tables about which `_warn_of_all` has warned
    _frozen: tuple[Host | None, int | None]

    def __init__(
        self,
        name: str,
        hyper: Mapping[str, Any],
        formula: Formula,
        *,
        rows: str,
        semantics: str,
        requested: str | None,
        frozen: Any,
        remake: Callable[..., Optimizer],
    ) -> None:
        vars(self).update(
            name=name,
            hyper=MappingProxyType(dict(hyper)),
            rows=rows,
            semantics=semantics,
            maximize=formula.maximize,
            _formula=formula,
            _requested=requested,
            _remake=remake,
            _warned=set(),
            _frozen=frozen_rows(frozen),
        )

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{name}: an Optimizer does not change; accepted is a new one, optim.{self.name}(...)")

    __delattr__ = __setattr__  # type: ignore[assignment]

    def __repr__(self) -> str:
        parts = [f"{k}={getattr(v, '__name__', v)}" for k, v in self.hyper.items()]
        parts.append(f"rows={self.rows!r}")
        if self.semantics != "islices":
            parts.append(f"semantics={self.semantics!r}")
        if self._formula.raw:
            parts.append("duplicates='raw'")
        if self.maximize:
            parts.append("maximize=True")
        if self._frozen[0] is not None:
            parts.append(f"frozen={len(self._frozen[0])} rows")
        return f"{self.name}({', '.join(parts)})"

    def __eq__(self, other: object) -> bool:  # so torch treats an optimizer as a constant in graphs
        return self is other

    __hash__ = object.__hash__

    def __reduce__(self) -> tuple[Callable[[], Optimizer], tuple[()]]:
        # a formula cannot be pickled, so pickle the arguments, with the frozen rows that the constructor has stored
        return partial(self._remake, frozen=frozen_argument(*self._frozen)), ()

    # ------------------------------------------------------------------ rows that a step updates by default
    def _warn_of_all(self, table: str, warned: set[str] | None = None) -> None:
        """Warn if a sparse gradient updates all rows by default, but only once for each name `table`."""
        warned = self._warned if warned is None else warned
        if self.rows == "all" and self._requested is None and table not in warned:
            warned.add(table)
            warn_caller(
                f"{table}: a sparse gradient moves all rows, since {self.name} with semantics={self.semantics!r} is "
                "not lazy with these options; pass rows='all' if that is meant, or semantics='islices', which is lazy"
            )

    @property
    def _only_sums_squares(self) -> bool:
        """Return True if the state is empty or is only an accumulator, which a zero gradient does not change."""
        return all(spec.name == "accumulator" for spec in self._formula.state)

    def _check_dense(self, source: str) -> None:
        """Raise ValueError for a dense gradient if the user passed rows="touched" and the step may change all rows.

        Rows with a zero gradient do not change if the state is at most an accumulator and weights do not decay. The
        argument `source` is a text that says how users get a sparse gradient.
        """
        stays = self._only_sums_squares and not is_on(self.hyper.get("weight_decay", 0))
        if self._requested == "touched" and not stays:
            raise ValueError(
                f"rows: got 'touched' and a dense gradient, with which {self.name} moves all rows; accepted is a "
                f"sparse gradient ({source}), or rows left out"
            )

    # ------------------------------------------------------------------ state
    def init(self, table: Any, *, master: bool = False) -> Any:
        """Return the state of a table before its first step.

        Parameters
        ----------
        table : Table, or float array of shape (rows, *row_shape); or a list, tuple, dict or JAX pytree of them
            None within a structure stays None.
        master : bool
            If True, the state of a 16-bit table contains a float32 copy of the table. Steps change the copy, and write
            its rounded rows to the table.

        Returns
        -------
        dict of str to array; or the structure of table, with such dicts
            "step" is the number of completed steps, an int32 array of shape (1,). The optimizer's arrays have the
            table's shape, or one number per row. The dtype of these arrays is the table's dtype, or float32 for a
            16-bit table. If master is True, there is also "master". The state of a tf.Variable consists of
            tf.Variables.

        Raises
        ------
        TypeError, ValueError
            table is not a table of floats, master is not a bool, or master is True for a table that is not 16-bit.
            SPEC clause 16.
        """
        master = check_flag(master, "master")
        if opened(table) is None:
            return self._init(table, master)
        leaves = flatten(table, "table")
        return rebuild(table, iter([None if leaf is None else self._init(leaf, master) for leaf in leaves]))

    def _init(self, table: Any, master: bool) -> dict[str, Array]:
        B, weights, dtype = accept_float_table(table)
        wide = wide_dtype(dtype)
        if master and wide == dtype:
            raise ValueError(f"master: got True for a table of {dtype}; accepted is a 16-bit table")
        shapes = state_shapes(self._formula, B.shape(weights))
        with B.scope():
            state = {"step": B.variable(B.asarray(np.zeros(1, np.int32), weights), weights)}
            for spec in self._formula.state:
                x = B.zeros(shapes[spec.name], wide, weights)
                initial = as_float(self.hyper[spec.initial]) if isinstance(spec.initial, str) else spec.initial
                if initial:
                    x = x + B.asarray(np.full((1,) * len(shapes[spec.name]), initial, wide), weights)
                state[spec.name] = B.variable(x, weights)
            if master:
                state["master"] = B.variable(B.astype(B.stop_gradient(weights), wide), weights)
        return state

    # ------------------------------------------------------------------ a step
    def step(self, table: T, grad: Any, state: S, *, donate: bool = False, apply: Any = True) -> tuple[T, S]:
        """Do one step, and return the table and the state after the step.

        Parameters
        ----------
        table : Table, or float array of shape (rows, *row_shape); or a list, tuple, dict or JAX pytree of them
            Arrays of any framework, also tf.Variables and torch Parameters.
        grad : sparse gradient, dense array of the table's shape, or None; or the structure of table, with these
            The gradient has the dtype of the table; for a 16-bit table it may also be float32. Duplicates are summed
            first, except with duplicates="raw". A dense gradient contains every row. With None, nothing changes.
        state : dict; or the structure of table, with dicts
            The result of `init` or of the previous step.
        donate : bool
            If True, the step may overwrite the JAX arrays of table and state, which you must not use afterwards. If
            False, each step outside jit copies these arrays. donate has no effect on arrays that change in place, or
            inside jit, where donate_argnums decides.
        apply : bool, or boolean or integer array of one
            With False or 0, nothing changes, not even the step count. The flag may be traced.

        Returns
        -------
        (table, state)
            The table and the state with the types of the arguments; use the results instead of the arguments. A step
            returns new arrays for JAX arrays and tf.Tensors, and changes tf.Variables and arrays of NumPy, torch and
            MXNet in place.

        Raises
        ------
        TypeError, ValueError, IndexError
            An argument is invalid. For example, a framework, dtype or shape is wrong, or an index is out of range. The
            call has changed no table.

        Notes
        -----
        No gradient passes through a step. In traced code, slices with an index out of range are ignored.
        SPEC clauses 15 and 16.
        """
        return step_tables(self, table, grad, state, donate, apply)

    def _prepared(self, table: Any, grad: Any, state: Any, donate: bool, apply: Any) -> Request:
        """Check the arguments for one table, and return the step as a `Request`."""
        formula = self._formula
        at = accept_tables(table, state, formula, self)
        B, step, held = at.B, at.arrays["step"], at.held
        taken = apply if apply is True else is_taken(B, apply)
        if grad is None or taken is False:
            return Request(formula, at)
        leaf, look = accept_gradient(B, at.dtype, at.shape, grad)
        rows, length = self._frozen
        frozen = None if rows is None else check_frozen(rows, length, at.shape[0])
        if held is None:
            count = None if B.is_traced(step) else B.to_numpy(step)
            traced = count is None or B.is_traced(at.weights)
        else:
            count, traced = held.views[1], False  # type: ignore[index]
        numbers = step_numbers(B, formula, self.hyper, step, wide_dtype(at.dtype), count)
        touched = self.rows == "touched" and isinstance(leaf, IndexedSlices)
        return Request(
            formula, at, leaf, look, numbers, frozen, None if taken is True else taken, traced, touched, donate
        )


def step_tables(optimizer: Optimizer, table: Any, grad: Any, state: Any, donate: bool, apply: Any) -> tuple[Any, Any]:
    """Implement `Optimizer.step` as a module function, which an adapter can replace in compiled code."""
    if donate is not False:
        donate = check_flag(donate, "donate")
    if opened(table) is None:
        request = optimizer._prepared(table, grad, state, donate, apply)
        check_requests([request])
        if isinstance(request.grad, IndexedSlices):
            optimizer._warn_of_all("table")
        return take_steps([request])[0]
    tables = flatten(table, "table")
    triples = list(zip(tables, _leaves(table, grad, "grad"), _leaves(table, state, "state"), strict=True))
    given = {k: leaves for k, leaves in enumerate(triples) if any(x is not None for x in leaves)}
    # check all tables before writing the first
    requests = []
    for number, leaves in given.items():
        try:
            requests.append(optimizer._prepared(*leaves, donate, apply))
        except (ValueError, IndexError) as error:
            if not str(error).startswith("frozen:"):
                raise
            hint = "frozen= holds for all tables: step the others with another optimizer"
            raise type(error)(f"leaf {number}: {error}; {hint}") from None
    check_requests(requests)
    for number, request in zip(given, requests, strict=True):
        if isinstance(request.grad, IndexedSlices):
            optimizer._warn_of_all(f"leaf {number}")
    done = dict(zip(given, take_steps(requests), strict=True))
    after = [done.get(number, (None, None)) for number in range(len(tables))]
    return rebuild(table, iter([t for t, _ in after])), rebuild(table, iter([s for _, s in after]))


def take_steps(requests: Sequence[Request]) -> list[Stepped]:
    """Do steps that `check_requests` has checked, and return the table and the state of each step.

    A step without a gradient changes nothing.
    """
    taken = []
    for request in requests:
        if request.grad is not None:
            taken.append(request)
    fused = iter(fused_steps(taken))
    done = []
    for request in requests:
        done.append(
            (request.at.table, dict(request.at.arrays)) if request.grad is None else next(fused) or rows_step(request)
        )
    return done


def check_requests(requests: Sequence[Request], names: Sequence[str] = ()) -> None:
    """Raise ValueError if a step writes memory that another step, or another argument of the same step, uses.

    `names` contains one prefix per step; messages put the prefix before the names of arguments.
    """
    if _are_apart(requests):
        return
    parts: list[Part] = []
    for number, request in enumerate(requests):
        B, grad = request.at.B, request.grad
        if grad is None or not (
            B.in_place(request.at.weights) or (request.donate and not B.is_traced(request.at.weights))
        ):
            continue
        where = names[number] if names else f"leaf {number}: " if len(requests) > 1 else ""
        parts.append((B, request.at.weights, True, where + "table"))
        for name, x in request.at.arrays.items():
            parts.append((B, x, True, f"{where}state[{name!r}]"))
        sparse = isinstance(grad, IndexedSlices)
        look = native_look(grad) if sparse else None
        if look is not None and look.views is not None:  # the framework's array of indices may not exist yet
            read = [(B, grad.values), (modes.HOST, look.views[1])]
        else:
            read = [(B, x) for x in (arrays_of(grad) if sparse else (grad,))]
        parts += [(of, x, False, where + "grad") for of, x in read]
    if parts:
        check_apart(parts)


def _are_apart(requests: Sequence[Request]) -> bool:
    """Return True if the memory bounds of the steps' arrays are known and do not overlap."""
    spans: list[tuple[int, int]] = []
    for request in requests:
        if request.grad is not None:
            held, look = request.at.held, request.look
            if held is None or held.spans is None or look is None or look.spans is None:
                return False
            spans += held.spans
            spans += look.spans
    spans.sort()
    end = 0
    for start, stop in spans:
        if start < end:
            return False
        end = stop
    return True


def _leaves(table: Any, tree: Any, argument: str) -> list[Any]:
    """Return the leaves of `tree` that correspond to the leaves of `table`, in the order of `table`.

    Raise ValueError if the structures differ.
    """
    try:
        return aligned(table, tree)
    except Exception:  # an object in the place of a container may raise any error
        raise ValueError(
            f"{argument}: got {describe(tree)} for tables in a {type(table).__name__}; accepted is the same structure"
        ) from None
