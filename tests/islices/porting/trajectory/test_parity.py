"""Test `islices.parity`: it reports equal trainings as equal, treats rounding as equal, and finds where each fault
begins."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import islices
from islices import optim

ROWS, WIDTH, BATCH = 30, 4, 16


def training(
    optimizer: Any = None,
    *,
    steps: int = 5,
    fault: Callable[[int, dict[str, Any]], None] = lambda step, has: None,
    sums: type = np.float32,
    keep: tuple[str, ...] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield one dict for each step of a training. The dict contains the positions that a recorder would write.

    The loss is the squared error of the product of looked-up rows of two tables. islices clips the gradients and
    updates the tables. The forward pass computes in the type `sums`, because frameworks sum in different types. `fault`
    is called each time that positions have been added, and may change these positions.
    """
    r = np.random.default_rng(0)
    tables = {k: r.standard_normal((ROWS, WIDTH)).astype(np.float32) for k in ("user", "item")}
    optimizer = optimizer or optim.adam(0.05, semantics="keras")
    state = optimizer.init(tables)
    for step in range(1, steps + 1):
        ids, target = r.integers(0, ROWS, (2, BATCH)), r.standard_normal(BATCH)
        has: dict[str, Any] = {"batch": {"ids": ids}, "tables": _copied(tables), "state": _copied(state)}
        fault(step, has)
        used = dict(zip(("user", "item"), has["batch"]["ids"], strict=True))
        users, items = (has["tables"][k][i].astype(sums) for k, i in used.items())
        outputs = (users * items).sum(1, dtype=sums)
        error = (outputs - target).astype(sums)
        has |= {"outputs": outputs.astype(np.float32), "loss": float((error**2).mean())}
        fault(step, has)
        grads = [(error * 2 / BATCH)[:, None] * x for x in (items, users)]
        has["gradients"] = {
            k: islices.IndexedSlices(g.astype(np.float32), i, (ROWS, WIDTH))
            for (k, i), g in zip(used.items(), grads, strict=True)
        }
        fault(step, has)
        has["clipped"] = islices.clip_by_global_norm(has["gradients"], 0.05)[0]
        fault(step, has)
        tables, state = optimizer.step(_copied(has["tables"]), has["clipped"], _copied(has["state"]))
        has |= {"tables_after": _copied(tables), "state_after": _copied(state)}
        fault(step, has)
        tables, state = has["tables_after"], has["state_after"]
        yield has if keep is None else {k: x for k, x in has.items() if k in keep}


def _copied(tree: Any) -> Any:
    return {k: _copied(x) for k, x in tree.items()} if isinstance(tree, dict) else np.array(tree)


def at(number: int, position: str, change: Callable[[dict[str, Any]], None]) -> Callable[[int, dict[str, Any]], None]:
    """Return a fault that calls `change` in each step from `number` on, as soon as `position` exists."""
    done: set[int] = set()

    def fault(step: int, has: dict[str, Any]) -> None:
        if step >= number and position in has and step not in done:
            done.add(step)
            change(has)

    return fault


# ---------------------------------------------------------------------- equal trainings
@pytest.mark.parametrize(("optimizer", "with_state"), [("adam", True), ("adam", False), ("adagrad", True)])
def test_rounding_is_no_fault(optimizer: str, with_state: bool) -> None:
    rule = getattr(optim, optimizer)(0.02)
    keep = ("batch", "tables", "outputs", "loss", "gradients", "clipped", "tables_after", "state", "state_after")
    keep = keep if with_state else keep[:7]
    sides = [training(rule, sums=sums, steps=12, keep=keep) for sums in (np.float32, np.float64)]
    found = islices.parity(*sides)
    assert found.equal, str(found)
    assert found.same_bits < 12, "float32 and float64 round alike: nothing was compared"
    assert all(p.judged for step in found.steps for p in step.positions.values())
    assert not found.notes


# ---------------------------------------------------------------------- faults
def scaled(position: str, factor: float) -> Callable[[dict[str, Any]], None]:
    def change(has: dict[str, Any]) -> None:
        has[position] = {k: islices.scale(x, factor) for k, x in has[position].items()}

    return change


def off_by_one(has: dict[str, Any]) -> None:
    has["batch"]["ids"] = (has["batch"]["ids"] + 1) % ROWS


def moved_row(position: str) -> Callable[[dict[str, Any]], None]:
    def change(has: dict[str, Any]) -> None:
        has[position]["user"][3] += np.float32(1e-3)

    return change


def state_of(name: str) -> Callable[[dict[str, Any]], None]:
    def change(has: dict[str, Any]) -> None:
        has["state_after"]["item"][name] = has["state_after"]["item"][name] * np.float32(1.01)

    return change


def outputs(has: dict[str, Any]) -> None:
    has["outputs"] = has["outputs"] * np.float32(1.001)


