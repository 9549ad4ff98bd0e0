"""Explain steps: find the rule that made a table from the previous one, and the differences of two rules.

`islices.porting.compare.step` uses it.
"""
