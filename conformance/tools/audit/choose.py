"""Which probes: the modules that hold them, and -k expressions over what a probe says of itself."""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Mapping, Sequence
from typing import Any

from islices.conformance.tools.audit import probes

__all__ = ["LONGEST", "chosen", "framework_of", "modules"]

#: Modules that are not named after their framework.
OWNERS = {"arithmetic": "numpy"}
#: Started before the others, for one that takes long and starts last is waited for: they compile.
LONGEST = ("torch_compile", "jax", "optax", "keras_jax")


def modules() -> list[str]:
    """The modules that hold probes, alphabetically."""
    return sorted(m.name for m in pkgutil.iter_modules(probes.__path__))


def framework_of(module: str) -> str:
    """torch_optim belongs to torch."""
    return OWNERS.get(module, module.partition("_")[0])


def chosen(question: Mapping[str, Any], expression: str) -> bool:
    """Whether a probe is meant by words joined by and, or, not and parentheses.

    A word is meant where it is part of the number, the call, the claim or "clause 10", in any case of letters; words
    that follow each other are one. Empty means all. ValueError: no such expression.
    """
    if not expression.strip():
        return True
    text = f"{question['number']} {question['call']} {question['claim']} clause {question['clause']}".lower()
    tokens = re.findall(r"[()]|[^\s()]+", expression.lower())
    found, rest = _either(tokens, text)
    if rest:
        raise ValueError(f"unexpected {rest[0]!r}")
    return found


def _either(tokens: Sequence[str], text: str) -> tuple[bool, Sequence[str]]:
    found, tokens = _both(tokens, text)
    while tokens and tokens[0] == "or":
        more, tokens = _both(tokens[1:], text)
        found = found or more
    return found, tokens


def _both(tokens: Sequence[str], text: str) -> tuple[bool, Sequence[str]]:
    found, tokens = _one(tokens, text)
    while tokens and tokens[0] == "and":
        more, tokens = _one(tokens[1:], text)
        found = found and more
    return found, tokens


def _one(tokens: Sequence[str], text: str) -> tuple[bool, Sequence[str]]:
    if tokens and tokens[0] == "not":
        found, tokens = _one(tokens[1:], text)
        return not found, tokens
    if tokens and tokens[0] == "(":
        found, tokens = _either(tokens[1:], text)
        if not tokens or tokens[0] != ")":
            raise ValueError("a parenthesis is not closed")
        return found, tokens[1:]
    words = 0
    while words < len(tokens) and tokens[words] not in ("and", "or", "not", "(", ")"):
        words += 1
    if not words:
        raise ValueError(f"a word is missing before {tokens[0]!r}" if tokens else "a word is missing at its end")
    return " ".join(tokens[:words]) in text, tokens[words:]
