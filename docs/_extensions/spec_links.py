"""Turn mentions of a clause, for example "SPEC clause 16", into links to the clause. Redirect links to a folder to the
README of the folder."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform
from sphinx.transforms.post_transforms import SphinxPostTransform

SPEC = "conformance/SPEC"
#: "SPEC clause 3", "SPEC clauses 3 to 6", "(clause 20)", "SPEC.md, clause 16"
CLAUSE = re.compile(r"\b[Cc]lauses? (\d+)(?:(?:, \d+)*(?:,? (?:and|to) \d+))?")
#: kinds of nodes in which mentions of clauses do not become links
NO_LINKS = {"title", "reference", "literal", "literal_block", "doctest_block", "raw"}


@functools.cache
def clause_anchors(app: Sphinx) -> dict[int, str]:
    """Return a dict from each clause number to the id of its section in SPEC.md."""
    found = {}
    for section in app.env.get_doctree(SPEC).findall(nodes.section):
        number = re.match(r"(\d+) ", section.next_node(nodes.title).astext())
        if number:
            found[int(number[1])] = section["ids"][0]
    return found


class SpecLinks(SphinxPostTransform):
    """A transform that turns mentions of clauses in running text into links."""

    default_priority = 400

    def run(self, **kwargs: Any) -> None:
        if self.env.docname == SPEC:
            return
        anchors = clause_anchors(self.app)
        for text in list(self.document.findall(nodes.Text)):
            if "lause" in text and not NO_LINKS & set(_parents(text)):
                pieces = list(self._pieces(str(text), anchors))
                if len(pieces) > 1:
                    text.parent.replace(text, pieces)

    def _pieces(self, text: str, anchors: dict[int, str]) -> Iterator[nodes.Node]:
        end = 0
        for match in CLAUSE.finditer(text):
            for number in re.finditer(r"\d+", match[0]):
                anchor = anchors.get(int(number[0]))
                if anchor is None:
                    continue
                start, stop = match.start() + number.start(), match.start() + number.end()
                start = match.start() if start - match.start() <= len("clauses ") else start
                yield nodes.Text(text[end:start])
                uri = self.app.builder.get_relative_uri(self.env.docname, SPEC) + "#" + anchor
                yield nodes.reference("", text[start:stop], refuri=uri, internal=True)
                end = stop
        yield nodes.Text(text[end:])


def _parents(node: nodes.Node) -> Iterator[str]:
    while node.parent is not None:
        node = node.parent
        yield type(node).__name__


class FolderLinks(SphinxTransform):
    """A transform that turns a link to a folder into a link to the folder's README. If the folder has no README, the
    link becomes plain text."""

    default_priority = 200

    def apply(self, **kwargs: Any) -> None:
        here = Path(self.env.doc2path(self.env.docname)).parent
        for link in list(self.document.findall(addnodes.pending_xref)):
            if link["reftype"] != "myst" or not (here / link["reftarget"]).is_dir():
                continue
            if (here / link["reftarget"] / "README.md").exists():
                folder = os.path.join(os.path.dirname(self.env.docname), link["reftarget"])
                link["refdomain"], link["reftarget"] = "doc", os.path.normpath(os.path.join(folder, "README"))
                link["reftargetid"] = None
            else:
                link.replace_self(link.children)


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_transform(FolderLinks)
    app.add_post_transform(SpecLinks)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
