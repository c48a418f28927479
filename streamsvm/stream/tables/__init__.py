"""Tables with categories, dates and missing values: parsing of values, encoding as features, and models for them."""

from streamsvm.stream.tables.encoder import TableEncoder
from streamsvm.stream.tables.model import TableModel
from streamsvm.stream.tables.table_parser import TableParser
from streamsvm.stream.tables.table_schema import TableSchema

__all__ = ["TableEncoder", "TableModel", "TableParser", "TableSchema"]
