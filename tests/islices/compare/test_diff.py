"""What `islices.diff` measures, what counts as equal, how tensors are paired, what it refuses; command and picture."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import islices
from islices import IndexedSlices
from islices.cli import main
from islices.compare.cause import Cause, Change, each_tensor
from islices.compare.causes import CAUSES
from islices.compare.comparison import Comparison

BACKENDS = [name for name in ("numpy", "torch", "tensorflow", "jax", "mxnet") if name in islices.list_backends()]


def slices(rows: Any, ids: Any, count: int | None = 8, dtype: str = "float32") -> IndexedSlices:
    values = np.array(rows, dtype)
    return IndexedSlices(values, np.array(ids, np.int64), (count, *values.shape[1:]))


G = slices([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [0.5, -8.0]], [5, 1, 5, 2])


# ---------------------------------------------------------------------- what is equal
@pytest.mark.parametrize("name", BACKENDS)
def test_one_gradient_in_two_frameworks_is_equal(name: str) -> None:
    """Native objects, uncoalesced beside coalesced: one meaning."""
    other = islices.to_native(islices.convert(G, name))
    found = islices.diff({"e": G}, {"e": other})
    assert found.equal
    assert found.causes == ()
    assert islices.diff([other, None], [islices.coalesce(G), None]).equal


def test_uncoalesced_beside_coalesced_is_noted() -> None:
    found = islices.diff(G, islices.coalesce(G), names=("mine", "yours"))
    assert found.equal
    assert "mine is uncoalesced: 4 slots of 3 rows" in str(found)


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


def test_types_that_differ_are_compared_in_the_wider_one() -> None:
    values = np.array([[0.5, 0.25], [3.0, 4.0], [1.5, 0.125], [7.0, 9.0]])
    a, b = (slices(values, range(4), dtype=d) for d in ("float32", "float64"))
    found = islices.diff(a, b)
    assert not found.equal
    assert found.tensors[0].dtypes == ("float32", "float64")
    assert found.tensors[0].ulps == (("0", 8),)
    assert [e.names for e in found.causes] == [("dtype",)]


def test_shapes_that_differ() -> None:
    assert not islices.diff(G, slices(G.values, G.indices, 9)).equal
    assert islices.diff(G, slices(G.values, G.indices, None)).equal  # one side does not know
    rows = islices.diff(slices(np.ones((2, 3)), [0, 1]), slices(np.ones((2, 4)), [0, 1]))
    assert not rows.equal
    assert not rows.tensors[0].comparable
    assert "nothing to compare" in str(rows)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int32", "int64"])
def test_equal_leaves_of_every_type(dtype: str) -> None:
    if dtype == "bfloat16":
        torch = pytest.importorskip("torch")
        x = torch.tensor([[1.5, 2.0], [3.0, -4.0]], dtype=torch.bfloat16)
    else:
        x = np.array([[1, 2], [3, -4]], dtype)
    assert islices.diff(x, x).equal
    assert not islices.diff(x, -x).equal
    assert islices.diff([np.array(1.5)], [np.array(1.5)]).equal  # 0-d
    assert islices.diff([np.zeros((0, 3))], [np.zeros((0, 3))]).equal


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int16", "uint16", "uint32", "uint64"])
def test_masks_and_counters_are_compared_and_explain_nothing(dtype: str) -> None:
    """What `save` takes, `diff` takes; a mask that both sides have says nothing about a factor between gradients."""
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
    assert found.tensors[0].ulps == (("over 65535", 2),)
    assert "beyond 2^53" in str(found)
    assert not islices.diff(np.array([2**62]), np.array([2**62 + 1])).rounding


def test_what_differs_beside_the_rows_is_said() -> None:
    for a, b, what in (
        (G, slices(G.values, G.indices, 9), "only the shapes differ"),
        (np.ones((3, 2)), np.ones((3, 2), np.float32), "only the types differ"),
        ({"w": np.ones(2)}, {"w": np.ones(2), "v": np.ones(2)}, "only the sets of tensors differ"),
    ):
        found = islices.diff(a, b)
        assert what in str(found)
        assert "no known cause" not in str(found)
    assert not islices.diff(np.zeros((3, 2)), np.zeros((4, 2))).rounding


# ---------------------------------------------------------------------- what is measured
def test_rows_places_norms() -> None:
    a = slices([[3.0, 4.0], [1.0, 1.0], [7.0, 7.0]], [0, 2, 4])
    b = slices([[3.0, 4.5], [1.0, 1.0], [2.0, 0.0]], [0, 2, 7])
    (t,) = islices.diff(a, b).tensors
    assert (t.rows, t.differing.count, t.only_a.count, t.only_b.count) == (2, 1, 1, 1)
    assert t.differing.first == ((0, ((3.0, 4.0), (3.0, 4.5))),)
    assert t.only_a.first == ((4, ((7.0, 7.0),)),)
    assert t.only_b.first == ((7, ((2.0, 0.0),)),)
    assert t.largest_absolute is not None
    assert t.largest_relative is not None
    assert (t.largest_absolute.row, t.largest_absolute.position, t.largest_absolute.size) == (0, (1,), 0.5)
    assert (t.largest_absolute.a, t.largest_absolute.b) == (4.0, 4.5)
    assert t.largest_relative.size == 0.5 / 4.5
    assert t.norms == (float(np.sqrt(125.0)), float(np.sqrt(9 + 20.25 + 2 + 4)))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_histogram_counts_units_in_the_last_place(dtype: str) -> None:
    start = np.array([1.0, -1.0, 2.0, 0.0, 1e-4, 1.0], dtype)
    steps = [0, 1, 2, 1, 300, 70000 if dtype != "float16" else 3000]
    moved = start.copy()
    for k, n in enumerate(steps):
        if dtype == "float64" or n < 1000:
            for _ in range(n):
                moved[k] = np.nextafter(moved[k], np.array(np.inf, dtype))
        else:
            moved[k] = (start[k : k + 1].view(f"i{start.itemsize}") + n).view(dtype)[0]
    last = "256-65535" if dtype == "float16" else "over 65535"
    counts = {"0": 1, "1": 2, "2-3": 1, "256-65535": 1}
    counts[last] = counts.get(last, 0) + 1
    assert dict(islices.diff(start, moved).tensors[0].ulps) == counts


def test_nan_against_a_number_is_infinitely_far() -> None:
    (t,) = islices.diff(np.array([1.0, np.nan]), np.array([1.0, 2.0])).tensors
    assert dict(t.ulps) == {"0": 1, "not a number": 1}
    assert t.largest_absolute is not None
    assert t.largest_absolute.size == np.inf


def test_the_report_shows_ten_rows_and_says_how_many_there_are() -> None:
    r = np.random.default_rng(0)
    a, b = (slices(r.standard_normal((25, 6)), range(25), 30) for _ in range(2))
    assert "rows that differ" not in str(islices.diff(a, b))
    text = islices.diff(a, b).report(verbose=True)
    assert "rows that differ (25, the first 10)" in text
    assert "no known cause" in text
    assert sum(line.startswith("   ") and line.split()[0].isdigit() for line in text.splitlines()) == 10


def test_cost_follows_the_stored_rows() -> None:
    """A table of 1e9 rows: 16 GB if anyone made it dense."""
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


def test_a_large_table_is_measured_by_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    from islices.compare import stored

    r = np.random.default_rng(0)
    a = r.standard_normal((1000, 3)).astype(np.float32)
    b = np.where(r.random(a.shape) < 0.1, a + r.standard_normal(a.shape).astype(np.float32), a)
    whole = islices.diff(a, b).to_json()
    for block in (1, 7, 100):
        monkeypatch.setattr(stored, "BLOCK", block)
        assert islices.diff(a, b).to_json() == whole


def test_one_row_of_a_table_costs_no_search_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that differ are looked at first: no factor is sought in all the others."""
    from islices.compare import evidence

    seen: list[int] = []
    narrow = evidence.Factors.narrow
    monkeypatch.setattr(evidence.Factors, "narrow", lambda self, p: seen.append(len(p.x)) or narrow(self, p))  # type: ignore[func-returns-value]
    a = np.random.default_rng(0).standard_normal((20_000, 8)).astype(np.float32)
    b = a.copy()
    b[7777] += 1
    found = islices.diff(a, b, max_norm=1.0, batch_size=4)
    assert found.causes == ()
    assert found.tensors[0].differing.count == 1
    assert 0 < max(seen) < a.size // 10


