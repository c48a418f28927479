"""The memory of a model: one block of bytes, fixed in size from construction."""

from streamsvm import _numba_cache  # noqa: F401 - before anything is compiled
