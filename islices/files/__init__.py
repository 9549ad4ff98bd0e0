"""Read and write the files of `islices.io`: a manifest, and arrays in .safetensors. SPEC clause 21."""

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
from islices.files.places import file_name, opened, replacing
from islices.files.safetensors import Archive, named, write_arrays

__all__ = [
    "Archive",
    "Contents",
    "Dense",
    "Giver",
    "InPieces",
    "StoredSlices",
    "StoredTable",
    "Written",
    "check_metadata",
    "file_name",
    "flat",
    "named",
    "opened",
    "read_manifest",
    "replacing",
    "write_arrays",
]
