"""Define the code that users of each framework write without islices, in one module per framework. Some functions also
return calls of islices.

Each module has
    zeros(shape)                a float32 table that a step can update, with memory that is already allocated
    updates(kind, values, ids, rows) -> {label: ready}
        An optimizer's step on a table of zeros. Each call of ready() makes a `Way` with a new table.
    small(values, ids, rows, max_norm) -> {operation: {label: call}}
and each module of a framework that differentiates also has
    ones(shape)                 a float32 table of ones
    table(array), total(x)      weights from a NumPy array; the sum of all elements
    compiled(step, tables, states)
        The compiled step, which is called as step(tables, states, *batch) -> (tables, states, result).
    steps(problem) -> {label: ready}
    more_of_ours(problem)       further implementations with islices, if the framework has another usual form
    gradient(table, ids, upstream) -> {label: call}
        The calls of islices, then the calls of the framework.

If a call omits a part of the work, or does other work, its label ends in a remark in brackets.
"""
