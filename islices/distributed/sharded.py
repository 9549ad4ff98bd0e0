"""Define ShardedTable, an embedding table whose rows are distributed over many ranks. SPEC clause 26."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from islices.backend import FLOATS, Array, Backend, Host
from islices.core import modes
from islices.core.arguments import check_flag, check_name
from islices.core.dtypes import dtype_name, host_dtype
from islices.core.registry import describe
from islices.core.slices import IndexedSlices, check_dense_shape
from islices.distributed.agree import Preflight, together
from islices.distributed.engines import backend_of, find_processes, named_backend
from islices.distributed.fetched import Batch, fetch_rows, find_routes, fold_gradients, gradient_on_host
from islices.distributed.group import Group
from islices.distributed.packing import even_bounds, range_of
from islices.distributed.reduce import OPS, Op, finished
from islices.embedding.ids import check_ids, check_range
from islices.embedding.lookup import lookup
from islices.embedding.lookup_gradients import check_count, resolve_padding_idx
from islices.embedding.table import Table
from islices.optim.hyperparameters import known_hyper
from islices.optim.inputs import check_frozen
from islices.optim.optimizer import Optimizer, check_requests, take_steps
from islices.optim.row_steps import Request

#: The number of the last sharded table that this process made. All ranks give a table the same number.
_made = [0]


class ShardedTable:
    """An embedding table whose rows are distributed over the ranks of a group. Each rank has one contiguous range of
    rows.

    Rank r has the rows ``bounds[r]`` to ``bounds[r + 1] - 1``. The constructor, and all methods except `init`, are
    collective. Every rank must make these calls in the same order, even if it has no ids or no rows.

    Parameters
    ----------
    shard_weights : float array, shape (bounds[rank + 1] - bounds[rank], *row_shape)
        This rank's rows, as an array of any framework. The table does not copy the array: a tf.Variable or a torch
        Parameter stays the same object.
    num_rows : int
        The number of rows of the whole table.
    group : None, str, Group or an engine's group object
        See `get_group`. If no engine or several engines connect processes, None stands for the engine of the weights'
        framework.
    padding_idx : int, optional
        The number, in the whole table, of a row that gets no gradient. A negative number counts from the end.
    scale_by_freq : bool
        If True, `value_and_grad` divides each slice of a batch's gradient by the number of times that its row occurs in
        the rank's lookup.

    Attributes
    ----------
    shard : Table
        This rank's rows.
    group : Group
    num_rows : int
        The number of rows of the whole table.
    padding_idx : int or None
    bounds : int64 NumPy array, shape (ranks + 1,)
        The bounds of the ranks' ranges. The lengths of ranges differ by at most one, and longer ranges come first.

    Raises
    ------
    TypeError, ValueError, IndexError
        This rank's arguments are invalid, or the ranks' arguments differ. In the second case, every rank raises the
        error.
    RankError, RankTimeout
        Another rank failed, or did not call in time.

    Notes
    -----
    SPEC clause 26.

    Examples
    --------
    >>> import numpy as np
    >>> import islices
    >>> from islices.distributed import Alone, ShardedTable
    >>> table = ShardedTable(np.ones((4, 1)), 4, Alone())
    >>> optimizer = islices.optim.sgd(0.5)
    >>> state = table.init(optimizer)
    >>> batch = table.fetch(np.array([3, 1, 3]))
    >>> upstream = 2 * islices.lookup(batch.table, batch.ids)
    >>> gradient = islices.embedding_grad(upstream, batch.ids, batch.table.shape[0])
    >>> state = table.step(optimizer, table.reduce(batch, gradient), state)
    >>> table.shard.weights.ravel().tolist()
    [1.0, 0.0, 1.0, -1.0]
    """

    __slots__ = ("_fetches", "_number", "_optimizer", "bounds", "group", "num_rows", "padding_idx", "shard")

    shard: Table
    group: Group
    num_rows: int
    padding_idx: int | None
    bounds: Host

    def __init__(
        self,
        shard_weights: Array,
        num_rows: int,
        group: Any = None,
        *,
        padding_idx: int | None = None,
        scale_by_freq: bool = False,
    ) -> None:
        self.group, error = _find_ranks(group, shard_weights)
        self._optimizer: _LocalOptimizer | None = None
        self._fetches = 0

        def prepare() -> Preflight[None]:
            self.num_rows = check_count(num_rows)
            self.bounds = even_bounds(self.num_rows, self.group.size)
            self.padding_idx = resolve_padding_idx(padding_idx, self.num_rows)
            shard = Table(shard_weights, scale_by_freq=scale_by_freq)
            start, stop = self._range
            if shard.shape[0] != stop - start:
                raise ValueError(
                    f"shard_weights: got {shard.shape[0]} rows; accepted on rank {self.group.rank} of "
                    f"{self.group.size} are {stop - start}, those with {start} <= row < {stop} of {self.num_rows}"
                )
            own = self.padding_idx is not None and start <= self.padding_idx < stop
            padding = self.padding_idx - start if own else None  # type: ignore[operator]
            self.shard = Table(shard_weights, padding_idx=padding, scale_by_freq=scale_by_freq)
            return None, self._description(), _made

        _, agreed = together(self.group, "ShardedTable", prepare, error=error)
        self._number = _made[0] = max(int(counts[0]) for counts in agreed.counts) + 1

    @classmethod
    def from_full(cls, weights: Array, group: Any = None, **options: Any) -> ShardedTable:
        """Make a sharded table from the whole table, which every rank must have.

        Parameters
        ----------
        weights : float array, shape (rows, *row_shape)
            The whole table. The shard is a copy of this rank's rows.
        group, **options
            The same arguments as for `ShardedTable`.

        Returns
        -------
        ShardedTable

        Examples
        --------
        >>> import numpy as np
        >>> from islices.distributed import Alone
        >>> ShardedTable.from_full(np.zeros((5, 2), np.float32), Alone())
        ShardedTable((5, 2), float32, numpy, rows 0 to 4 on rank 0 of 1)
        """
        found, error = _find_ranks(group, weights)

        def prepare() -> Preflight[tuple[Array, int]]:
            whole = Table(weights)
            B, rows = whole.backend, whole.shape[0]
            start, stop = range_of(rows, found)
            view = B.host_view(weights)
            own = (B.to_numpy(weights) if view is None else view)[start:stop]
            return (B.variable(B.asarray(own, weights), weights), rows), {}, []

        (own, rows), _ = together(found, "ShardedTable.from_full", prepare, error=error)
        return cls(own, rows, found, **options)

    @classmethod
    def create(
        cls,
        num_rows: int,
        row_shape: tuple[int, ...],
        init: Callable[[int, int], Host],
        group: Any = None,
        *,
        dtype: str | None = None,
        like: Any = "numpy",
        **options: Any,
    ) -> ShardedTable:
        """Make a sharded table that may be too large for one rank. Each rank makes only its rows.

        Parameters
        ----------
        num_rows : int
            The number of rows of the whole table.
        row_shape : tuple of int
        init : function
            ``init(start, stop)`` returns the rows start to stop - 1 as a NumPy array of shape ``(stop - start,
            *row_shape)``. The table may use this array without a copy. If the rows depend only on the row numbers, the
            table does not depend on the number of ranks.
        group : None, str, Group or an engine's group object
            The same as for `ShardedTable`.
        dtype : {"float16", "bfloat16", "float32", "float64"}, optional
            The dtype to which the rows are rounded. The default is the dtype of the rows that `init` returns.
        like : str, Backend or array
            The backend of the shards. An array also determines the device. If `like` is a tf.Variable, the shards are
            tf.Variables too.
        **options
            The same arguments as for `ShardedTable`.

        Returns
        -------
        ShardedTable

        Examples
        --------
        >>> import numpy as np
        >>> from islices.distributed import Alone
        >>> def init(start, stop):
        ...     return np.arange(start, stop, dtype=np.float32)[:, None]
        >>> ShardedTable.create(1000, (1,), init, Alone()).lookup(np.array([999])).tolist()
        [[999.0]]
        """
        B, refused = named_backend(like)
        found = find_processes(group, B, refused)

        def prepare() -> Preflight[Array]:
            assert B is not None
            start, stop = range_of(check_count(num_rows), found)
            made = _made_rows(init, start, stop, row_shape)
            if dtype is not None:
                check_name(dtype, FLOATS, "dtype")
                with modes.HOST.scope():
                    made = modes.HOST.astype(made, dtype)
            return given_like(B, np.require(made, requirements=["C", "W"]), like), {}, []

        weights, _ = together(found, "ShardedTable.create", prepare, error=refused)
        return cls(weights, num_rows, found, **options)

    # ------------------------------------------------------------------ properties
    @property
    def row_shape(self) -> tuple[int, ...]:
        """Return the shape of a row."""
        return self.shard.shape[1:]

    @property
    def shape(self) -> tuple[int, ...]:
        """Return (num_rows, *row_shape) of the whole table."""
        return (self.num_rows, *self.row_shape)

    @property
    def dtype(self) -> Any:
        """Return the framework's dtype of the weights."""
        return self.shard.dtype

    @property
    def backend(self) -> Backend:
        """Return the backend of the shard's framework."""
        return self.shard.backend

    @property
    def _range(self) -> tuple[int, int]:
        return range_of(self.num_rows, self.group)

    @property
    def _dtype(self) -> str:
        return self.backend.dtype(self.shard._source.weights)

    def _description(self) -> dict[str, Any]:
        return {
            "num_rows": self.num_rows, "row_shape": list(self.row_shape), "dtype": self._dtype,
            "padding_idx": self.padding_idx, "scale_by_freq": self.shard.scale_by_freq,
        }  # fmt: skip

    def _named(self) -> dict[str, Any]:
        """Return the values by which ranks check, in each call, that they all use the same table."""
        return {"table": f"no. {self._number} of shape {self.shape}"}

    def __repr__(self) -> str:
        start, stop = self._range
        own = f"rows {start} to {stop - 1}" if start < stop else "no rows"
        where = f"{own} on rank {self.group.rank} of {self.group.size}"
        return f"ShardedTable({self.shape}, {self._dtype}, {self.backend.name}, {where})"

    # ------------------------------------------------------------------ reading
    def fetch(self, ids: Array) -> Batch:
        """Fetch the rows with this rank's ids from the ranks that own the rows. A row is fetched once, however often
        its id occurs.

        Parameters
        ----------
        ids : int32 or int64 array of any shape
            An array of the table's framework or of NumPy. Each rank may pass different ids, and any number of them.

        Returns
        -------
        Batch

        Raises
        ------
        TypeError, IndexError
            This rank's ids are invalid.
        ValueError
            The ranks use different tables or call different methods. Every rank raises the error.
        RankError, RankTimeout
            Another rank failed, for example because its ids are invalid, or did not call in time.

        Notes
        -----
        If a rank needs f distinct rows of other ranks, it sends 4 f bytes of row numbers and receives f rows. If a
        shard has more than 2^31 rows, a row number takes 8 bytes. The rank also sends the rows that other ranks need.
        The call runs 3 collectives, or 4 if there are more than 26 ranks. SPEC clause 26.
        """
        call = "ShardedTable.fetch"

        def prepare() -> Preflight[tuple[Array, Host, Host]]:
            B = self.backend
            checked = check_ids(B, ids, self.shard.weights)
            if B.is_traced(checked):
                raise TypeError("ids: got traced ones; accepted are ids whose values are known")
            check_range(B, checked, self.num_rows)
            host = B.to_numpy(checked)
            with modes.HOST.scope():
                distinct, places = modes.HOST.unique(host.reshape(-1), self.num_rows)
            placed = B.from_host(places.reshape(host.shape).astype(host.dtype), checked)
            cuts = np.searchsorted(distinct, self.bounds)
            return (placed, distinct.astype(np.int64), cuts), self._named(), np.diff(cuts)

        with self.group.exclusive():
            (placed, distinct, cuts), agreed = together(self.group, call, prepare)
            with self.group.to_the_end(call):
                self._fetches += 1  # all ranks count the call, even if the rest of the call fails
                routes = find_routes(self.group, agreed, self.bounds, distinct, cuts)
                values = fetch_rows(self.group, routes, self._take)
        weights = self.backend.from_host(values, self.shard.weights)
        padding = None
        if self.padding_idx is not None and len(at := np.flatnonzero(distinct == self.padding_idx)):
            padding = int(at[0])
        table = Table(weights, padding_idx=padding, scale_by_freq=self.shard.scale_by_freq)
        return Batch(table, placed, distinct, self, self._fetches, routes)

    def lookup(self, ids: Array) -> Array:
        """Look up the rows with these ids. The result has no gradient; use `fetch` if you need gradients or bags.

        Parameters
        ----------
        ids : int32 or int64 array of any shape

        Returns
        -------
        array of the table's framework, shape ``(*ids.shape, *row_shape)``
            The rows (SPEC clause 26).
        """
        batch = self.fetch(ids)
        return lookup(batch.table, batch.ids)

    def _take(self, rows: Host) -> Host:
        """Return some rows of this rank's shard as a host array. `rows` contains row numbers of the shard."""
        B, weights = self.backend, self.shard.weights
        views = modes.host_views(B, [weights])
        with modes.HOST.scope():
            if views is not None:
                return modes.HOST.take(views[0], rows)  # type: ignore[no-any-return]
        with B.scope():
            return np.ascontiguousarray(B.to_numpy(B.stop_gradient(B.read_rows(weights, B.asarray(rows, weights)))))

    # ------------------------------------------------------------------ gradients
    def reduce(self, batch: Batch, grad: Any, op: Op = "sum") -> IndexedSlices | None:
        """Compute the gradient of this rank's shard: the sum, or the mean, of the gradients of all ranks' batches.

        Parameters
        ----------
        batch : Batch
            The result of `fetch`. All ranks must pass results of the same call.
        grad : sparse gradient, dense array of batch.table's shape, or None
            The gradient of ``batch.table``, computed by `value_and_grad` or any framework. A rank that passes None
            contributes nothing.
        op : {"sum", "mean"}
            "mean" divides the sum by the number of ranks.

        Returns
        -------
        IndexedSlices or None
            The coalesced gradient, with the shape of the shard. Row 0 is the first row of the shard. If `grad` is None
            on every rank, the result is None.

        Raises
        ------
        TypeError, ValueError, IndexError
            `batch` is not from this table, `grad` is not a gradient of ``batch.table``, or `op` is unknown. Or the
            table, the batch, the op or the dtype of `grad` differs between ranks; then every rank raises the error.
        RankError, RankTimeout
            Another rank failed, or did not call in time.

        Notes
        -----
        The result has the same bits as this rank's rows in the result of `all_reduce` for gradients of the whole table.
        Each rank's gradient is coalesced, and then the gradients are added in the order of ranks. 16-bit values are
        added in float32, and the sum is rounded once. A dense `grad` contributes to every row of its batch except the
        padding row. The call sends one bit per fetched row, and the rows of the gradient. The call runs 2 collectives,
        or 1 if `grad` is None on every rank. The call runs one more if there are more than 26 ranks, and one more if
        `grad` is None on some ranks only. SPEC clause 26.
        """
        call = "ShardedTable.reduce"

        def prepare() -> Preflight[tuple[Host | None, Host]]:
            check_name(op, OPS, "op")
            if not isinstance(batch, Batch) or batch._owner is not self:
                raise TypeError(f"batch: got {describe(batch)}; accepted is what this table's fetch returned")
            values, places = (None, np.empty(0, np.int64)) if grad is None else gradient_on_host(batch.table, grad)
            dtype = None if values is None else dtype_name(values.dtype)
            facts = {**self._named(), "op": op, "batch": batch._number, "grad": dtype}
            return (values, places), facts, np.diff(np.searchsorted(places, batch._routes.cuts))

        with self.group.exclusive():
            (values, places), agreed = together(self.group, call, prepare, optional=True)
            if values is None:
                dtype = next((one["grad"] for one in agreed.each or () if one["grad"] is not None), None)
                if dtype is None:
                    return None
                values = np.empty((0, *self.row_shape), host_dtype(dtype))
            with self.group.to_the_end(call):
                values, rows = fold_gradients(self.group, agreed, batch._routes, values, places)
        B, like = self.backend, self.shard.weights
        out = B.from_host(finished(modes.HOST, values, op, self.group.size), like), B.from_host(rows, like)
        return IndexedSlices._trusted(B, *out, self.shard.shape, coalesced=True)

    # ------------------------------------------------------------------ optimizers
    def init(self, optimizer: Optimizer, *, master: bool = False) -> dict[str, Array]:
        """Return the optimizer's state for this rank's rows before the first step. The call is not collective.

        Parameters
        ----------
        optimizer : Optimizer
            An optimizer of `islices.optim`.
        master : bool
            See `Optimizer.init`.

        Returns
        -------
        dict of str to array
            The result of `Optimizer.init` for ``shard``.
        """
        return self._local(optimizer).own.init(self.shard, master=master)  # type: ignore[no-any-return]

    def step(
        self, optimizer: Optimizer, grad: Any, state: Mapping[str, Array], *, donate: bool = False
    ) -> dict[str, Array]:
        """Take one optimizer step on the whole table. Each rank changes only its rows.

        Parameters
        ----------
        optimizer : Optimizer
            The optimizer, which must be the same on every rank. The optimizer's frozen rows are row numbers of the
            whole table.
        grad : IndexedSlices or None
            The result of `reduce`, which you may clip or scale first. If `grad` is None, it must be None on every rank,
            and the table and the state stay unchanged.
        state : dict
            The result of `init` or of the previous step.
        donate : bool
            If True, the step may overwrite JAX arrays. See `Optimizer.step`.

        Returns
        -------
        dict
            The state after the step, which you pass to the next step. ``shard`` then contains this rank's rows after
            the step.

        Raises
        ------
        TypeError, ValueError, IndexError
            This rank's arguments are invalid, or the ranks' arguments or their numbers of completed steps differ. In
            the second case, every rank raises the error.
        RankError, RankTimeout
            Another rank failed before it could step, or did not call in time.

        Notes
        -----
        Before any weight changes, all ranks check their arguments, and report the result to each other. So if the call
        raises, it has changed nothing on this rank. If a rank dies while the ranks exchange results, some ranks may
        take the step while others raise. Then the step count in the state shows which ranks have taken the step. No
        rank takes only a part of a step. SPEC clauses 16 and 26.
        """

        def prepare() -> Preflight[Request]:
            work = self._local(optimizer).own._prepared(self.shard, grad, state, check_flag(donate, "donate"), True)
            check_requests([work])
            if isinstance(work.grad, IndexedSlices):
                optimizer._warn_of_all("table")
            taken = int(self.backend.to_numpy(state["step"])[0])
            kind = "none" if grad is None else "one"
            facts = {**self._named(), **self._local(optimizer).facts(taken), "steps taken": taken, "grad": kind}
            return work, facts, []

        work, _ = together(self.group, "ShardedTable.step", prepare)
        ((self.shard, after),) = take_steps([work])
        return after

    def _local(self, optimizer: Any) -> _LocalOptimizer:
        """Return the `_LocalOptimizer` for this rank's rows. The table caches the result for the last optimizer."""
        if self._optimizer is None or self._optimizer.whole is not optimizer:
            self._optimizer = _local_optimizer(optimizer, self.num_rows, *self._range)
        return self._optimizer


