"""The judged libraries, one module each, with `LIBRARY`, the distribution, and `entries()`."""
