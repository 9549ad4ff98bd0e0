"""What `islices.io` reads and writes: the manifest of a tree, and the two containers of its arrays. SPEC clause 21."""