def test_json_is_plain_and_complete() -> None:
    found = islices.diff({"e": slices([[np.nan, 1.0]], [3])}, {"e": slices([[2.0, np.inf]], [3]), "more": np.ones(2)})
    said = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert set(said) == {
        "equal",
        "names",
        "tensors",
        "only_a",
        "only_b",
        "causes",
        "notes",
        "within_rounding",
        "within_arithmetic",
    }
    assert said["only_b"] == ["more"]
    assert said["tensors"][0]["differing"]["first"] == [{"row": 3, "a": ["nan", 1.0], "b": [2.0, "inf"]}]
    named = islices.diff(G, G * -1, names=("x", "y")).to_json()["causes"][0]["causes"][0]
    assert named["name"] == "sign"
    assert named["text"] == "sign: x has the opposite sign of y"


def test_a_difference_is_immutable_and_no_flag() -> None:
    found = islices.diff(G, G)
    with pytest.raises(AttributeError):
        found.equal = False  # type: ignore[misc]
    with pytest.raises(TypeError, match=r"\.equal"):
        bool(found)


# ---------------------------------------------------------------------- which tensor beside which
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
    assert islices.diff({"w": G, "x": np.zeros(2)}, b, pair={"w": "emb"}, only="w").equal
    by_position = islices.diff({"w": G, "x": np.ones(2)}, {"emb": G, "head": np.ones(2)})
    assert by_position.equal
    assert "paired by their position" in str(by_position)
    assert islices.diff(G, [G]).equal


