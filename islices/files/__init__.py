"""Save trees of gradients, arrays and tables in .safetensors files, and load them. SPEC clause 21."""

from islices.files.saving import Header, load, read_header, read_metadata, save

__all__ = ["Header", "load", "read_header", "read_metadata", "save"]
