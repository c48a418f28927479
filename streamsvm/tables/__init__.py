"""Tables as people have them: what a column holds, and how it becomes features."""

from streamsvm.tables.encoder import TableEncoder
from streamsvm.tables.reading import Reading

__all__ = ["Reading", "TableEncoder"]
