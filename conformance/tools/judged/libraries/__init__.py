"""The judged libraries. Each library has a module with `LIBRARY`, the name of the library's distribution, and
`entries()`."""
