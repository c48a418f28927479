"""How the library's functions are compiled: by numba when they are first called, or beforehand, for a wheel.

`functions` has the decorator and the calls by address. Nothing else in the package imports numba.
"""
