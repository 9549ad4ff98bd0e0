"""The adapters, one folder a framework, and one folder an engine of `islices.distributed` alone (`mpi`).

A framework's engine is ``collectives.py`` in its folder.
"""
