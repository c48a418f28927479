"""A first look at a table: what each column is, by the first rows, and the options that read it so."""
