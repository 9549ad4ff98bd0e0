"""The formulas of optimizers, clips and lookups as frameworks document them, vectors with proven bounds, and `judge`,
which tests any implementation.

Each formula of a framework is a record in a table (`records`) that selects one of a few rules (`rules`, `lookups`) and
its options. The rules compute with one of two classes in `numbers`. `BoundedNumbers` computes in 64 decimal digits
(`bounded`), with a bound on the error of any faithful float32 evaluation; the vectors contain these results. `Numbers`
computes in float64. This class evaluates formulas with deliberate mistakes (`mutants`), to show that the vectors detect
wrong formulas and to name the mistake of a step. `judge` computes the results in the vectors again, and compares an
implementation with these results. SPEC clause 28 states the bound, and `bounded` proves it.
"""
