"""Use MPI as an engine of `islices.distributed`. MPI has no arrays, so this folder contains no backend for arrays."""
