"""The modules of probes, and -k expressions over the words of a probe."""

from __future__ import annotations

import pkgutil
import re

from islices.conformance.tools.audit import probes

__all__ = ["chosen", "framework_of", "modules"]


def modules() -> list[str]:
    """Return the names of the modules that hold probes, alphabetically."""
    return sorted(m.name for m in pkgutil.iter_modules(probes.__path__))


def framework_of(module: str) -> str:
    """Return the framework of a module: torch for torch_compile."""
    return module.partition("_")[0]


def chosen(text: str, expression: str) -> bool:
    """Check if a text matches words joined by and, or, not and parentheses; an empty expression matches.

    Words match where they are part of the text, in any case of letters. Raises ValueError for any other expression.
    """
    parts = re.split(r"(\band\b|\bor\b|\bnot\b|[()])", expression.lower())
    words = [part if k % 2 else part.strip() and str(part.strip() in text.lower()) for k, part in enumerate(parts)]
    try:
        return bool(eval(" ".join(words).strip() or "True", {}))  # of True, False, and, or, not and parentheses alone
    except (SyntaxError, TypeError):
        raise ValueError("accepted are words joined by and, or, not and parentheses") from None
