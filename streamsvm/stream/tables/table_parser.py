"""Parses the values of a table by the kinds of its columns, and recognises missing values."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import replace
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, TypedDict

import numpy as np

from streamsvm.files.category_names import format_category
from streamsvm.files.messages import guess_label_column, short_repr, suggest_name
from streamsvm.stream.tables.chunk import Table, Values, is_null, to_float_prefix
from streamsvm.stream.tables.column_kinds import (
    CATEGORY,
    DATE,
    DROP,
    KEY,
    NUMBER,
    OTHER_COLUMNS,
    TEXT,
    ColumnKind,
    ColumnKinds,
    parse_columns,
)
from streamsvm.stream.tables.dates import LEAST_EPOCH, datetime_to_seconds, parse_iso_seconds, to_seconds
from streamsvm.stream.tables.quantities import make_number_parser, normalize_number
from streamsvm.stream.tables.values import parse_number

Names = str | Iterable[str]

_DIGITS = re.compile(r"[-+]?\d[\d.,'\s]*")
_NANS = frozenset({"nan", "NaN", "NAN"})
_TEXT_CATEGORY_TYPES = (bytes, Decimal)  # typed values whose text is the name of their category


class ParserOptions(TypedDict, total=False):
    """Keyword arguments of `TableParser`."""

    columns: ColumnKinds
    missing: Names
    decimal: str | None


class TextParserOptions(ParserOptions, total=False):
    """Keyword arguments of `TableParser`, and the encoding of a text file."""

    encoding: str


class TableParser:
    """Parses the values of a table by the kinds of its columns; it has no learned state.

    - A number may come as text, in ASCII digits: ``2020_01`` and ``٣`` are not parsed.
    - A category becomes text without blanks around it. An encoder also takes ``75001.0`` for
      ``75001`` and ``True`` for ``true``, but keeps ``007`` and ``1.10``.
    - A text, such as a message or a title, becomes text like a category.
    - A date becomes seconds since 1970. The unit of a number (s, ms, us or ns) is inferred from its size.
    - Empty text, None, NaN, and the NaT and NA of frames are missing values, and omitted.

    A value that is not of its column's kind is returned unchanged: the learner refuses its row.

    Parameters
    ----------
    columns
        The kind of each column, as a mapping or as text: ``{"id": "drop", "since": "date=%d.%m.%Y"}`` is the same as
        ``"id:drop,since:date=%d.%m.%Y"``. Kinds are ``drop``, ``category``, ``key`` (a category whose last labels a
        `TableEncoder` remembers), ``text`` (sentences), ``date`` (ISO 8601, or
        epochs), ``date=FORMAT`` (as in `datetime.datetime.strptime`, or the unit of numbers: ``s``, ``ms``, ``us`` or ``ns``),
        ``number``, ``quantity`` (also with a limit, such as ``>20``, hexadecimal, or with a magnitude, such as ``1.2K``),
        ``quantity=,|<5|kg|e`` (with a decimal comma, ``>20`` is 25, and the unit or flag ``kg`` or ``e`` may follow a number)
        and ``duration`` (``1:30:00`` or ``PT1H30M``, in seconds). The target of a regression can be a ``quantity`` or
        ``duration``, too. All other columns are numbers, or dropped with ``"*": "drop"``. ``number=NA|-`` and ``category=`` set
        missing-value markers of one column, in place of ``missing``: ``"country:category="`` for a column where ``NA`` is a
        name.
    missing
        Missing-value markers, also of labels: ``["NA", "-999"]``.
    decimal
        The decimal mark, ``"."`` or ``","``, of numbers that are formatted for people, such as ``1.209,28 €``: with thousands
        separators, a currency or a percent sign. None: numbers are written as by programs.
    label
        Name of the column of labels, for `parse_label`.

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

    def __init__(
        self, columns: ColumnKinds = "", *, missing: Names = (), decimal: str | None = None, label: str | None = None
    ) -> None:
        if decimal not in (".", ",", None):
            raise ValueError(f"decimal must be '.', ',' or None, not {decimal!r}")
        self.decimal = decimal
        self.label = label
        self.columns: dict[str, str] = parse_columns(columns)
        self.missing: list[str] = validate_names("missing", missing)
        self._markers = _split_markers(self.missing)
        self._kinds: dict[Hashable, ColumnKind] = {name: ColumnKind.parse(kind) for name, kind in self.columns.items()}
        #: Names of the columns that are keys.
        self.keys: list[str] = [str(name) for name, column in self._kinds.items() if column[:2] == (CATEGORY, KEY)]
        self._other = self._kinds.pop(OTHER_COLUMNS, ColumnKind(NUMBER))
        self._value_parsers = {name: self._make_value_parser(kind) for name, kind in self._kinds.items()}
        self._other_parser = self._make_value_parser(self._other)

    @property
    def options(self) -> dict[str, Any]:
        """The parameters of this parser (``columns``, ``missing``, ``decimal``) that were set, by name."""
        options = {"columns": self.columns, "missing": self.missing, "decimal": self.decimal}
        return {name: value for name, value in options.items() if value}

    def columns_of_kind(self, kind: str) -> list[str]:
        """Return the names of the columns that were declared to have a kind: ``"drop"``, ``"number"``, ``"category"``,
        ``"text"`` or ``"date"``.
        """
        return [str(name) for name, column in self._kinds.items() if column.kind == kind]

    def get_kind(self, name: Hashable) -> str:
        """Return the kind of the column called ``name``: ``"drop"``, ``"number"``, ``"category"``, ``"text"`` or ``"date"``.
        Columns that were not declared are numbers, or dropped if the parser drops all others.
        """
        return self._kinds.get(name, self._other).kind

    def get_date_format(self, name: Hashable) -> str | None:
        """Return the format of the date column called ``name``: a strptime format or the unit of numeric times; None for ISO
        8601.
        """
        return self._kinds.get(name, self._other).format

    def find_column_problem(
        self, columns: Sequence[str], label: str | None, within: Collection[str] = (), columns_needed: bool = True
    ) -> str:
        """Check that a table with these columns has the ``label`` and, if ``columns_needed``, all columns that are declared in
        this parser, and that no name is repeated. Returns a text that describes the first problem; empty without a problem.

        ``within`` are the names of objects that contain nested columns; these can be declared as dropped, too.
        """
        if len(set(columns)) < len(columns):
            return f"two columns have one name, {short_repr(next(name for name in columns if columns.count(name) > 1))}"
        declared = [str(name) for name in self._kinds if name != self.label] if columns_needed else []
        names = declared if label is None else [label, *declared]
        unknown = [name for name in names if name not in columns and not (name in within and self.get_kind(name) == DROP)]
        if not unknown:
            return ""
        missing, advice = repr(unknown[0]), suggest_name(unknown[0], columns)
        if unknown[0] == label and columns:
            guess = f". Perhaps {guess_label_column(columns)!r}" if len(columns) > 1 else ""  # one: the delimiter is another
            missing, advice = f"{missing} for the label", advice or guess
        return f"there is no column {missing}. It has: {', '.join(columns)}{advice}"

    def parse_row(
        self, cells: Iterable[tuple[Hashable, Any]], to_number: Callable[[str], float] = parse_number
    ) -> dict[Hashable, Any]:
        """Parse a row, given as pairs of column name and value. Returns a dict by column with numbers, texts of categories, and
        dates in seconds since 1970. Missing values and dropped columns are left out; invalid values are unchanged. ``to_number``
        converts text to float.

        ``to_number`` converts numbers in text: ``float`` is faster, and correct for text in ASCII without underscores.
        """
        value_parsers, other_parser, x = self._value_parsers, self._other_parser, {}
        for name, value in cells:
            if (parsed := value_parsers.get(name, other_parser)(value, to_number)) is not None:
                x[name] = parsed
        return x

    def get_value_parser(self, name: Hashable) -> Callable[[Any], Any]:
        """Return a function that takes one value of the column called ``name`` and returns the parsed value; None if the value is
        missing, or if the column is dropped.
        """
        return self._value_parsers.get(name, self._other_parser)

    def _make_value_parser(self, column: ColumnKind) -> Callable[..., Any]:
        """Make a function ``parse(value, to_number)`` that returns the parsed value of a column of this kind; None for missing
        values. Its argument ``to_number`` converts text to float, and may be omitted.
        """
        kind, date_format = column.kind, column.format
        parse_notation = make_number_parser(column.format, self.decimal)
        is_plain = column.format is None and self.decimal is None
        texts, numbers = self._markers if column.markers is None else _split_markers(column.markers)

        def parse_value(value: Any, to_number: Callable[[str], float] = parse_number) -> Any:
            if value is None:
                return None
            value_type = type(value)
            if value_type is str:
                value = value.strip()
                if not value or value in texts:
                    return None
                if kind == NUMBER:
                    try:
                        value = to_number(value) if is_plain else parse_notation(value)
                    except ValueError:
                        if value in _NANS:
                            return None
            elif value_type is not float and value_type is not int and value_type is not bool:
                if kind in (CATEGORY, TEXT) and value_type in _TEXT_CATEGORY_TYPES:
                    return _decode_category(value, texts, numbers)
                value = to_plain_value(value)
                if is_null(value) or (texts and isinstance(value, date | time) and not texts.isdisjoint(_format_moment(value))):
                    return None
            if type(value) is float and value != value:
                return None
            if numbers and type(value) in (float, int) and value in numbers:
                return None
            return format_category(value) if kind in (CATEGORY, TEXT) else value

        def parse_date(value: Any, to_number: Callable[[str], float] = parse_number) -> Any:  # noqa: ARG001
            if (value := parse_value(value)) is None:
                return None
            try:
                # A shortcut for the most common format.
                is_text = type(value) is str and value.isascii()
                if date_format is None and is_text and value[4:5] == "-" and value[10:11] not in ("+", "-"):
                    return datetime_to_seconds(datetime.fromisoformat(value))
            except ValueError:
                pass
            try:
                seconds = to_seconds(value, date_format)
            except (ValueError, TypeError, OverflowError):
                return None if str(value) in _NANS else value
            return None if seconds != seconds else seconds

        def drop_value(value: Any, to_number: Callable[[str], float] = parse_number) -> None:  # noqa: ARG001
            return None

        return {DROP: drop_value, DATE: parse_date}.get(kind, parse_value)

    def parse_iso_dates(self, name: Hashable, texts: Iterable[str]) -> np.ndarray | None:
        """Parse all texts of a date column at once to seconds since 1970, float64 [n]. Returns None, so that they must be parsed
        one by one, if the column is not in ISO 8601, or if the texts have different forms or missing-value markers.
        """
        if self.get_kind(name) != DATE or self.get_date_format(name) is not None:
            return None
        texts = list(texts)
        seconds = parse_iso_seconds(texts)
        return seconds if seconds is None or self._markers[0].isdisjoint(texts) else None

    def parse_column(self, name: Hashable, values: Values) -> Values:
        """Parse all values of the column called ``name``, which must not be dropped. Returns an array or a list of the parsed
        values; invalid values are unchanged, and missing ones are NaN or None.
        """
        kind, _, column_markers = self._kinds.get(name, self._other)
        if kind == DATE and isinstance(values, list):
            types = set(map(type, values))
            if types == {str} and (seconds := self.parse_iso_dates(name, values)) is not None:
                return seconds
            values = to_float_prefix(values)[0] if types <= {float, type(None)} else values
        if isinstance(values, np.ndarray) and (
            kind == NUMBER
            or (kind == DATE and values.dtype.kind == "f" and not (np.abs(to_float_prefix(values)[0]) >= LEAST_EPOCH).any())
        ):
            _, number_markers = self._markers if column_markers is None else _split_markers(column_markers)
            if not number_markers or values.dtype == bool:
                return values
            missing = np.isin(values, list(number_markers))
            if values.dtype.kind == "f" or not missing.any():
                return np.where(missing, np.nan, values) if missing.any() else values
            return [None if is_missing else value for is_missing, value in zip(missing.tolist(), values.tolist(), strict=True)]
        parse_value = self.get_value_parser(name)

        def parse_or_keep(value: Any) -> Any:
            try:
                return parse_value(value)
            except ValueError:  # a signalling NaN: its row is refused later, when it is processed singly
                return value

        return list(map(parse_or_keep, values.tolist() if isinstance(values, np.ndarray) else values))

    def parse_table(self, table: Table) -> Table:
        """Return the table with all values and labels parsed, and without the columns that are declared as dropped."""
        kept = table.drop_columns(name for name in table.names if self.get_kind(name) == DROP)
        columns = list(map(self.parse_column, kept.names, kept.columns))
        return replace(kept, columns=columns, y=None if table.y is None else list(map(self.parse_label, table.y)))

    def has_plain_numbers(self, name: Hashable) -> bool:
        """Return whether numbers in text of this column are parsed as by ``float``: the column is numeric, its numbers are not
        quantities or durations, and this parser has no ``decimal`` mark, with which it would also read thousands separators and
        currencies.
        """
        column = self._kinds.get(name, self._other)
        return column.kind == NUMBER and column.format is None and self.decimal is None

    def parse_label(self, y: Any) -> Any:
        """Parse a label or target ``y``. A missing-value marker becomes None. The text of a number that is
        written for people becomes the text of the same number in Python's notation, or a float if the label's column is
        declared as a quantity or duration. All other labels are unchanged.

        Examples
        --------
        >>> parser = TableParser(missing=["NA", "-999"], decimal=",")
        >>> [parser.parse_label(y) for y in ("NA", -999.0, "-999,0", "spam", "1.209,28", "3 %", 1)]
        [None, None, None, 'spam', '1209.28', '3 %', 1]
        """
        texts, numbers = self._markers
        if self.label in self._kinds and isinstance(y, str | date | time):
            return self._value_parsers[self.label](y)
        if isinstance(y, str):
            if y.strip() in texts:
                return None
            with contextlib.suppress(ValueError):
                if _DIGITS.fullmatch(y.strip()):  # with a currency or a unit, such as "EUR 3", it remains a class label
                    y = y if self.decimal is None else normalize_number(y, self.decimal)
                if numbers and parse_number(y) in numbers:
                    return None
            return y
        is_number = numbers and isinstance(y, int | float) and not isinstance(y, bool)
        return None if is_number and y in numbers else y


