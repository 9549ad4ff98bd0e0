"""MPI, an engine of `islices.distributed` without arrays, which is therefore not in a framework's folder."""
