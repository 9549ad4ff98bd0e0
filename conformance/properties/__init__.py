"""Tests by random input, which check laws, one call on several backends, and hostile input.

These tests are not cases of the matrix. ``python -m islices.conformance.properties laws`` looks for counterexamples.
``python -m islices.conformance.properties hostile`` looks for input that ends the process, raises an error that no
caller expects, or leaves something half written.
"""
