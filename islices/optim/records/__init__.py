"""One module per optimizer, with its public function, and its record of rules, numbers, states and defaults."""
