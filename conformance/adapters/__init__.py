"""Run the golden cases on adapters in any language over the line protocol, and grade them to the bit or within a
bound.

run.py      a command's cases, one after the other, as the JSON lines of a report
grade.py    an answer to the outcome of its case
bounds.py   the bounds that the specification grants to other orders of sums and to fused multiply-adds
"""
