"""The memory of a model: one block of bytes, fixed in size until a label comes that needs more."""
