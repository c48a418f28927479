"""Kernel machines by ADMM on a compressed kernel matrix."""
