"""Types of arguments and results, written as texts that need no numba.

A type is a dtype's code, as numpy has it, for a number: ``f8``, ``i8``, ``u8``, ``f4``, ``b1``; the same and the number of
dimensions for an array in C order: ``u1:1``; with an ``r`` if it cannot be written to: ``u1:1r``; or types in brackets for a
tuple, after the place of its class for a named one: ``(f8 f8)``, ``streamsvm.core.kernels:Kernel(i8 f8 f8 i8)``. A signature is
types, with a blank between them. ``-`` is no result.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np


class NumberType(NamedTuple):
    """A number of a dtype."""

    dtype: str


class ArrayType(NamedTuple):
    """An array in C order."""

    dtype: str
    ndim: int
    read_only: bool = False


class TupleType(NamedTuple):
    """A tuple; a named one, if it has the place of a class."""

    place: str
    items: tuple[Any, ...]


SignatureType = NumberType | ArrayType | TupleType

#: A block, and no result.
BLOCK_TYPE, NO_RESULT = "u1:1", "-"

_TOKEN = re.compile(r"\s*(?:([\w.]+:[A-Za-z_]\w*|)\(|(\))|([a-z]\d+)(?::(\d)(r?))?|(-))")


def parse_signature(text: str) -> tuple[SignatureType, ...]:
    """Return the types of a signature."""
    open_: list[tuple[str, list[Any]]] = [("", [])]
    at, text = 0, text.strip()
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise ValueError(f"{text!r} is no signature at {text[at:]!r}")
        place, closed, dtype, ndim, read_only, _ = found.groups()
        if place is not None:
            open_.append((place, []))
        elif closed and len(open_) == 1:
            raise ValueError(f"{text!r} is no signature at {text[at:]!r}")
        elif closed:
            group = TupleType(open_[-1][0], tuple(open_.pop()[1]))
            open_[-1][1].append(group)
        elif dtype:
            open_[-1][1].append(ArrayType(dtype, int(ndim), bool(read_only)) if ndim else NumberType(dtype))
        at = found.end()
    if len(open_) > 1:
        raise ValueError(f"{text!r} is no signature: a bracket is open")
    return tuple(open_[0][1])


def format_type(kind: Any) -> str:
    """Return the text of one of numba's types; a TypeError if it has none."""
    from numba import types  # noqa: PLC0415 - only where numba is in use

    kind = types.unliteral(kind)
    if isinstance(kind, types.NoneType):
        return NO_RESULT
    if isinstance(kind, types.Boolean):
        return "b1"
    if isinstance(kind, types.Integer | types.Float):
        return np.dtype(kind.name).str[1:]
    if (
        isinstance(kind, types.Array)
        and kind.layout == "C"
        and isinstance(kind.dtype, types.Integer | types.Float | types.Boolean)
    ):
        return f"{format_type(kind.dtype)}:{kind.ndim}{'' if kind.mutable else 'r'}"
    if isinstance(kind, types.BaseTuple):
        of = getattr(kind, "instance_class", None)
        place = f"{of.__module__}:{of.__qualname__}" if of not in {None, tuple} else ""
        return f"{place}({' '.join(map(format_type, kind.types))})"
    raise TypeError(f"{kind} has no text")


def to_numba_type(kind: SignatureType) -> Any:
    """Return numba's type."""
    from numba import from_dtype, types  # noqa: PLC0415

    if isinstance(kind, NumberType):
        return from_dtype(np.dtype(kind.dtype))
    if isinstance(kind, ArrayType):
        return types.Array(from_dtype(np.dtype(kind.dtype)), kind.ndim, "C", readonly=kind.read_only)
    items = tuple(map(to_numba_type, kind.items))
    if not kind.place:
        return types.Tuple(items)
    module, _, name = kind.place.partition(":")
    of = getattr(import_module(module), name)
    return types.NamedUniTuple(items[0], len(items), of) if len(set(items)) == 1 else types.NamedTuple(items, of)


def to_numba_types(text: str) -> tuple[Any, ...]:
    """Return numba's types of a signature."""
    return tuple(map(to_numba_type, parse_signature(text)))
