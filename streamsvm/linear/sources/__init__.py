"""Block files from text, tables and streams."""