def _find_ranks(group: Any, weights: Any) -> tuple[Group, Exception | None]:
    """Return (the group for a table with these weights, an error if the weights belong to no framework, else None)."""
    error = None
    B = backend_of(weights)
    if B is None:
        try:
            Table(weights)
        except Exception as raised:
            error = raised
    return find_processes(group, B, error), error


# ---------------------------------------------------------------------- of a range of rows
class _LocalOptimizer(NamedTuple):
    """An optimizer for the whole table, and the same optimizer for a range of rows."""

    whole: Optimizer
    #: the optimizer for the range, whose frozen rows are counted from the first row of the range
    own: Optimizer
    #: the number and the digest of the whole table's frozen rows, by which ranks check that all freeze the same rows
    frozen: str

    def facts(self, taken: int) -> dict[str, str]:
        """Return the settings of the optimizer that must be the same on every rank.

        For a schedule, ranks compare the value after `taken` steps, because the repr of a schedule may contain a memory
        address.
        """
        hyper = known_hyper(self.whole.hyper, np.array([taken]), self.whole._formula.limits)
        options = {name: getattr(self.whole, name) for name in ("rows", "semantics", "maximize")}
        words = ", ".join(f"{name}={value}" for name, value in {**hyper, **options}.items())
        return {"optimizer": f"{self.whole.name}({words})", "frozen": self.frozen}


