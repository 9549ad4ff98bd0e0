"""The audit compares the public functions of each framework with the clauses of the specification.

probe.py         `Probe`, one call of a framework with the expected answer, and the comparison of answers
probe_inputs.py  gradients that most probes use
probes/          the tables of probes, by framework
prober.py        makes the calls, in a separate process
findings.py      runs these processes, and writes the report
command.py       defines `islices audit`
"""
