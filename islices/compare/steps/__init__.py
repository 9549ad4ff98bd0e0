"""Explaining steps: what made a table of the one before, of its gradient and its state, and in what two steps differ.

`islices.compare.step` has the function that people call.
"""
