"""Each framework's calls as its users write them without islices, one module per framework.

A module has the functions of docs/adapter_author.md, like the module of a plug-in's adapter. NumPy's has fewer, because
it has no layers and no autodiff.
"""
