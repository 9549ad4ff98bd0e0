"""Estimate the time of each strategy of `all_reduce` for your own job.

docs/distributed.md explains the strategies. The program uses the formulas by which `all_reduce` chooses a strategy. The
ids follow Zipf's law, so that the ranks have many rows in common.
"""

import numpy as np

from islices.distributed.strategy import Cost, choose, costs

ROWS, WIDTH, IDS = 1_000_000, 64, 65_536  # a float32 table, and the ids of one rank in a step
ROW_BYTES = 4 * WIDTH + 4
BANDWIDTH, LATENCY = 12.5e9, 5e-6  # bytes per second and seconds per message: 100 Gbit/s

weights = np.arange(1, ROWS + 1) ** -1.1
weights /= weights.sum()


def different(draws: int) -> float:
    """Return the expected number of distinct rows in `draws` random ids."""
    return float(-np.expm1(draws * np.log1p(-weights)).sum())


def table(ranks: int) -> dict[str, float]:
    """Return the milliseconds of each strategy of `all_reduce`, and of the strategy that `all_reduce` would choose.
    "raw slices" is a gather of all ranks' uncoalesced slices."""
    found = costs(ranks, row_bytes=ROW_BYTES, most=different(IDS), union=different(ranks * IDS))
    raw = Cost(IDS * ROW_BYTES * (ranks - 1), 1)
    times = {
        name: 1000 * (cost.nbytes / BANDWIDTH + cost.collectives * (ranks - 1) * LATENCY)
        for name, cost in {**found, "raw slices": raw}.items()
    }
    return times | {"chosen": times[choose(found, ranks)]}


def main() -> dict[int, dict[str, float]]:
    tables = {ranks: table(ranks) for ranks in (2, 8, 64)}
    for ranks, times in tables.items():
        print(ranks, "ranks:", ", ".join(f"{name} {ms:.2f} ms" for name, ms in times.items()))
    print(f"rows that 64 ranks see together: {different(64 * IDS):,.0f} of {ROWS:,}")
    return tables


if __name__ == "__main__":
    main()
