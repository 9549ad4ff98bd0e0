"""Build wheels whose golden vectors are one packed file, without which they would be half of the wheel."""

import runpy
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildPacked(build_py):
    """Copy the packages, then put vectors.xz in place of the files that it packs."""

    def run(self) -> None:
        super().run()
        folder = Path(self.build_lib, "islices", "conformance")
        files = sorted(file for file in (folder / "vectors").glob("*.json") if file.name != "schema.json")
        if files:  # none in an editable install, which copies nothing
            pack = runpy.run_path(str(folder / "packing.py"))["pack"]
            (folder / "vectors.xz").write_bytes(pack([file.read_bytes() for file in files]))
            for file in files:
                file.unlink()


setup(cmdclass={"build_py": BuildPacked})
