"""Run a function on several ranks, which are processes that an engine connects. The suite and the tests use this
package.

`run_ranks` starts the processes and collects the results. Each process runs `worker`.
"""

from islices.conformance.ranks.launch import Finished, Ranks, run_ranks

__all__ = ["Finished", "Ranks", "run_ranks"]
