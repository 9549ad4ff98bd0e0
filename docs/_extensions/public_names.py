"""Define the directive ``public-names``, which documents all public names of `islices` that the given modules
define."""

from __future__ import annotations

from typing import Any, ClassVar

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

import islices


class PublicNames(SphinxDirective):
    """A directive whose arguments are names of modules. The directive finds the public names, so a new public function
    needs no line in a page."""

    required_arguments = 1
    optional_arguments = 9
    option_spec: ClassVar = {}

    def run(self) -> list[nodes.Node]:
        lines = []
        for name in " ".join(islices._HOMES[module] for module in self.arguments).split():
            made = isinstance(getattr(islices, name), type)
            lines += [f".. auto{'class' if made else 'function'}:: islices.{name}", "   :members:" if made else "", ""]
        return self.parse_text_to_nodes("\n".join(lines))


def setup(app: Any) -> dict[str, Any]:
    app.add_directive("public-names", PublicNames)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