def test_the_gradient_before_clipping_may_be_one_leaf() -> None:
    r = np.random.default_rng(0)
    g = slices(r.standard_normal((40, 4)), r.integers(0, 8, 40))
    a, b = (islices.clip_by_norm(g, 1.0, semantics=s) for s in ("islices", "tensorflow"))
    for before in (g, {"g": g}):
        assert islices.diff(a, b, before=before).causes[0].names == ("duplicates",)


BAD: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("a", {"a": "text"}, TypeError, "a"),
    ("b", {"b": {"w": object()}, "a": {"w": G}}, TypeError, r"b\['w'\]"),
    ("names", {"names": "ab"}, TypeError, "names"),
    ("names of one", {"names": ("a",)}, TypeError, "names"),
    ("max_norm", {"max_norm": -1.0}, ValueError, "max_norm"),
    ("max_norm text", {"max_norm": "1"}, TypeError, "max_norm"),
    ("padding_idx", {"padding_idx": 0.5}, TypeError, "padding_idx"),
    ("batch_size", {"batch_size": 0}, ValueError, "batch_size"),
    ("tokens", {"tokens": True}, TypeError, "tokens"),
    ("pair", {"pair": {"q": "w"}}, ValueError, "pair"),
    ("pair no dict", {"pair": [("a", "b")]}, TypeError, "pair"),
    ("only", {"only": "q"}, ValueError, "only"),
    ("before", {"a": {"w": G}, "b": {"w": G}, "before": {"q": G, "r": G}}, ValueError, "before"),
]