def loss(has: dict[str, Any]) -> None:
    has["loss"] = has["loss"] * BATCH


FAULTS = {
    "batch": (3, "batch", off_by_one, "batch", None),
    "loss": (2, "loss", loss, "loss", None),
    "mean for sum": (3, "gradients", scaled("gradients", BATCH), "gradients", "mean"),
    "clip": (2, "clipped", scaled("clipped", 0.99), "clipped", None),
    "a row moves": (2, "tables_after", moved_row("tables_after"), "step", None),
    "m": (2, "state_after", state_of("m"), "state", None),
}


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_found_where_it_begins(name: str) -> None:
    step, made, change, position, cause = FAULTS[name]
    fault = at(step, made, change)
    sides = [training(sums=np.float64), training(fault=fault)]
    found = islices.parity(*sides, batch_size=BATCH)
    assert found.stop is not None, str(found)
    assert (found.stop.step, found.stop.position) == (step, position), str(found)
    assert not found.equal
    assert not found.stop.difference.equal
    assert cause is None or [cause] in [list(e.names) for e in found.stop.difference.causes], str(found)
    assert f"differ from step {step}" in str(found)


OTHERS = {
    "keras's epsilon": (optim.adam(0.02, rows="all", semantics="keras"), optim.adam(0.02, rows="all")),
    "lazy": (optim.adam(0.02, rows="all"), optim.adam(0.02)),
    "momentum": (optim.sgd(0.02, momentum=0.9), optim.sgd(0.02, momentum=0.91)),
}


@pytest.mark.parametrize("with_state", [False, True])
@pytest.mark.parametrize("name", OTHERS)
def test_another_optimizer_is_found(name: str, with_state: bool) -> None:
    pair = OTHERS[name]
    keep = ("batch", "tables", "gradients", "clipped", "tables_after", *(("state", "state_after") * with_state))
    found = islices.parity(*(training(rule, keep=keep) for rule in pair))
    assert found.stop is not None, str(found)
    assert found.stop.step == (1 if name != "lazy" and name != "momentum" else 2), str(found)
    assert found.stop.position == "step"


def projected(step: int, has: dict[str, Any], scale: float = 1.0) -> None:
    """Normalize the rows of the user table to length `scale` before each step except the first, as TransE does."""
    if step > 1 and "outputs" not in has:
        table = has["tables"]["user"]
        table *= scale / np.linalg.norm(table, axis=1, keepdims=True)


def test_what_one_side_does_to_tables_between_steps() -> None:
    found = islices.parity(training(fault=projected), training())
    assert found.stop is not None
    assert (found.stop.step, found.stop.position, found.stop.tensor) == (2, "between", "user")
    assert "a changes tables between steps: 'user' before step 2" in str(found)
    assert "hint: do on both sides what changes tables" in str(found)


def test_a_tensor_of_one_element_does_not_hide_the_cause() -> None:
    """Check that parity names the cause, although the largest difference is in a bias of one element. One element
    proves no cause."""

    def steps(rate: float) -> Iterator[dict[str, Any]]:
        r = np.random.default_rng(0)
        tables = {"bias": np.zeros(1, np.float32), "table": r.standard_normal((9, 4)).astype(np.float32)}
        grads = {"bias": np.full(1, 50.0, np.float32), "table": r.standard_normal((9, 4)).astype(np.float32)}
        sgd = optim.sgd(rate, rows="all")
        after, _ = sgd.step(_copied(tables), grads, sgd.init(tables))
        yield {"tables": tables, "gradients": grads, "tables_after": after}

    found = islices.parity(steps(0.1), steps(0.01))
    assert found.stop is not None
    assert found.stop.tensor == "bias"
    assert found.stop.difference.causes[0].names == ("learning_rate",), str(found)


def test_a_state_is_not_explained_as_a_gradient() -> None:
    """Check that parity does not explain a difference of states by a clip or another cause of gradients. Here beta2
    causes the difference."""
    keras = {"semantics": "keras", "lr": 1e-9}
    found = islices.parity(training(optim.adam(**keras)), training(optim.adam(beta2=0.99, **keras)))
    assert found.stop is not None
    assert found.stop.position == "state"
    named = {name for cause in found.stop.difference.causes for name in cause.names}
    assert not named & {"clipped", "per_tensor", "row_clip", "value_clip", "regularizer"}, str(found)


# ---------------------------------------------------------------------- names
def renamed(steps: Iterator[dict[str, Any]], names: dict[str, str], flip: str = "") -> Iterator[dict[str, Any]]:
    def one(position: str, tree: Any) -> Any:
        if position not in ("tables", "tables_after", "gradients", "clipped", "state", "state_after"):
            return tree
        new = {names.get(k, k): x for k, x in tree.items()}
        if flip in tree:
            new[names.get(flip, flip)] = _flipped(tree[flip])
        return new

    for step in steps:
        yield {position: one(position, tree) for position, tree in step.items()}


