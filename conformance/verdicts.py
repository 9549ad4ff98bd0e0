"""Decide the outcome of a case. Only this module applies deviations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from islices.conformance.composite_operations import UnsupportedError
from islices.conformance.deviations import Deviation
from islices.conformance.execute import HarnessError


class MismatchError(AssertionError):
    """The error for an unexpected result or exception. ``raised`` is the name of the unexpected exception, or ""."""

    def __init__(self, reason: str, *, raised: str = "", **details: str) -> None:
        super().__init__(reason)
        self.raised, self.details = raised, details


def judge(attempt: Callable[[], None], declared: Deviation | None) -> tuple[str, dict[str, Any]]:
    """Call `attempt`, and return (outcome, details). The attempt raises an exception unless the case passes.

    The outcome is "deviation" only if the case fails as declared. A declared case that passes has the outcome "fail".
    The outcome is "unsupported" for an UnsupportedError. A case without a declaration is also "unsupported" if the case
    needs a primitive that the backend lacks. Any other HarnessError gives "harness error", and all remaining
    errors give "fail".
    """
    try:
        attempt()
    except UnsupportedError as reason:
        return "unsupported", {"reason": str(reason)}
    except Exception as error:
        missing = _missing_primitive(error)
        if missing is not None and declared is None:
            return "unsupported", {"reason": str(missing)}
        if isinstance(error, HarnessError):
            return "harness error", {"reason": str(error)}
        if isinstance(error, AssertionError):
            raised, details = getattr(error, "raised", ""), {"reason": str(error), **getattr(error, "details", {})}
        else:
            raised, details = type(error).__name__, {"reason": f"raised {type(error).__name__}: {error}"}
    else:
        if declared is not None:
            return "fail", {
                "reason": f"declared a deviation ({declared.reason}), but it passes: remove the declaration"
            }
        return "pass", {}
    if declared is not None and raised == declared.raises:
        return "deviation", {"reason": declared.reason, "kind": declared.kind, "issue": declared.issue}
    return "fail", details


def _missing_primitive(error: BaseException | None) -> BaseException | None:
    """Return the first error in the chain of causes that comes from a primitive which the backend lacks, or None. The
    chain begins with the given error."""
    while error is not None and not (isinstance(error, NotImplementedError) and hasattr(error, "primitive")):
        error = error.__cause__
    return error
