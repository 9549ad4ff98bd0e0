"""The audit: the clauses of the specification asked of each framework's own public functions.

probe.py      what a question is, and how its answer is judged     inputs.py    gradients that most questions give
probes/       the questions, by framework                          worker.py    asks them, in a process of its own
keras_dense.py    those that Keras' backends share
choose.py     which of them     run.py      the processes          show.py      the findings, for people
command.py    islices audit
"""
