"""The modules of probes, by framework. Only separate processes import these modules."""
