"""Escape, in docstrings, the stars and bars that reStructuredText would misread as markup.

The star of ``(n, *row_shape)`` would begin an emphasis, and ``|x|`` would be a substitution.
"""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

#: a literal or an emphasis, which is kept; MARKUP also finds characters that reStructuredText would read as the
#: beginning of markup
KEPT = r"``.+?``|`[^`]+`|(?<![\w*])\*{1,2}\w[^*]*\w\*{1,2}(?![\w*])"
MARKUP = re.compile(KEPT + r"|(?<![\w\\*])\*(?=\w)|(?<![\w\\])\|(?=\w)")
PROMPTS = (">>>", "...")
BEFORE_NUMPYDOC = 400


def escape(app: Sphinx, subject: str, name: str, obj: object, options: Any, lines: list[str]) -> None:
    """Escape stars and bars outside of literals, emphases and the code lines of examples."""
    lines[:] = [line if line.lstrip().startswith(PROMPTS) else MARKUP.sub(_escaped, line) for line in lines]


def _escaped(match: re.Match[str]) -> str:
    return match[0] if len(match[0]) > 1 else "\\" + match[0]


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("autodoc-process-docstring", escape, priority=BEFORE_NUMPYDOC)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
