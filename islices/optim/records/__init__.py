"""The optimizers, a record each: rules, numbers, state and defaults under every semantics, beside its function."""
