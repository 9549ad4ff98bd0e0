"""Select cases by profile, name, clause and group. `islices conform` selects cases before any framework is imported,
and its processes select the same cases."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple, get_args

import islices.conformance.checks_kernels
import islices.conformance.checks_optim
import islices.conformance.checks_plugins  # noqa: F401 (each module adds to CHECKS)
from islices.conformance.checks import CHECKS, Check
from islices.conformance.data import GROUPS, Entry, entries, quick_ids
from islices.conformance.ranks.cases import Collective
from islices.conformance.ranks.mistakes import Mistake
from islices.conformance.ranks.running import chosen as ranks_cases
from islices.conformance.report.runs import CLAUSES, MODES
from islices.conformance.variants import Variant

Profile = Literal["quick", "full"]
PROFILES: tuple[Profile, ...] = get_args(Profile)
#: The only mode of adapters in other languages.
COMMAND = "command"

#: The kinds of items: a golden case, a check, or a case that several ranks run together.
Subject = Entry | Check | Collective | Mistake


class Item(NamedTuple):
    """A case in a mode. A run of a variant gives one outcome for each item."""

    subject: Subject
    id: str
    clause: str
    group: str
    mode: str

    @property
    def name(self) -> str:
        return f"{self.id}@{self.mode}"


class Selection(NamedTuple):
    """The chosen subset of all cases.

    Attributes
    ----------
    profile : "quick" or "full"
        "quick" runs the golden cases of `quick_ids`. "quick" also runs the checks, and the cases of the group "ranks",
        whose field `full` is False. "full" runs all cases.
    expression : str
        An expression in the language of pytest's -k; its words match ids and modes. The empty expression selects all
        cases.
    clauses, groups : tuple of str
        The clauses of the specification and the groups of cases to run. An empty tuple selects all clauses or groups.
    """

    profile: Profile = "quick"
    expression: str = ""
    clauses: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()

    def check(self) -> None:
        """Raise ValueError if the expression, a clause or a group is invalid. The message names the option and, for
        clauses and groups, the accepted values."""
        for option, given, accepted in (("--clause", self.clauses, CLAUSES), ("--group", self.groups, GROUPS)):
            for name in given:
                if name not in accepted:
                    raise ValueError(f"{option}: got {name!r}; accepted are {', '.join(accepted)}")
        self._matcher()

    def golden(self, modes: list[str]) -> list[Item]:
        return list(self._of(modes, entries(), self._runs_golden))

    def checks(self, modes: list[str]) -> list[Item]:
        return list(self._of(modes, CHECKS, self._runs_check))

    def ranks(self, modes: list[str]) -> list[Item]:
        """Return the selected cases of the group "ranks", which several ranks run together."""
        return list(self._of(modes, ranks_cases(self.profile == "full"), lambda case, mode: True, "ranks"))

    def _of(self, modes: list[str], subjects: Any, runs: Callable[[Any, str], bool], group: str = "") -> Iterator[Item]:
        wanted = self._matcher()
        for mode in modes:
            for one in subjects:
                item = Item(one, one.id, one.clause, group or one.group, mode)
                if (
                    runs(one, mode)
                    and (not self.clauses or item.clause in self.clauses)
                    and (not self.groups or item.group in self.groups)
                    and wanted(item.name)
                ):
                    yield item

    def _runs_golden(self, entry: Entry, mode: str) -> bool:
        if mode == "traced" and "eager" in entry.flags:
            return False
        return self.profile == "full" or entry.id in quick_ids("host" if mode == COMMAND else mode)

    def _runs_check(self, check: Check, mode: str) -> bool:
        return mode in check.modes and (self.profile == "full" or not check.full)

    def _matcher(self) -> Callable[[str], bool]:
        if not self.expression:
            return lambda name: True
        # the class that implements pytest's -k, whose language users know
        from _pytest.mark.expression import Expression

        try:
            compiled = Expression.compile(self.expression)
        except Exception as error:  # a separate class before pytest 9, a SyntaxError since
            raise ValueError(f"-k: got {self.expression!r}: {error}") from None

        def wanted(name: str) -> bool:
            lowered = name.lower()

            def held(word: str, /, **options: str | int | bool | None) -> bool:
                return word.lower() in lowered

            return compiled.evaluate(held)

        return wanted


def nearest(expression: str) -> list[str]:
    """Return at most three ids, or beginnings of ids, that are similar to words of an expression."""
    words = [w for w in re.findall(r"[\w./-]+", expression.lower()) if w not in ("and", "or", "not")]
    names = {one.id for one in (*entries(), *CHECKS, *ranks_cases(full=True))}
    parts = {"/".join(name.split("/")[:k]) for name in names for k in range(1, name.count("/") + 2)}
    found = [near for word in words for near in difflib.get_close_matches(word, sorted(parts), 3, 0.5)]
    return list(dict.fromkeys(found))[:3]


def how_many(selection: Selection, variant: Variant) -> int:
    """Count the selected cases that a variant would run on a backend with all modes."""
    modes = list(variant.modes or MODES)
    if variant.group:
        return len(selection.ranks(modes))
    return len(selection.golden(modes)) + (0 if variant.golden_only else len(selection.checks(modes)))
