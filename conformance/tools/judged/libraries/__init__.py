"""The judged libraries. Each library has a module, which defines `LIBRARY` (the name of the library's distribution) and
`entries()`."""
