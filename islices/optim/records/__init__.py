"""One module per optimizer: its public function, and its record with rules, numbers, states and defaults."""