def _split_markers(texts: Iterable[str]) -> tuple[set[str], set[float]]:
    """Return the texts of missing-value markers as a set, and the values of those texts that are numbers as a set of floats:
    ``"-999"`` is in the first, and -999.0 in the second.
    """
    markers, numbers = set(texts), set()
    for text in markers:
        with contextlib.suppress(ValueError):
            numbers.add(parse_number(text))
    return markers, numbers


def _decode_category(value: bytes | Decimal, texts: set[str], numbers: set[float]) -> str | None:
    """Return the text of a category that has the type bytes or Decimal. Returns None if it is empty, or a missing-value marker:
    ``texts`` are the markers, and ``numbers`` the values of those that are numbers.
    """
    text = value.decode(errors="replace").strip() if isinstance(value, bytes) else str(value)
    is_missing = not text or text in texts or is_null(value)
    if isinstance(value, Decimal) and not is_missing:
        is_missing = float(value) in numbers
    return None if is_missing else text


def _format_moment(moment: date | time) -> tuple[str, str]:
    """Return two texts of a date, datetime or time of day, to be compared with missing-value markers: with the time, and without
    it if it is midnight.
    """
    return str(moment), str(moment).removesuffix(" 00:00:00")


def to_plain_value(value: Any) -> Any:
    """Convert a NumPy scalar or a decimal to a Python number, a duration to seconds, and a period of pandas to the time when it
    begins; other values are unchanged.
    """
    if isinstance(value, np.number | np.bool_):
        value = value.item()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if type(value).__name__ == "Period":  # pandas, which may not be installed
        return value.start_time
    return float(value) if isinstance(value, Decimal) else value


def validate_names(parameter: str, names: Names) -> list[str]:
    """Return the value of a parameter that takes one name or several as a list of names. ``parameter`` is its name for messages.
    Raises ValueError if a name is not text, or is repeated.
    """
    if not isinstance(names, Iterable):
        raise ValueError(f"{parameter} must be a text or a list of texts, not {names!r}")
    names = [names] if isinstance(names, str) else list(names)
    if invalid := [name for name in names if not isinstance(name, str)]:
        raise ValueError(f"{parameter} must be names of columns, not {invalid[0]!r}" if parameter != "missing" else _NOT_TEXT)
    if len(set(names)) < len(names):
        raise ValueError(f"{parameter} has {next(name for name in names if names.count(name) > 1)!r} more than once")
    return names


_NOT_TEXT = "missing must be texts, such as 'NA' or '-999'"
