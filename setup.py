"""Build archives: README's links become absolute for a package index, and a wheel has the golden vectors in one file.

The links begin with the address in pyproject.toml, and stay relative if the address is empty. If SOURCE_DATE_EPOCH is
set, as in `make dist`, equal files make equal archives.
"""

import gzip
import os
import re
import runpy
import tarfile
import tomllib
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

ADDRESS = tomllib.loads(Path("pyproject.toml").read_text("utf-8"))["tool"]["islices"]["address"]


def readme(text: str, address: str) -> str:
    """Make the relative links of a text absolute. Without an address, return the text unchanged."""
    return re.sub(r"\]\((?!\w+:|#)", f"]({address}/blob/main/", text) if address else text


class BuildPacked(build_py):
    """A build step that copies the packages, and replaces the golden vectors by vectors.xz."""

    def run(self) -> None:
        super().run()
        folder = Path(self.build_lib, "islices", "conformance")
        files = sorted(file for file in (folder / "vectors").glob("*.json") if file.name != "schema.json")
        if files:  # an editable install copies no files
            pack = runpy.run_path(str(folder / "packing.py"))["pack"]
            (folder / "vectors.xz").write_bytes(pack([file.read_bytes() for file in files]))
            for file in files:
                file.unlink()


class DatedSdist(sdist):
    """An sdist step that fixes date, owner, mode and order in the archive if SOURCE_DATE_EPOCH is set. setuptools would
    record the values of the build."""

    def make_archive(self, base_name, format, root_dir=None, base_dir=None, **owner):
        date = os.environ.get("SOURCE_DATE_EPOCH")
        if format != "gztar" or date is None:
            return super().make_archive(base_name, format, root_dir, base_dir, **owner)

        def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            member.mtime, member.uid, member.gid, member.uname, member.gname = int(date), 0, 0, "", ""
            return member

        name = f"{base_name}.tar.gz"
        with (
            open(name, "wb") as file,
            gzip.GzipFile("", "wb", fileobj=file, mtime=int(date)) as packed,
            tarfile.open(fileobj=packed, mode="w") as archive,
        ):
            archive.add(base_dir, filter=plain)  # in alphabetical order
        return name


if __name__ == "__main__":
    setup(
        cmdclass={"build_py": BuildPacked, "sdist": DatedSdist},
        long_description=readme(Path("README.md").read_text("utf-8"), ADDRESS),
        long_description_content_type="text/markdown",
        project_urls={
            "Source": ADDRESS,
            "Documentation": f"{ADDRESS}/blob/main/docs/index.md",
            "Changelog": f"{ADDRESS}/blob/main/CHANGELOG.md",
            "Issues": f"{ADDRESS}/issues",
        }
        if ADDRESS
        else {},
    )
