"""Test that the suite finds broken backends, and that it distinguishes failures, deviations, unsupported cases and
harness errors.

The backend is `loopback`, whose arrays are opaque. The suite runs in mode framework, which uses the adapter's
primitives.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import operator
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from suite_runs import LOOPBACK, Run, run_suite

from islices.conformance.deviations import Deviation


def conform(folder: Path, *options: str, defect: str = "", mutation: str = "", deviations: str = "") -> Run:
    """Run the suite on loopback. `defect` overrides methods of the arithmetic that the primitives call, and `mutation`
    is code appended to the adapter."""
    site = shutil.copytree(LOOPBACK, folder / "site", ignore=shutil.ignore_patterns("__pycache__"))
    adapter = (site / "islices_loopback.py").read_text("utf-8")
    if defect:
        adapter += f"\n\nclass Broken(Arithmetic):\n{defect}\n\narithmetic = Broken()\n"
    # a package, because deviations.toml is next to the module of the adapter
    package = site / "islices_loopback"
    package.mkdir()
    (site / "islices_loopback.py").unlink()
    (package / "__init__.py").write_text(adapter + mutation, "utf-8")
    if deviations:
        (package / "deviations.toml").write_text(deviations, "utf-8")
    profile = "full" if "-k" in options else "quick"  # cases that -k names need not be in the quick profile
    given = ("--islices-modes", "framework", "--islices-profile", profile, *options)
    return run_suite(folder, "loopback", *given, path=site)


# ---------------------------------------------------------------------- a sound backend
def test_a_sound_backend_conforms_and_the_report_is_whole(tmp_path: Path) -> None:
    run = conform(tmp_path)
    assert run.status == 0, run.output[-3000:]
    assert run.counts["fail"] == run.counts["harness error"] == run.counts["deviation"] == 0
    assert run.counts["pass"] > 300
    # the reason for each omission is always reported
    assert all(line["reason"] for line in run.cases if line["outcome"] == "unsupported")
    header, footer = run.lines[0], run.lines[-1]
    assert (header["type"], header["backend"], header["profile"]) == ("header", "loopback", "quick")
    assert (footer["type"], footer["counts"], footer["exit"]) == ("footer", dict(run.counts), 0)
    assert header["total"] == len(run.cases)
    assert len({line["clause"] for line in run.cases}) >= 10
    assert all(line["mode"] == "framework" for line in run.cases)


# ---------------------------------------------------------------------- broken calls
@pytest.mark.outside
def test_an_update_that_writes_into_its_input_is_caught(tmp_path: Path) -> None:
    defect = """
    def in_place(self, x):
        return False
"""
    run = conform(tmp_path, "-k", "updates/add/one or renorm or step/adam/touched/float32", defect=defect)
    assert {id.partition("/")[0] for id in run.ids("fail")} == {"updates", "embedding", "optimizers"}
    reasons = {line["reason"] for line in run.cases if line["outcome"] == "fail"}
    assert all("the call changed its input: arguments[0]" in reason for reason in reasons)


# ---------------------------------------------------------------------- neither failures nor passes
@pytest.mark.outside
def test_a_process_that_ends_hard_leaves_a_report_without_footer_naming_the_case(tmp_path: Path) -> None:
    defect = """
    def scatter_rows(self, values, ids, shape):
        if shape == (0, 3):
            import os
            os._exit(86)
        return super().scatter_rows(values, ids, shape)
"""
    run = conform(tmp_path, "-k", "densify", defect=defect)
    assert run.status == 86
    assert "footer" not in {line["type"] for line in run.lines}
    last = run.lines[-1]
    assert (last["type"], last["id"], last["clause"]) == ("start", "densify/to_dense/no-rows", "5")
    assert run.counts["pass"] > 0
    assert last["id"] not in {line["id"] for line in run.cases}


@pytest.mark.outside
def test_arguments_that_cannot_be_built_are_a_harness_error_not_a_failure(tmp_path: Path) -> None:
    defect = ""
    mutation = """
