"""Explain how two optimizer steps differ: find the optimizer that made each step, and compare both optimizers.

`islices.porting.trajectory` uses this package.
"""