def _flipped(x: Any) -> Any:
    if isinstance(x, dict):
        return {k: _flipped(v) for k, v in x.items()}
    x = islices.to_dense(x) if isinstance(x, islices.IndexedSlices) else x
    return x.T.copy() if x.ndim == 2 else x


def test_names_and_layouts() -> None:
    other = {"user": "u/embeddings", "item": "i/embeddings"}
    found = islices.parity(training(), renamed(training(), other), pair=other)
    assert found.equal
    assert found.pairs == other
    assert islices.parity(training(), renamed(training(), other)).pairs == other, "by shape, in order"
    found = islices.parity(training(), renamed(training(), other), pair={"item": "i/embeddings"})
    assert found.pairs == other, "one by the argument, the other by shape"
    rule = optim.adam(0.02, rows="all")
    found = islices.parity(training(rule), renamed(training(rule), {}, flip="item"))
    assert found.equal
    assert found.transposed == ("item",)
    assert "transposed" in found.notes[0]
    with pytest.raises(ValueError, match="pair: got 'nobody'; accepted are the names in a: 'user', 'item'"):
        islices.parity(training(), training(), pair={"nobody": "user"})
    with pytest.raises(ValueError, match="accepted is pair="):
        islices.parity([{"gradients": {"a": np.ones(2)}}], [{"gradients": {"b": np.ones(3)}}])


def test_a_position_that_is_ignored() -> None:
    fault = at(2, "batch", off_by_one)
    found = islices.parity(training(fault=fault), training(), ignore=["batch"])
    assert found.stop is not None
    assert found.stop.position == "outputs"


def test_order_of_duplicates_is_rounding() -> None:
    """Check that parity reports two runs as equal if they add cancelling sums in two orders, although Adam amplifies
    the rounding. Parity still finds another learning rate."""

    def run(order: int, lr: float = 0.01) -> Iterator[dict[str, Any]]:
        r = np.random.default_rng(5)
        table, optimizer = np.ones((6, 3), np.float32), optim.adam(lr, eps=1e-8)
        state = optimizer.init(table)
        for _ in range(3):
            values, ids = r.standard_normal((60, 3)).astype(np.float32), r.integers(0, 6, 60)
            for row in range(3):  # sums are about 1e-7 of the slots' size
                last = np.flatnonzero(ids == row)[-1]
                values[last] -= values[ids == row].sum(0, dtype=np.float64).astype(np.float32)
            grad = islices.IndexedSlices(values, ids, (6, 3))
            summed = islices.coalesce(islices.IndexedSlices(values[::order], ids[::order], (6, 3)))
            before, held = table.copy(), _copied({"t": state})
            table, state = optimizer.step(table.copy(), summed, _copied(state))
            yield {
                "tables": {"t": before}, "state": held, "gradients": {"t": grad},
                "tables_after": {"t": table}, "state_after": {"t": state},
            }  # fmt: skip

    there, back = list(run(1)), list(run(-1))
    assert np.abs(there[0]["tables_after"]["t"] - back[0]["tables_after"]["t"]).max() > 1e-4
    found = islices.parity(there, back)
    assert found.equal, str(found)
    assert found.notes == ()
    wild = islices.parity(run(1), run(1, 0.02))
    assert (wild.stop.step, wild.stop.position) == (1, "step")


@pytest.mark.parametrize(
    ("framework", "line"),
    [
        ("torch", "islices.backends.torch.optim.Adam(parameters, {})"),
        ("jax", "islices.backends.jax.optax.from_optim(islices.optim.adam({}))"),
    ],
)
def test_lines_that_mend_are_of_the_recorded_framework(framework: str, line: str, tmp_path: Path) -> None:
    statement = {"name": "adam", "semantics": "keras", "rows": "all", "lr": 0.05, "eps": 1e-7}
    for name, semantics in (("a", "keras"), ("b", "torch")):
        recorder = islices.Recorder(tmp_path / name)
        recorder.framework = framework
        for step in training(optim.adam(0.05, semantics=semantics, rows="all"), steps=1):
            recorder.step(
                **step, optimizer=statement if name == "a" else {**statement, "semantics": "torch", "eps": 1e-8}
            )
    found = islices.parity(tmp_path / "a", tmp_path / "b")
    assert (found.stop.step, found.stop.position) == (1, "step")
    made = line.format("lr=0.05, semantics='keras', rows='all'")
    assert f"fix: in b, optimizer = {made}" in str(found)


# ---------------------------------------------------------------------- folders


