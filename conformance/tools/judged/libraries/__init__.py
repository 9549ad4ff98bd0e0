"""The judged libraries. Each library has a module with `LIBRARY`, the name of its distribution, and `entries()`."""
