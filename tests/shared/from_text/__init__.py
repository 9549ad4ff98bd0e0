"""An adapter of the line protocol, written only from the text of the specification's clauses 1 to 16, 18 and 19.

Its author had read neither the oracles nor the library's formulas. If it differs from the vectors, it has a bug or
the text is ambiguous. It imports NumPy and not islices.

    arrays.py    numbers with one rounding, slices, the protocol's values (clauses 1 to 6, 13, 15)
    norms.py     norms of any order, clips (7 to 10)
    lookups.py   lookups, padding, bags, samples (12, 14, 19)
    steps.py     optimizers (16)
"""
