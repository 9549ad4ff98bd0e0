"""MPI, an engine of `islices.distributed`. MPI has no arrays, so the engine is in no framework's folder."""
