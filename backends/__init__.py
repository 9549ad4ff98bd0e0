"""The adapters, one folder a framework: what each supplies of `islices.Backend`; and one folder an engine (`mpi`) of
`islices.distributed` that is no framework's: a framework's engine is ``collectives.py`` in its folder."""
