"""Run the golden cases on adapters in any language over the line protocol. An answer passes, lies within a bound,
fails, or is "unsupported".

run.py           calls an adapter with each case, and writes a report as JSON lines
grade.py         computes the outcome of a case from an adapter's answer
bounds.py        computes how far a result may differ if sums run in another order or multiply-adds are fused
formulas.py      calls an adapter's optimizers, clips and lookups for `islices judge`
command_line.py  parses the option ``--command``
"""
