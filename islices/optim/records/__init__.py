"""One module per optimizer or pair of related optimizers, with public functions, rules, numbers, states and records."""
