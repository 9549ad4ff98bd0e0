"""Sparse gradients over many ranks: all-reduce, row-sharded tables. SPEC clauses 25 and 26.

Whatever moves bytes between ranks is an engine that people already run (torch.distributed, MPI, JAX, TensorFlow); its
adapter is ``collectives.py`` in its framework's folder under backends/. Importing this imports no engine.
"""

from islices.distributed.engines import get_group
from islices.distributed.group import Alone, ArrayGroup, Group, RankError, RankTimeout, Traffic
from islices.distributed.reduce import all_reduce
from islices.distributed.strategy import Link

__all__ = ["Alone", "ArrayGroup", "Group", "Link", "RankError", "RankTimeout", "Traffic", "all_reduce", "get_group"]
