"""Batch solvers on a stream: fitted anew on a window of the last rows."""
