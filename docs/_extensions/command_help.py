"""Define the directive ``islices-commands``. For each subcommand of `islices`, the directive makes a section that
contains the --help text of the subcommand."""

from __future__ import annotations

import contextlib
import io
import os
from typing import Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from islices import cli

COLUMNS = "88"


class CommandHelp(SphinxDirective):
    """A directive without arguments or content. The directive shows the help of every command that `islices --help`
    lists."""

    def run(self) -> list[nodes.Node]:
        return [_section(name, help_of([name])) for name in cli.command_names()]


def help_of(arguments: list[str]) -> str:
    """Return the output of ``islices *arguments --help`` with a fixed width and without colour."""
    saved = {name: os.environ.get(name) for name in ("COLUMNS", "NO_COLOR")}
    os.environ.update(COLUMNS=COLUMNS, NO_COLOR="1")
    try:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            code = cli.main([*arguments, "--help"])
    finally:
        for name, value in saved.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
    if code != 0:
        raise RuntimeError(f"islices {' '.join(arguments)} --help exits with {code}")
    return printed.getvalue().rstrip()


def _section(name: str, text: str) -> nodes.section:
    title = f"islices {name}"
    section = nodes.section(ids=[nodes.make_id(title)], names=[nodes.fully_normalize_name(title)])
    section += nodes.title(title, title)
    section += nodes.literal_block(text, text, language="text")
    return section


def setup(app: Any) -> dict[str, Any]:
    app.add_directive("islices-commands", CommandHelp)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
