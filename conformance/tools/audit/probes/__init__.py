"""The probes, by framework. Only worker processes import them."""
