"""The code that users of each framework write without islices, one module per framework.

Each has
    zeros(shape), ones(shape)   float32, in an array that updates accept; the system has given its memory
    updates(kind, values, ids, rows) -> {label: ready}
        An optimizer's step on zeros: each ready makes a `Way` with a new table.
    small(values, ids, rows, max_norm) -> {operation: {label: call}}
and those that differentiate
    table(array), total(x)      weights that may be written to, and the sum of all elements
    compiled(step, tables, states)
        The step compiled, called as step(tables, states, *batch) -> (tables, states, result).
    steps(problem) -> {label: ready}
    more_of_ours(problem)       islices by the framework's idiom, where that is another one
    gradient(table, ids, upstream) -> {label: call}
        islices' calls first, then the framework's.

A label ends in a remark in brackets if the framework's call takes another step.
"""
