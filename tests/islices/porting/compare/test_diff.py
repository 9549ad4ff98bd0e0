"""Test the measurements, the pairing of tensors, the errors, the command and the picture of `islices.diff`."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import islices
from islices import IndexedSlices
from islices.cli import main
from islices.porting.compare.cause import Cause, Change
from islices.porting.compare.causes import CAUSES
from islices.porting.compare.comparison import Comparison
from islices.porting.compare.measure import Place

BACKENDS = [name for name in ("numpy", "torch", "tensorflow", "jax", "mxnet") if name in islices.list_backends()]


def slices(rows: Any, ids: Any, count: int | None = 8, dtype: str = "float32") -> IndexedSlices:
    values = np.array(rows, dtype)
    return IndexedSlices(values, np.array(ids, np.int64), (count, *values.shape[1:]))


G = slices([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [0.5, -8.0]], [5, 1, 5, 2])


# ---------------------------------------------------------------------- equality
@pytest.mark.parametrize("name", BACKENDS)
def test_one_gradient_in_two_frameworks_is_equal(name: str) -> None:
    """Compare a gradient with its conversion to a framework. In a second comparison, one side is coalesced."""
    other = islices.to_native(islices.convert(G, name))
    found = islices.diff({"e": G}, {"e": other})
    assert found.equal
    assert found.causes == ()
    assert islices.diff([other, None], [islices.coalesce(G), None]).equal


def test_nan_equals_nan_and_the_sign_of_zero_is_not_seen() -> None:
    a = slices([[np.nan, 0.0], [np.inf, 1.0]], [1, 2])
    b = slices([[-np.nan, -0.0], [np.inf, 1.0]], [1, 2])
    assert islices.diff(a, b).equal
    assert not islices.diff(a, slices([[np.nan, 0.0], [-np.inf, 1.0]], [1, 2])).equal


def test_a_stored_row_of_zeros_is_a_difference_to_a_sparse_side_and_none_to_a_dense_one() -> None:
    a, b = slices([[1.0, 2.0], [0.0, 0.0]], [1, 3]), slices([[1.0, 2.0]], [1])
    assert not islices.diff(a, b).equal
    assert islices.diff(a, islices.to_dense(b)).equal
    assert islices.diff(islices.to_dense(a), b).equal


def test_shapes_that_differ() -> None:
    assert not islices.diff(G, slices(G.values, G.indices, 9)).equal
    assert islices.diff(G, slices(G.values, G.indices, None)).equal  # one side has an unknown number of rows
    rows = islices.diff(slices(np.ones((2, 3)), [0, 1]), slices(np.ones((2, 4)), [0, 1]))
    assert not rows.equal
    assert not rows.tensors[0].comparable
    assert "nothing to compare" in str(rows)


@pytest.mark.parametrize("dtype", ["bool", "uint64"])
def test_masks_and_counters_are_compared_and_explain_nothing(dtype: str) -> None:
    """Check that `diff` compares tensors of bool and uint64, but names no cause for their difference. It still names
    the cause for another tensor."""
    x = np.array([[1, 0], [1, 1]]).astype(dtype)
    y = np.array([[1, 0], [0, 1]]).astype(dtype)
    assert islices.diff({"m": x}, {"m": x.copy()}).equal
    found = islices.diff({"m": x}, {"m": y})
    assert not found.equal
    assert (found.rounding, found.arithmetic, found.causes) == (False, None, ())
    assert found.tensors[0].dtypes == (dtype, dtype)
    g = np.random.default_rng(0).standard_normal((20, 4)).astype(np.float32)
    assert islices.diff({"g": g, "m": x}, {"g": -g, "m": x}).causes[0].names == ("sign",)


def test_integers_are_not_rounded() -> None:
    big = np.array([2**31 - 2, 5, 7], np.int32)
    assert not islices.diff(big, big - 1).rounding
    ends = np.array([-(2**63), 2**63 - 1])
    found = islices.diff(ends, ends[::-1].copy())
    assert found.causes == ()
    assert "beyond 2^53" in str(found)
    assert not islices.diff(np.array([2**62]), np.array([2**62 + 1])).rounding


# ---------------------------------------------------------------------- measurements
def test_rows_places_norms() -> None:
    a = slices([[3.0, 4.0], [1.0, 1.0], [7.0, 7.0]], [0, 2, 4])
    b = slices([[3.0, 4.5], [1.0, 1.0], [2.0, 0.0]], [0, 2, 7])
    (t,) = islices.diff(a, b).tensors
    assert (t.rows, t.differing.count, t.only_a.count, t.only_b.count) == (2, 1, 1, 1)
    assert t.differing.first == ((0, ((3.0, 4.0), (3.0, 4.5))),)
    assert t.only_a.first == ((4, ((7.0, 7.0),)),)
    assert t.only_b.first == ((7, ((2.0, 0.0),)),)
    assert t.largest == Place(0, (1,), 4.0, 4.5, 0.5)
    assert t.norms == (float(np.sqrt(125.0)), float(np.sqrt(9 + 20.25 + 2 + 4)))


def test_the_verbose_report_shows_ten_rows_and_says_how_many_there_are() -> None:
    r = np.random.default_rng(0)
    a, b = (slices(r.standard_normal((25, 6)), range(25), 30) for _ in range(2))
    assert "rows that differ (25, the first 10)" in islices.diff(a, b).report(verbose=True)


def test_cost_follows_the_stored_rows() -> None:
    """Check that `diff` needs little memory for a table with 1e9 rows, whose dense gradient would need 16 GB."""
    r = np.random.default_rng(0)
    ids = np.sort(r.choice(10**9, 50_000, replace=False))
    a, b = (slices(r.standard_normal((50_000, 4)), ids, 10**9) for _ in range(2))
    islices.diff(a, a)
    tracemalloc.start()
    try:
        assert islices.diff(a, a).equal
        assert not islices.diff(a, b).equal
        assert tracemalloc.get_traced_memory()[1] < 40 * a.values.nbytes
    finally:
        tracemalloc.stop()


def test_json_is_plain_and_complete() -> None:
    found = islices.diff({"e": slices([[np.nan, 1.0]], [3])}, {"e": slices([[2.0, np.inf]], [3]), "more": np.ones(2)})
    statement = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert {"equal", "names", "tensors", "only_a", "only_b", "causes", "notes"} <= set(statement)
    assert statement["only_b"] == ["more"]
    assert statement["tensors"][0]["differing"]["first"] == [[3, [["nan", 1.0], [2.0, "inf"]]]]
    named = islices.diff(G, G * -1, names=("x", "y")).to_json()["causes"][0]["causes"][0]
    assert named["name"] == "sign"
    assert named["text"] == "sign: x has the opposite sign of y"


# ---------------------------------------------------------------------- pairs of tensors
def test_tensors_are_paired_by_name() -> None:
    a = {"enc": {"e": G, "b": np.ones(3)}, "skip": None}
    b = {"enc": {"b": np.ones(3), "e": G}}
    assert islices.diff(a, b).equal
    missing = islices.diff(a, {"enc": {"e": G}})
    assert not missing.equal
    assert missing.only_a == ("enc.b",)
    assert "tensors only in a: enc.b" in str(missing)


def test_tensors_of_other_names_are_paired_on_request() -> None:
    a, b = {"w": G, "x": np.ones(2)}, {"emb": G, "x": np.ones(2)}
    assert not islices.diff(a, b).equal
    assert islices.diff(a, b, pair={"w": "emb"}).equal
    by_position = islices.diff({"w": G, "x": np.ones(2)}, {"emb": G, "head": np.ones(2)})
    assert by_position.equal
    assert "paired by their position" in str(by_position)
    assert islices.diff(G, [G]).equal


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        ({"b": {"w": object()}, "a": {"w": G}}, TypeError, r"b\['w'\]"),
        ({"names": "ab"}, TypeError, "names"),
        ({"max_norm": -1.0}, ValueError, "max_norm"),
        ({"padding_idx": 0.5}, TypeError, "padding_idx"),
        ({"pair": {"q": "w"}}, ValueError, "pair"),
        ({"a": {"w": G}, "b": {"w": G}, "before": {"q": G, "r": G}}, ValueError, "before"),
    ],
)
def test_bad_input_is_refused_by_name(call: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        islices.diff(**{"a": G, "b": G * 2, **call})


# ---------------------------------------------------------------------- causes
@pytest.mark.parametrize("masked", [False, True], ids=["dropped", "zeros"])
def test_a_padding_row_that_is_dropped_or_zero_counts_in_no_norm(masked: bool) -> None:
    """Check that padding and a clip explain a difference together. The norm of one side omits the slots of the padding
    row."""
    r = np.random.default_rng(0)
    raw = slices(r.standard_normal((60, 4)), np.r_[0, 0, r.integers(0, 12, 58)], 20)
    values = raw.values * (np.asarray(raw.indices) != 0)[:, None]
    kept = raw.replace(values=values) if masked else islices.drop_padding(raw, 0)
    (clipped,), _ = islices.clip_by_global_norm([kept], 2.0, semantics="tensorflow")
    found = islices.diff(raw, clipped, padding_idx=0)
    assert [e.names for e in found.causes] == [("padding", "clipped")], str(found)


def test_every_cause_is_in_the_docs_and_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(islices.__file__).parents[1] / "docs" / "diff.md").read_text("utf-8")
    documented = {name for line in page.splitlines() if line[:3] == "| `" for name in line.split("|")[1].split("`")}
    assert CAUSES.keys() - documented == set()
    assert main(["diff", "--help"]) == 0
    statement = " ".join(capsys.readouterr().out.split())
    assert [name for name in CAUSES if name not in statement] == []


def test_a_cause_is_its_record_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that `diff` finds a new cause as soon as its record is registered. `diff` can also combine the new cause
    with a factor."""

    def propose(both: Comparison, which: int) -> Iterator[Change]:
        text = "mirrored: columns of {x} are those of {y} from the last to the first"
        yield Change(lambda x, y, pair: x.having(x.values[:, ::-1]), text)

    mirrored = Cause("mirrored", 999, propose=propose, symmetric=True)
    values = np.random.default_rng(0).standard_normal((30, 4)).astype(np.float32)
    a, b = slices(values, range(30), 40), slices(values[:, ::-1], range(30), 40)
    assert islices.diff(a, b).causes == ()
    monkeypatch.setitem(CAUSES, "mirrored", mirrored)
    (alone,) = islices.diff(a, b, names=("old", "new")).causes
    assert (alone.names, alone.exact) == (("mirrored",), True)
    assert alone.causes[0].text == "mirrored: columns of old are those of new from the last to the first"
    assert alone.causes[0].details == {"side": "a", "tensors": [""]}
    assert [e.names for e in islices.diff(a * 0.25, b, batch_size=4).causes] == [("mirrored", "mean")]


