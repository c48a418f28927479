"""Programs as C99: one header and one source, which need no library.

They use constants and the stack only, and no other memory.
"""

from streamsvm.export.c.writer import write_c

__all__ = ["write_c"]
