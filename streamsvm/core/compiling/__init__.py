"""Compilation of the library's functions: by numba when they are first called, or ahead of time for a wheel.

`functions` has the decorator `compiled`, and calls of compiled functions by their address. Nothing else in the package imports
numba.
"""
