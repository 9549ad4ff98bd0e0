"""Test loading of damaged, forged and hostile files. Loading raises a ValueError that names the file, or returns the
saved bits. A forged file may also load as another valid tree."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import islices
from islices.conformance.properties import files
from islices.conformance.properties.hostile_files import handmade
from islices.conformance.properties.mutations import FileMutant
from islices.files import saving

pytest.importorskip("safetensors")

MUTANTS = 200
#: texts of errors for some handmade files: each file raises for a different reason
REASONS = {
    "header of 2^60 bytes": "is to take 1152921504606846976 bytes, the file has 10",
    "eight-bit floats": "F8_E4M3",
    "a newer version": "upgrade islices",
    "an array unnamed": "does not say what 'a' is",
    "index out of range": "got 7 at position 1; accepted is 0 <= index < 7$",
    "false claim to be coalesced": "claimed coalesced, but index 3",
}


def test_no_crash_and_no_wrong_load() -> None:
    came, problem = files.attack(MUTANTS, seed=7)
    assert problem == ""
    assert came["refused"] > 0.8 * (MUTANTS + len(handmade()))
    assert came["same"] > 0, "hardly a file is whole"


@pytest.mark.parametrize("name", REASONS)
def test_each_is_refused_for_its_own_reason(name: str, tmp_path: Path) -> None:
    path = tmp_path / "hostile.safetensors"
    path.write_bytes(handmade()[name])
    with pytest.raises(ValueError, match=REASONS[name]) as error:
        islices.load(path)
    assert str(error.value).startswith(f"{path}: ")


def test_every_bit_of_the_data_is_guarded(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
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


def test_a_lying_header_costs_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    made = handmade()
    for name in ("a tensor of 2^60 bytes", "header of 2^60 bytes", "header of 99 MB"):
        path.write_bytes(made[name])
        tracemalloc.start()
        try:
            for foreign in (False, True):
                with pytest.raises(ValueError, match="x\\."):
                    islices.load(path, foreign=foreign)
            assert tracemalloc.get_traced_memory()[1] < 1 << 20, name
        finally:
            tracemalloc.stop()


def test_a_file_that_shrinks_while_it_is_read_is_truncated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that `load` raises ValueError for a file that shrinks after its header was read. No signal may end the
    process."""
    read = saving.read_manifest

    def then_cut(archive: Any) -> Any:
        found = read(archive)
        with path.open("rb+") as file:
            file.truncate(1 << 16)
        return found

    monkeypatch.setattr(saving, "read_manifest", then_cut)
    path = tmp_path / "x.safetensors"
    islices.save(path, np.ones(1 << 16))
    with pytest.raises(ValueError, match=r"x\.safetensors: "):
        islices.load(path)


# ---------------------------------------------------------------------- the soak test
def outcome(path: Path, data: bytes, tree: Any, **options: bool) -> str:
    return files.outcome_of(path, FileMutant("test", data, **options), tree)


def test_the_soak_sees_a_wrong_load(tmp_path: Path) -> None:
    path, tree = tmp_path / "x.safetensors", {"a": np.array([1.0])}
    islices.save(path, {"a": np.array([2.0])})
    data = path.read_bytes()
    assert outcome(path, data, tree).startswith("loaded something else: {'a': array([2.])}")
    assert outcome(path, data, {"a": np.array([2.0])}) == "same"
    assert outcome(path, data[:-1], tree) == "refused"
    assert outcome(path, data, tree, forged=True) == "valid"
    assert outcome(path, data, tree, foreign=True).startswith("loaded something else")
