"""The line of code that mends a cause, in the framework of the side that has to change.

The first side is taken for what was meant, the second for the port: a line makes the second as the first is. Where a
framework has no such line of its own, it is islices'. Lines speak of `grads`, a dict of the gradients by name, of
`grad`, one of them, and of `table`, `ids`, `rows`, `loss`, `parameters` and `optimizer` as programs call them; what
stands between backticks is to be taken out. May import: `islices.compare`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from islices.compare.mending.gradients import line_of_gradient
from islices.compare.mending.side import Port
from islices.compare.mending.steps import line_of_step

if TYPE_CHECKING:
    from islices.compare.difference import Difference

__all__ = ["mended"]


def mended(found: Difference) -> list[str]:
    """A line for each cause of the first explanation that has one; causes of one step have one together."""
    apart = [t for t in found.tensors if not t.equal]
    if not found.causes or not apart:
        return []
    # whose recorder wrote the arrays, which are NumPy's now
    recorded = [{"keras": "tensorflow"}.get(name, name) for name in found.frameworks]
    other, framework = (name or kind.split()[0] for name, kind in zip(recorded, apart[0].kinds, strict=True))
    port = Port(framework, apart[0].kinds[1].split()[1], apart[0].dtypes[1], other, found.frameworks[1])
    causes = found.causes[0].causes
    lines = [line_of_step([c for c in causes if "step" in c.details], port)]
    lines += [line_of_gradient(c, port) for c in causes if "step" not in c.details and c.details.get("mends", True)]
    return [f"mend: in {found.names[1]}, {line}" for line in lines if line]
