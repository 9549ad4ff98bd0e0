"""Damaged, forged and hostile files: refused with a ValueError that names them, or loaded to the same bits."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import islices
from islices import io
from islices.conformance.properties import files
from islices.conformance.properties.hostile_files import handmade
from islices.conformance.properties.mutations import Mutant, mutant

pytest.importorskip("safetensors")

MUTANTS = 400
#: what a message must speak of, for some of the files made by hand: each is refused for its own reason
REASONS = {
    ".npz": {
        "an array of objects": "pickles, which are never loaded",
        "code for a header": "plain array",
        "a bomb": "are to become 200000354",
        "sizes that lie": "longer than the archive",
        "two members in one place": "over another member",
        "a member twice": "twice",
        "a member that is no array": r"a\.pkl",
        "a shape of 2^60 elements": "takes 4611686018427387904 bytes, not 8",
        "a directory of 2^32 - 1 bytes": "directory",
        "something ahead of it": "directory",
        "columns first": "another order",
        "encrypted": "encrypted",
        "index out of range": "got 7 at position 1; accepted is 0 <= index < 7$",
        "false claim to be coalesced": "claimed coalesced, but index 3",
        "another digest": "'a' are damaged",
    },
    ".safetensors": {
        "header of 2^60 bytes": "is to take 1152921504606846976 bytes, the file has 10",
        "header of 99 MB": "99000000 bytes; accepted are",
        "70 dimensions": "32 dimensions",
        "eight-bit floats": "F8_E4M3",
        "a newer version": "upgrade islices",
        "101 levels": "more than 100 levels",
        "metadata the manifest does not have": "metadata were changed",
        "negative index": "got -1 at position 0",
        "a padding_idx that is no row": "padding_idx 2",
        "an array unnamed": "does not say what 'a' is",
    },
}


@pytest.mark.parametrize("suffix", files.SUFFIXES)
def test_no_crash_and_no_wrong_load(suffix: str) -> None:
    by_hand = len(handmade(suffix))
    outcome = files.attack(suffix, by_hand + MUTANTS, seed=7)
    assert outcome.findings == []
    assert outcome.files == by_hand + MUTANTS
    assert outcome.counts["refused"] >= by_hand + MUTANTS // 2
    assert outcome.counts["same"] > 0  # some changes do not matter: a time, a checksum that the digest stands for
    assert set(outcome.counts) <= {"refused", "same", "valid"}


@pytest.mark.parametrize(("suffix", "name"), [(suffix, name) for suffix in REASONS for name in REASONS[suffix]])
def test_each_is_refused_for_its_own_reason(suffix: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / f"hostile{suffix}"
    path.write_bytes(made_by_hand(suffix)[name])
    with pytest.raises(ValueError, match=REASONS[suffix][name]) as error:
        islices.load(path)
    assert str(error.value).startswith(f"{path}: ")


_made: dict[str, dict[str, bytes]] = {}


def made_by_hand(suffix: str) -> dict[str, bytes]:
    if suffix not in _made:
        _made[suffix] = handmade(suffix)
    return _made[suffix]


@pytest.mark.parametrize("suffix", files.SUFFIXES)
def test_every_bit_of_the_data_is_guarded(suffix: str, tmp_path: Path) -> None:
    """Each bit of every array's bytes, one after the other."""
    path = tmp_path / f"x{suffix}"
    s = islices.IndexedSlices(np.array([[1.5], [2.5]], np.float32), np.array([3, 1]), (2**40, 1))
    islices.save(path, s)
    good = path.read_bytes()
    for raw in (s.values.tobytes(), s.indices.tobytes()):
        start = good.index(raw)
        for bit in range(8 * len(raw)):
            data = bytearray(good)
            data[start + bit // 8] ^= 1 << bit % 8
            path.write_bytes(data)
            with pytest.raises(ValueError, match="damaged"):
                islices.load(path)


@pytest.mark.parametrize("suffix", files.SUFFIXES)
def test_every_length_of_a_truncated_file_is_refused(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"x{suffix}"
    islices.save(path, [np.arange(4)])
    good = path.read_bytes()
    for length in range(len(good)):
        path.write_bytes(good[:length])
        with pytest.raises(ValueError, match="x\\."):
            islices.load(path)


@pytest.mark.parametrize("suffix", files.SUFFIXES)
def test_a_lying_header_costs_no_memory(suffix: str, tmp_path: Path) -> None:
    """What is declared is never allocated: not the array, nor the header."""
    path = tmp_path / f"x{suffix}"
    names = ["a shape of 2^60 elements", "a bomb", "sizes that lie"]
    if suffix == ".safetensors":
        names = ["a tensor of 2^60 bytes", "header of 2^60 bytes", "header of 99 MB"]
    for name in names:
        path.write_bytes(made_by_hand(suffix)[name])
        tracemalloc.start()
        try:
            for foreign in (False, True):
                with pytest.raises(ValueError, match="x\\."):
                    islices.load(path, foreign=foreign)
            assert tracemalloc.get_traced_memory()[1] < 1 << 20, name
        finally:
            tracemalloc.stop()


def test_a_file_that_shrinks_while_it_is_read_is_truncated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The header is read, then the file is cut: an error, no signal that ends the process."""
    read = io.read_manifest

    def then_cut(archive: Any) -> Any:
        found = read(archive)
        with path.open("rb+") as file:
            file.truncate(1 << 16)
        return found

    monkeypatch.setattr(io, "read_manifest", then_cut)
    for suffix in files.SUFFIXES:
        path = tmp_path / f"x{suffix}"
        islices.save(path, np.ones(1 << 16))
        with pytest.raises(ValueError, match=f"x{suffix}: "):
            islices.load(path)


# ---------------------------------------------------------------------- the soak itself
def outcome(path: Path, data: bytes, tree: Any, **options: bool) -> str:
    return files.outcome_of(path, Mutant("test", data, **options), tree)


def test_the_soak_sees_a_wrong_load(tmp_path: Path) -> None:
    path, tree = tmp_path / "x.npz", {"a": np.array([1.0])}
    islices.save(path, {"a": np.array([2.0])})
    data = path.read_bytes()
    assert outcome(path, data, tree).startswith("loaded something else: {'a': array([2.])}")
    assert outcome(path, data, {"a": np.array([2.0])}) == "same"
    assert outcome(path, data[:-1], tree) == "refused"
    assert outcome(path, data, tree, forged=True) == "valid"
    assert outcome(path, data, tree, foreign=True).startswith("loaded something else")


@pytest.mark.outside
def test_the_soak_sees_a_process_that_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = files._lines

    def dying(suffix: str, seed: int, first: int, last: int) -> Any:
        """The lines of a worker that ends within file 2."""
        yield from lines(suffix, seed, first, min(last, 2)) if first < 2 else lines(suffix, seed, first, last)
        if first < 2:
            yield [2, "the end"]

    monkeypatch.setattr(files, "_lines", dying)
    found = files.attack(".npz", 4, seed=7)
    assert found.findings == [(2, "the end", "the process ended, or hung")]
    assert found.counts == Counter(refused=3, crash=1)


def test_same_sees_every_difference() -> None:
    s = islices.IndexedSlices(np.ones((1, 1)), np.array([0]), (3, 1))
    others = [
        None, np.ones(1), islices.IndexedSlices(s.values, s.indices, (4, 1)), s.replace(values=s.values * 2),
        islices.IndexedSlices(s.values, s.indices, (3, 1), coalesced=True), islices.Table(np.ones((1, 1))),
        islices.IndexedSlices(s.values, s.indices.astype(np.int32), (3, 1)), [s], (s,), {"a": s},
    ]  # fmt: skip
    assert files.same(s, s.replace(values=s.values.copy()))
    assert not any(files.same(s, other) or files.same(other, s) for other in others)
    assert not files.same([s], (s,))
    assert not files.same({"a": s}, {"b": s})
    assert not files.same(np.float32(0.0), np.float32(-0.0))


@pytest.mark.parametrize("suffix", files.SUFFIXES)
def test_a_number_makes_the_same_file_again(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"x{suffix}"
    islices.save(path, files.trees()[0])
    good = path.read_bytes()
    made = [[mutant(random.Random(f"{seed}"), good, suffix) for seed in range(60)] for _ in range(2)]
    assert made[0] == made[1]
    assert len({m.kind for m in made[0]}) > 6
    assert sum(m.data != good for m in made[0]) > 50


def test_the_command(tmp_path: Path) -> None:
    number = list(handmade(".npz")).index("a bomb")
    code, said = command(tmp_path, "--only", f"{number}.npz")
    assert code == 0
    assert "(a bomb): refused" in said
    assert "are to become" in said
    code, said = command(tmp_path, "--only", "3.pt")
    assert code == 2
    assert "812.npz" in said


def command(folder: Path, *arguments: str) -> tuple[int, str]:
    call = [sys.executable, "-m", "islices.conformance.properties.files", *arguments]
    done = subprocess.run(call, capture_output=True, text=True, timeout=120, env={**os.environ, "TMPDIR": str(folder)})
    return done.returncode, done.stdout + done.stderr