def _local_optimizer(optimizer: Any, rows: int, start: int, stop: int) -> _LocalOptimizer:
    """Return an optimizer for a whole table, and the same optimizer for the rows start to stop - 1."""
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"optimizer: got {describe(optimizer)}; accepted is one of islices.optim")
    if optimizer._formula.raw:
        raise ValueError("optimizer: got duplicates='raw'; accepted is 'sum': ranks' gradients come summed")
    frozen = check_frozen(*optimizer._frozen, rows)
    if frozen is None:
        return _LocalOptimizer(optimizer, optimizer, "no rows")
    own = optimizer._remake(frozen=frozen[slice(*np.searchsorted(frozen, (start, stop)))] - start)
    digest = hashlib.sha256(frozen.astype("<i8").tobytes()).hexdigest()
    return _LocalOptimizer(optimizer, own, f"{len(frozen)} rows (digest {digest:.8})")


def _made_rows(init: Any, start: int, stop: int, row_shape: Any) -> Host:
    """Make rows with the user's function `init`, and check their shape and dtype. Rows in bfloat16 are returned as
    uint16."""
    if not callable(init):
        raise TypeError(f"init: got {describe(init)}; accepted is a function of (start, stop)")
    if not isinstance(row_shape, (tuple, list)):
        raise TypeError(f"row_shape: got {describe(row_shape)}; accepted is a tuple of ints")
    shape = (stop - start, *check_dense_shape((0, *row_shape))[1:])
    made = np.asarray(init(start, stop))
    if made.dtype.name not in FLOATS:
        raise TypeError(f"init: returned {made.dtype}; accepted dtypes are {', '.join(FLOATS)}")
    if made.shape != shape:
        raise ValueError(f"init: returned shape {made.shape}; accepted is {shape}")
    return made.view(np.uint16) if made.dtype.name == "bfloat16" else made


def given_like(B: Backend, x: Host, like: Any) -> Array:
    """Convert a host array to an array of B. Raise TypeError if B does not have the dtype. No other object may use the
    memory of x.

    If `like` is an array, the result is on the same device as `like`. If `like` is a variable, the result is a variable
    too.
    """
    probe = B.asarray(np.zeros(1, x.dtype))
    return B.variable(B.from_host(x, like), like) if B.is_array(like) else B.from_host(x, probe)
