"""Adapters: batch models on a stream, refitted to a window of the last rows."""
