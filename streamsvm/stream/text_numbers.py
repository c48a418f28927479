"""Text with numbers, read into a matrix without an object for each row: by msgspec, where it is installed."""

from __future__ import annotations

import itertools
import math
import re
import struct
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

_LONGEST = 1 << 20  # bytes of a row
_PLAIN = re.compile(r'[^"\\\x00-\x1f\ud800-\udfff]*').fullmatch
_CONTROL = re.compile(r"[\x00-\x1f]").search
_LABELS = frozenset((int, float, str, bool, type(None)))
_LARGEST_NUMBER = float(np.finfo(np.float32).max)
_LEAST_INT, _MOST_INT = -(2**63), 2**64 - 1  # beyond these, some parsers read a whole number as a float


class JSONNumbers:
    """Reads JSON objects with fields for some names, and the label: their types are checked while they are parsed.

    What it reads is the same as of Python's json and of orjson. Where that is not certain, or msgspec is not installed, it reads
    nothing.

    Parameters
    ----------
    label
        Name of the label's field. None if there is none.
    """

    def __init__(self, label: str | None) -> None:
        self._label = label
        self._names: list[Hashable] | None = None  # that were asked for last, and how rows with these are read
        self._read: Callable[[bytes], Any] | None = None
        self._fields: Callable[[Any], tuple[Any, ...]] = tuple

    def decode(self, values: Sequence[bytes], names: Sequence[Hashable]) -> tuple[np.ndarray, list[Any]] | None:
        """Return the features, float64 [values, names], and the labels; None where a value has another form.

        A feature that a row does not have is NaN, and a label None.
        """
        if self._names != names:
            self._names = list(names)
            self._prepare(self._names)
        if self._read is None or max(map(len, values)) > _LONGEST:
            return None
        n, fields, labelled = len(names), self._fields, self._label is not None
        X, y = np.empty((len(values), n)), []
        cells, at, size, pack = X.data.cast("B"), 0, X.strides[0], struct.Struct(f"{n}d").pack_into
        try:
            for row in map(self._read, values):
                numbers = fields(row)[:n]
                try:
                    pack(cells, at, *numbers)
                except struct.error:  # of None, which takes long to look for
                    pack(cells, at, *(math.nan if number is None else number for number in numbers))
                at += size
                y.append(row.y if labelled else None)
        except ValueError:  # also text that is not UTF-8
            return None
        return (X, y) if _same(values, X, y) else None

    def _prepare(self, names: list[Hashable]) -> None:
        self._read = None
        texts = [name for name in (*names, self._label) if isinstance(name, str)]
        wanted = len(names) + (self._label is not None)
        # Not of one name, which alone has no order; the label as a feature; or a name that JSON escapes.
        if len(names) < 2 or len(set(texts)) != wanted or not all(map(_PLAIN, texts)):
            return
        try:
            import msgspec  # noqa: PLC0415 - of an extra
        except ImportError:
            return
        told: list[Any] = [(f"f{i}", float | None, None) for i in range(len(names))]
        renamed = {field: text for (field, *_), text in zip(told, texts, strict=False)}
        if self._label is not None:
            told, renamed["y"] = [*told, ("y", Any, None)], self._label
        kind = msgspec.defstruct("Fields", told, rename=renamed, gc=False, forbid_unknown_fields=True)
        self._read, self._fields = msgspec.json.Decoder(kind).decode, msgspec.structs.astuple


def _same(values: Sequence[bytes], X: np.ndarray, y: list[Any]) -> bool:
    """Whether no row is one that parsers read differently: by text with escapes or control characters, or by large numbers."""
    kinds = set(map(type, y))
    if not kinds <= _LABELS or not _within_float32(X):
        return False
    if int in kinds and not all(_LEAST_INT <= label <= _MOST_INT for label in set(y) if type(label) is int):
        return False
    if str not in kinds:
        return True
    return not (any(b"\\" in value for value in values) or any(_CONTROL(label) for label in set(y) if type(label) is str))


def _within_float32(X: np.ndarray) -> bool:
    return not (np.abs(X) > _LARGEST_NUMBER).any()  # as NaN is not


def numbers_between(rows: list[bytes], mark: bytes, width: int) -> np.ndarray | None:
    """Return numbers between marks as a matrix, float64 [rows, width], NaN where there is none; None where a row has others.

    A number that JSON does not have, or that JSON and Python's float do not read alike, counts as something else. So does
    everything where msgspec is not installed.

    Examples
    --------
    >>> numbers_between([b"1,0.5", b"2,"], b",", 2)
    array([[1. , 0.5],
           [2. , nan]])
    >>> numbers_between([b"1,0.5", b"2,spam"], b",", 2) is None
    True
    """
    try:
        import msgspec  # noqa: PLC0415 - of an extra
    except ImportError:
        return None
    if set(map(bytes.count, rows, itertools.repeat(mark))) != {width - 1}:
        return None
    text = b"[" + mark.join(rows) + b"]"
    if mark != b",":
        if b"," in text:
            return None
        text = text.replace(mark, b",")
    filled = b""
    try:
        found = msgspec.json.decode(text, type=list[float])
    except ValueError:
        if len(filled := _filled(text)) == len(text):
            return None
        try:
            found = msgspec.json.decode(filled, type=list[float])
        except ValueError:
            return None
    if len(found) != len(rows) * width:  # where a row has no mark
        return None
    X = np.empty((len(rows), width))
    struct.pack_into(f"{len(found)}d", X.data.cast("B"), 0, *found)
    if filled:
        missing = float(_MISSING) <= X
        if np.count_nonzero(missing) * len(_MISSING) != len(filled) - len(text):
            return None
        X[missing] = math.nan
    # A whole number -0 has lost its sign. No other minus has, but those of exponents.
    letters = np.frombuffer(text, np.uint8)
    minus = letters == ord("-")
    exponents = minus[1:] & (letters[:-1] | 32 == ord("e"))
    if np.count_nonzero(minus) - np.count_nonzero(exponents) != np.count_nonzero(np.signbit(X)):
        return None
    return X if _within_float32(X) else None


#: Stands for a number that is missing: no feature is as large.
_MISSING = b"1e308"


def _filled(text: bytes) -> bytes:
    """Return an array in JSON with a number in the place of each that is missing."""
    for _ in range(2):  # what stands between two that are missing is found for one of them
        text = text.replace(b",,", b"," + _MISSING + b",")
    begin, end = _MISSING * text.startswith(b"[,"), _MISSING * text.endswith(b",]")
    return b"[" + begin + text[1:-1] + end + b"]"
