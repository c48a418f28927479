"""The memory of online models: one block of bytes each, whose size changes only when a model needs another output or column."""