def test_tables_are_stored_by_rows(tmp_path: Path) -> None:
    """Check that each file after the first contains only the changed rows of the table."""
    table = np.ones((50_000, 4), np.float32)
    recorder = islices.Recorder(tmp_path)
    for row in range(3):
        grad = islices.IndexedSlices(np.ones((1, 4), np.float32), np.array([row]), table.shape)
        after = table.copy()
        after[row] += 1
        recorder.step(tables={"t": table}, gradients={"t": grad}, tables_after={"t": after})
        table = after
    sizes = [path.stat().st_size for path in sorted(tmp_path.glob("step-*"))]
    assert sizes[0] > table.nbytes
    assert max(sizes[1:]) < 10_000
    assert islices.parity(tmp_path, tmp_path).same_bits == 3


def test_every_so_many_steps(tmp_path: Path) -> None:
    for name, every in (("a", 1), ("b", 2)):
        recorder = islices.Recorder(tmp_path / name, every=every)
        for step in training():
            recorder.step(**step)
    assert islices.parity(tmp_path / "a", training()).same_bits == 5
    assert (tmp_path / "a" / "step-00000002.safetensors").exists()
    found = islices.parity(tmp_path / "a", tmp_path / "b")
    assert [step.step for step in found.steps] == [1, 2, 4]
    assert found.equal
    assert found.same_bits == 3
    assert any("1 step that one side alone has" in note for note in found.notes)


def test_recorder_adds_up(tmp_path: Path) -> None:
    """Check that `add` copies its arrays, because a table may change in place later."""
    table = np.zeros((3, 1), np.float32)
    with islices.Recorder(tmp_path) as recorder:
        recorder.add(tables={"t": table}, batch=np.array([1]))
        table += 1
        recorder.add(gradients={"t": -np.ones_like(table)})
        recorder.step(tables_after={"t": table}, loss=0.5)
        recorder.add(loss=1.0)
    (path,) = tmp_path.glob("step-*")
    saved = islices.load(path)
    assert set(saved) == {"batch", "tables", "gradients", "tables_after", "loss"}
    assert saved["tables"]["t"].ravel().tolist() == [0, 0, 0]
    assert saved["tables_after"]["t"].ravel().tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda p: islices.Recorder(7), TypeError, "folder: got int"),
        (lambda p: islices.Recorder(p).step(grads=1), ValueError, "position: got 'grads'; accepted are 'batch'"),
        (lambda p: islices.Recorder(p).step(optimizer={"name": "best"}), ValueError, "optimizer: got the name 'best'"),
        (lambda p: islices.parity({"gradients": 3}, []), TypeError, "accepted is a folder, or an iterable of steps"),
        (lambda p: islices.parity([], [], ignore=["it"]), ValueError, "ignore: got 'it'"),
        (lambda p: islices.parity([], [], optimizer=3), TypeError, "optimizer"),
    ],
)
def test_refused(call: Callable[[Path], Any], error: type[Exception], message: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=message.replace("(", r"\(")):
        call(tmp_path)


def test_folder_that_holds_steps(tmp_path: Path) -> None:
    islices.Recorder(tmp_path).step(loss=1.0)
    with pytest.raises(ValueError, match="which holds 1 steps; accepted is an empty folder, or overwrite=True"):
        islices.Recorder(tmp_path)
    assert len(list(tmp_path.glob("step-*"))) == 1
    islices.Recorder(tmp_path, overwrite=True)
    assert not list(tmp_path.glob("step-*"))


def test_damaged_files(tmp_path: Path) -> None:
    islices.save(
        tmp_path / "step-1.safetensors",
        {"tables_after": {"t": islices.IndexedSlices(np.ones((1, 1)), np.array([0]), (2, 1))}},
    )
    with pytest.raises(ValueError, match="has rows of a table that no step before holds"):
        islices.parity(tmp_path, tmp_path)
    islices.save(tmp_path / "step-1.safetensors", {"weights": {"t": np.ones(1)}})
    with pytest.raises(ValueError, match="holds other than batch"):
        islices.parity(tmp_path, tmp_path)
    islices.save(tmp_path / "step-1.safetensors", {"loss": np.ones(1)}, metadata={"optimizer": "[1"})
    with pytest.raises(ValueError, match="are no JSON object"):
        islices.parity(tmp_path, tmp_path)


# ---------------------------------------------------------------------- outputs
def test_json_and_picture(tmp_path: Path) -> None:
    found = islices.parity(
        training(), training(fault=at(4, "gradients", scaled("gradients", -1.0))), names=("old", "new")
    )
    reported = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert reported["stop"]["step"] == 4
    assert reported["stop"]["difference"]["names"] == ["old", "new"]
    assert [step["step"] for step in reported["steps"]] == [1, 2, 3, 4]
    assert reported["same_bits"] == 3
    pytest.importorskip("matplotlib")
    found.plot(tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 10_000
    with pytest.raises(TypeError, match="ambiguous"):
        bool(found)
