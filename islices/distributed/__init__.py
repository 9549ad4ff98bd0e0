"""Sparse gradients over many ranks: all-reduce, row-sharded tables. SPEC clauses 25 and 26.

Whatever moves bytes between ranks is an engine that people already run (torch.distributed, MPI, JAX, TensorFlow); its
adapter is ``collectives.py`` in its folder under backends/. Importing this imports no engine.
"""

from islices.distributed.engines import get_group
from islices.distributed.fetched import Batch
from islices.distributed.group import Alone, Group, RankError, RankTimeout, Traffic
from islices.distributed.reduce import all_reduce
from islices.distributed.sharded import ShardedTable
from islices.distributed.shards import ShardedHeader, load_sharded, read_sharded_header, save_sharded

__all__ = [
    "Alone",
    "Batch",
    "Group",
    "RankError",
    "RankTimeout",
    "ShardedHeader",
    "ShardedTable",
    "Traffic",
    "all_reduce",
    "get_group",
    "load_sharded",
    "read_sharded_header",
    "save_sharded",
]
