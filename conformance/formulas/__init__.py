"""Formulas of optimizers as frameworks document them, vectors with proven bounds, and `judge`, which tests any kernel.

Each formula of a framework is a record in a table (`records`) that selects one of a few rules (`rules`) and its
options. There are two evaluations of the rules. `bounded` computes in 64 decimal digits, with a bound on the error of
any faithful float32 evaluation; the results are the vectors. `numbers` computes in float64, also with deliberate
mistakes (`mutants`); the mistakes show that the vectors detect wrong formulas. `judge` compares an implementation with
the vectors. SPEC clause 28 states the bound, and `bounded` proves it.
"""
