"""The formulas of optimizers as frameworks document them, vectors with proven bounds, and `judge`, which tests any
implementation.

Each formula of a framework is a record in a table (`records`) that selects one of a few rules (`rules`) and its
options. Two modules evaluate the rules. `bounded` computes in 64 decimal digits, with a bound on the error of any
faithful float32 evaluation; the vectors contain these results. `numbers` computes in float64. `numbers` also evaluates
formulas with deliberate mistakes (`mutants`), to show that the vectors detect wrong formulas. `judge` compares an
implementation with the vectors. SPEC clause 28 states the bound, and `bounded` proves it.
"""
