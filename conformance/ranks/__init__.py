"""Real processes, connected by a real engine, that run a function each: for the suite and the tests.

`run_ranks` starts them and collects what they return; `worker` is what each of them runs.
"""

from islices.conformance.ranks.launch import Finished, Ranks, run_ranks

__all__ = ["Finished", "Ranks", "run_ranks"]
