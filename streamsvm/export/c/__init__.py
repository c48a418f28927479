"""Programs as C99: one header and one source that need no library.

The only memory that they use is constants and the stack.
"""

from streamsvm.export.c.writer import write_c

__all__ = ["write_c"]
