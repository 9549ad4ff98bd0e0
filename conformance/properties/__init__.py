"""Tests by random input: laws, one call on several backends, and hostile input.

Nothing here is a case of the matrix. ``python -m islices.conformance.properties laws`` looks for counterexamples.
``python -m islices.conformance.properties hostile`` looks for input that ends the process, raises an error that no
caller expects, or leaves something half written.
"""
