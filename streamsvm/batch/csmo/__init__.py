"""Exact kernel machines by conjugate SMO."""
