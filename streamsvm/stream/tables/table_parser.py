"""How to read a table: the columns to use, their kinds, and the marks of missing values."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, TypedDict

import numpy as np

from streamsvm.files.messages import short_repr
from streamsvm.stream.tables.chunk import Table, Values, is_null, to_float_prefix
from streamsvm.stream.tables.column_kinds import (
    CATEGORY,
    DATE,
    DROP,
    NUMBER,
    OTHER_COLUMNS,
    ColumnKind,
    ColumnKinds,
    parse_columns,
)
from streamsvm.stream.tables.values import LEAST_EPOCH, datetime_to_seconds, parse_iso_seconds, parse_number, to_seconds

Names = str | Iterable[str]

_SIGN = "[-+\u2212]"
_CODES = "USD EUR GBP JPY CHF CNY INR AUD CAD NZD SEK NOK DKK PLN CZK HUF RON RUB UAH TRY ILS ZAR BRL MXN ARS KRW SGD HKD THB"
_CURRENCY = f"(?:[$€£¥₹]|{_CODES.replace(' ', '|')})"
_BLANKS = " \u00a0\u2009\u202f"
_GROUPS = {".": ",", ",": "."}  # what stands between groups of three digits, by the decimal mark
#: Numbers as people write them, by their decimal mark: with marks between groups of three digits, a currency or a percent sign,
#: and the sign before or after.
_WRITTEN = {
    mark: re.compile(
        rf"({_SIGN})?{_CURRENCY}?[{_BLANKS}]?({_SIGN})?"
        rf"((?={re.escape(mark)}?[0-9])(?:[1-9][0-9]{{0,2}}(?:[{group}'\u2019{_BLANKS}][0-9]{{3}})+|[0-9]+)?"
        rf"(?:{re.escape(mark)}[0-9]*)?(?:[eE][-+]?[0-9]+)?)[{_BLANKS}]?(?:%|{_CURRENCY})?({_SIGN})?"
    )
    for mark, group in _GROUPS.items()
}
_IN_PARENTHESES = re.compile(rf"({_CURRENCY}?)[{_BLANKS}]?\(([^()]*)\)")  # of accountants: a negative number
_PLAIN = {mark: str.maketrans({**dict.fromkeys(["'", "\u2019", *_BLANKS, group]), mark: "."}) for mark, group in _GROUPS.items()}
_DIGITS = re.compile(r"[-+]?\d[\d.,'\s]*")
_NANS = frozenset({"nan", "NaN", "NAN"})
_READ_AS_TEXT = (bytes, Decimal)  # types whose values become the texts of categories


class ParserOptions(TypedDict, total=False):
    """The arguments of `TableParser`."""

    columns: ColumnKinds
    missing: Names
    decimal: str | None


class TextParserOptions(ParserOptions, total=False):
    """The arguments of `TableParser`, and the encoding of a table that is text."""

    encoding: str


class TableParser:
    """Reads the values of a table by the kinds of its columns.

    Nothing is learned here.

    - A number is a number, even if it comes as text (in ASCII digits: ``2020_01`` and ``٣`` are not read).
    - The name of a category is text, without blanks around it, whatever type a format has for it: a typed decimal is its text. An
      encoder also reads ``75001.0`` as ``75001`` and ``True`` as ``true``; ``007`` and ``1.10`` stay as they are.
    - A date becomes seconds since 1970; of a number, its size tells the unit (s, ms, us or ns).
    - Empty text, None, NaN, and the NaT and NA of frames are missing, and left out.

    A value that is not of the kind of its column stays as it is: the learner of the row refuses it.

    Parameters
    ----------
    columns
        The kind of each column, as a mapping or as text: ``{"id": "drop", "since": "date=%d.%m.%Y"}`` is the same as
        ``"id:drop,since:date=%d.%m.%Y"``. Kinds are ``drop``, ``category``, ``date`` (ISO 8601, or epochs), ``date=FORMAT`` (as
        in `datetime.datetime.strptime`, or the unit of numbers: ``s``, ``ms``, ``us`` or ``ns``) and ``number``. All other
        columns are numbers, or with ``"*": "drop"`` left out. ``number=NA|-`` and ``category=`` have marks of missing values of
        their own, in the place of ``missing``: ``"country:category="`` for a column in which ``NA`` is a name.
    missing
        Texts and numbers that mean a missing value or a missing label: ``["NA", "-999"]``.
    decimal
        The decimal mark, ``"."`` or ``","``, of numbers in text that are written for people: with marks between groups of three
        digits, a currency or a percent sign, ``1.209,28 €``. None: as programs write them.

    Raises
    ------
    ValueError
        A parameter is invalid.

    Examples
    --------
    >>> parser = TableParser("id:drop,zip:category,since:date=%d.%m.%Y", missing="NA")
    >>> parser.parse_row({"id": "a1", "zip": "01234", "since": "02.01.1970", "age": "NA", "height": "1.80"}.items())
    {'zip': '01234', 'since': 86400.0, 'height': 1.8}
    """

    def __init__(self, columns: ColumnKinds = "", *, missing: Names = (), decimal: str | None = None) -> None:
        if decimal not in (".", ",", None):
            raise ValueError(f"decimal must be '.', ',' or None, not {decimal!r}")
        self.decimal = decimal
        self.columns: dict[str, str] = parse_columns(columns)
        self.missing: list[str] = validate_names("missing", missing)
        self._marks = _marks_of(self.missing)
        self._kinds: dict[Hashable, ColumnKind] = {name: ColumnKind.parse(kind) for name, kind in self.columns.items()}
        self._other = self._kinds.pop(OTHER_COLUMNS, ColumnKind(NUMBER))
        self._readers = {name: self._reader_of(kind) for name, kind in self._kinds.items()}
        self._other_reader = self._reader_of(self._other)

    @property
    def options(self) -> dict[str, Any]:
        """The parameters that differ from the defaults, as plain values."""
        options = {"columns": self.columns, "missing": self.missing, "decimal": self.decimal}
        return {name: value for name, value in options.items() if value}

    def columns_of_kind(self, kind: str) -> list[str]:
        """Return the named columns of a kind."""
        return [str(name) for name, column in self._kinds.items() if column.kind == kind]

    def get_kind(self, name: Hashable) -> str:
        """Return the kind of a column: ``drop``, ``number``, ``category`` or ``date``."""
        return self._kinds.get(name, self._other).kind

    def get_date_format(self, name: Hashable) -> str | None:
        """Return the format of a column of dates; None for ISO 8601."""
        return self._kinds.get(name, self._other).format

    def find_column_problem(self, columns: Sequence[str], label: str | None, within: Collection[str] = ()) -> str:
        """Say why a table with these columns cannot be read; the result is empty if it can be.

        It cannot if a column that you name is not there, or if two columns have the same name. ``within`` has the objects that
        columns are in, which can be dropped, too.
        """
        if len(set(columns)) < len(columns):
            return f"two columns have one name, {short_repr(next(name for name in columns if columns.count(name) > 1))}"
        unknown = [
            name
            for name in [*([] if label is None else [label]), *map(str, self._kinds)]
            if name not in columns and not (name in within and self.get_kind(name) == DROP)
        ]
        if not unknown:
            return ""
        missing = f"{unknown[0]!r} for the label" if unknown[0] == label else repr(unknown[0])
        return f"there is no column {missing}. It has: {', '.join(columns)}"

    def parse_row(
        self, cells: Iterable[tuple[Hashable, Any]], reads: Callable[[str], float] = parse_number
    ) -> dict[Hashable, Any]:
        """Return the values of a row by column, without dropped columns and missing values.

        ``reads`` reads numbers in text: float does where the text has nothing that only Python takes for one.
        """
        readers, other, x = self._readers, self._other_reader, {}
        for name, value in cells:
            if (given := readers.get(name, other)(value, reads)) is not None:
                x[name] = given
        return x

    def get_value_parser(self, name: Hashable) -> Callable[[Any], Any]:
        """Return the function that reads a value of a column; it returns None for missing values and dropped columns."""
        return self._readers.get(name, self._other_reader)

    def _reader_of(self, column: ColumnKind) -> Callable[..., Any]:
        kind, form, decimal = column.kind, column.format, self.decimal
        texts, numbers = self._marks if column.markers is None else _marks_of(column.markers)

        def read(value: Any, reads: Callable[[str], float] = parse_number) -> Any:
            if value is None:
                return None
            given = type(value)
            if given is str:
                value = value.strip()
                if not value or value in texts:
                    return None
                if kind == NUMBER:
                    try:
                        value = reads(value) if decimal is None else parse_number(self.normalize_number(value))
                    except ValueError:
                        if value in _NANS:
                            return None
            elif given is not float and given is not int and given is not bool:
                if kind == CATEGORY and given in _READ_AS_TEXT:
                    return _typed_name(value, texts, numbers)
                value = to_plain_value(value)
                if is_null(value) or (texts and isinstance(value, date) and not texts.isdisjoint(_written(value))):
                    return None
            if type(value) is float and value != value:
                return None
            if numbers and type(value) in (float, int) and value in numbers:
                return None
            return _name_text(value) if kind == CATEGORY else value

        def read_date(value: Any, reads: Callable[[str], float] = parse_number) -> Any:  # noqa: ARG001
            if (value := read(value)) is None:
                return None
            try:
                if form is None and type(value) is str and value[4:5] == "-" and value.isascii():  # the usual one, faster
                    return datetime_to_seconds(datetime.fromisoformat(value))
            except ValueError:
                pass
            try:
                seconds = to_seconds(value, form)
            except (ValueError, TypeError, OverflowError):
                return value
            return None if seconds != seconds else seconds

        def drop(value: Any, reads: Callable[[str], float] = parse_number) -> None:  # noqa: ARG001
            return None

        return {DROP: drop, DATE: read_date}.get(kind, read)

    def parse_iso_dates(self, name: Hashable, texts: Iterable[str]) -> np.ndarray | None:
        """Return dates in ISO 8601 that are all written alike, as `parse_row` reads each; None if one is not."""
        if self.get_kind(name) != DATE or self.get_date_format(name) is not None:
            return None
        texts = list(texts)
        seconds = parse_iso_seconds(texts)
        return seconds if seconds is None or self._marks[0].isdisjoint(texts) else None

    def parse_column(self, name: Hashable, values: Values) -> Values:
        """Return the values of a column that is not dropped, each as in `parse_row`."""
        kind, _, own = self._kinds.get(name, self._other)
        if kind == DATE and isinstance(values, list):
            types = set(map(type, values))
            if types == {str} and (seconds := self.parse_iso_dates(name, values)) is not None:
                return seconds
            values = to_float_prefix(values)[0] if types <= {float, type(None)} else values
        if isinstance(values, np.ndarray) and (
            kind == NUMBER
            or (kind == DATE and values.dtype.kind == "f" and not (np.abs(to_float_prefix(values)[0]) >= LEAST_EPOCH).any())
        ):
            marks = (self._marks if own is None else _marks_of(own))[1]
            if not marks or values.dtype == bool:
                return values
            missing = np.isin(values, list(marks))
            if values.dtype.kind == "f" or not missing.any():
                return np.where(missing, np.nan, values) if missing.any() else values
            return [None if mark else value for mark, value in zip(missing.tolist(), values.tolist(), strict=True)]
        read = self.get_value_parser(name)

        def read_or_leave(value: Any) -> Any:
            try:
                return read(value)
            except ValueError:  # of a signalling NaN: the row is refused for it by itself
                return value

        return list(map(read_or_leave, values.tolist() if isinstance(values, np.ndarray) else values))

    def parse_table(self, table: Table) -> Table:
        """Return a table with all columns that are not dropped, read."""
        kept = [place for place, name in enumerate(table.names) if self.get_kind(name) != DROP]
        columns = [self.parse_column(table.names[place], table.columns[place]) for place in kept]
        y = None if table.y is None else [self.parse_label(y) for y in table.y]
        return replace(table, names=tuple(table.names[place] for place in kept), columns=columns, y=y)

    def has_plain_numbers(self, name: Hashable) -> bool:
        """Whether the texts of a column are numbers as programs write them."""
        return self.get_kind(name) == NUMBER and self.decimal is None

    def normalize_number(self, text: str) -> str:
        """Return a number in text as Python writes it.

        Raises
        ------
        ValueError
            It is not a number, or has another decimal mark.

        Examples
        --------
        >>> [TableParser(decimal=".").normalize_number(text) for text in ("1,209.28 €", "$(1,200)", "12.50-")]
        ['1209.28', '-1200', '-12.50']
        >>> TableParser(decimal=",").normalize_number("0.512")
        Traceback (most recent call last):
            ...
        ValueError: '0.512' is no number with the decimal mark ','
        """
        if self.decimal is None:
            return text
        stripped = text.strip()
        if ")" in stripped and (negative := _IN_PARENTHESES.fullmatch(stripped)) is not None:
            stripped = f"-{negative[1]}{negative[2]}"
        match = _WRITTEN[self.decimal].fullmatch(stripped)
        sign, inner, digits, after = ("", "", "", "") if match is None else match.groups("")
        if match is None or len(signs := sign + inner + after) > 1:
            raise ValueError(f"{text!r} is no number with the decimal mark {self.decimal!r}")
        return "-" * (signs not in ("", "+")) + digits.translate(_PLAIN[self.decimal])

    def parse_label(self, y: Any) -> Any:
        """Return a label as a number is written in this table, or None if it is one of the marks for no value.

        Examples
        --------
        >>> parser = TableParser(missing=["NA", "-999"], decimal=",")
        >>> [parser.parse_label(y) for y in ("NA", -999.0, "-999,0", "spam", "1.209,28", "3 %", 1)]
        [None, None, None, 'spam', '1209.28', '3 %', 1]
        """
        texts, numbers = self._marks
        if isinstance(y, str):
            if y.strip() in texts:
                return None
            with contextlib.suppress(ValueError):
                if _DIGITS.fullmatch(y.strip()):  # a name such as "EUR 3" stays one
                    y = self.normalize_number(y)
                if numbers and parse_number(y) in numbers:
                    return None
            return y
        is_number = numbers and isinstance(y, int | float) and not isinstance(y, bool)
        return None if is_number and y in numbers else y


def _marks_of(texts: Iterable[str]) -> tuple[set[str], set[float]]:
    marks, numbers = set(texts), set()
    for text in marks:
        with contextlib.suppress(ValueError):
            numbers.add(parse_number(text))
    return marks, numbers


def _typed_name(value: bytes | Decimal, texts: set[str], numbers: set[float]) -> str | None:
    """Return the text of a value that is typed, and is a name; None if it is one of some marks."""
    text = value.decode(errors="replace").strip() if isinstance(value, bytes) else str(value)
    absent = not text or text in texts or is_null(value)
    if isinstance(value, Decimal) and not absent:
        absent = float(value) in numbers
    return None if absent else text


def _written(moment: date) -> tuple[str, str]:
    return str(moment), str(moment).removesuffix(" 00:00:00")


def to_plain_value(value: Any) -> Any:
    """Return a number of numpy or the decimal module as one of Python, a duration in seconds, and other values as they are."""
    if isinstance(value, np.number | np.bool_):
        value = value.item()
    if isinstance(value, timedelta):
        return value.total_seconds()
    return float(value) if isinstance(value, Decimal) else value


def _name_text(value: Any) -> str:
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def validate_names(parameter: str, names: Names) -> list[str]:
    """Return one name or several as a list; ValueError if one is not text, or comes twice."""
    if not isinstance(names, Iterable):
        raise ValueError(f"{parameter} must be a text or a list of texts, not {names!r}")
    names = [names] if isinstance(names, str) else list(names)
    if wrong := [name for name in names if not isinstance(name, str)]:
        raise ValueError(f"{parameter} must be names of columns, not {wrong[0]!r}" if parameter != "missing" else _NOT_TEXT)
    if len(set(names)) < len(names):
        raise ValueError(f"{parameter} has {next(name for name in names if names.count(name) > 1)!r} more than once")
    return names


_NOT_TEXT = "missing must be texts, such as 'NA' or '-999'"
