"""Optimizers as frameworks document them: formulas, vectors with proven bounds, and a judge of anyone's kernel.

Each formula of a framework is a record of a table (`records`) over a few rules (`rules`), which are evaluated three
times: in 64 decimal digits with a bound of the error that any faithful float32 evaluation may have (`bounded`), which
gives the vectors; over float64 arrays (`plain`), wrong on purpose (`mutants`), which shows that the vectors tell wrong
formulas; and by those who are judged (`judge`). SPEC clause 28 states the bound and proves it.
"""
