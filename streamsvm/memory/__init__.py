"""A model's memory: one block of bytes each, fixed in size from construction."""
