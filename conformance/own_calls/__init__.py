"""Each framework's calls as its users write them without islices, one module per framework.

A module has what docs/adapter_author.md says, as the one that a plug-in's adapter names (NumPy's has less, without
layers and autodiff), and, for the tools and tests that know only these frameworks
    timed_calls(operation, values, indices, num_rows, max_norm) -> {label: call}
        For the bench: its calls that do what islices' "coalesce", "to_dense", "norm" or "clip_by_global_norm" does, on
        its arrays, to native sparse objects or pairs (values, indices). The caller waits (`block`) for what is computed
        later. A remark in brackets at a label's end says what a way leaves out.
"""
