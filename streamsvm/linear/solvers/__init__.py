"""Solvers of linear machines over a block file."""
