"""Each framework's own calls, one module a framework: what its users write without islices.

A module has
    own_calls(operation, values, indices, num_rows, max_norm) -> {label: call}
        For the bench: its ways to do what islices' "coalesce", "to_dense", "norm" or "clip_by_global_norm" does, on its
        own arrays, to native sparse objects or pairs (values, indices). The caller waits (`block`) for what is computed
        later. A remark in brackets at a label's end says what a way leaves out.
    embedding_gradient(ids, upstream, num_rows, padding_idx)
        The sparse gradient of its own layer (not NumPy, which has none).
    dense_gradient(table, lookups) -> (gradient, [gradient of the weights, or None, of each lookup])
        The gradient of the whole table, by its own dense autodiff, of the loss sum(lookup * upstream) summed over
        lookups, a sequence of (ids, upstream, options): rows one by one without options, bags with
        {"combiner", "offsets", "weights"}. NumPy arrays in and out (not NumPy, which has none).
    weighted_sum(rows, weights)
        sum(rows * weights) of its own arrays: a loss whose gradient at rows is weights, to the bit (not NumPy).
    trainable(array)
        A NumPy array as its users hold weights: what changes in place, where the framework has that.
    invalid_gradients() -> {label: (call that builds it, name of the error islices answers with)}
        Native objects that contradict themselves.
    block(x)
        Wait until x is computed.
"""