def refuse(self, array, like=None, real=LoopbackBackend.asarray):
    if np.asarray(array).dtype == np.int32:
        raise RuntimeError("loopback is out of int32")
    return real(self, array, like)

LoopbackBackend.asarray = refuse
"""
    run = conform(tmp_path, "-k", "densify and not kernels", defect=defect, mutation=mutation)
    assert run.status == 1
    assert run.counts["harness error"] > 0
    assert run.counts["fail"] == 0
    assert all("/int32" in i for i in run.ids("harness error"))
    reasons = [line["reason"] for line in run.cases if line["outcome"] == "harness error"]
    assert all("out of int32" in reason for reason in reasons)


# ---------------------------------------------------------------------- declared deviations
NO_ISIN = '    isin = not_implemented("loopback cannot search")\n'


def table(**fields: Any) -> str:
    return "[[deviation]]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in fields.items())


def test_a_deviation_that_fails_as_declared_is_one_and_all_else_fails(tmp_path: Path) -> None:
    declared = table(cases="algebra/keep_rows/*/rank?", kind="never", raises="NotImplementedError", reason="no search")
    declared += table(cases="padding/drop_padding/*/rank?", kind="never", raises="KeyError", reason="another error")
    declared += table(cases="densify/to_dense/no-rows", kind="notyet", result="differs", reason="it does not")
    options = ("-k", "algebra/keep_rows or drop_padding or to_dense/no-rows")
    run = conform(tmp_path, *options, defect=NO_ISIN, deviations=declared)
    assert run.status == 1
    by_id = {line["id"]: line for line in run.cases}
    kept = [line for i, line in by_id.items() if i.startswith("algebra/keep_rows/") and "/rank" in i]
    assert kept
    assert all((line["outcome"], line["kind"], line["reason"]) == ("deviation", "never", "no search") for line in kept)
    # another error than the declared one
    other = [line for i, line in by_id.items() if i.startswith("padding/drop_padding/") and "/rank" in i]
    assert other
    assert all(line["outcome"] == "fail" and "NotImplementedError" in line["reason"] for line in other)
    # no error at all
    passing = by_id["densify/to_dense/no-rows"]
    assert (passing["outcome"], "remove the declaration" in passing["reason"]) == ("fail", True)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"kind": "wontfix", "result": "differs"}, "notimpl, notyet, never"),
        ({"kind": "never"}, "either raises"),
        ({"kind": "never", "raises": "ValueError", "result": "differs"}, "either raises"),
        ({"kind": "never", "result": "wrong"}, "either raises"),
        ({"kind": "never", "result": "differs", "reason": ""}, "reason is missing"),
    ],
)
def test_a_declaration_is_checked(fields: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Deviation(**{"cases": "*", "reason": "because", **fields})


# ---------------------------------------------------------------------- the backend itself
def _framework() -> Any:
    """Import the module loopback without adding its folder to sys.path. If the folder were on the path, this process
    would find the adapter too."""
    spec = importlib.util.spec_from_file_location("loopback", LOOPBACK / "loopback.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


loopback = _framework()


TOUCHES: dict[str, Callable[[Any], Any]] = {
    "np.asarray": np.asarray, "len": len, "bool": bool, "float": float, "copy": copy.copy, "shape": lambda x: x.shape,
    "hasattr": lambda x: hasattr(x, "ndim"), "item": lambda x: x[0], "==": lambda x: x == x, "1 /": lambda x: 1 / x,
    "numpy *": lambda x: np.ones(2) * x, "+=": lambda x: operator.iadd(x, x), "ufunc": lambda x: np.sqrt(x),
}  # fmt: skip


@pytest.mark.parametrize("touch", TOUCHES)
def test_whatever_looks_at_an_array_raises(touch: str) -> None:
    x = loopback.box(np.ones(2, np.float32))
    # NumPy's functions raise before they read the array, because `__array_ufunc__` of its class is None
    with pytest.raises(TypeError if touch == "ufunc" else loopback.TouchedError):
        TOUCHES[touch](x)
