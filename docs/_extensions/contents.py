"""Set the order, the descriptions and the search terms of the pages.

The side bar lists the titles of the pages in the order of `page_order` in conf.py. The list is built here, because
GitHub would show a toctree directive in docs/index.md as a block of code.
"""

from __future__ import annotations

import html
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

LONGEST = 160  # characters of a description that search engines show


class Contents(SphinxTransform):
    """A transform that adds a hidden toctree to the root page for each section of `page_order`."""

    default_priority = 190

    def apply(self, **kwargs: Any) -> None:
        if self.env.docname == self.config.root_doc:
            for caption, names in self.config.page_order.items():
                found = [name for name in names if name in self.env.found_docs]
                self.document[0] += self._toctree(caption, found)

    def _toctree(self, caption: str, names: list[str]) -> nodes.Element:
        entries = [(None, name) for name in names]
        tree = addnodes.toctree(
            "", parent=self.env.docname, entries=entries, includefiles=names, caption=caption, rawcaption=caption,
            maxdepth=-1, glob=False, hidden=True, includehidden=False, numbered=0, titlesonly=True,
        )  # fmt: skip
        return nodes.compound("", tree, classes=["toctree-wrapper"])


class SearchTerms(SphinxTransform):
    """A transform that adds index entries for `search_terms`. A search for one of these terms then lists the page of
    the term before pages that only contain the words."""

    default_priority = 190

    def apply(self, **kwargs: Any) -> None:
        section = self.document.next_node(nodes.section)
        terms = [term for term, name in self.config.search_terms.items() if name == self.env.docname]
        if section is not None and terms:
            entries = [("single", term, section["ids"][0], "main", None) for term in terms]
            section.insert(1, addnodes.index(entries=entries))  # after the title


def describe(app: Sphinx, name: str, template: str, context: dict[str, Any], doctree: nodes.document | None) -> None:
    """Write the first paragraph of a page, cut to LONGEST characters, into the HTML head as the page's description."""
    first = doctree.next_node(nodes.paragraph) if doctree is not None else None
    if first is not None:
        text = " ".join(first.astext().split())
        if len(text) > LONGEST:
            text = text[: text.rfind(" ", 0, LONGEST - 3)] + " ..."
        context["metatags"] += f'<meta name="description" content="{html.escape(text)}" />'


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_config_value("page_order", {}, "env")
    app.add_config_value("search_terms", {}, "env")
    app.add_transform(Contents)
    app.add_transform(SearchTerms)
    app.connect("html-page-context", describe)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
