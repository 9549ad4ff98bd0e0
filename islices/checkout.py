"""In a checkout backends/ and conformance/ lie beside islices/: `islices.backends`, `islices.conformance` are those.

Without this they are found by an editable install alone, which may be another checkout's: half of the library then came
from one, half from the other, and nothing said so. An installed islices holds both within itself and needs none of it.
May import the standard library.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

__all__ = ["find_parts"]

#: Folders of a checkout that are subpackages of islices.
PARTS = ("backends", "conformance")


def find_parts(package: str) -> None:
    """Have the parts of this checkout found, and nobody else's.

    Parameters
    ----------
    package : str
        The folder islices/ that is being imported; one that holds its parts, and one in a zip file, is left alone.
    """
    if not os.path.isdir(package) or os.path.isdir(os.path.join(package, PARTS[0])):
        return
    # behind the finder of sys.path, which pytest's stands before, and before the finders of editable installs
    place = sys.meta_path.index(PathFinder) + 1 if PathFinder in sys.meta_path else 0
    sys.meta_path.insert(place, Checkout(package))


class Checkout:
    """A finder of the modules of islices that `sys.path` does not lead to.

    Parameters
    ----------
    package : str
        The folder islices/ of the checkout.
    """

    def __init__(self, package: str) -> None:
        self.package = os.path.abspath(package)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Where a part is; ModuleNotFoundError of what another checkout has and this one lacks; None of all else."""
        top, _, name = fullname.partition(".")
        own: Any = getattr(sys.modules.get("islices"), "__path__", ())
        if top != "islices" or not name or [os.path.abspath(folder) for folder in own] != [self.package]:
            return None
        root = os.path.dirname(self.package)
        folder = os.path.join(root, name)
        if name in PARTS and os.path.isfile(os.path.join(folder, "__init__.py")):
            return importlib.util.spec_from_file_location(
                fullname, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
            )
        behind = sys.meta_path[sys.meta_path.index(self) + 1 :] if self in sys.meta_path else []  # others may wrap it
        found = next((spec for finder in behind if (spec := finder.find_spec(fullname, path, target))), None)
        if found is not None and not _lies_in(root, found):
            raise ModuleNotFoundError(
                f"No module named {fullname!r} in the checkout {root}, where islices comes from; other checkouts and "
                "installs are not searched",
                name=fullname,
            )
        return found


def _lies_in(root: str, spec: ModuleSpec) -> bool:
    places = [spec.origin] if spec.origin else list(spec.submodule_search_locations or ())
    return all(os.path.abspath(place).startswith(root + os.sep) for place in places)
