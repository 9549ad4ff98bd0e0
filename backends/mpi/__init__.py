"""MPI, an engine of `islices.distributed`. MPI has no arrays, so it belongs to no framework's folder."""
