"""Explain optimizer steps: find the rule that turned one table into the next, and the differences between two rules.

`islices.porting.trajectory` uses this package.
"""
