"""Test the backends of islices against SPEC.md. `judge` compares a step function with a documented formula."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from islices.conformance.formulas.judge import judge
    from islices.conformance.formulas.judgement import Judgement

__all__ = ["Judgement", "judge"]


def __getattr__(name: str) -> Any:
    """Import `judge` or `Judgement` on first use, so that importing the suite does not load the formulas."""
    if name in __all__:
        from islices.conformance.formulas import judge as module

        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
