"""Exact kernel machines, solved by conjugate SMO (sequential minimal optimisation)."""
