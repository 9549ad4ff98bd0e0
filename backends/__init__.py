"""The adapters: one folder per framework, and one folder per engine that only `islices.distributed` uses (`mpi`).

A framework's engine is ``collectives.py`` in its folder.
"""
