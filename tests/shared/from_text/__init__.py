"""An adapter of the line protocol, written only from the text of the specification's clauses 1 to 16, 18 and 19.

The author of the adapter had read neither the oracles nor the library's formulas. If a result differs from the vectors,
the adapter or the vectors are wrong, or the specification is ambiguous. The adapter imports NumPy but not islices.

    arrays.py    numbers that are rounded once, slices, the protocol's values (clauses 1 to 6, 13, 15, 18)
    norms.py     norms of any order, clips (7 to 10)
    lookups.py   lookups, padding, bags, samples (12, 14, 19)
    steps.py     optimizers (16)
    answers.py   the call for a case, and its answer
"""
