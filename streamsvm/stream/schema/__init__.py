"""Schema inference: the kind of each column of a table, guessed from a sample of its rows, and the options that read it."""
