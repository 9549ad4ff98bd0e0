"""`islices bench`: islices beside each framework's own calls, and beside what memory allows, as ratios in one run.

Machines, loads and frameworks differ, so a time alone says little. Every round runs all the ways to do one thing one
after the other, in a rotating order, and what is compared are medians over the rounds of the ratios within a round.
Each backend runs in a process of its own. A framework's own calls stand in `islices.conformance.own_calls`.

    command   the subcommand: which cases, which processes, what is written    worker    what such a process does
    cases     what is measured: sizes, ids, dtypes                             rounds    interleaved rounds, medians
    limit     the bytes that must move, and how fast memory moves them         load      how busy others keep the cores
    results   the JSON: its form, its pieces       report    tables (of parts that run when asked for: report_embedding,
                                                             report_keras)
    plot      ratio against size                   compare   two runs
    and one module a part: operations, small, updates (ways in update_ways and fbgemm_ways), memory, imports, keras_fit,
    and embedding (ways in embedding_ways)
"""
