"""Test an engine of another distribution, found through an entry point. The engine's ranks are processes that exchange
files in a folder.

The engine is for arrays of loopback, a test framework, and passes some of the suite's cases for ranks.
"""

from __future__ import annotations

import shutil
import textwrap
from pathlib import Path

import pytest
from suite_runs import LOOPBACK, run_code, run_suite, write_distribution

from islices.conformance.ranks import launch

#: An engine in files: a rank writes the bytes for another rank to a file, and the other rank waits for the file.
ENGINE = '''
import os, time
import numpy as np
from islices.distributed import Group, RankTimeout

class FileGroup(Group):
    engine = "files"

    def __init__(self, rank, size, timeout, meeting):
        super().__init__(rank, size)
        self.timeout, self.meeting, self.calls = timeout, meeting, 0
        os.makedirs(meeting, exist_ok=True)

    def _all_gather(self, data, lengths):
        return self._all_to_all([data] * self.size, lengths)

    def _all_to_all(self, parts, lengths):
        self.calls += 1
        for r, part in enumerate(parts):
            place = f"{self.meeting}/{self.calls}-{self.rank}-{r}"
            with open(place + ".part", "wb") as file:
                file.write(part.tobytes())
            os.rename(place + ".part", place)
        return [self._read(r, lengths[r]) for r in range(self.size)]

    def _read(self, r, length):
        place, end = f"{self.meeting}/{self.calls}-{r}-{self.rank}", time.monotonic() + self.timeout
        while not os.path.exists(place):
            if time.monotonic() > end:
                raise TimeoutError(r)
            time.sleep(1e-4)
        data = np.fromfile(place, np.uint8)
        os.remove(place)
        assert len(data) == length
        return data

    def _failure_of(self, error):
        if isinstance(error, TimeoutError):
            return RankTimeout(f"files: rank {error} did not come within {self.timeout:g} s", ranks=error.args)
        return None

class Folder:
    """The engine's own object."""
    __module__ = "loopback.folders"

group = None

def start(rank, size, timeout, meeting):
    global group
    group = FileGroup(rank, size, timeout, meeting)
    return group

def default_group(timeout):
    if group is None:
        raise RuntimeError("files: no group; call start()")
    return group

def running():
    return group

def wrap(x, timeout):
    return default_group(timeout) if isinstance(x, Folder) else None
'''


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Write loopback's backend and an engine for its arrays to a folder, and return the folder."""
    site = shutil.copytree(LOOPBACK, tmp_path / "site", ignore=shutil.ignore_patterns("__pycache__"))
    (site / "file_ranks.py").write_text(ENGINE)
    write_distribution(site, "file_ranks", "islices.engines", loopback="file_ranks")
    return site


def run(site: Path, code: str) -> None:
    prelude = """
        import sys
        import numpy as np, islices
        from islices.distributed import all_reduce, get_group
        from islices.distributed.engines import engine_of, list_engines

        def error(kind, *given):
            try:
                return f"no error but {get_group(*given)}"
            except kind as e:
                return str(e)
    """
    run_code(textwrap.dedent(prelude) + textwrap.dedent(code), path=site)


@pytest.mark.outside
def test_an_engine_of_others_passes_the_cases_of_ranks(site: Path, tmp_path: Path) -> None:
    found = run_suite(tmp_path, "loopback", "--islices-variant", "ranks", "-k", "layout or mistake", path=site)
    assert len(found.cases) == found.lines[0]["total"] > 30, found.output[-2000:]
    assert found.counts == {"pass": len(found.cases)}, found.reasons("fail")


def test_it_is_an_engine_as_the_built_in_ones_are(site: Path, tmp_path: Path) -> None:
    run(
        site,
        f"""
        assert list(list_engines()) == ["torch", "mpi", "jax", "tensorflow", "loopback"]
        assert engine_of("loopback") == "loopback" and engine_of("numpy") == engine_of("mxnet") == "mpi"
        assert "file_ranks" not in sys.modules, "it is found without being imported"
        assert "'loopback'" in error(ValueError, "horovod")
        assert "call start()" in error(RuntimeError, "loopback")
        import file_ranks, loopback
        group = file_ranks.start(0, 1, 5.0, {str(tmp_path / "meeting")!r})
        assert get_group("loopback") is get_group(file_ranks.Folder()) is group
        x = loopback.box(np.ones(2))
        assert all_reduce([x])[0] is not None, "by the engine of its framework"
        """,
    )


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("import no_such_module_anywhere", "no_such_module_anywhere"),
        ("def running(): raise RuntimeError", "lacks default_group, wrap"),
    ],
)
def test_a_broken_engine_fails_when_selected_and_disturbs_nobody(source: str, words: str, site: Path) -> None:
    (site / "broken_ranks.py").write_text(source)
    write_distribution(site, "broken_ranks", "islices.engines", broken="broken_ranks")
    (site / "broken.py").write_text("class Mesh: pass")
    run(
        site,
        f"""
        import broken, file_ranks, loopback
        group = file_ranks.start(0, 1, 5.0, {str(site / "meeting")!r})
        assert {words!r} in error((ImportError, TypeError), "broken")
        assert {words!r} in error((ImportError, TypeError), broken.Mesh())
        assert all_reduce([None, None]) == [None, None], "it is not asked where an engine is running"
        """,
    )


def test_a_name_that_is_built_in_or_claimed_twice_is_refused(site: Path) -> None:
    write_distribution(site, "usurper", "islices.engines", torch="file_ranks")
    write_distribution(site, "another", "islices.engines", loopback="file_ranks:group")
    run(
        site,
        """
        assert "built in, and also claimed by file_ranks" in error(ValueError, "torch")
        said = error(ValueError, "loopback")
        assert "file_ranks" in said and "file_ranks:group" in said and "uninstall all but one" in said, said
        """,
    )


def test_engines_that_the_suite_can_not_start_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "list_engines", lambda: {"numpy": "numpy", "gone": "no_such_module"})
    monkeypatch.setattr(launch, "load_engine", lambda name: object())
    assert launch.absent("numpy") == "it has no function start"
    assert launch.absent("gone") == "no_such_module is not installed"
