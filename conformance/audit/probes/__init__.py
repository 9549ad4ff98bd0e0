"""The probes, by framework: a module's name up to its first underscore says whose; imported in worker processes alone."""
