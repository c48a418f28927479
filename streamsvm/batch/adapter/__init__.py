"""Batch models on a stream, refitted to a window of its last rows."""
