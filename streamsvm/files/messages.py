"""Words for things from outside, in messages: values of any kind, and packages that are missing."""

from __future__ import annotations

import csv
import functools
import io
import operator
import types
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any


class MissingPackageError(ModuleNotFoundError):
    """A package of an extra is not installed. The message is one line, with the command that installs it."""


def missing_package_error(what: str, needs: str, extra: str, error: ImportError) -> MissingPackageError:
    """Return the error to raise where the import of the packages of an extra failed, without which ``what`` cannot be done.

    ``needs`` are their names as pip knows them. Where a package is there and cannot be imported, the message has the reason.

    >>> raise missing_package_error("streamsvm.batch", "scikit-learn", "batch", ModuleNotFoundError("No module named 'sklearn'"))
    Traceback (most recent call last):
        ...
    streamsvm.files.messages.MissingPackageError: streamsvm.batch needs scikit-learn: pip install "streamsvm[batch]"
    """
    reason = "" if isinstance(error, ModuleNotFoundError) else f", and the import fails ({' '.join(str(error).split())})"
    text = f'{what} needs {needs}{reason}: pip install "streamsvm[{extra}]"'
    return MissingPackageError(text, name=error.name, path=error.path)


def short_repr(value: object) -> str:
    """Return the repr of a value for a message: of a long one its beginning, in a time that does not grow with it.

    An object that holds others, other than a plain container, is shown by its class: its repr may be of any length.

    >>> nested = [1]
    >>> for _ in range(60):
    ...     nested = [nested, nested]
    >>> short_repr(nested)
    '[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1], [1]], [[1], ...'
    """
    text = ""
    for piece in _repr_pieces(value):
        text += piece
        if len(text) > _SHOWN:
            return f"{text[: _SHOWN - 3]}..."
    return text


_SHOWN = 80  # characters
_BRACKETS: dict[type, tuple[str, str]] = {list: ("[", "]"), tuple: ("(", ")"), set: ("{", "}"), frozenset: ("frozenset({", "})")}


def _repr_pieces(value: Any) -> Iterator[str]:
    # The parts of a repr, one after the other.
    kind = type(value)
    if kind in (set, frozenset) and not value:
        yield repr(value)
    elif kind in _BRACKETS:
        opening, closing = _BRACKETS[kind]
        yield opening
        for number, inner in enumerate(value):
            yield ", " if number else ""
            yield from _repr_pieces(inner)
        yield ("," if kind is tuple and len(value) == 1 else "") + closing
    elif kind is dict:
        yield "{"
        for number, (key, inner) in enumerate(value.items()):
            yield ", " if number else ""
            yield from _repr_pieces(key)
            yield ": "
            yield from _repr_pieces(inner)
        yield "}"
    elif kind in (str, bytes, bytearray):
        yield repr(value[: _SHOWN + 1])
    elif kind is int and value.bit_length() > 4 * _SHOWN:
        yield hex(value)[: _SHOWN + 1]
    elif isinstance(value, _HOLDERS) or kind.__module__.partition(".")[0] in ("river", "streamsvm"):
        yield f"<{kind.__name__}>"
    else:
        yield repr(value)


#: Objects whose repr is made of those of others.
_HOLDERS = (list, tuple, dict, set, frozenset, deque, functools.partial, operator.itemgetter, types.MethodType)


def quote_name(text: str) -> str:
    """Return a name or a kind as it stands in ``--columns``: in quotes where it has one of the characters that mean something.

    >>> quote_name("last, first"), quote_name("city")
    ('"last, first"', 'city')
    """
    return '"' + text.replace('"', '""') + '"' if set(text) & set(',:"*') or text != text.strip() or not text else text


def shorten(text: str, most: int) -> str:
    """Put a text on one line, and shorten it to ``most`` characters."""
    text = " ".join(text[: 10 * most].split())
    return text if len(text) <= most else f"{text[: most - 3]}..."


def split_names(text: str) -> list[str]:
    """Return the names of a list with commas; one that has a comma itself stands in quotes.

    Raises ValueError if the text is not such a list.

    >>> split_names('age, "last, first",job')
    ['age', 'last, first', 'job']
    """
    try:
        return [name for name in next(csv.reader([text], skipinitialspace=True), []) if name]
    except csv.Error as error:
        raise ValueError(f"{text[:80]} is no list with commas: {error}") from None


def join_names(values: Iterable[str]) -> str:
    """Return a list of names as `split_names` reads it.

    >>> join_names(["age", "last, first"])
    'age,"last, first"'
    """
    line = io.StringIO()
    csv.writer(line, lineterminator="\r\n").writerow(values)  # quotes names with one of these characters
    text = line.getvalue()[:-2]
    return text if text != "--" else '"--"'  # which alone means something else on a command line
