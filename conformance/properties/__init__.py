"""Test islices with random input. The tests check algebraic laws, and try hostile arguments and files.

The matrix of the conformance suite does not contain these tests. ``python -m islices.conformance.properties laws``
looks for counterexamples to laws. ``hostile`` looks for calls that end the process, raise an unexpected error, or
change an array that they must not change. ``files`` loads hostile files.
"""
