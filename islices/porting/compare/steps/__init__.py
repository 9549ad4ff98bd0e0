"""Explain steps: the rule that made a table of the one before, its gradient and its state, and the differences of two.

`islices.porting.compare.step` has the function that people call.
"""
