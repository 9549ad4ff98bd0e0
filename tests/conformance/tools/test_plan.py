"""`islices plan`: expected rows against exact sums and draws, costs by hand and against a real run, the command."""

from __future__ import annotations

import doctest
import json
import math
import re
import shutil
import sys
import time
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from islices import embedding_grad, optim
from islices.cli import main
from islices.conformance.ranks.launch import absent, run_ranks
from islices.conformance.tools.plan import model, words, zipf
from islices.conformance.tools.plan.measure import Measured, MeasuredWay, measure
from islices.conformance.tools.plan.model import WAYS, Workload, crossovers, make_plan
from islices.conformance.tools.plan.show import show_measured
from islices.conformance.tools.plan.zipf import HEAD, Zipf
from islices.distributed import Link, ShardedTable
from islices.distributed.group import Group

EXPONENTS = (0.0, 0.3, 0.999999999, 1.0, 1.1, 2.0, 5.0, 30.0)
DRAWS = (1, 2, 1000, 65_536, 67_000_000)


def exact(rows: int, exponent: float, draws: float) -> np.ndarray:
    """1 - (1 - p_k)^draws of each row; the total weight is summed without rounding."""
    weight = np.arange(1, rows + 1, dtype=np.float64) ** -exponent
    with np.errstate(divide="ignore"):
        return -np.expm1(draws * np.log1p(-weight / math.fsum(weight)))


