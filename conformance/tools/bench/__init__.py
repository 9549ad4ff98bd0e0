"""Compare islices with each framework's calls, and with the time to copy the same bytes (`islices bench`).

Times depend on the machine, on its load and on the frameworks, so the bench compares times as ratios. Every round runs
all implementations of one operation in a rotating order. The relative speed of two implementations is the median, over
all rounds, of the ratios within one round. Each process measures one part on one backend, or one case of the part
"step". The frameworks' calls for the part "operations" are in `islices.conformance.own_calls`.

    command    the subcommand: cases and processes            measuring  one process
    rounds     interleaved rounds, medians                    limit      the time to copy the bytes that must be moved
    results    the JSON of a run                              report     the tables of a run
    load       the load by other processes                    rates      the measured optimizers and their formulas
    variants   implementations of a step                      frameworks/  the code that users of each framework write
    calls      counts the calls in a small call               benchmarks   the gradients of "operations"
    operations, small, updates, embedding, step               the parts, one module each
"""
