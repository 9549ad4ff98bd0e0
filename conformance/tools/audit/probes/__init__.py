"""The tables of probes, in modules named after frameworks. Only the process of prober.py imports these modules."""
