"""Files that a fit reads and writes: rows in blocks, and their coefficients."""
