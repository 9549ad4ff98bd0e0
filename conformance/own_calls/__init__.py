"""The calls of each framework as its users write them without islices, one module per framework.

A module has the functions that docs/adapter_author.md lists; a plug-in has such a module as well. The module of NumPy
has fewer functions, because NumPy has no layers and no autodiff. For tools and tests, each module also has
    timed_calls(operation, values, indices, num_rows, max_norm) -> {label: call}
        The framework's equivalents of islices' "coalesce", "to_dense", "norm" or "clip_by_global_norm", for `islices
        bench`. The input is a native sparse object, or a pair (values, indices) of the framework's arrays. The caller
        must wait (`block`) for asynchronous results. A remark in brackets at the end of a label says which work the
        call omits.
"""
