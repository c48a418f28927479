"""Files that a fit of a linear machine reads and writes."""