# ---------------------------------------------------------------------- the command
@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("diff")
    r = np.random.default_rng(0)
    g = slices(r.standard_normal((40, 4)), np.r_[0, 0, r.integers(0, 8, 38)])
    islices.save(folder / "keeps.safetensors", {"w": g}, metadata={"padding_idx": "0", "epoch": "3"})
    islices.save(folder / "drops.safetensors", {"w": islices.drop_padding(g, 0)})
    islices.save(folder / "other_name.safetensors", {"emb": g, "more": np.ones(2)})
    islices.save(folder / "contradicts.safetensors", {"w": g}, metadata={"padding_idx": "1"})
    from safetensors.numpy import save_file

    save_file({"w": islices.to_dense(g)}, folder / "foreign.safetensors")
    (folder / "broken.safetensors").write_bytes((folder / "keeps.safetensors").read_bytes()[:100])
    return folder


def run(files: Path, *words: str) -> int:
    return main(["diff", *(str(files / w) if w.endswith(".safetensors") else w for w in words)])


def test_the_exit_code_says_whether_files_are_equal(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(files, "keeps.safetensors", "keeps.safetensors") == 0
    assert run(files, "keeps.safetensors", "foreign.safetensors") == 0  # dense and sparse values
    assert run(files, "keeps.safetensors", "other_name.safetensors", "--pair", "w=emb") == 1  # an extra tensor
    capsys.readouterr()
    assert run(files, "keeps.safetensors", "drops.safetensors") == 1
    out = capsys.readouterr().out
    assert "from the files' metadata: padding_idx 0" in out
    assert "padding: keeps keeps the gradient of the padding row 0, drops does not" in out


USAGE = [
    (("none.safetensors", "keeps.safetensors"), "none.safetensors: No such file"),
    (("broken.safetensors", "keeps.safetensors"), "broken.safetensors"),
    (("keeps.safetensors", "contradicts.safetensors"), "disagree on padding_idx"),
    (("keeps.safetensors", "drops.safetensors", "--plot", "x.xyz"), "png"),
]


@pytest.mark.parametrize(("words", "statement"), USAGE)
def test_usage_errors_exit_with_2(
    files: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], statement: str
) -> None:
    if "--plot" in words:
        pytest.importorskip("matplotlib")
    assert run(files, *words) == 2
    shown = capsys.readouterr()
    assert statement in shown.err
    assert "Traceback" not in shown.err


# ---------------------------------------------------------------------- the picture
def test_the_picture(files: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert run(files, "keeps.safetensors", "drops.safetensors", "--plot", str(tmp_path / "c.png")) == 1
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