# ---------------------------------------------------------------------- how many rows
@pytest.mark.parametrize("exponent", EXPONENTS)
@pytest.mark.parametrize("rows", [1, 5, HEAD, HEAD + 1, 200_000])
def test_expected_rows_are_the_exact_sum(rows: int, exponent: float) -> None:
    law = Zipf(rows, exponent)
    for draws in DRAWS:
        terms = exact(rows, exponent, draws)
        for top in {rows, max(1, rows // 3), min(rows, 100)}:
            expected = math.fsum(terms[:top])
            assert abs(law.distinct(draws, top) - expected) <= law.error(draws), (draws, top)


def test_uniform_ids_over_1e10_rows_have_a_closed_form() -> None:
    rows, draws = 10**10, 65_536 * 1024
    expected = -rows * math.expm1(draws * math.log1p(-1 / rows))
    assert abs(Zipf(rows, 0.0).distinct(draws) - expected) <= Zipf(rows, 0.0).error(draws)


def test_the_steepest_law_and_the_most_draws() -> None:
    assert Zipf(10**10, 1e300).distinct(1e6) == 1.0
    assert Zipf(10**6, 1.1).distinct(2**63 * 2**20) == pytest.approx(10**6, rel=1e-12)


@pytest.mark.parametrize("exponent", [0.5, 1.0, 1.1, 3.0])
def test_finer_integration_changes_nothing(exponent: float, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Zipf(10**10, exponent).distinct(67_000_000)
    monkeypatch.setattr(zipf, "PANELS", 4 * zipf.PANELS)
    assert Zipf(10**10, exponent).distinct(67_000_000) == pytest.approx(found, rel=1e-12)


def test_1e10_rows_take_milliseconds() -> None:
    times = []
    for _ in range(5):
        started = time.perf_counter()
        Zipf(10**10, 1.1).distinct(67_000_000)
        times.append(time.perf_counter() - started)
    assert min(times) < 0.02


@pytest.mark.parametrize(
    ("rows", "exponent"),
    [(10**6, 1.1), (10**10, 1.1), (10**10, 1.0), (10**7, 0.5), (10**7, 0.0), (1000, 3.0), (1, 2.0), (10**6, 500.0)],
)
def test_drawn_ids_are_as_many_as_expected(rows: int, exponent: float) -> None:
    """Rows are found independently but for their sum, which is fixed: the variance of how many is at most their
    expected number. Five standard deviations of a mean of 8."""
    law, rng, draws, times = Zipf(rows, exponent), np.random.default_rng(3), 20_000, 8
    drawn = [law.draw(draws, rng) for _ in range(times)]
    assert all(ids.dtype == np.int64 and ids.min() >= 0 and ids.max() < rows for ids in drawn)
    for top in (rows, 10, 50_000):
        found = [len(np.unique(ids[ids < top])) for ids in drawn]
        expected = law.distinct(draws, top)
        assert abs(sum(found) / times - expected) <= 5 * math.sqrt(expected / times), top


@pytest.mark.parametrize(
    ("rows", "exponent", "message"),
    [(0, 1.0, "rows: got 0"), (1.5, 1.0, "rows: got 1.5"), (3, -0.1, "exponent: got -0.1"), (3, math.nan, "got nan"),
     (3, math.inf, "got inf"), (3, "1", "exponent: got '1'")],
)  # fmt: skip
def test_what_is_no_law_is_refused(rows: object, exponent: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Zipf(rows, exponent)  # type: ignore[arg-type]


# ---------------------------------------------------------------------- what it costs
def test_bytes_by_hand() -> None:
    """Two rows, so many draws that every rank has both; 4 ranks, rows of 4 float32 and an int32 index: 20 bytes."""
    plan = make_plan(Workload(rows=2, dim=4, ids=1000, exponent=0.0), 4, Link(bandwidth=1e6, latency=1e-3))
    agreed, sketched = 3 * 256, 3 * 512
    # fmt: off
    expected = {
        "raw": (3 * 1000 * 20, 1),
        "gather": (3 * 2 * 20 + agreed, 2),
        "ranges": ((2 + 2) * 20 * 3 / 4 + agreed + sketched, 6),
        "dense": (2 * 2 * (16 + 1 / 8) * 3 / 4 + agreed, 3),
        "sharded": (2 * (20 + 16 + 1 / 8) * 3 / 4 + 3 * agreed, 6),
    }
    # fmt: on
    assert tuple(plan.ways) == WAYS == tuple(expected)
    for name, (nbytes, collectives) in expected.items():
        way = plan.ways[name]
        assert (way.nbytes, way.collectives) == (pytest.approx(nbytes, rel=1e-12), collectives), name
        assert way.seconds == pytest.approx(nbytes / 1e6 + collectives * 3 * 1e-3, rel=1e-12), name
    assert plan.union == pytest.approx(2.0)
    assert plan.busiest == pytest.approx(2.0)  # two of the four ranks own a row


def test_indices_travel_wide_only_where_they_must() -> None:
    assert Workload(2**31, 8, 10, 1.0, "float16").row_bytes == 16 + 4
    assert Workload(2**31 + 1, 8, 10, 1.0, "float64").row_bytes == 64 + 8
    # to the owner of a range rows are counted from the first one of the range
    wide, narrow = (make_plan(Workload(rows, 8, 10, 0.0), 2, Link()) for rows in (2**32 + 2, 2**32))
    agreed = 3 * 256
    for plan, index in ((wide, 8), (narrow, 4)):
        assert plan.ways["sharded"].nbytes - agreed == pytest.approx(10 * (index + 2 * 32 + 1 / 8) / 2, rel=1e-6)


def test_many_ranks_tell_a_sharded_tables_counts_apart() -> None:
    """The message in which ranks agree has room for 26 counts; fetch and reduce send 8 bytes to each rank beyond."""
    work, link = Workload(10**6, 8, 1000, 0.0), Link()
    few, many = (make_plan(work, ranks, link).ways["sharded"] for ranks in (26, 27))
    assert (few.collectives, many.collectives) == (6, 8)
    rows = [work.distinct * (4 + 2 * 32 + 1 / 8) * (R - 1) / R for R in (26, 27)]
    assert few.nbytes == pytest.approx(rows[0] + 3 * 256 * 25, rel=1e-12)
    assert many.nbytes == pytest.approx(rows[1] + (3 * 256 + 2 * 8) * 26, rel=1e-12)


@pytest.mark.parametrize("rows", [10**4, 10**6, 10**10])
def test_strategies_change_where_it_is_said(rows: int) -> None:
    work, link, ranks = Workload(rows, 64, 65_536, 1.1), Link(), [2**k for k in range(1, 11)]
    taken = make_plan(work, 2, link).takes
    for place, before, after in crossovers(work, ranks, link):
        assert (taken, before) == (before, make_plan(work, place - 1, link).takes)
        taken = make_plan(work, place, link).takes
        assert taken == after
    assert taken == make_plan(work, 1024, link).takes


def test_rows_in_the_order_of_frequency_burden_the_first_owner() -> None:
    scattered, skewed = (make_plan(Workload(10**6, 64, 65_536, s), 16, Link()) for s in (0.0, 1.1))
    assert scattered.busiest == pytest.approx(1.0, rel=1e-9)
    assert scattered.busiest_seconds == pytest.approx(scattered.ways["sharded"].seconds, rel=1e-9)
    assert 4 < skewed.busiest < 16
    assert skewed.busiest_seconds > 4 * skewed.ways["sharded"].seconds


ENGINE = next((name for name in ("torch", "mpi") if not absent(name)), None)


@pytest.mark.outside
@pytest.mark.skipif(ENGINE is None, reason="neither torch nor mpi4py with an mpiexec is installed")
def test_a_real_run_moves_the_planned_bytes() -> None:
    """What islices counted is the formula of the rows that the ranks did draw; each array is padded to 8 bytes. Of 2
    ranks each receives what the other one sends, so averages are exact."""
    assert ENGINE is not None
    work = Workload(rows=20_000, dim=64, ids=32_768, exponent=1.1)
    found = measure(work, ENGINE, 2, rounds=2)
    n, b, v = found.distinct, work.row_bytes, work.values_bytes
    # fmt: off
    exactly = {
        "raw": (work.ids * b, 16),
        "gather": (n * b + 256, 16),
        "dense": (work.rows * (v + 1 / 8) + 256, 64),
    }
    # fmt: on
    for name, (nbytes, padding) in exactly.items():
        assert 0 <= found.ways[name].received - nbytes <= padding, name
    for name, way in found.ways.items():
        planned = found.plan.ways[name]
        assert way.collectives == planned.collectives, name
        # n varies by sqrt(n) at most, which is 1.5 % of 4,500; five of those
        assert way.received == pytest.approx(planned.nbytes, rel=5 * math.sqrt(n) / n), name
        assert 0 < way.network <= way.seconds, name
        if ENGINE == "torch":  # an MPI may take shared memory; whatever else is on the loopback comes on top
            assert way.on_wire is None or way.on_wire >= way.received, name
    assert found.ways["raw"].received >= 3 * found.ways[found.plan.takes].received


def steps_of_a_sharded_table(group: Group, work: tuple[int, int, int, float]) -> tuple[int, int, int]:
    """(bytes received, collectives, different rows) of one step on a rank."""
    load = Workload(*work)
    ids = load.zipf.draw(load.ids, np.random.default_rng(group.rank))
    table = ShardedTable.create(load.rows, (load.dim,), lambda a, b: np.ones((b - a, load.dim), np.float32), group)
    optimizer = optim.sgd(0.1)
    state = table.init(optimizer)
    group.traffic.reset()
    batch = table.fetch(ids)
    gradient = embedding_grad(np.ones((load.ids, load.dim), np.float32), batch.ids, batch.table.shape[0])
    table.step(optimizer, table.reduce(batch, gradient), state)
    return group.traffic.received, group.traffic.collectives, len(batch.rows)


@pytest.mark.outside
@pytest.mark.skipif(ENGINE is None, reason="neither torch nor mpi4py with an mpiexec is installed")
def test_a_real_sharded_table_moves_the_planned_bytes() -> None:
    assert ENGINE is not None
    work = Workload(rows=20_000, dim=8, ids=16_384, exponent=0.0)
    keywords = {"work": (work.rows, work.dim, work.ids, work.exponent)}
    found = run_ranks(ENGINE, 2, f"{__file__}:steps_of_a_sharded_table", keywords).values
    planned = make_plan(work, 2, Link()).ways["sharded"]
    assert {collectives for _, collectives, _ in found} == {planned.collectives}
    received = sum(nbytes for nbytes, _, _ in found) / 2
    # how many rows are drawn, and how many of them the other owns, vary by sqrt(n) at most each; five of those
    assert received == pytest.approx(planned.nbytes, rel=10 / math.sqrt(work.distinct))
    # 2 ranks: what one does not own the other one does
    drawn = sum(rows for _, _, rows in found)
    assert drawn == pytest.approx(2 * work.distinct, rel=5 / math.sqrt(work.distinct))


@pytest.mark.skipif(bool(absent("torch")), reason="torch is not installed")
def test_a_process_that_fails_is_no_measurement(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    code, out, err = run(capsys, "--ranks", "2", "--batch", "16", "--measure", "torch")
    assert code == 3
    assert "all_reduce takes" in out, "what was worked out is shown all the same"
    assert "could not measure: rank 0 ended with 1 and said nothing" in err


# ---------------------------------------------------------------------- the command
def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["plan", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize("ranks", ["16", "2,4,1024"])
@pytest.mark.parametrize("columns", [60, 80, 120])
def test_tables_fit_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int, ranks: str
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    code, out, err = run(capsys, "--rows", "1e10", "--ranks", ranks)
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= columns
    assert "…" not in out, "a column was cut"
    assert "\x1b" not in out, "no colours in a pipe"
    for word in (*WAYS, "all_reduce takes", "10,000,000,000 rows x 64 float32, 2.56 TB"):
        assert word in out
    last = make_plan(Workload(10**10, 64, 65_536, 1.1), int(ranks.split(",")[-1]), Link())
    said = " ".join(out.split())
    for way in (last.ways[last.takes], last.ways["sharded"]):
        assert f"{words.of_bytes(way.nbytes)} and {words.of_seconds(way.seconds)} a step" in said
    assert f"{words.of_seconds(last.busiest_seconds)} if the rows that come up most often are neighbours" in said


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_the_measured_table_fits_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    work, link, runs = Workload(10**6, 64, 65_536, 1.1), Link(987e6, 123e-6), []
    for ranks in (2, 4):
        plan = make_plan(work, ranks, link)
        names = ("raw", "gather", "ranges", "dense") if ranks == 2 else ("raw", "gather", "ranges")
        ways = {
            name: MeasuredWay(way.nbytes, 1.002 * way.nbytes, way.collectives, 1.5 * way.seconds, 3 * way.seconds)
            for name in names
            for way in [plan.ways[name]]
        }
        runs.append(Measured("torch.distributed (gloo)", link, plan, ways, work.distinct))
    show_measured(runs)
    out, _ = capsys.readouterr()
    assert max(map(len, out.splitlines())) <= columns
    assert "…" not in out, "a column was cut"
    assert len(out.splitlines()) <= 30, "no longer than a terminal's page"
    said = " ".join(out.split())
    assert "4 processes: 987 MB/s, 123 us a message, 17,235 different rows a rank; all_reduce takes gather" in said
    assert "3.80 times fewer bytes than raw" in said
    took = runs[0].ways["dense"]
    figures = f"{words.of_seconds(took.network)}.* {words.of_seconds(took.seconds)}"
    assert re.search(rf"^2 +dense +256 MB +256 MB.* {figures}", out, re.MULTILINE)
    assert re.search(r"^4 +dense +too large *$", out, re.MULTILINE)


def test_json_has_what_the_tables_say(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--rows", "1e8", "--batch", "1024", "--ids-per-sample", "26", "--ranks", "8,2",
        "--bandwidth", "10Gbit/s", "--latency", "5us", "--dtype", "bfloat16", "--json")  # fmt: skip
    found = json.loads(out)
    work = Workload(10**8, 64, 1024 * 26, 1.1, "bfloat16")
    assert code == 0
    assert found["workload"]["ids"] == work.ids
    assert found["workload"]["distinct"] == work.distinct
    assert found["link"] == {"bandwidth": 1.25e9, "latency": pytest.approx(5e-6)}
    assert found["plans"] == [make_plan(work, R, Link(1.25e9, 5 * 1e-6)).as_json() for R in (2, 8)]
    assert [one["ranks"] for one in found["plans"]] == [2, 8]
    assert found["measured"] == []


def test_a_picture(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "plan.png"
    code, _, err = run(capsys, "--rows", "1e5", "--plot", str(path), "--json", str(tmp_path / "plan.json"))
    assert (code, err) == (0, "")
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert json.loads((tmp_path / "plan.json").read_text())["crossovers"] != []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--rows", "0"], "argument --rows: got 0; accepted is a whole number"),
        (["--rows", "1e30"], "argument --rows: got 1e30"),
        (["--batch", "2.5"], "argument --batch: got 2.5"),
        (["--ranks", "1,2"], "argument --ranks: got 1,2; accepted are numbers from 2"),
        (["--ranks", "2,x"], "argument --ranks: got 2,x"),
        (["--ranks", "2,inf"], "argument --ranks: got 2,inf"),
        (["--ranks", ""], "argument --ranks: got ;"),
        (["--zipf", "-1"], "argument --zipf: "),
        (["--bandwidth", "0"], "argument --bandwidth: got 0"),
        (["--bandwidth", "10Gb"], "argument --bandwidth: got 10Gb; accepted are bytes a second"),
        (["--bandwidth", "1e-300"], "argument --bandwidth: got 1e-300; accepted are bytes a second, 1 at least"),
        (["--latency", "1e308"], "argument --latency: got 1e308; accepted are seconds from 0 to 3600"),
        (["--batch", "1e18", "--ids-per-sample", "1e18"], "--batch, --ids-per-sample: got 1.0e+36 ids a rank"),
        (["--latency", "inf"], "argument --latency: got inf"),
        (["--dtype", "int8"], "argument --dtype: invalid choice"),
        (["--measure", "pigeons"], "--measure: got 'pigeons'; accepted are 'torch'"),
        (["--plot", "plan.txt"], "--plot: got 'plan.txt'; accepted is a file that ends in .png"),
        (["--plot", "x.png", "--ranks", "4"], "--plot: got one number of ranks"),
        (["--measure", "--batch", "1e12"], "--measure: 1,000,000,000,000 ids x 64 are too many"),
        (["--json", "/no/such/folder/x"], "--json: cannot write /no/such/folder/x"),
    ],
    ids=lambda x: " ".join(x).strip("-") if isinstance(x, list) else "",
)
def test_wrong_calls_say_what_is_accepted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


@pytest.mark.parametrize(
    ("reader", "text", "value"),
    [
        (words.count, "1e10", 10**10),
        (words.count, "1_000,000", 10**6),
        (words.ranks, "8,2,8", [2, 8]),
        (words.bandwidth, "1.25e9", 1.25e9),
        (words.bandwidth, "10Gbit/s", 1.25e9),
        (words.bandwidth, "25 MB", 25e6),
        (words.bandwidth, "10 Gbps", 1.25e9),
        (words.bandwidth, "1e3kB/s", 1e6),
        (words.latency, "30us", 30e-6),
        (words.latency, "0.03 ms", 30e-6),
        (words.latency, "30\u00b5s", 30e-6),
        (words.latency, "30\u03bcs", 30e-6),
        (words.latency, "3e-5", 3e-5),
        (words.latency, "2s", 2.0),
        (words.exponent, "0", 0.0),
    ],
)
def test_quantities_are_read(reader: object, text: str, value: object) -> None:
    assert reader(text) == (pytest.approx(value) if isinstance(value, float) else value)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("text", "written"),
    [
        (words.of_bytes(0), "0.00 B"), (words.of_bytes(4_480_000), "4.48 MB"), (words.of_bytes(999_499), "999 kB"),
        (words.of_bytes(999_500), "1.00 MB"), (words.of_bytes(2.56e12), "2.56 TB"), (words.of_seconds(3e-5), "30.0 us"),
        (words.of_seconds(0.9994), "999 ms"), (words.of_seconds(0.9996), "1.00 s"), (words.of_seconds(4800), "80 min"),
        (words.of_seconds(36_000), "10 h"), (words.of_seconds(1e10), "1e+10 s"), (words.of_bytes(1e19), "10.0 EB"),
        (words.of_bytes(3e38), "3e+38 B"),
    ],
)  # fmt: skip
def test_quantities_are_written(text: str, written: str) -> None:
    assert text == written


@pytest.mark.parametrize("module", [zipf, model], ids=lambda m: m.__name__.rpartition(".")[2])
def test_examples(module: ModuleType) -> None:
    assert doctest.testmod(module) == (0, 2)
