"""Row-sparse gradients themselves: the container, its conversions, and the operations that every other package uses."""
