"""The container of row-sparse gradients, its conversions, and the basic operations on gradients."""
