"""What does each way to add up a sparse gradient cost? The formulas by which `all_reduce` chooses, for a job of yours.

docs/distributed.md has the table. Ids are drawn by Zipf's law, so ranks share many rows.
"""

import numpy as np

from islices.distributed import Link
from islices.distributed.strategy import choose, costs

ROWS, WIDTH, IDS = 1_000_000, 64, 65_536  # a float32 table, and the ids of one rank in a step
ROW_BYTES, VALUES_BYTES = 4 * WIDTH + 4, 4 * WIDTH
LINK = Link(bandwidth=12.5e9, latency=5e-6)  # 100 Gbit/s

weights = np.arange(1, ROWS + 1) ** -1.1
weights /= weights.sum()


def different(draws: int) -> float:
    """Return how many different rows are expected among so many ids."""
    return float(-np.expm1(draws * np.log1p(-weights)).sum())


def table(ranks: int) -> dict[str, float]:
    """Return the milliseconds of each way: strategies of all_reduce, and all ranks' slices as they are."""
    stored, union = ranks * different(IDS), different(ranks * IDS)
    found = costs(ranks, row_bytes=ROW_BYTES, values_bytes=VALUES_BYTES, rows=ROWS, stored=stored, union=union)
    raw = ranks * IDS * ROW_BYTES * (ranks - 1) / ranks
    times = {name: 1000 * LINK.time(*cost) for name, cost in found.items()}
    return times | {"raw slices": 1000 * LINK.time(raw, ranks - 1), "chosen": times[choose(found, LINK)]}


def main() -> dict[int, dict[str, float]]:
    tables = {ranks: table(ranks) for ranks in (2, 8, 64)}
    for ranks, times in tables.items():
        print(ranks, "ranks:", ", ".join(f"{name} {ms:.2f} ms" for name, ms in times.items()))
    print(f"rows that 64 ranks see together: {different(64 * IDS):,.0f} of {ROWS:,}")
    return tables


if __name__ == "__main__":
    main()
