"""Explain optimizer steps: find the rule that computes the table after a step, and the differences between two rules.

`islices.porting.trajectory` uses this package.
"""
