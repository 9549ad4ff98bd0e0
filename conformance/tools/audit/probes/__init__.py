"""The probes, by framework (see `choose` for which module is whose); imported only in worker processes."""
