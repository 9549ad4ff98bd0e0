"""`islices bench`, which compares islices with each framework's calls and with a copy of the bytes, as ratios in one
run.

Machines, loads and frameworks differ, so times say little. Every round runs all implementations of one operation in a
rotating order. The compared numbers are medians of the ratios within a round. Each backend runs in a separate
process. A framework's operations are in `islices.conformance.own_calls`.

    command   the subcommand: which cases, which processes    measuring one process
    rounds    interleaved rounds, medians                     limit     how fast memory moves the bytes that must move
    results   the JSON                                        report    its tables
    load      how busy others keep the cores                  formulas  the optimizers that are measured
    variants  islices' steps                            frameworks/  what the users of each framework write
    and one module a part: operations, small, updates, embedding, step
"""
