"""MPI: an engine of `islices.distributed` and no arrays of its own, so that it is not in a framework's folder."""
