"""Contain the adapters: one folder per framework, and the folder `mpi` for an engine that only `islices.distributed`
uses.

If a framework also has an engine, the adapter of the engine is the file ``collectives.py`` in the framework's folder.
"""
