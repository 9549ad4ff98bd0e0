"""The tables of probes, in modules whose names begin with the name of a framework. Only the process of prober.py
imports these modules."""
