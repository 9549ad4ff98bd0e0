"""Compare answers of the frameworks' public functions with the clauses of the specification.

probe.py         `Probe`, one call of a framework with the expected answer, and the comparison of answers
probe_inputs.py  gradients and numbers for the probes
probes/          the tables of probes
prober.py        makes the calls, in a separate process
findings.py      runs these processes, and writes the report
command.py       defines `islices audit`
"""
