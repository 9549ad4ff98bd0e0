"""Answer a case of the golden vectors. The case and its answer are JSON."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from from_text import arrays, lookups, norms, steps

#: the operations whose functions have other names
SPECIAL = {f"scatter_{name}": functools.partial(arrays.scatter, name) for name in arrays.UPDATES}


def operation(name: str) -> Callable[..., Any] | None:
    """Return the function of an operation, or None if the modules do not define it."""
    homes = (arrays, norms, lookups, steps)
    return SPECIAL.get(name) or next(filter(None, (getattr(home, name, None) for home in homes)), None)


def infinite(x: Any) -> Any:
    """Convert the strings "inf" and "-inf" to numbers, and return any other argument unchanged. In JSON, an infinite
    order of a norm is a string."""
    return float(x) if isinstance(x, str) and x in ("inf", "-inf") else x


def answer(line: dict[str, Any]) -> dict[str, Any]:
    function = operation(line["op"])
    if function is None:
        return {"unsupported": line["op"]}
    try:
        args = [infinite(arrays.read(x)) for x in line["args"]]
        kwargs = {key: infinite(arrays.read(x)) for key, x in line["kwargs"].items()}
        with np.errstate(all="ignore"):
            return {"ok": arrays.write(function(*args, **kwargs))}
    except arrays.UnsupportedError as why:
        return {"unsupported": str(why)}
    except Exception as error:  # also faults of the adapter: the suite reports them unchanged
        return {"error": type(error).__name__, "message": str(error)}
