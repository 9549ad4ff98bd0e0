"""Adapters in any language in the matrix: the golden cases over the line protocol, graded to the bit or within a bound.

run.py      a command's cases, one after the other, as the JSON lines of a report
grade.py    an answer to the outcome of its case
bounds.py   how far from the bits other orders of sums and fused multiply-adds lead, where the specification says
"""
