"""`islices bench`: islices next to each framework's calls, as ratios in one run.

Machines, loads and frameworks differ, so times say little. Every round runs all the ways to do one thing one
after the other, in a rotating order. The compared numbers are medians over the rounds of the ratios within a round.
Each backend runs in a separate process.

    command   the subcommand: which cases, which processes    measuring one process
    rounds    interleaved rounds, medians                     calls     a count of our functions in small calls
    results   the JSON                                        report    its tables
    load      how busy others keep the cores                  rates     the optimizers that are measured
    variants  the ways that run side by side                frameworks/  what the users of each framework write
    and one module a part: operations, step
"""
