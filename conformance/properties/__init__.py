"""Properties: laws that hold whatever is drawn, the same call on several backends, and hostile input.

Apart from the verdict of the suite: nothing here is a case of the matrix. ``python -m islices.conformance.properties``
looks for counterexamples, ``python -m islices.conformance.properties.hostile`` for input that ends the process, raises
what no caller expects or leaves something half written.
"""
