"""The probes, by framework (see `choose` for which module is whose); imported in worker processes alone."""
