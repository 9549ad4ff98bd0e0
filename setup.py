"""Make README's links absolute for a package index, under the one address that pyproject.toml has for the project."""

import re
import tomllib
from pathlib import Path

from setuptools import setup

ADDRESS = tomllib.loads(Path("pyproject.toml").read_text("utf-8"))["tool"]["islices"]["address"]


def readme(text: str, address: str) -> str:
    """Return the text with links to files of the repository absolute; without an address, as it is."""
    return re.sub(r"\]\((?!\w+:|#)", f"]({address}/blob/main/", text) if address else text


if __name__ == "__main__":
    setup(
        long_description=readme(Path("README.md").read_text("utf-8"), ADDRESS),
        long_description_content_type="text/markdown",
        project_urls={"Source": ADDRESS, "Documentation": f"{ADDRESS}/blob/main/docs/index.md"} if ADDRESS else {},
    )
