"""Rows from text, tables and streams to block files."""
