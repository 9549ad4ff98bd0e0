"""Each framework's calls as its users write them without islices, one module per framework.

A module has the functions of docs/adapter_author.md, like the module of a plug-in's adapter. NumPy's has fewer, because
it has no layers and no autodiff. For tools and tests of only these frameworks, each also has
    timed_calls(operation, values, indices, num_rows, max_norm) -> {label: call}
        The bench calls the framework's equivalents of islices' "coalesce", "to_dense", "norm" or
        "clip_by_global_norm". They take native sparse objects, or pairs (values, indices) of the framework's arrays.
        The caller waits (`block`) for asynchronous results. A remark in brackets at a label's end describes omitted
        work.
"""
