"""Formats foreign values, names and missing packages for error messages and reports."""

from __future__ import annotations

import csv
import difflib
import functools
import io
import operator
import types
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any


class MissingPackageError(ModuleNotFoundError):
    """A package of an optional extra is not installed. The message is one line, with the command that installs it."""


def missing_package_error(feature: str, packages: str, extra: str, error: ImportError) -> MissingPackageError:
    """Return the exception to raise when the import of an optional dependency has failed with ``error``. Its message names the
    ``feature`` that needs ``packages``, and the pip command that installs the optional dependencies ``streamsvm[extra]``.

    ``packages`` are names as pip knows them. If a package is installed but cannot be imported, the message contains the reason.

    >>> raise missing_package_error("streamsvm.batch", "scikit-learn", "batch", ModuleNotFoundError("No module named 'sklearn'"))
    Traceback (most recent call last):
        ...
    streamsvm.files.messages.MissingPackageError: streamsvm.batch needs scikit-learn: pip install "streamsvm[batch]"
    """
    reason = "" if isinstance(error, ModuleNotFoundError) else f", and the import fails ({' '.join(str(error).split())})"
    text = f'{feature} needs {packages}{reason}: pip install "streamsvm[{extra}]"'
    return MissingPackageError(text, name=error.name, path=error.path)


def short_repr(value: object) -> str:
    """Return the repr of a value for an error message, cut to 80 characters. The time is constant, however large the value is.

    Objects that contain others, except built-in containers, are shown as their class name, because their repr may be long.

    >>> nested = [1]
    >>> for _ in range(60):
    ...     nested = [nested, nested]
    >>> short_repr(nested)
    '[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1], [1]], [[1], ...'
    """
    text = ""
    for piece in _repr_pieces(value):
        text += piece
        if len(text) > _MAX_CHARACTERS:
            return f"{text[: _MAX_CHARACTERS - 3]}..."
    return text


_MAX_CHARACTERS = 80
_BRACKETS: dict[type, tuple[str, str]] = {list: ("[", "]"), tuple: ("(", ")"), set: ("{", "}"), frozenset: ("frozenset({", "})")}


def _repr_pieces(value: Any) -> Iterator[str]:
    """Yield the repr of a value piece by piece, so that a caller can stop early when the value is large. Objects that contain
    others, except built-in containers, yield only their class name.
    """
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
        yield repr(value[: _MAX_CHARACTERS + 1])
    elif kind is int and value.bit_length() > 4 * _MAX_CHARACTERS:
        yield hex(value)[: _MAX_CHARACTERS + 1]
    elif isinstance(value, _NESTING_TYPES) or kind.__module__.partition(".")[0] in ("river", "streamsvm"):
        yield f"<{kind.__name__}>"
    else:
        yield repr(value)


#: Types whose repr contains the repr of other objects.
_NESTING_TYPES = (list, tuple, dict, set, frozenset, deque, functools.partial, operator.itemgetter, types.MethodType)


def format_count(n: int, noun: str) -> str:
    """Return a number and a noun, in the plural unless the number is 1.

    >>> format_count(1, "row"), format_count(1200, "row")
    ('1 row', '1,200 rows')
    """
    return f"{n:,} {noun}{'s' * (n != 1)}"


def format_names(names: Iterable[Any], max_names: int) -> str:
    """Return the repr of the first ``max_names`` names, separated by commas, for a message; ``...`` stands for further ones."""
    names = list(map(repr, names))
    return ", ".join(names[:max_names]) + (", ..." if len(names) > max_names else "")


def suggest_name(name: Any, names: Iterable[Any]) -> str:
    """Return the end of an error message that suggests one of ``names`` for a misspelt ``name``; empty if none is similar.

    >>> suggest_name("pirce", ["id", "Price"])
    ". Perhaps 'Price'"
    """
    candidates = {str(candidate).casefold(): candidate for candidate in names if candidate != name}
    similar = difflib.get_close_matches(str(name).casefold(), candidates, 1)
    return f". Perhaps {candidates[similar[0]]!r}" if similar else ""


def guess_label_column(names: Sequence[str]) -> str:
    """Return the name of the column that is probably the label: one called ``y``, ``label``, ``target``, ``class`` or
    ``outcome``, or else the last one.

    >>> guess_label_column(["a", "Class", "b"]), guess_label_column(["a", "b"])
    ('Class', 'b')
    """
    return next((name for name in names if name.lower() in ("y", "label", "target", "class", "outcome")), names[-1])


def quote_name(text: str) -> str:
    """Return a column name for the command-line option ``--columns``: in double quotes if it contains a comma, colon, quote or
    asterisk, has blanks at its ends or is empty, else unchanged.

    >>> quote_name("last, first"), quote_name("city")
    ('"last, first"', 'city')
    """
    return '"' + text.replace('"', '""') + '"' if set(text) & set(',:"*') or text != text.strip() or not text else text


def shorten(text: str, max_characters: int) -> str:
    """Return a text on one line, with each run of whitespace replaced by one blank, and cut to ``max_characters`` with ``...`` at
    its end if it is longer.
    """
    text = " ".join(text[: 10 * max_characters].split())
    return text if len(text) <= max_characters else f"{text[: max_characters - 3]}..."


def split_names(text: str) -> list[str]:
    """Split a comma-separated list of names, where names that contain a comma are in double quotes. Drops empty names.

    Raises ValueError if the text is not a valid list.

    >>> split_names('age, "last, first",job')
    ['age', 'last, first', 'job']
    """
    try:
        return [name for name in next(csv.reader([text], skipinitialspace=True), []) if name]
    except csv.Error as error:
        raise ValueError(f"{text[:80]} is not a comma-separated list: {error}") from None


def is_encodable(text: str) -> bool:
    """Return whether a text can be encoded as UTF-8: it has no lone surrogates, which are halves of a pair."""
    return text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text)


def join_names(values: Iterable[str]) -> str:
    """Join names to a comma-separated list, where names that contain a comma are in double quotes, as `split_names` reads.

    >>> join_names(["age", "last, first"])
    'age,"last, first"'
    """
    line = io.StringIO()
    csv.writer(line, lineterminator="\r\n").writerow(values)  # it quotes names that contain a character of the line end
    text = line.getvalue()[:-2]
    return text if text != "--" else '"--"'  # a bare "--" has a special meaning on the command line
