"""The line that fixes each cause on the second side, in the framework of that side's arrays.

The first side is what was meant, the second is the port. Lines speak of `grads`, a dict of the gradients by name, of
`grad`, one of them, and of `table`, `ids`, `rows`, `loss`, `parameters` and `optimizer` as programs call them. Text
between backticks is to be taken out.

May import: `islices.porting.compare`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from islices.porting.compare.causes import CAUSES
from islices.porting.compare.steps.fix import step_line

if TYPE_CHECKING:
    from islices.porting.compare.difference import Difference

__all__ = ["fixes"]


def fixes(found: Difference) -> list[str]:
    """Return a line for each cause of the first explanation that has one; causes of one step have one together."""
    apart = [t for t in found.tensors if not t.equal]
    if not found.causes or not apart:
        return []
    front = found.frameworks[1]
    kinds = zip(found.frameworks, apart[0].kinds, strict=True)
    other, framework = ({"keras": "tensorflow"}.get(name, name) or kind.split()[0] for name, kind in kinds)
    causes = [c for c in found.causes[0].causes if c.details.get("mends", True)]
    of_step = [c for c in causes if "step" in c.details]
    lines = [step_line(of_step, front, alike=framework == other)] if of_step else []
    lines += [CAUSES[c.name].line(c.details, framework) for c in causes if "step" not in c.details and c.name in CAUSES]
    return [f"mend: in {found.names[1]}, {line}" for line in lines if line]
