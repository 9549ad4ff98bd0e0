"""The calls that users of a framework write without islices, one module per framework.

Each module except NumPy's defines the functions that docs/adapter_author.md lists. NumPy's module has fewer functions,
because NumPy has no layers and no autodiff. A plug-in can supply a similar module. For `islices bench`, all modules
except MXNet's also have
    timed_calls(operation, values, indices, num_rows, max_norm) -> {label: call}
        The framework's equivalents of one of the islices functions "coalesce", "to_dense", "norm" and
        "clip_by_global_norm". The calls have no arguments, and use the given arrays or a native sparse object of these
        arrays. The caller must wait (`block`) for asynchronous results. A remark such as "(duplicates not summed)" at
        the end of a label says which work the call omits.
"""
