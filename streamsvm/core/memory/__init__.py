"""The memory of a model: one block of bytes, fixed in size from construction."""
