"""Tables as people have them: what the columns hold, and how they become features."""

from streamsvm.tables.encoder import TableEncoder
from streamsvm.tables.reading import Reading

__all__ = ["Reading", "TableEncoder"]
