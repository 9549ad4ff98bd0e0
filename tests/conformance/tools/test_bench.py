"""`islices bench`: small runs of the real thing, the limit's arithmetic by hand, pictures read back, clear errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from islices.conformance.tools.bench import limit, rounds
from islices.conformance.tools.bench.cases import OPERATIONS, Benchmark, cross, default_cases, draw_ids
from islices.conformance.tools.bench.compare import changes
from islices.conformance.tools.bench.plot import series

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")

NUMBERS = {"type": "object", "additionalProperties": {"type": "number", "exclusiveMinimum": 0}}
RATIOS = {"type": "object", "additionalProperties": NUMBERS}
TIMED = {
    "required": ["rounds", "milliseconds", "quartiles", "own", "ratios"],
    "properties": {
        "rounds": {"type": "integer", "minimum": 2},
        "milliseconds": NUMBERS,
        "own": {"type": "array", "items": {"type": "string"}},
        "ratios": RATIOS,
        "over_limit": NUMBERS,
        "limit": {**NUMBERS, "required": ["bytes", "bandwidth", "milliseconds"]},
    },
}
SCHEMA = {
    "type": "object",
    "required": [
        "form",
        "date",
        "islices",
        "machine",
        "threads",
        "versions",
        "seconds",
        "import",
        "failures",
        "records",
    ],
    "properties": {
        "form": {"const": 1},
        "machine": {"type": "object", "required": ["system", "processor", "cores", "memory", "python", "numpy"]},
        "threads": {"type": "integer", "minimum": 1},
        "versions": {"type": "object", "additionalProperties": {"type": "string"}},
        "failures": {"type": "array", "maxItems": 0},
        "records": {
            "type": "array",
            "minItems": 1,
            "items": {
                "required": ["backend", "version", "part", "others"],
                "if": {"properties": {"part": {"enum": ["operations", "updates", "small"]}}},
                "then": TIMED,
            },
        },
    },
}


def bench(*arguments: str, folder: Path | None = None, code: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "islices", "bench", *arguments]
    done = subprocess.run(command, text=True, capture_output=True, cwd=folder, check=False, timeout=300)
    assert done.returncode == code, f"exit {done.returncode}, expected {code}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done


TINY = ("--slices", "64", "--slices", "128", "--dim", "4", "--repeat", "2", "--seconds", "0")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str, Path]:
    """A run of two sizes on NumPy, and on torch where that is, with what it printed."""
    pytest.importorskip("torch", reason="torch is not installed")
    path = tmp_path_factory.mktemp("bench") / "run.json"
    names = ("-b", "numpy", "-b", "torch")
    done = bench("--part", "operations", "--part", "small", *names, *TINY, "--json", str(path))
    return json.loads(path.read_text()), done.stdout, path


# ---------------------------------------------------------------------- real runs
@pytest.mark.outside
def test_the_run_is_complete_and_has_its_form(run: tuple[dict[str, Any], str, Path]) -> None:
    found, _, _ = run
    jsonschema.validate(found, SCHEMA)
    wanted = {(name, operation, n) for name in ("numpy", "torch") for operation in OPERATIONS for n in (64, 128)}
    measured = [r for r in found["records"] if r["part"] == "operations"]
    assert {(r["backend"], r["case"]["operation"], r["case"]["slices"]) for r in measured} == wanted
    assert set(found["versions"]) == {"numpy", "torch"}
    for record in measured:
        assert "error" not in record
        assert not record["failed"], record
        ours = {"islices", "framework"} if record["backend"] == "torch" else {"islices"}
        assert ours <= record["milliseconds"].keys()
        assert record["own"], "every operation has a way of the framework's own"
        assert record["over_limit"]["islices"] == pytest.approx(
            record["milliseconds"]["islices"] / record["limit"]["milliseconds"]
        )
    small = [r for r in found["records"] if r["part"] == "small" and r["backend"] == "torch"]
    assert [r["operation"] for r in small] == ["coalesce", "clip_by_global_norm", "sgd step"]
    assert all({"inside", "outside", "native"} <= r["milliseconds"].keys() for r in small)


@pytest.mark.outside
def test_tables_are_markdown_in_a_pipe(run: tuple[dict[str, Any], str, Path]) -> None:
    found, text, path = run
    assert "\x1b" not in text
    lines = text.splitlines()
    for operation in OPERATIONS:
        start = lines.index(f"{operation}, milliseconds")
        assert lines[start + 2].startswith("| backend"), text
        assert "islices / own" in lines[start + 2]
        assert lines[start + 4].startswith("| numpy")
        assert len(set(map(len, lines[start + 2 : start + 8]))) == 1, "columns are aligned"
    assert f"{found['machine']['cores']} cores" in lines[0]
    assert bench("--read", str(path)).stdout == text, "an earlier run shows as it did"
    path.with_name("old.json").write_text(path.read_text().replace('"framework"', '"native"'))
    assert bench("--read", str(path.with_name("old.json"))).stdout == text, "one by the former name of the mode too"


def test_json_on_stdout_stands_alone() -> None:
    done = bench("--part", "operations", "-b", "numpy", "--operation", "norm", *TINY, "--json", "-")
    jsonschema.validate(json.loads(done.stdout), SCHEMA)
    assert "norm, milliseconds" in done.stderr


@pytest.mark.outside
def test_the_picture(run: tuple[dict[str, Any], str, Path], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    from matplotlib.image import imread

    bench("--read", str(run[2]), "--plot", str(tmp_path / "x.png"))
    picture = imread(tmp_path / "x.png")
    assert picture.shape[0] > 400
    assert picture.shape[1] > 1000
    assert len(np.unique(picture.reshape(-1, picture.shape[2]), axis=0)) > 10, "it is not blank"


@pytest.mark.outside
def test_what_the_picture_draws(run: tuple[dict[str, Any], str, Path]) -> None:
    found, _, _ = run
    lines = series(found, "coalesce")
    assert [name.split()[0] for name in lines] == ["numpy", "torch"]
    for points in lines.values():
        assert [slices for slices, _, _ in points] == [64, 128]
        assert all(0 < bound < ratio for _, ratio, bound in points), "nothing is faster than a copy"


@pytest.mark.outside
def test_compare(run: tuple[dict[str, Any], str, Path], tmp_path: Path) -> None:
    found, _, path = run
    slower = json.loads(path.read_text())
    record = slower["records"][0]
    own = record["own"][0]
    record["ratios"][own]["islices"] *= 2
    other = tmp_path / "slower.json"
    other.write_text(json.dumps(slower))
    text = bench("--compare", str(path), str(other)).stdout
    assert "1 slower and 0 faster" in text
    assert "2.00 | slower" in text
    (sentence, table) = changes(slower, found)
    assert "0 slower and 1 faster" in sentence.title
    assert table.rows[-1][-2:] == ["0.50", "faster"]


# ---------------------------------------------------------------------- wrong calls
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-b", "abacus"], "'abacus', which is not installed"),
        (["--part", "explode"], "explode"),
        (["--slices", "0"], "accepted is a number of at least 1"),
        (["--slices", "many"], "accepted is a number of at least 1"),
        (["--operation", "to_dense", "--slices", "1048576", "--distribution", "unique"], "no case is left"),
        (["--json", "/no/such/folder/x"], "cannot write"),
        (["--read", "/no/such/run.json"], "/no/such/run.json"),
        (["--compare", "/no/such/a.json", "/no/such/b.json"], "/no/such/a.json"),
    ],
)
def test_usage_errors(arguments: list[str], words: str) -> None:
    assert words in bench(*arguments, code=2).stderr


def test_another_form_of_json_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"form": 99}')
    assert "got form 99" in bench("--read", str(path), code=2).stderr
    path.write_text("[1]")
    assert "got form None" in bench("--read", str(path), code=2).stderr


def test_a_picture_without_matplotlib_says_what_to_install(tmp_path: Path) -> None:
    """A module that cannot be found, in a process where matplotlib is hidden."""
    code = (
        "import importlib.util as u, sys\nfind = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'matplotlib' else find(name, *a)\n"
        "from islices.cli import main\nsys.exit(main(['bench', '--plot', 'x.png']))"
    )
    done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert 'pip install "islices[plot]"' in done.stderr


@pytest.mark.outside
def test_a_process_that_fails_is_a_harness_error(tmp_path: Path) -> None:
    """A framework that breaks when it is imported: the other one is measured, and the exit code says so."""
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / "__init__.py").write_text("raise ImportError('jaxlib is missing')\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "islices", "bench", "-b", "jax", "-b", "numpy", "--part", "operations"]
    command += ["--operation", "norm", *TINY]
    done = subprocess.run(command, text=True, capture_output=True, env=environment, check=False, timeout=300)
    assert done.returncode == 3, done.stderr
    assert "could not measure jax operations" in done.stderr
    assert "jaxlib is missing" in done.stderr
    assert "| numpy" in done.stdout


# ---------------------------------------------------------------------- arithmetic
@pytest.mark.parametrize(
    ("case", "expected"),
    [
        # 10 rows of 4 float32 and 10 int64 are read; 3 rows and their numbers are written
        (Benchmark("coalesce", 10, 4), 10 * 16 + 10 * 8 + 3 * 16 + 3 * 8),
        (Benchmark("clip_by_global_norm", 10, 4), 10 * 16 + 10 * 8 + 10 * 16),
        (Benchmark("norm", 10, 4), 10 * 16 + 10 * 8),
        (Benchmark("to_dense", 10, 4), 10 * 16 + 10 * 8 + 65_536 * 16),
        (Benchmark("scatter_add", 10, 4), 10 * 16 + 10 * 8 + 2 * 3 * 16),
        (Benchmark("coalesce", 10, 4, dtype="bfloat16"), 10 * 8 + 10 * 8 + 3 * 8 + 3 * 8),
    ],
    ids=lambda x: str(x),
)
def test_bytes_of_operations(case: Benchmark, expected: int) -> None:
    assert limit.bytes_of_operation(case, distinct=3, index_dtype="int64") == expected


def test_bytes_of_coalesce_by_int32() -> None:
    assert limit.bytes_of_operation(Benchmark("coalesce", 10, 4), 3, "int32") == 10 * 16 + 10 * 4 + 3 * 16 + 3 * 4


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("sgd", 10 * 16 + 10 * 8 + 2 * 3 * 16),
        ("adagrad", 10 * 16 + 10 * 8 + 2 * 3 * 2 * 16),
        ("rowwise_adagrad", 10 * 16 + 10 * 8 + 2 * 3 * (16 + 4)),  # one number a row
        ("adam", 10 * 16 + 10 * 8 + 2 * 3 * 3 * 16),
    ],
)
def test_bytes_of_steps(kind: str, expected: int) -> None:
    assert limit.bytes_of_step(kind, slices=10, distinct=3, dim=4) == expected


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_whole_array_is_copied_whatever_the_threads(threads: int) -> None:
    copying = limit.Copying(threads, nbytes=1_000)
    copying._source[:] = np.arange(1_000) % 251
    assert copying.bandwidth(1) > 0
    assert np.array_equal(copying._target, copying._source)


def test_the_limit_is_bytes_over_bandwidth() -> None:
    result, found = limit.Copying(1, nbytes=1 << 16).limit(12_000, lambda: "measured")
    assert result == "measured"
    assert found["bytes"] == 12_000
    assert found["milliseconds"] == pytest.approx(12_000 / found["bandwidth"] * 1e3)


def test_rounds_interleave_and_hopeless_rivals_leave() -> None:
    import time

    calls: list[str] = []
    ways = {"ours": lambda: calls.append("o"), "good": lambda: calls.append("g"), "bad": lambda: time.sleep(0.02)}
    times = rounds.measure(ways, 4, rivals=frozenset({"good", "bad"}))
    assert {name: len(t) for name, t in times.items()} == {"ours": 4, "good": 4}
    assert "".join(calls[-8:]) == "oggooggo", "each round starts with the next"
    less = {"good": ways["bad"], "less (rows unsorted)": ways["ours"]}
    assert rounds.measure(less, 1, rivals=frozenset(less)).keys() == less.keys(), "what does less sets no measure"
    assert rounds.fastest({"a": [2.0], "b (rows unsorted)": [1.0], "c": [3.0]}, ["a", "b (rows unsorted)", "c"]) == [
        "a",
        "b (rows unsorted)",
    ]
    assert rounds.ratio([1.0, 4.0, 9.0], [1.0, 2.0, 3.0]) == 2.0


# ---------------------------------------------------------------------- cases
def test_cases() -> None:
    cases = default_cases()
    assert len(cases) == len(set(cases)), "nothing is measured twice"
    assert {case.operation for case in cases} == set(OPERATIONS)
    assert all(case.sensible for case in cases)
    assert cross({"operation": ["coalesce"], "slices": [64]}, full=False) == [Benchmark("coalesce", 64)]
    full = cross({}, full=True)
    assert len(full) == len(set(full)) > 1_000
    assert not any(
        case.operation == "to_dense" and case.distribution == "unique" and case.slices > 65_536 for case in full
    )


@pytest.mark.parametrize("distribution", ["unique", "uniform", "zipf"])
def test_ids(distribution: str) -> None:
    ids = draw_ids(distribution, 2_000, 10_000)
    assert ids.shape == (2_000,)
    assert ids.min() >= 0
    assert ids.max() < 10_000
    counts = np.unique(ids, return_counts=True)[1]
    assert (counts.max() == 1) == (distribution == "unique")
    assert (counts.max() > 50) == (distribution == "zipf")
