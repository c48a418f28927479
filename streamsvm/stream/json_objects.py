"""JSON lines: a source of their rows, and objects as a table, without an object of Python for each."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from streamsvm.core.text_rows import read_objects
from streamsvm.files.messages import short_repr
from streamsvm.stream.lines import ByteStream
from streamsvm.stream.sources import TextSource
from streamsvm.stream.tables.chunk import CachedTextParser, Row, Table, UnparsedRows, Values, concatenate_rows
from streamsvm.stream.tables.column_kinds import DROP
from streamsvm.stream.tables.table_parser import TableParser, TextParserOptions
from streamsvm.stream.tables.values import flatten_row, get_nested_value, normalize_label

_LONGEST = 1 << 20  # bytes of a row
_MANY_NAMES, _MOST_NAMES = 64, 4096
_FEW_TEXTS = 8  # of a column in some rows, from which on it is no column of numbers
_MOST_LOOKS = 4  # at rows with names that may be new, in one table
_FIRST_INEXACT = 2.0**53


class JSONObjects:
    """Reads rows that are JSON objects to columns; it remembers the names and kinds of the columns that have come.

    A column holds numbers until some of its values are texts; then these are read one by one, each once as long as it is
    remembered. The values are those that ``parse`` gives for a JSON text, with a ValueError if it is none. Where that is not
    certain, a row is odd: it is not read. ``label`` is the name of the label's field, ``parser`` how columns are read; None: as
    JSON has them.

    >>> from streamsvm.stream.tables.chunk import concatenate_rows
    >>> rows = [b'{"a": 1, "b": "two", "y": "yes"}', b'{"y": null, "a": 3}', b'{"a": 4.5, "b": [5]}']
    >>> JSONObjects("y", json.loads).table(*concatenate_rows(rows), known=["a"])
    Table(names=('a', 'b'), columns=[array([ 1.,  3., nan]), ['two', None, None]], ..., unparsed_rows=[2], ...)
    """

    def __init__(self, label: str | None, parse: Callable[[str], Any], parser: TableParser | None = None) -> None:
        self._label, self._parse, self._parser = label, parse, parser
        self._labels = CachedTextParser(self._label_of)
        #: The columns of features that have come, with what reads the texts of each; None if it holds numbers.
        self._columns: dict[str, CachedTextParser | None] = {}
        self._names: _Names
        self._add_texts(())

    def table(self, data: bytes, begins: np.ndarray, ends: np.ndarray, known: Sequence[Hashable]) -> Table | None:
        """Return rows as a table; None where many are odd.

        The rows lie in ``data``, each from where it begins to where it ends, int64 [rows]. ``known`` is as for `Chunk.table`. If
        it is empty, whole numbers are integers, as the parser gives them.
        """
        if not len(begins) or (ends - begins).max() > _LONGEST:
            return None
        # A few fields of very many names are soon found by others, and would be most of a matrix. How few, the first row says.
        most = max(_MANY_NAMES, 4 * data.count(b":", begins[0], ends[0]))
        if len(self._columns) > most:
            self._columns.clear()
            self._add_texts(())
        if len(known) <= most:
            self._add_columns({name: None for name in known if isinstance(name, str)})
        looks = _MOST_LOOKS
        while True:  # as often as a column is added, or becomes one of texts
            rows, odd, failed = _Rows(data, begins, ends, self._names), UnparsedRows(len(begins)), Counter[str]()
            while rows.read():
                if rows.text_in is not None:
                    failed[rows.text_in] += 1
                    if failed[rows.text_in] == _FEW_TEXTS:
                        self._add_texts([rows.text_in])
                        break
                elif looks:
                    looks -= 1
                    if self._add_columns(self._fields_of(rows.row)):
                        break
                if odd.add_and_check_limit(rows.i):
                    return None
                rows.leave_out()
            else:
                if known or not (large := [name for name in self._names.column if rows.has_large(name)]):
                    return self._table(rows, odd, exact=not known)
                self._add_texts(large)

    def _fields_of(self, row: bytes) -> Mapping[str, Any]:
        """Return the values of a row by name; none if it is no row, or has values within values."""
        try:
            found: dict[str, Any] | list[Any] | str | float | None = self._parse(row.decode())
        except (ValueError, RecursionError):
            return {}
        if not isinstance(found, dict) or any(isinstance(value, dict | list) for value in found.values()):
            return {}
        return found

    def _add_columns(self, row: Mapping[str, Any]) -> bool:
        """Add the columns of a row, and say whether any is new."""
        new = [name for name in row if name not in self._columns and name != self._label]
        if new and len(self._columns) + len(new) > _MOST_NAMES:
            self._columns.clear()
        self._columns |= dict.fromkeys(new)
        if new:
            read = self._parser
            self._add_texts(
                [name for name in new if isinstance(row[name], str | bool) or (read and not read.has_plain_numbers(name))]
            )
        return bool(new)

    def _add_texts(self, names: Collection[str]) -> None:
        dropped = [] if self._parser is None else [name for name in self._columns if self._parser.get_kind(name) == DROP]
        self._columns |= {name: CachedTextParser(self._reader_of(name)) for name in names if name not in dropped}
        numbers = [name for name, texts in self._columns.items() if texts is None and name not in dropped]
        texts = [name for name, texts in self._columns.items() if texts is not None]
        self._names = _Names(numbers, texts if self._label is None else [*texts, self._label], dropped)

    def _reader_of(self, name: str) -> Callable[[bytes], Any]:
        parse, read = self._parse, None if self._parser is None else self._parser.get_value_parser(name)

        def value_of(text: bytes) -> Any:
            if text[:1] == b'"' and b"\\" not in text:
                value: Any = text[1:-1].decode()
            else:
                value = parse(text.decode()) if text else None
            return value if read is None else read(value)

        return value_of

    def _label_of(self, text: bytes) -> Any:
        y = normalize_label(self._parse(text.decode())) if text else None
        if isinstance(y, float) and not math.isfinite(y):
            raise ValueError("parsers read it differently")
        return y if self._parser is None else self._parser.parse_label(y)

    def _table(self, rows: _Rows, odd: UnparsedRows, exact: bool) -> Table:
        names: list[str] = []
        columns: list[Values] = []
        for name in self._columns:
            if name in self._names.skipped or not rows.have(name):
                continue
            names.append(name)
            if (texts := self._columns[name]) is not None:
                dates = None if self._parser is None else self._parser.parse_iso_dates(name, rows.inner_texts(name))
                columns.append(texts.parse_texts(rows.texts(name), odd) if dates is None else dates)
                continue
            values = rows.typed(name) if exact else rows.numbers(name)
            columns.append(values if self._parser is None else self._parser.parse_column(name, values))
        if self._names.skipped:
            rows.check_letters(odd)
        y = [None] * len(rows) if self._label is None else self._labels.parse_texts(rows.texts(self._label), odd)
        return Table(tuple(names), columns, y, None, odd.rows)


class _Names:
    """Names as JSON has them, and what becomes of their values: numbers, texts, or nothing."""

    def __init__(self, numbers: Sequence[str], texts: Sequence[str], skipped: Sequence[str]) -> None:
        self.all: list[str] = [*numbers, *texts, *skipped]
        self.skipped: frozenset[str] = frozenset(skipped)
        self.column: dict[str, int] = {name: i for i, name in enumerate(numbers)}
        self.place: dict[str, int] = {name: i for i, name in enumerate(texts)}
        self.columns: np.ndarray = np.array([self.column.get(name, -1) for name in self.all], np.int64)
        self.places: np.ndarray = np.array([self.place.get(name, -1) for name in self.all], np.int64)
        self.order: np.ndarray = np.arange(len(self.all))
        #: Ways in which they are written: the texts behind each other, and where each stops.
        self.spellings: list[tuple[np.ndarray, np.ndarray]] = []
        # With letters beyond ASCII as they are, or escaped: a stream has the one or the other.
        for escaped in (False, True)[: 1 + (not "".join(self.all).isascii())]:
            # Half a surrogate pair can only be escaped.
            written = [json.dumps(name, ensure_ascii=escaped or not _is_text(name)).encode() for name in self.all]
            stops = np.cumsum([len(text) for text in written], dtype=np.int64)
            self.spellings.append((np.frombuffer(b"".join(written), np.uint8), stops))


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


class _Rows:
    """Rows of JSON objects, of which those before number ``i`` were read, or left out."""

    def __init__(self, data: bytes, begins: np.ndarray, ends: np.ndarray, names: _Names) -> None:
        self._data, self._begins, self._ends, self._names = data, begins, ends, names
        self._bytes = np.frombuffer(data, np.uint8)
        n, width = len(begins), len(names.column)
        self._X, self._whole = np.full((n, width), np.nan), np.zeros((n, width), bool)
        self._places = np.full((n, len(names.place), 2), -1, np.int64)
        self.i = 0
        #: The name of a number that is a text, for which the row of number ``i`` was not read; None if there is no such one.
        self.text_in: str | None = None

    def __len__(self) -> int:
        return len(self._begins)

    def read(self) -> bool:
        """Read up to a row that is not read, and say whether there is one."""
        names, begin = self._names, self.i
        self.text_in = None
        bits = self._X.view(np.uint64)
        for spelling in tuple(names.spellings):
            out = names.columns, names.places, self._X, bits, self._whole, self._places
            self.i, name = read_objects(self._bytes, self._begins, self._ends, begin, *spelling, names.order, *out)
            self.text_in = names.all[name] if name >= 0 else self.text_in
            if self.i > begin:
                break
            names.spellings.reverse()
        return self.i < len(self._begins)

    @property
    def row(self) -> bytes:
        """The bytes of the row that was not read."""
        return self._data[self._begins[self.i] : self._ends[self.i]]

    def leave_out(self) -> None:
        """Go on after the row that was not read."""
        self._X[self.i], self._places[self.i] = np.nan, -1
        self.i += 1

    def have(self, name: str) -> bool:
        """Whether any row has a value of this name."""
        if name in self._names.place:
            return bool((self._places[:, self._names.place[name], 0] >= 0).any())
        return not np.isnan(self.numbers(name)).all()

    def numbers(self, name: str) -> np.ndarray:
        """Return the numbers of a column, float64 [rows], NaN where a row has none."""
        return self._X[:, self._names.column[name]]

    def typed(self, name: str) -> Values:
        """Return the numbers of a column, of which those that are whole are integers."""
        numbers, whole = self.numbers(name), self._whole[:, self._names.column[name]]
        missing = np.isnan(numbers)
        if not (whole & ~missing).any():
            return numbers
        if (whole & ~missing).all():
            return numbers.astype(np.int64)
        return [
            None if absent else int(number) if is_whole else number
            for number, is_whole, absent in zip(numbers.tolist(), whole.tolist(), missing.tolist(), strict=True)
        ]

    def has_large(self, name: str) -> bool:
        """Whether a column has whole numbers that a float does not tell apart."""
        return bool((np.abs(self.numbers(name)[self._whole[:, self._names.column[name]]]) >= _FIRST_INEXACT).any())

    def texts(self, name: str) -> list[bytes]:
        """Return the values of a column as they are written; nothing where a row has none."""
        return list(map(self._data.__getitem__, map(slice, *self._places[:, self._names.place[name]].T.tolist())))

    def inner_texts(self, name: str) -> Iterator[str]:
        """Give the texts of a column without their quotes, if each row has one; those with escapes or other letters are wrong."""
        begins, ends = self._places[:, self._names.place[name]].T
        if (begins >= 0).all() and (self._bytes[begins] == _QUOTE).all():
            text = self._data.decode("latin-1")
            yield from map(text.__getitem__, map(slice, (begins + 1).tolist(), (ends - 1).tolist()))

    def check_letters(self, odd: UnparsedRows) -> None:
        """Note the rows that are no text: what is skipped is not read."""
        if not self._data[self._begins[0] : self._ends[-1]].isascii():
            for i, (begin, end) in enumerate(zip(self._begins.tolist(), self._ends.tolist(), strict=True)):
                try:
                    self._data[begin:end].decode()
                except UnicodeDecodeError:
                    odd.add(i)


_QUOTE = ord('"')


def _unique_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"two values have the name {short_repr(next(name for name in found if names.count(name) > 1))}")
    return found


#: A parser that refuses an object in which a name stands twice, of which others take the last value.
STRICT = json.JSONDecoder(object_pairs_hook=_unique_object)


_OF_LISTS = "; in a list of rows, write each on a line of its own (in pandas: to_json(orient='records', lines=True))"


class JSONLinesSource(TextSource):
    """Rows of a file with one JSON object on each line.

    A null is a missing feature. The values of an object within the object are columns of their own, named by their path:
    ``payload.after.amount``. `TextSource` describes the parameters.
    """

    def __init__(
        self, path: str | Path | ByteStream, label: str | None = None, **parser_options: Unpack[TextParserOptions]
    ) -> None:
        super().__init__(path, label, **parser_options)
        self._objects = JSONObjects(label, STRICT.decode, self._parser if self._reads else None)

    def table_of(self, lines: list[bytes], known: Sequence[Hashable]) -> Table | None:
        return self._objects.table(*concatenate_rows(lines), known) if self._encoding == "utf-8" else None

    def _fields_of(self, line: str) -> dict[str, Any]:
        hint = _OF_LISTS if line.lstrip()[:1] == "[" else ""
        try:
            x = STRICT.decode(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"not JSON ({error}){hint}: {short_repr(line)}") from None
        if not isinstance(x, dict):
            raise ValueError(f"not a JSON object{hint}: {short_repr(line)}")
        return x

    def _parse_passthrough(self, line: str) -> Sequence[Any]:
        x = self._fields_of(line)
        return [get_nested_value(x, name) for name in self.passthrough_names]

    def _parse_line(self, line: str) -> Row:
        x: dict[Any, Any] = self._fields_of(line)
        if "{" in line[1:]:
            x = flatten_row(x, self._label, self._parser.columns_of_kind(DROP))
        y = normalize_label(x.pop(self._label, None)) if self._label is not None else None
        if self._reads:
            x, y = self._parser.parse_row(x.items()), self._parser.parse_label(y)
        if self._reads or "null" in line:
            x = {name: value for name, value in x.items() if value is not None}
        return Row(x, y)
