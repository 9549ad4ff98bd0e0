"""Test `islices new-backend`: the files that it writes, its errors, and the suite's report on an incomplete adapter.

The tests run the shell lines of docs/adapter_author.md one by one, and put the methods of the page's Python block into
the skeleton. The framework is that of the sample backend, whose adapter is not used.
"""

from __future__ import annotations

import inspect
import re
import shlex
import shutil
import tomllib
from pathlib import Path

import pytest
from suite_runs import ROOT, Run, conform, install, python

from islices.backend import Backend
from islices.cli import main
from islices.conformance.new_backend import skeleton, to_do

PAGE = (ROOT / "docs" / "adapter_author.md").read_text("utf-8")
LIBRARY = ROOT / "conformance" / "sample_backend" / "sample.py"


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


# ---------------------------------------------------------------------- files of stage 1
def test_stage_1_is_written_and_no_more() -> None:
    text = skeleton("toyfw", "toyfw")["islices_toyfw/__init__.py"]
    marked = {name for name in dir(Backend) if hasattr(getattr(Backend, name), "primitive")}
    marked |= {name for name in dir(Backend) if hasattr(getattr(Backend, name), "optional")}
    needed = {name for name in dir(Backend) if inspect.isfunction(getattr(Backend, name)) and name[0] != "_"}
    assert set(re.findall(r"^    def (\w+)\(", text, re.MULTILINE)) == needed - marked - {"lacks", "stand_in"}


def test_what_is_written_is_tidy_and_loads(tmp_path: Path) -> None:
    for path, text in skeleton("my_fw", "my_fw.core").items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text, "utf-8")
        if path.endswith(".toml"):
            tomllib.loads(text)
    for check in (["check"], ["format", "--check"]):
        done = python("-m", "ruff", *check, "--isolated", "--line-length", "120", tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
    project = tomllib.loads((tmp_path / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["entry-points"] == {"islices.backends": {"my_fw.core": "islices_my_fw:backend"}}
    code = "import islices_my_fw as m; print(m.backend, m.backend.module, type(m.backend).__name__, m.backend.modes())"
    done = python("-c", code, path=tmp_path)
    assert done.stdout.strip() == "<islices backend my_fw.core> my_fw.core MyFwBackend ['host', 'framework']", (
        done.stderr
    )


# ---------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["class"], "'class'"), (["schön"], "letters"), (["../up"], "'../up'"), (["numpy"], "built in"),
        (["fw", "--module", "torch"], "built in"), (["fw", "--module", "a..b"], "'a..b'"),
    ],
)  # fmt: skip
def test_names_that_cannot_be(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new-backend", *arguments, "--into", str(tmp_path / "new")]) == 2
    assert words in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "new"
    (folder / "islices_toyfw").mkdir(parents=True)
    (folder / "islices_toyfw" / "__init__.py").write_text("mine")
    assert main(["new-backend", "toyfw", "--into", str(folder)]) == 2
    assert "nothing is overwritten" in capsys.readouterr().err
    assert [path.name for path in folder.rglob("*") if path.is_file()] == ["__init__.py"]
    assert (folder / "islices_toyfw" / "__init__.py").read_text() == "mine"
    (tmp_path / "file").write_text("")
    assert main(["new-backend", "toyfw", "--into", str(tmp_path / "file")]) == 2
    assert "cannot write" in capsys.readouterr().err


# ---------------------------------------------------------------------- the steps of docs/adapter_author.md
@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder in which the first two shell lines of the page create and install the skeleton, next to its
    framework."""
    folder = tmp_path_factory.mktemp("page")
    shutil.copy(LIBRARY, folder)
    make, put, _ = (shlex.split(line) for line in blocks("sh")[0].splitlines())
    done = python("-m", *make, path=folder, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert put[:3] == ["pip", "install", "-e"]
    return install(folder / put[3], folder, tmp_path_factory.mktemp("scratch"))


def on_the_page(folder: Path, site: Path, cases: str) -> Run:
    _, _, line = blocks("sh")[0].splitlines()
    command = shlex.split(line)
    assert command[:2] == ["islices", "conform"]
    return conform(folder, *command[2:], "-k", cases, path=site)


@pytest.mark.outside
def test_a_half_done_adapter_passes_what_it_can(site: Path, tmp_path: Path) -> None:
    half = shutil.copytree(site, tmp_path / "half")
    with (half / "islices_sample" / "__init__.py").open("a", encoding="utf-8") as file:
        file.write("\nimport sample\n" + blocks("python")[0])
        file.write("\n\nfor name, member in vars(FirstSteps).items():\n    if not name.startswith('__'):\n")
        file.write("        setattr(SampleBackend, name, member)\n")
    run = on_the_page(tmp_path, half, "densify or coalesce/ or norms or clipping or updates or optimizers/step")
    assert run.counts["harness error"] == run.counts["fail"] == 0, run.output[-3000:]
    host = [case for case in run.cases if case["mode"] == "host" and "kernels" not in case["id"]]
    lacking = {case["reason"] for case in host if case["outcome"] == "unsupported"}
    assert lacking <= {"sample has no bfloat16", "the suite does not know sample's own layers"}
    missing = dict(to_do(run.cases))
    assert missing["unique"] > 10
    assert list(missing.values()) == sorted(missing.values(), reverse=True)
    assert "is not finished" in run.output
