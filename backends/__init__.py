"""The adapters: one folder per framework, and one folder per engine that only `islices.distributed` uses (`mpi`).

If a framework also has an engine, the engine's code is ``collectives.py`` in the framework's folder.
"""
