"""Tables as people have them: what the columns hold, and how they become features."""

from streamsvm.stream.tables.encoder import TableEncoder
from streamsvm.stream.tables.model import TableModel
from streamsvm.stream.tables.options import TableReading
from streamsvm.stream.tables.reading import Reading

__all__ = ["Reading", "TableEncoder", "TableModel", "TableReading"]
