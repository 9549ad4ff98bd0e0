"""Find and load the backends, engines and commands that other distributions add. May import: `islices.core.locks`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from islices.core.locks import Lock, load_module

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

#: the name of this package's distribution
OWN = "islices"

_lock = Lock()
_found: dict[str, dict[str, list[EntryPoint]]] = {}


def entry_points(group: str) -> dict[str, list[EntryPoint]]:
    """Return a dict from each name in a group to the entry points with this name, usually one.

    Entry points of islices itself are left out. The function does not import the objects of the entry points.
    """
    found = _found.get(group)
    if found is None:
        with _lock:
            import importlib.metadata

            found = {}
            for point in importlib.metadata.entry_points(group=group):
                if point.dist is not None and point.dist.name.lower() == OWN:
                    continue  # an entry point of an installed version of islices
                # a distribution can be found twice (an editable install, and its metadata on the path)
                claims = found.setdefault(point.name, [])
                if all(point.value != other.value for other in claims):
                    claims.append(point)
            _found[group] = found
    return found


def load(subject: str, name: str, points: list[EntryPoint]) -> Any:
    """Import and return the object of an entry point. `points` are all entry points with this name.

    Raises
    ------
    ValueError
        Several distributions claim the name.
    ImportError
        The object cannot be loaded.
    """
    if len(points) > 1:
        raise ValueError(f"{subject} {name!r} is claimed by {claimants(points)}: uninstall all but one")
    try:
        load_module(points[0].module)
        return points[0].load()
    except (Exception, SystemExit) as error:  # a script that is not meant to be imported raises SystemExit
        raise ImportError(f"{subject} {name!r} ({points[0].value}) failed to load: {error!r}") from error


def claimants(points: list[EntryPoint]) -> str:
    return ", ".join(point.value for point in points)
