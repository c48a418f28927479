"""Dual descent along the tree of a compressed kernel matrix."""
