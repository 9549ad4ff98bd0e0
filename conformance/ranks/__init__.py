"""Real processes, connected by a real engine, that each run a function, for the suite and the tests.

`run_ranks` starts them and collects their results; each of them runs `worker`.
"""

from islices.conformance.ranks.launch import Finished, Ranks, run_ranks

__all__ = ["Finished", "Ranks", "run_ranks"]
