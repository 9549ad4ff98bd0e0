"""Row-sparse gradients: the container, its conversions, and the operations that all other packages use."""
