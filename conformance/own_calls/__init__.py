"""Each framework's calls as its users write them without islices, one module per framework.

A module has the functions of docs/adapter_author.md, like the module of a plug-in's adapter. NumPy's has fewer, because
it has no layers and no autodiff. For tools and tests of only these frameworks, each also has
    timed_calls(operation, values, indices, num_rows, max_norm) -> {label: call}
        For the bench: the framework's equivalents of islices' "coalesce", "to_dense", "norm" or "clip_by_global_norm".
        They work on the framework's arrays, as native sparse objects or pairs (values, indices). The caller waits
        (`block`) for asynchronous results. A remark in brackets at a label's end describes omitted work.
"""
