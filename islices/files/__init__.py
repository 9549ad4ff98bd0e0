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
    check_metadata,
    flat,
    read_manifest,
)
from islices.files.places import CONTAINERS, container_of, opened, replacing

__all__ = [
    "CONTAINERS",
    "Archive",
    "Container",
    "Contents",
    "Dense",
    "Giver",
    "InPieces",
    "StoredSlices",
    "StoredTable",
    "Written",
    "check_metadata",
    "container_of",
    "flat",
    "named",
    "opened",
    "read_manifest",
    "replacing",
]
