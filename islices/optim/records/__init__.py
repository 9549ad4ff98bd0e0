"""One module per optimizer: its function, and its record of rules, numbers, state and defaults per semantics."""
