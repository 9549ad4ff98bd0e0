"""The judged libraries. Each library has a module, which defines `LIBRARY` (the name under which the library is
imported) and `entries()`."""
