"""What changed between two runs: the ratios of islices to the frameworks' own, one run's over the other's.

Ratios, since the runs may come from different machines or hours: where the frameworks became as much slower as islices
did, nothing changed.
"""

from __future__ import annotations

from typing import Any

from islices.conformance.tools.bench.cases import Benchmark
from islices.conformance.tools.bench.tables import Table

__all__ = ["changes"]

#: A change by less than this factor is not told apart from noise.
NOISE = 1.15
#: islices' ways that stand for it, the first that a record has.
OURS = ("islices", "inside")

Key = tuple[str, str, str]


def changes(old: dict[str, Any], new: dict[str, Any]) -> list[Table]:
    """A sentence and a table of all that both runs measured, what became slower first."""
    before, after = _ratios(old), _ratios(new)
    both = sorted(before.keys() & after.keys(), key=lambda key: before[key] / after[key])
    rows = []
    for key in both:
        factor = after[key] / before[key]
        said = "slower" if factor > NOISE else "faster" if factor < 1 / NOISE else ""
        rows.append([*key, f"{before[key]:.2f}", f"{after[key]:.2f}", f"{factor:.2f}", said])
    counts = {word: sum(row[-1] == word for row in rows) for word in ("slower", "faster")}
    text = (
        f"{old['date'][:10]} ({old['machine']['cores']} cores) -> {new['date'][:10]} ({new['machine']['cores']} cores)"
        f": of {len(rows)} measured in both, {counts['slower']} slower and {counts['faster']} faster by more than "
        f"{NOISE - 1:.0%}"
    )
    heads = ("part", "backend", "what", "old islices / own", "new islices / own", "new / old", "change")
    words = frozenset({"part", "backend", "what", "change"})
    return [Table(text, (), []), *([Table("ratios", heads, rows, words, ("part",))] if rows else [])]


def _ratios(run: dict[str, Any]) -> dict[Key, float]:
    """What was measured -> islices / the fastest own way."""
    found: dict[Key, float] = {}
    for record in run["records"]:
        if not record.get("own"):
            continue
        ratios = record["ratios"][record["own"][0]]
        ours = next((ratios[way] for way in OURS if way in ratios), None)
        if ours is not None:
            what = str(Benchmark(**record["case"])) if "case" in record else record["operation"]
            found[record["part"], record["backend"], what] = ours
    return found
