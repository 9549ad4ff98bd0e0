"""Explaining steps: what made a table of the one before, of its gradient and its state, and in what two steps differ.

`islices.porting.compare.step` has the function that people call.
"""
