"""The specification's clauses 1 to 16, 18 and 19 written again from only their text, an adapter of the line protocol.

Its author had read neither the oracles nor the library's formulas. If it differs from the vectors, either it has a bug
or the text leaves something open. It imports NumPy and nothing of islices.

    arrays.py    numbers with one rounding, slices, the protocol's values (clauses 1 to 6, 13, 15)
    norms.py     norms of any order, clips (7 to 10)
    lookups.py   lookups, padding, bags, samples (12, 14, 19)
    steps.py     optimizers (16)
"""
