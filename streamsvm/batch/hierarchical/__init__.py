"""Kernel machines by dual descent on a forest of hierarchically compositional kernels."""
