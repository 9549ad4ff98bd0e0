"""MPI: an engine of `islices.distributed` without arrays, so it is not in a framework's folder."""
