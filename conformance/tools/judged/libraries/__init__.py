"""The libraries that are judged, a module each: `LIBRARY`, the distribution, and `entries()`."""
