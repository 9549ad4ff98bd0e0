"""From what happened when a case ran to its outcome; the one place that knows what a deviation is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from islices.conformance.deviations import Deviation
from islices.conformance.execute import HarnessError, UnsupportedError

__all__ = ["MismatchError", "judge"]


class MismatchError(AssertionError):
    """A result, or an exception, that is not the expected one; ``raised`` names the exception, if that is what came."""

    def __init__(self, reason: str, *, raised: str = "", **details: str) -> None:
        super().__init__(reason)
        self.raised, self.details = raised, details


def judge(attempt: Callable[[], None], declared: Deviation | None) -> tuple[str, dict[str, Any]]:
    """(outcome, details) of an attempt, which raises unless all is well.

    A deviation counts only if it fails as it was declared; a declared case that passes is a fail.
    """
    try:
        attempt()
    except UnsupportedError as reason:
        return "unsupported", {"reason": str(reason)}
    except HarnessError as error:
        return "harness error", {"reason": str(error)}
    except AssertionError as error:
        raised, details = getattr(error, "raised", ""), {"reason": str(error), **getattr(error, "details", {})}
    except Exception as error:
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
