"""Train with sparse gradients on many ranks: all-reduce gradients, and shard tables by rows. SPEC clauses 25 and 26.

An engine, such as torch.distributed, MPI, JAX or TensorFlow, sends data between ranks. Each built-in engine has an
adapter, the file ``collectives.py`` in the engine's folder under backends/. Importing this package imports no engine.
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
