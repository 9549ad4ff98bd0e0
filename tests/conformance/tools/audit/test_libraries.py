"""What the audit finds in libraries beside the frameworks, and where they compile or run on another backend."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shutil

import pytest

from islices.conformance.operations import UnsupportedError
from islices.conformance.tools.audit.run import run_all

#: module -> distributions and versions with which it was measured
MEASURED = {
    "fbgemm": {"fbgemm-gpu-cpu": "1.8.0"},
    "keras_torch": {"keras": "3.15.1", "torch": "2.13.0"},
    "keras_jax": {"keras": "3.15.1", "jax": "0.10.2"},
    "torch_compile": {"torch": "2.13.0"},
    "bitsandbytes": {"bitsandbytes": "0.50.2", "torch": "2.13.0"},
}
COUNTS = {"fbgemm": 16, "keras_torch": 14, "keras_jax": 14, "torch_compile": 8, "bitsandbytes": 11}
#: module -> (words of the call or the claim, outcome, how the answer begins)
FOUND = {
    "fbgemm": [
        ("EXACT_ADAGRAD: duplicates are summed before", "agrees", ""),
        ("the decay is taken and ignored", "differs", "[0.96349, "),
        ("the rows grow past the bound", "differs", "[[1, 1, 1, 1], [-1, "),
        ("is taken for row 0", "differs", "accepted, rows 0, 2 have moved"),
        ("not by the sum of their weights", "differs", ""),
    ],
    "keras_torch": [
        ("its gradient is dense", "differs", "dense"),
        ("-1 reads and trains the last row", "differs", "[7, 8]"),
        ("RMSprop raises", "raises", "RuntimeError"),
        ("where squares overflow", "differs", "[[nan, nan]"),
        ("Adam's step of 1 is off", "differs", "[-0.99999"),
    ],
    "keras_jax": [
        ("its gradient is dense", "differs", "dense"),
        ("ids beyond either end read NaN", "differs", ""),
        ("is stepped with as if it were dense", "agrees", ""),
        ("where squares overflow", "differs", "[[nan, nan]"),
        ("epsilon is added before", "differs", "[[-0.03065, "),
    ],
    "torch_compile": [
        ("of Adam, the first step: with its compiler", "differs", "[-0.99999"),
        ("a warmup that starts at 0", "differs", "[nan, 1]"),
        ("ends the process", "corrupts", "the process ended by SIGABRT"),
        ("the graph breaks", "agrees", ""),
    ],
    "bitsandbytes": [
        ("it decays as AdamW does", "differs", ""),
        ("the weights decay before the update", "agrees", ""),
        ("optim.Adam(amsgrad=True): it is taken and ignored", "differs", ""),
        ("all raise an error about a memory format", "raises", "RuntimeError"),
    ],
}


def why_not(module: str) -> str:
    """Why a module's findings are not those that were measured; "" where they are."""
    for name, version in MEASURED[module].items():
        try:
            installed = importlib.metadata.version(name).partition("+")[0]
        except importlib.metadata.PackageNotFoundError:
            return f"{name} is not installed"
        if installed != version:
            return f"measured with {name} {version}, installed is {installed}"
    if module == "torch_compile" and shutil.which("g++") is None:
        return "g++ is not installed"
    return ""


@pytest.mark.outside
@pytest.mark.one_in(4)
@pytest.mark.parametrize("module", MEASURED)
def test_all_is_as_measured(module: str) -> None:
    if reason := why_not(module):
        pytest.skip(reason)
    findings = run_all([module], "", lambda planned, done: None)
    other = [(f["number"], f["outcome"], f["got"]) for f in findings if f["status"] != "as measured"]
    assert not other, other
    assert len(findings) == COUNTS[module]
    for words, outcome, got in FOUND[module]:
        (found,) = (f for f in findings if words in f"{f['call']}: {f['claim']}")
        assert found["outcome"] == outcome, found
        assert outcome == "agrees" or found["got"].startswith(got), found


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_without_a_compiler_what_is_compiled_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    from islices.conformance.tools.audit.probes import torch_compile

    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(UnsupportedError, match="C\\+\\+ compiler"):
        torch_compile.compiled(abs, "inductor")
