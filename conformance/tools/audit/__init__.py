"""The audit, which applies the clauses of the specification to each framework's public functions.

probe.py      a row of the table, and the comparison     inputs.py     gradients that most rows give
probes/       the tables, by framework                   keras_backends.py    rows that Keras's backends share
choose.py     which of them     worker.py     makes the calls, in a process     run.py     the processes
show.py       the report        command.py    islices audit
"""