@pytest.mark.parametrize(("label", "call", "error", "match"), BAD, ids=[label for label, *_ in BAD])
def test_bad_input_is_refused_by_name(label: str, call: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        islices.diff(**{"a": G, "b": G * 2, **call})


def test_a_structure_within_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(ValueError, match="levels"):
        islices.diff(loop, G)


# ---------------------------------------------------------------------- causes
def test_every_cause_is_in_the_docs_and_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(islices.__file__).parents[1] / "docs" / "diff.md").read_text("utf-8")
    documented = {name for line in page.splitlines() if line[:3] == "| `" for name in line.split("|")[1].split("`")}
    assert CAUSES.keys() - documented == set()
    assert main(["diff", "--help"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert [cause.name for cause in CAUSES.values() if cause.title not in said] == []


def test_a_cause_can_be_looked_for_and_subsumes_causes_that_there_are() -> None:
    assert len({cause.rank for cause in CAUSES.values()}) == len(CAUSES)
    for name, cause in CAUSES.items():
        assert cause.name == name
        assert cause.propose or cause.foretell or cause.fit, name
        assert set(cause.subsumes) <= CAUSES.keys() - {name}


def test_a_cause_is_its_record_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Search and explanation know a new one by its traits: alone, with a factor, and before what it subsumes."""

    def propose(both: Comparison, which: int) -> Iterator[Change]:
        found = each_tensor(both, which, lambda x, y, t: replace(x, values=x.values[:, ::-1], terms=None))
        if found:
            text = "mirrored: columns of {x} are those of {y} from the last to the first"
            yield Change(found.rows, text, found.named)

    mirrored = Cause("mirrored", "mirrored columns", 999, propose=propose, sides="a")
    values = np.random.default_rng(0).standard_normal((30, 4)).astype(np.float32)
    a, b = slices(values, range(30), 40), slices(values[:, ::-1], range(30), 40)
    assert islices.diff(a, b).causes == ()
    monkeypatch.setitem(CAUSES, "mirrored", mirrored)
    (alone,) = islices.diff(a, b, names=("old", "new")).causes
    assert (alone.names, alone.exact) == (("mirrored",), True)
    assert alone.causes[0].text == "mirrored: columns of old are those of new from the last to the first"
    assert alone.causes[0].details == {"side": "a", "tensors": [""]}
    assert [e.names for e in islices.diff(a * 0.25, b, batch_size=4).causes] == [("mirrored", "mean")]
    monkeypatch.setitem(CAUSES, "mirrored", replace(mirrored, scales=False))
    assert islices.diff(a * 0.25, b, batch_size=4).causes == ()
    monkeypatch.setitem(CAUSES, "mirrored", replace(mirrored, needs=("steps",)))
    assert islices.diff(a, b).causes == ()
    twice = slices(np.concatenate([values, values[:, ::-1]]), range(60), 60)  # its rows turned round, or mirrored
    other = slices(np.concatenate([values[:, ::-1], values]), range(60), 60)
    monkeypatch.setitem(CAUSES, "mirrored", mirrored)
    assert [e.names for e in islices.diff(twice, other).causes] == [("permuted",), ("mirrored",)]
    monkeypatch.setitem(CAUSES, "mirrored", replace(mirrored, subsumes=("permuted",)))
    assert [e.names for e in islices.diff(twice, other).causes] == [("mirrored",)]


def test_a_table_laid_out_by_columns_beside_the_gradient_before_clipping() -> None:
    """What is known of the rows of one layout says nothing of those of the other."""
    r = np.random.default_rng(0)
    raw = slices(r.standard_normal((60, 5)), r.integers(0, 20, 60), 60)
    dense = islices.to_dense(raw)
    found = islices.diff(np.ascontiguousarray(dense.T), dense, before=raw)
    assert [e.names for e in found.causes] == [("transposed",)]


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
    assert run(files, "keeps.safetensors", "foreign.safetensors") == 0  # values, dense beside sparse
    assert run(files, "keeps.safetensors", "other_name.safetensors", "--pair", "w=emb") == 1  # one tensor more
    assert run(files, "keeps.safetensors", "other_name.safetensors", "--pair", "w=emb", "--only", "w") == 0
    capsys.readouterr()
    assert run(files, "keeps.safetensors", "drops.safetensors") == 1
    out = capsys.readouterr().out
    assert "from the files' metadata: padding_idx 0" in out
    assert "padding: keeps keeps the gradient of the padding row 0, drops does not" in out


def test_json_of_the_command(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(files, "keeps.safetensors", "drops.safetensors", "--json") == 1
    said = json.loads(capsys.readouterr().out)
    assert said["from_metadata"] == {"padding_idx": 0}
    assert [[c["name"] for c in e["causes"]] for e in said["causes"]] == [["padding"]]


USAGE = [
    ("a file that is not there", ("none.safetensors", "keeps.safetensors"), "none.safetensors: No such file"),
    ("a broken file", ("broken.safetensors", "keeps.safetensors"), "broken.safetensors"),
    ("a pair without =", ("keeps.safetensors", "keeps.safetensors", "--pair", "w"), "--pair"),
    ("a name that is not there", ("keeps.safetensors", "keeps.safetensors", "--only", "q"), "only"),
    ("metadata that disagree", ("keeps.safetensors", "contradicts.safetensors"), "disagree on padding_idx"),
    ("a limit below zero", ("keeps.safetensors", "keeps.safetensors", "--max-norm", "-1"), "max_norm"),
    ("a picture of no kind", ("keeps.safetensors", "drops.safetensors", "--plot", "x.xyz"), "png"),
    ("a picture without a suffix", ("keeps.safetensors", "drops.safetensors", "--plot", "picture"), "png"),
    ("a picture nowhere", ("keeps.safetensors", "drops.safetensors", "--plot", "/nowhere/x.png"), "No such file"),
]


@pytest.mark.parametrize(("label", "words", "said"), USAGE, ids=[label for label, *_ in USAGE])
def test_usage_errors_exit_with_2(
    files: Path, capsys: pytest.CaptureFixture[str], label: str, words: tuple[str, ...], said: str
) -> None:
    if "--plot" in words:
        pytest.importorskip("matplotlib")
    assert run(files, *words) == 2
    shown = capsys.readouterr()
    assert said in shown.err
    assert "Traceback" not in shown.err


# ---------------------------------------------------------------------- the picture
def test_the_picture(files: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    r = np.random.default_rng(0)
    many = slices(r.standard_normal((5000, 2)), range(5000), 6000)
    differences = [
        islices.diff(G, G),
        islices.diff(G, G * 2),
        islices.diff(many, islices.drop_rows(many * 3, np.arange(100))),
        islices.diff(slices([[np.nan, 1.0]], [1]), slices([[0.0, 0.0]], [2])),
        islices.diff({"a": G}, {"b": G, "c": G}),
        islices.diff(slices(np.ones((2, 3)), [0, 1]), slices(np.ones((2, 4)), [0, 1])),
    ]
    for k, found in enumerate(differences):
        found.plot(tmp_path / f"{k}.png")
        assert (tmp_path / f"{k}.png").read_bytes().startswith(b"\x89PNG")
    assert run(files, "keeps.safetensors", "drops.safetensors", "--plot", str(tmp_path / "c.png")) == 1
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


def test_matplotlib_is_imported_for_pictures_alone() -> None:
    code = (
        "import sys, islices, numpy as np\n"
        "str(islices.diff(np.ones(3), np.zeros(3)))\n"
        "assert 'matplotlib' not in sys.modules and 'rich' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=dict(os.environ), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_texts_of_causes_and_notes_name_the_sides() -> None:
    """Also where a name looks like a place for one."""
    rows = np.arange(1.0, 41.0).reshape(10, 4)
    tenth, other = (IndexedSlices(rows * c, np.arange(10), (20, 4)) for c in (1.0, 1.1))
    for names in (("torch", "mine"), ("{b}", "{a}")):
        found = islices.diff(other, tenth, names=names)
        (cause,) = found.causes[0].causes
        assert cause.text == f"a constant factor: {names[0]} is {names[1]} times 1.1"
        assert found.to_json()["causes"][0]["causes"][0]["text"] == cause.text
        assert cause.text in str(found)
    for found in (
        islices.diff(tenth, other.values),
        islices.diff(tenth, IndexedSlices(rows, np.arange(10), (None, 4))),
    ):
        told = [cause.text for e in found.causes for cause in e.causes]
        told += [note for t in found.tensors for note in t.notes]
        assert not any("{" in text for text in told)
