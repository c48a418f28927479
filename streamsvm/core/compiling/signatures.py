"""Argument and result types of compiled functions, written as text, so that they can be used without importing numba.

A number is written as numpy's code of its dtype: ``f8``, ``i8``, ``u8``, ``f4``, ``b1``. An array in C order has the number of
dimensions after a colon: ``u1:1``; and an ``r`` if it is read-only: ``u1:1r``. A tuple is its types in brackets, after the import
path of its class if it is a NamedTuple: ``(f8 f8)``, ``streamsvm.core.kernels:Kernel(i8 f8 f8 i8)``. A signature is a list of
types, separated by blanks. ``-`` stands for no result.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np


class NumberType(NamedTuple):
    """A number with a dtype."""

    dtype: str


class ArrayType(NamedTuple):
    """An array in C order."""

    dtype: str
    ndim: int
    read_only: bool = False


class TupleType(NamedTuple):
    """A tuple; a NamedTuple if it has the import path of a class."""

    path: str
    items: tuple[Any, ...]


SignatureType = NumberType | ArrayType | TupleType

#: The type of the block of a model, and the text for no result.
BLOCK_TYPE, NO_RESULT = "u1:1", "-"

_TOKEN = re.compile(r"\s*(?:([\w.]+:[A-Za-z_]\w*|)\(|(\))|([a-z]\d+)(?::(\d)(r?))?|(-))")


def parse_signature(text: str) -> tuple[SignatureType, ...]:
    """Parse argument types written as text, such as ``"u1:1 f8 i8"`` (a byte array, a float64 and an int64), into a tuple of
    types. Raises ValueError if the text is invalid.
    """
    groups: list[tuple[str, list[Any]]] = [("", [])]
    position, text = 0, text.strip()
    while position < len(text):
        token = _TOKEN.match(text, position)
        if token is None:
            raise ValueError(f"invalid signature {text!r} at {text[position:]!r}")
        path, closing, dtype, ndim, read_only, _ = token.groups()
        if path is not None:
            groups.append((path, []))
        elif closing and len(groups) == 1:
            raise ValueError(f"invalid signature {text!r} at {text[position:]!r}")
        elif closing:
            tuple_type = TupleType(groups[-1][0], tuple(groups.pop()[1]))
            groups[-1][1].append(tuple_type)
        elif dtype:
            groups[-1][1].append(ArrayType(dtype, int(ndim), bool(read_only)) if ndim else NumberType(dtype))
        position = token.end()
    if len(groups) > 1:
        raise ValueError(f"invalid signature {text!r}: a bracket is not closed")
    return tuple(groups[0][1])


def to_numba_type(signature_type: SignatureType) -> Any:
    """Convert a parsed type (a `NumberType`, `ArrayType` or `TupleType`) to the numba type."""
    from numba import from_dtype, types  # noqa: PLC0415

    if isinstance(signature_type, NumberType):
        return from_dtype(np.dtype(signature_type.dtype))
    if isinstance(signature_type, ArrayType):
        return types.Array(
            from_dtype(np.dtype(signature_type.dtype)), signature_type.ndim, "C", readonly=signature_type.read_only
        )
    items = tuple(map(to_numba_type, signature_type.items))
    if not signature_type.path:
        return types.Tuple(items)
    module, _, name = signature_type.path.partition(":")
    tuple_class = getattr(import_module(module), name)
    if len(set(items)) == 1:
        return types.NamedUniTuple(items[0], len(items), tuple_class)
    return types.NamedTuple(items, tuple_class)


def to_numba_types(text: str) -> tuple[Any, ...]:
    """Convert argument types written as text, such as ``"u1:1 f8"``, to a tuple of numba types. Raises ValueError if the text is
    invalid.
    """
    return tuple(map(to_numba_type, parse_signature(text)))
