"""Optimizers as frameworks document them, with formulas, vectors with proven bounds, and a judge of any kernel.

Each formula of a framework is a record of a table (`records`) over a few rules (`rules`). Rules are evaluated three
times. `bounded` evaluates them in 64 decimal digits, with a bound on the error of any faithful float32 evaluation; this
gives the vectors. `plain` evaluates them over float64 arrays with deliberate mistakes (`mutants`); this shows that the
vectors detect wrong formulas. The judged implementations are the third evaluation (`judge`). SPEC clause 28 states the
bound and proves it.
"""
