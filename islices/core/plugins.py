"""What is added to islices by entry points: backends, engines, commands.

Of islices itself they are those of the tree that runs, which a checkout's pyproject.toml says: with nothing installed,
too, and whatever another checkout's install says. May import: `islices.core.locks`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from islices.core.locks import Lock, load_module

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

#: The distribution that this package is.
OWN = "islices"

_lock = Lock()
_found: dict[str, dict[str, list[EntryPoint]]] = {}


def entry_points(group: str) -> dict[str, list[EntryPoint]]:
    """Name -> the entry points that claim it in a group, of which there should be one; islices' own names first.

    Nothing of what they name is imported.
    """
    found = _found.get(group)
    if found is None:
        with _lock:
            import importlib.metadata

            own, points = _of_checkout(group), importlib.metadata.entry_points(group=group)
            found = {}
            for point in points if own is None else [*own, *(point for point in points if not _is_own(point))]:
                # one distribution can be seen twice (an editable install and its metadata on the path)
                claims = found.setdefault(point.name, [])
                if all(point.value != other.value for other in claims):
                    claims.append(point)
            _found[group] = found
    return found


def load(what: str, name: str, points: list[EntryPoint]) -> Any:
    """The object that a name's entry points lead to.

    Raises
    ------
    ValueError
        Several claim the name.
    ImportError
        Loading it raises.
    """
    if len(points) > 1:
        raise ValueError(f"{what} {name!r} is claimed by {claimants(points)}: uninstall all but one")
    try:
        load_module(points[0].module)
        return points[0].load()
    except (Exception, SystemExit) as error:  # the latter of a script that nobody meant to be imported
        raise ImportError(f"{what} {name!r} ({points[0].value}) failed to load: {error!r}") from error


def claimants(points: list[EntryPoint]) -> str:
    return ", ".join(point.value for point in points)


def _is_own(point: EntryPoint) -> bool:
    return point.dist is not None and point.dist.name.lower() == OWN


def _of_checkout(group: str) -> list[EntryPoint] | None:
    """What the pyproject.toml beside the package says, None where this is no checkout."""
    file = Path(__file__).resolve().parents[2] / "pyproject.toml"
    if not file.is_file():
        return None
    import tomllib
    from importlib.metadata import EntryPoint

    project = tomllib.loads(file.read_text("utf-8")).get("project", {})
    if project.get("name") != OWN:  # another's, who has copied the package into their own
        return None
    names = project.get("entry-points", {}).get(group, {})
    return [EntryPoint(name, value, group) for name, value in names.items()]
