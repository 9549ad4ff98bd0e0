"""The pages' order: docs/index.md lists every page in plain Markdown lists, and the side bar follows these lists.

A toctree directive would say the same a second time, and GitHub shows it as a block of code.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform


class Contents(SphinxTransform):
    """A hidden toctree for each section of the root page: of the first link of each item of its lists."""

    default_priority = 190  # before links to folders are resolved or dropped

    def apply(self, **kwargs: Any) -> None:
        if self.env.docname != self.config.root_doc:
            return
        for section in list(self.document.findall(nodes.section)):
            entries = list(self._entries(section))
            if entries:
                section += self._toctree(section.next_node(nodes.title).astext(), entries)

    def _entries(self, section: nodes.section) -> Iterator[tuple[str, str]]:
        """(text of the link, name of the document)"""
        for listing in section.children:
            for item in listing.findall(nodes.list_item) if isinstance(listing, nodes.bullet_list) else ():
                link = item.next_node(addnodes.pending_xref)
                if link is not None and link["refdomain"] == "doc" and link["reftarget"] in self.env.found_docs:
                    yield link.astext(), link["reftarget"]

    def _toctree(self, caption: str, entries: list[tuple[str, str]]) -> nodes.Element:
        names = [name for _, name in entries]
        tree = addnodes.toctree(
            "", parent=self.env.docname, entries=entries, includefiles=names, caption=caption, rawcaption=caption,
            maxdepth=-1, glob=False, hidden=True, includehidden=False, numbered=0, titlesonly=False,
        )  # fmt: skip
        return nodes.compound("", tree, classes=["toctree-wrapper"])


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_transform(Contents)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
