"""What `islices.io` reads and writes: the manifest of a tree, and the two containers of its arrays. SPEC clause 21."""

from islices.files.containers import Archive, Container, named
from islices.files.manifest import (
    Contents,
    Dense,
    Giver,
    InPieces,
    StoredSlices,
    StoredTable,
    Written,
    read_manifest,
)
from islices.files.npz import NPZ
from islices.files.rows import StoredRows, stored_pieces
from islices.files.safetensors import SAFETENSORS

__all__ = [
    "CONTAINERS",
    "Archive",
    "Container",
    "Contents",
    "Dense",
    "Giver",
    "InPieces",
    "StoredRows",
    "StoredSlices",
    "StoredTable",
    "Written",
    "named",
    "read_manifest",
    "stored_pieces",
]

#: suffix -> kind of file
CONTAINERS = {".safetensors": SAFETENSORS, ".npz": NPZ}
