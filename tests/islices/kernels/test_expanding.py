"""Test that a function gives the same results after its calls are inlined, even if names clash."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

pytest.importorskip("numba")

from islices.kernels.expanding import expand

HALF = 0.5
FLAG = True
shared = 7


def halve(x: Any) -> Any:
    """Halve x. The inlined code omits this docstring."""
    total = x * HALF
    return total


def put(out: Any, k: Any, x: Any) -> None:
    k += shared - 7
    out[k] = x


def signed(x: Any) -> Any:
    if x < 0:
        return -1
    return 1


def both(x: Any) -> Any:
    return x, halve(x)


def scaled(factor: float) -> Callable[[Any], Any]:
    return lambda x: x * factor


doubled = scaled(2.0)
larger = lambda a, b: a if a > b else b  # noqa: E731
KNOWN = {"halve": halve, "put": put, "signed": signed, "both": both, "larger": larger, "doubled": doubled}
LATER = {"either", "with_scope", "size", "power", "reciprocal", "by_place"}


def kernel(out: Any, n: Any) -> Any:
    total, shared = 1.0, 3  # `halve` and `put` use these names too
    for k in range(n):
        a, b = both(total)
        put(out, k, larger(halve(a) + b, signed(a)))
        total += halve(halve(k)) if FLAG else signed(total)
    while signed(total) > 0:
        total -= shared
    return doubled(total)


def either(a: Any, b: Any) -> Any:
    return a or b


def with_scope(x: Any) -> Any:
    t = x * 2
    return sum(t + k for k in range(2))


def clashing(a__1: Any, x: Any) -> Any:
    abs = halve(x)  # `abs` is a local variable here, and a builtin in `size`
    y = halve(abs) + size(x)
    return a__1 + y * either(0, 5) + (FLAG and 5) + with_scope(x)


def size(x: Any) -> Any:
    a = abs(x)
    return a


def power(x: Any, n: Any) -> Any:
    return x**n if n else halve(x)


def unlikely(x: Any) -> Any:
    return 0 < x < reciprocal(x)


def reciprocal(x: Any) -> Any:
    return 1 // x


def by_place(x: Any, /) -> Any:
    return halve(x)


def as_inlined(x: Any) -> FunctionType | None:
    return x if x in KNOWN.values() or getattr(x, "__name__", "") in LATER else None


def names_called(function: FunctionType, monkeypatch: pytest.MonkeyPatch) -> tuple[FunctionType, set[str]]:
    """Expand a function. Return the new function and the names of the functions that it still calls."""
    trees: list[ast.AST] = []
    real = ast.fix_missing_locations
    monkeypatch.setattr(ast, "fix_missing_locations", lambda tree: trees.append(tree) or real(tree))
    written = expand(function, as_inlined)
    calls = [x.func.id for x in ast.walk(trees[-1]) if isinstance(x, ast.Call) and isinstance(x.func, ast.Name)]
    return written, set(calls)


def test_a_kernel_gives_what_calls_give(monkeypatch: pytest.MonkeyPatch) -> None:
    written, calls = names_called(kernel, monkeypatch)
    # calls remain for a function with two returns, and in the condition of a loop
    assert calls == {"range", "signed"}
    for n in range(5):
        ours, theirs = [0.0] * n, [0.0] * n
        assert written(ours, n) == kernel(theirs, n)
        assert ours == theirs


@pytest.mark.parametrize(
    ("function", "arguments"),
    [(clashing, (100, 8)), (power, (3, 0)), (power, (3, 2)), (unlikely, (0,)), (unlikely, (1,)), (by_place, (3,))],
)
def test_names_and_scopes_keep_their_meaning(function: Any, arguments: tuple[Any, ...]) -> None:
    """Check that expansion changes no result if names clash with a builtin, a function or a parameter. Some functions
    contain expressions that Python does not evaluate for these arguments."""
    assert expand(function, as_inlined)(*arguments) == function(*arguments)


def test_a_source_that_changed_is_not_taken(tmp_path: Path) -> None:
    """Check that a function is not expanded if its file has changed since the import."""
    path = tmp_path / "changing.py"
    scope: dict[str, Any] = {}
    for factor in ("2", "3"):
        path.write_text(f"def times(x):\n    return x * {factor}\n")
        if not scope:
            exec(compile(path.read_text(), str(path), "exec"), scope)
    assert expand(scope["times"], as_inlined) is scope["times"]
    assert scope["times"](1) == 2
