"""Reads rows that are JSON objects: the source of JSON lines, and a compiled reader of objects into columns."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from streamsvm.core.text_rows import read_objects
from streamsvm.files.messages import is_encodable, short_repr
from streamsvm.stream.lines import ByteStream, can_decode
from streamsvm.stream.object_lines import ObjectLines
from streamsvm.stream.sources import TextSource
from streamsvm.stream.tables.chunk import CachedTextParser, Row, Table, UnparsedRows, Values, concatenate_rows
from streamsvm.stream.tables.column_kinds import DROP
from streamsvm.stream.tables.table_parser import TableParser, TextParserOptions
from streamsvm.stream.tables.values import flatten_row, get_nested_value, normalize_label

_MAX_ROW_BYTES = 1 << 20  # longer rows are parsed one by one
_MIN_NAME_LIMIT, _MAX_NAMES = 64, 4096
_MIN_TEXTS = 8  # a column of numbers with this many texts in a chunk becomes a column of texts
_MAX_NAME_CHECKS = 4  # unparsed rows of one table that are searched for new names
_FIRST_INEXACT_INTEGER = 2.0**53


class JSONObjects:
    """Parses rows of JSON objects into columns, with the compiled `read_objects`, and remembers the columns of earlier rows.

    A column holds numbers until it has had `_MIN_TEXTS` other values. Then its values are parsed in Python and cached. Values are
    those of ``parse``, which raises a ValueError for invalid JSON. A row for which that is not certain is left unparsed.
    ``label`` is the name of the label's field. ``parser`` reads the values of columns; None keeps those of JSON.

    >>> from streamsvm.stream.tables.chunk import concatenate_rows
    >>> rows = [b'{"a": 1, "b": "two", "y": "yes"}', b'{"y": null, "a": 3}', b'{"a": 4.5, "b": [5]}']
    >>> JSONObjects("y", json.loads).parse_table(*concatenate_rows(rows), known_features=["a"])
    Table(names=('a', 'b'), columns=[array([ 1.,  3., nan]), ['two', None, None]], ..., unparsed_rows=[2], ...)
    """

    def __init__(self, label: str | None, parse: Callable[[str], Any], parser: TableParser | None = None) -> None:
        self._label, self._parse, self._parser = label, parse, parser
        self._labels = CachedTextParser(self._parse_label)
        #: The parser of each feature's texts, by the name of the column; None if the column holds numbers.
        self._columns: dict[str, CachedTextParser | None] = {}
        self._names: _FieldNames
        self._add_text_columns(())

    def parse_table(self, data: bytes, begins: np.ndarray, ends: np.ndarray, known_features: Sequence[Hashable]) -> Table | None:
        """Parse JSON objects into a table with one column per field. Object i is ``data[begins[i]:ends[i]]``. ``known_features``
        are the names of the features that the model knows. Return None if many of the objects cannot be parsed together, so that
        Python must parse them one by one.

        If ``known_features`` is empty, integers are ints, as ``parse`` returns them; otherwise they are floats.
        """
        if not len(begins) or (ends - begins).max() > _MAX_ROW_BYTES:
            return None
        # If each row has a few of very many names, a matrix would be mostly empty. The first row shows how many names a row has.
        max_columns = max(_MIN_NAME_LIMIT, 4 * data.count(b":", begins[0], ends[0]))
        if len(self._columns) > max_columns:
            self._columns.clear()
            self._add_text_columns(())
        if len(known_features) <= max_columns:
            self._add_columns({name: None for name in known_features if isinstance(name, str)})
        name_checks = _MAX_NAME_CHECKS
        while True:  # start again when a column is added, or becomes a column of texts
            rows, unparsed, n_texts = _RowReader(data, begins, ends, self._names), UnparsedRows(len(begins)), Counter[str]()
            while rows.read_next():
                if rows.text_column is not None:
                    n_texts[rows.text_column] += 1
                    if n_texts[rows.text_column] == _MIN_TEXTS:
                        self._add_text_columns([rows.text_column])
                        break
                elif name_checks:
                    name_checks -= 1
                    if self._add_columns(self._parse_flat_object(rows.row)):
                        break
                if unparsed.add(rows.i):
                    return None
                rows.skip_row()
            else:
                if known_features or not (large := [name for name in self._names.number_index if rows.has_large_integers(name)]):
                    return self._make_table(rows, unparsed, exact=not known_features)
                self._add_text_columns(large)

    def _parse_flat_object(self, row: bytes) -> Mapping[str, Any]:
        """Parse the bytes of a JSON object into a dict; empty if it is invalid JSON, or contains nested objects or lists."""
        try:
            fields: dict[str, Any] | list[Any] | str | float | None = self._parse(row.decode())
        except (ValueError, RecursionError):
            return {}
        if not isinstance(fields, dict) or any(isinstance(value, dict | list) for value in fields.values()):
            return {}
        return fields

    def _add_columns(self, row: Mapping[str, Any]) -> bool:
        """Add a column to this parser for each field of ``row`` (values by field name) that has no column yet. Return whether any
        column was added.
        """
        new = [name for name in row if name not in self._columns and name != self._label]
        if new and len(self._columns) + len(new) > _MAX_NAMES:
            self._columns.clear()
        self._columns |= dict.fromkeys(new)
        if new:
            parser = self._parser
            self._add_text_columns(
                [name for name in new if isinstance(row[name], str | bool) or (parser and not parser.has_plain_numbers(name))]
            )
        return bool(new)

    def _add_text_columns(self, names: Collection[str]) -> None:
        """From now on, parse the values of the columns ``names`` in Python as texts, instead of as numbers in the compiled
        reader.
        """
        dropped = [] if self._parser is None else [name for name in self._columns if self._parser.get_kind(name) == DROP]
        self._columns |= {name: CachedTextParser(self._make_text_parser(name)) for name in names if name not in dropped}
        numbers = [name for name, texts in self._columns.items() if texts is None and name not in dropped]
        texts = [name for name, texts in self._columns.items() if texts is not None]
        self._names = _FieldNames(numbers, texts if self._label is None else [*texts, self._label], dropped)

    def _make_text_parser(self, name: str) -> Callable[[bytes], Any]:
        """Return a function that converts the JSON text of a field's value (bytes) to the value of the column ``name``; it
        returns None for empty bytes.
        """
        parse, convert = self._parse, None if self._parser is None else self._parser.get_value_parser(name)

        def parse_text(text: bytes) -> Any:
            if text[:1] == b'"' and b"\\" not in text:
                value: Any = text[1:-1].decode()
            else:
                value = parse(text.decode()) if text else None
            return value if convert is None else convert(value)

        return parse_text

    def _parse_label(self, text: bytes) -> Any:
        """Convert the JSON text of a label to a Python object; None if it is empty or null. Raise a ValueError for numbers that
        are not finite.
        """
        y = normalize_label(self._parse(text.decode())) if text else None
        if isinstance(y, float) and not math.isfinite(y):
            raise ValueError("parsers differ in how they read it")
        return y if self._parser is None else self._parser.parse_label(y)

    def _make_table(self, rows: _RowReader, unparsed: UnparsedRows, exact: bool) -> Table:
        names: list[str] = []
        columns: list[Values] = []
        for name in self._columns:
            if name in self._names.skipped or not rows.has_values(name):
                continue
            names.append(name)
            if (texts := self._columns[name]) is not None:
                dates = None if self._parser is None else self._parser.parse_iso_dates(name, rows.iter_inner_texts(name))
                columns.append(texts.parse_texts(rows.get_texts(name), unparsed) if dates is None else dates)
                continue
            values = rows.get_typed_numbers(name) if exact else rows.get_numbers(name)
            columns.append(values if self._parser is None else self._parser.parse_column(name, values))
        if self._names.skipped:
            rows.check_skipped_text(unparsed)
        y = [None] * len(rows) if self._label is None else self._labels.parse_texts(rows.get_texts(self._label), unparsed)
        return Table(tuple(names), columns, y, None, unparsed.rows)


class _FieldNames:
    """The names of fields as JSON text, and the destination of their values: a column of numbers, one of texts, or none."""

    def __init__(self, numbers: Sequence[str], texts: Sequence[str], skipped: Sequence[str]) -> None:
        self.all_names: list[str] = [*numbers, *texts, *skipped]
        self.skipped: frozenset[str] = frozenset(skipped)
        self.number_index: dict[str, int] = {name: i for i, name in enumerate(numbers)}
        self.text_index: dict[str, int] = {name: i for i, name in enumerate(texts)}
        self.number_columns: np.ndarray = np.array([self.number_index.get(name, -1) for name in self.all_names], np.int64)
        self.text_columns: np.ndarray = np.array([self.text_index.get(name, -1) for name in self.all_names], np.int64)
        self.order: np.ndarray = np.arange(len(self.all_names))
        #: Spellings of the names in JSON: the concatenated texts, and the end of each.
        self.spellings: list[tuple[np.ndarray, np.ndarray]] = []
        # A stream either has letters beyond ASCII as they are, or escapes all of them.
        for escaped in (False, True)[: 1 + (not "".join(self.all_names).isascii())]:
            # A lone surrogate can only be escaped.
            written = [json.dumps(name, ensure_ascii=escaped or not is_encodable(name)).encode() for name in self.all_names]
            stops = np.cumsum([len(text) for text in written], dtype=np.int64)
            self.spellings.append((np.frombuffer(b"".join(written), np.uint8), stops))


class _RowReader:
    """Reads JSON objects one after the other into arrays. Row ``i`` is the next one; those before it were read or skipped."""

    def __init__(self, data: bytes, begins: np.ndarray, ends: np.ndarray, names: _FieldNames) -> None:
        self._data, self._begins, self._ends, self._names = data, begins, ends, names
        self._bytes = np.frombuffer(data, np.uint8)
        n, width = len(begins), len(names.number_index)
        self._X, self._is_integer = np.full((n, width), np.nan), np.zeros((n, width), bool)
        self._text_spans = np.full((n, len(names.text_index), 2), -1, np.int64)
        self.i = 0
        #: The column of numbers whose value in row ``i`` is a text, so that the row was not read; None after another failure.
        self.text_column: str | None = None

    def __len__(self) -> int:
        return len(self._begins)

    def read_next(self) -> bool:
        """Read JSON objects into the arrays of this reader until one cannot be read, because it is invalid or has unexpected
        values. Then return True, and the attribute ``i`` is the index of this object. Return False if all objects were read.
        """
        names, first = self._names, self.i
        self.text_column = None
        bits = self._X.view(np.uint64)
        for spelling in tuple(names.spellings):
            out = names.number_columns, names.text_columns, self._X, bits, self._is_integer, self._text_spans
            self.i, name = read_objects(self._bytes, self._begins, self._ends, first, *spelling, names.order, *out)
            self.text_column = names.all_names[name] if name >= 0 else self.text_column
            if self.i > first:
                break
            names.spellings.reverse()
        return self.i < len(self._begins)

    @property
    def row(self) -> bytes:
        """The bytes of the JSON object that `read_next` could not read, where it has stopped."""
        return self._data[self._begins[self.i] : self._ends[self.i]]

    def skip_row(self) -> None:
        """Skip the JSON object that `read_next` could not read, where it has stopped: all its values count as missing."""
        self._X[self.i], self._text_spans[self.i] = np.nan, -1
        self.i += 1

    def has_values(self, name: str) -> bool:
        """Return whether any of the JSON objects has a value in the field ``name``."""
        if name in self._names.text_index:
            return bool((self._text_spans[:, self._names.text_index[name], 0] >= 0).any())
        return not np.isnan(self.get_numbers(name)).all()

    def get_numbers(self, name: str) -> np.ndarray:
        """Return the numbers in the field ``name`` of all JSON objects as float64 [rows]; NaN if an object has no such number."""
        return self._X[:, self._names.number_index[name]]

    def get_typed_numbers(self, name: str) -> Values:
        """Return the numbers in the field ``name`` of all JSON objects, where JSON integers become ints. The result is a float64
        array (NaN for missing) if there are no integers, an int64 array if there are only integers and no value is missing, else
        a list of ints, floats and None.
        """
        numbers, is_integer = self.get_numbers(name), self._is_integer[:, self._names.number_index[name]]
        missing = np.isnan(numbers)
        if not (is_integer & ~missing).any():
            return numbers
        if (is_integer & ~missing).all():
            return numbers.astype(np.int64)
        return [
            None if absent else int(number) if is_whole else number
            for number, is_whole, absent in zip(numbers.tolist(), is_integer.tolist(), missing.tolist(), strict=True)
        ]

    def has_large_integers(self, name: str) -> bool:
        """Return whether the field ``name`` of any JSON object is an integer of at least 2**53, which float64 may not represent
        exactly.
        """
        numbers, is_integer = self.get_numbers(name), self._is_integer[:, self._names.number_index[name]]
        return bool((np.abs(numbers[is_integer]) >= _FIRST_INEXACT_INTEGER).any())

    def get_texts(self, name: str) -> list[bytes]:
        """Return the JSON text of the field ``name`` of each JSON object as bytes; empty for an object without this field."""
        return list(map(self._data.__getitem__, map(slice, *self._text_spans[:, self._names.text_index[name]].T.tolist())))

    def iter_inner_texts(self, name: str) -> Iterator[str]:
        """Yield the string in the field ``name`` of each JSON object, without its quotes. If at least one object has no string
        there, yield nothing at all. Escapes and letters beyond ASCII are not decoded correctly.
        """
        begins, ends = self._text_spans[:, self._names.text_index[name]].T
        if (begins >= 0).all() and (self._bytes[begins] == _QUOTE).all():
            text = self._data.decode("latin-1")
            yield from map(text.__getitem__, map(slice, (begins + 1).tolist(), (ends - 1).tolist()))

    def check_skipped_text(self, unparsed: UnparsedRows) -> None:
        """Check that all JSON objects are valid UTF-8, because the compiled reader does not check the fields that it skips. Add
        the index of each invalid one to ``unparsed``, the rows that Python then parses (and refuses).
        """
        if not self._data[self._begins[0] : self._ends[-1]].isascii():
            for i, (start, stop) in enumerate(zip(self._begins.tolist(), self._ends.tolist(), strict=True)):
                if not can_decode(self._data[start:stop], "utf-8"):
                    unparsed.add(i)


_QUOTE = ord('"')


def _make_unique_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Convert the (name, value) pairs of a JSON object to a dict; raise a ValueError if a name occurs twice."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"two values have the name {short_repr(next(name for name in fields if names.count(name) > 1))}")
    return fields


#: A decoder that refuses an object with a repeated name. Other decoders take the last value.
STRICT_DECODER = json.JSONDecoder(object_pairs_hook=_make_unique_object)


_LIST_HINT = "; in a list of rows, write each on a line of its own (in pandas: to_json(orient='records', lines=True))"


class JSONLinesSource(TextSource):
    """Rows of a file of JSON objects, usually with one on each line. Objects may also have several lines, or no line ends.

    A null is a missing feature. The values of a nested object are columns named by their path, such as
    ``payload.after.amount``. `TextSource` describes the parameters.
    """

    def __init__(self, path: str | Path | ByteStream, label: str | None = None, **options: Unpack[TextParserOptions]) -> None:
        super().__init__(ObjectLines(path if isinstance(path, ByteStream) else ByteStream(path)), label, **options)
        self._objects = JSONObjects(label, STRICT_DECODER.decode, self._parser if self._uses_parser else None)

    def parse_table(self, lines: list[bytes], known_features: Sequence[Hashable]) -> Table | None:
        return self._objects.parse_table(*concatenate_rows(lines), known_features) if self._encoding == "utf-8" else None

    def _parse_object(self, line: str) -> dict[str, Any]:
        """Parse a line of text as a JSON object. Raise a ValueError with the reason if it is not valid JSON, or not an object."""
        hint = _LIST_HINT if line.lstrip()[:1] == "[" or line.rstrip()[-1:] == "," else ""
        try:
            x = STRICT_DECODER.decode(line)
        except (ValueError, RecursionError) as error:
            reason = "nested too deeply" if isinstance(error, RecursionError) else error
            raise ValueError(f"not JSON ({reason}){hint}: {short_repr(line)}") from None
        if not isinstance(x, dict):
            raise ValueError(f"not a JSON object{hint}: {short_repr(line)}")
        return x

    def _parse_passthrough(self, line: str) -> Sequence[Any]:
        x = self._parse_object(line)
        return [get_nested_value(x, name) for name in self.passthrough_names]

    def _parse_line(self, line: str) -> Row:
        x: dict[Any, Any] = self._parse_object(line)
        if "{" in line[1:]:
            x = flatten_row(x, self._label, self._parser.columns_of_kind(DROP))
        y = normalize_label(x.pop(self._label, None)) if self._label is not None else None
        if self._uses_parser:
            x, y = self._parser.parse_row(x.items()), self._parser.parse_label(y)
        if self._uses_parser or "null" in line:
            x = {name: value for name, value in x.items() if value is not None}
        return Row(x, y)
