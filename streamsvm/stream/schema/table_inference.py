"""Infers the kinds of all columns of a table from a sample of its rows, and warns of an unusual header."""

from __future__ import annotations

import contextlib
import itertools
import math
import re
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from datetime import date
from functools import partial
from typing import Any

import numpy as np

from streamsvm.files.messages import shorten, suggest_name
from streamsvm.stream.endpoints import Position, Source, StreamError
from streamsvm.stream.schema.codes import ID_NAME, are_group_ids
from streamsvm.stream.schema.column_inference import (
    MIN_ROWS_TO_JUDGE,
    InferredColumn,
    add_note,
    are_epochs,
    find_invalid_dates,
    format_most_common,
    infer_column,
    infer_date_formats,
    is_number,
    make_kind_option,
    may_group_thousands,
    note_key,
    split_missing_markers,
)
from streamsvm.stream.schema.encoder_options import are_absent_numbers_zero
from streamsvm.stream.schema.labels import (
    MAX_CLASSES,
    MAX_COUNTS,
    TARGET_NOTE,
    infer_label,
    warn_of_falling_times,
    warn_of_labels,
)
from streamsvm.stream.schema.notation import may_be_thousands
from streamsvm.stream.schema.source_sample import SAMPLE_ROWS, SourceSample
from streamsvm.stream.tables.chunk import Chunk, Row, Table, to_float_prefix
from streamsvm.stream.tables.column_kinds import CATEGORY, DATE, DROP, NUMBER, OTHER_COLUMNS, QUANTITY, TEXT, ColumnKind
from streamsvm.stream.tables.dates import is_date, parse_times, to_seconds
from streamsvm.stream.tables.row_order import are_rising
from streamsvm.stream.tables.table_parser import TableParser, to_plain_value
from streamsvm.stream.tables.table_schema import MAX_NAME_LENGTH, TableOptions
from streamsvm.stream.tables.text_encoding import MAX_TEXT_COLUMNS

_THOUSANDS_NOTE = "or with points between thousands"
_MAX_CATEGORIES = 64  # distinct texts of a column that becomes categorical, if one of them is also a label
_MAX_CODE_LENGTH = 6  # letters of a code such as a region's
_MAX_CELLS = 1_000_000  # cells to read from the beginning of a file: a fixed number, so that the result does not depend on time
_CHUNK_ROWS, _ROWS_PER_CHUNK = 1000, 5  # rows read together beyond the sample, and how many of them are examined
_CHUNKS_PER_PART = 4  # chunks read in the middle, and at the end of a file
#: Of a chunk, the number of rows to examine that are not in its table; of a column, of chunks whose first text to examine.
_MAX_EXCEPTIONS = 20
_SAMPLE_OPTIONS = ("delimiter", "encoding", "missing", "decimal")  # options with which the sample is read


def infer_columns(
    sample: SourceSample, label: str | None, table: TableOptions, regression: bool = False, rows_may_fail: bool = False
) -> tuple[int, list[InferredColumn], bool | None, bool]:
    """Infer the kind of each column of a table from a sample of its rows. ``table`` has the options that the user has set,
    ``label`` is the label column. Returns the number of examined rows, an `InferredColumn` for each column, in table order,
    whether absent numbers are 0 (None: perhaps), and whether a row lacks a number.

    The first million cells are read, in a long seekable file also rows from its middle and its end. Raises StreamError if the
    source cannot be read.
    """
    table_options = table.encoder | table.source
    options = {name: table_options[name] for name in _SAMPLE_OPTIONS if name in table_options}
    kinds = {name: ColumnKind.parse(kind) for name, kind in table.encoder.get("columns", {}).items() if name != OTHER_COLUMNS}
    dropped = [name for name, kind in kinds.items() if kind.kind == DROP]
    marked = {name: f"{NUMBER}={'|'.join(kind.markers)}" for name, kind in kinds.items() if kind.markers is not None}
    marked |= {name: table.encoder["columns"][name] for name, kind in kinds.items() if kind.kind == NUMBER and kind.format}
    options["columns"] = dict.fromkeys(dropped, DROP) | marked  # dropping an object drops all values within it
    with sample.open_rows(label=label, **options) as source:
        open_later = partial(sample.open_later_parts, label=label, **options) if sample.open_later_parts else None
        date_columns = {name for name, kind in kinds.items() if kind.kind == DATE}
        rows, tables, date_formats, labels, has_gaps = _examine_rows(source, label, {label, *date_columns}, open_later)
        names = [*source.columns, *(str(name) for row in rows for name in row), *kinds]
    columns = _infer_all(rows, names, label, () if regression else labels, table, regression, rows_may_fail, date_formats)
    columns = _limit_texts(columns, sum(kind.kind == TEXT for kind in kinds.values()))
    columns = [column if column.name in kinds else _suggest_group(column, tables) for column in columns]
    columns = [column if label is None else note_key(column, rows) for column in columns]
    if sample.format == "csv":
        _warn_of_header(sample.name, columns, rows)
    are_classes = not regression and all(column.note != TARGET_NOTE for column in columns)
    are_in_order = any(column.kind == "date" and are_rising(column.times) for column in columns)
    warn_of_labels(sample.name, label, labels, are_classes, is_file=sample.format is not None and not are_in_order)
    warn_of_falling_times(sample.name, columns)
    if sample.format == "csv" and "decimal" not in options:
        _note_thousands(columns, rows, partial(sample.open_rows, label=label, **options))
    numeric = [column.name for column in columns if column.kind == "number" and column.proposed_kind == NUMBER]
    is_sparse = are_absent_numbers_zero(rows, numeric)
    if is_sparse:
        columns = [column._replace(note=column.note.replace("missing in ", "absent, so 0, in ")) for column in columns]
    return len(rows), columns, is_sparse, has_gaps


def _limit_texts(columns: Sequence[InferredColumn], n_declared: int) -> list[InferredColumn]:
    """Return the columns, where those that seem to hold texts become categories once there are as many columns of texts as an
    encoder allows. ``n_declared`` is the number of columns that the user has declared as texts.
    """
    inferred = [column for column in columns if column.kind == "text" and column.alternative]
    excess, note = inferred[max(MAX_TEXT_COLUMNS - n_declared, 0) :], f"{MAX_TEXT_COLUMNS} other columns are texts already"
    return [
        add_note(column, note)._replace(kind="string", required_options={**column.required_options, **(column.alternative or {})})
        if column in excess
        else column
        for column in columns
    ]


def _suggest_group(column: InferredColumn, tables: Sequence[Table]) -> InferredColumn:
    """Return the column, with the suggestion to read its numbers as categories if they look like ids of groups of rows, judged by
    their labels in ``tables``. A column for which options are required or suggested is returned as it is.
    """
    parts = [(values, table.y) for table in tables if (values := table.get_column(column.name)) is not None and table.y]
    numbers = np.concatenate([[], *(to_float_prefix(values)[0] for values, _ in parts)])
    labels = [y for _, ys in parts for y in ys]
    is_plain = column.kind == "number" and not (column.required_options or column.suggested_options or column.alternative)
    if not (is_plain and len(numbers) == len(labels) and are_group_ids(column.name, numbers, labels)):
        return column
    category, number = make_kind_option(column.name, CATEGORY), make_kind_option(column.name, NUMBER)
    examples = format_most_common(numbers[np.isfinite(numbers)].tolist())
    column = column._replace(values=examples, suggested_options=category, alternative=number)
    return add_note(column, "looks like an id of a group")


def _note_thousands(columns: list[InferredColumn], rows: Sequence[Mapping[Any, Any]], open_rows: Callable[..., Source]) -> None:
    """Add a note for the user to numeric columns of a CSV file whose points may be between thousands, judged by the texts of
    their cells: of ``rows``, these have become numbers. ``open_rows`` reads the first rows, with the kinds of some columns.
    """
    kinds = {}
    for column in columns:
        numbers = [value for row in rows if isinstance(value := row.get(column.name), float)]
        is_plain = column.kind == "number" and column.required_options.keys() <= {"missing"}
        if is_plain and all(map(may_be_thousands, numbers)) and not all(map(float.is_integer, numbers)):
            kinds[column.name] = CATEGORY
    with open_rows(columns=kinds) if kinds else contextlib.nullcontext(()) as source:
        cells = [row.x for row in itertools.islice(source, SAMPLE_ROWS) if isinstance(row, Row)]
    for i, column in enumerate(columns):
        markers = {"None", *column.required_options.get("missing", ())}
        texts = [text for row in cells if (text := str(row.get(column.name))) not in markers]
        if column.name in kinds and may_group_thousands(texts):
            columns[i] = add_note(column._replace(note=_THOUSANDS_NOTE, alternative={"decimal": ","}), column.note)


def _warn_of_header(name: str, columns: Sequence[InferredColumn], rows: Sequence[Mapping[Any, Any]]) -> None:
    """Warn that a CSV file probably has no header line, if every column name looks like a value of its column. Names that are
    consecutive numbers do not count. ``name`` is the file's name in the message.
    """
    names = [column.name for column in columns]
    numbers = [float(name) for name in names if is_number(name)]
    are_consecutive = numbers and [number - numbers[0] for number in numbers] == list(range(len(names)))
    if len(names) > 1 and rows and not are_consecutive and all(_resembles_values(name, rows) for name in names):
        first_line = shorten(", ".join(names), 80)
        text = f"{name}: its first line looks like a row, and is taken for the names of the columns: {first_line}"
        warnings.warn(f"{text}. If it is one, put a line with names before it", stacklevel=2)


def _resembles_values(name: str, rows: Sequence[Mapping[Any, Any]]) -> bool:
    """Return whether a column name looks like a value of its column, as if the first line was not a header: both are numbers,
    both are dates in the same format, or the name is one of the values.
    """
    values = {row[name] for row in rows if row.get(name) is not None}
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return bool(values) and is_number(name)
    texts = {str(value).strip() for value in values}
    return name in texts or any(all(is_date(text, form) for text in texts) for form in infer_date_formats([name]))


def _has_gaps(chunk: Chunk, table: Table) -> bool:
    """Return whether a readable row of a chunk lacks a number of the ``table`` with its rows."""
    indices = {i for values in table.columns for i in np.flatnonzero(np.isnan(to_float_prefix(values)[0])).tolist()}
    for row in map(chunk.row, sorted(indices)):  # each row is parsed once
        if isinstance(row, Row) and (len(row.x) < len(table.names) or any(x is None or x != x for x in row.x.values())):
            return True
    return False


def _examine_rows(
    source: Source, label: str | None, excluded: Collection[str | None], open_later: Callable[[Position], Iterator[Source]] | None
) -> tuple[list[Mapping[Any, Any]], list[Table], dict[Any, list[str | None]], list[Any], bool]:
    """Read the first million cells of a source. Returns a list of some of its rows, each a dict that includes the label, tables
    of its first and its last rows, the possible formats of each column of ambiguous dates, the labels of all rows that were read,
    and whether one of these lacks a number. ``excluded`` columns are not checked for dates. ``open_later``, if any, yields
    sources of later parts of a long file.

    The rows are the first ones, a few of each later chunk, and the first rows with a text in a column. Date formats are narrowed
    down by the dates in all chunks.
    """
    rows: list[Mapping[Any, Any]] = []
    tables: list[Table] = []
    labels: list[Any] = []
    has_gaps = False
    date_formats: dict[Any, list[str | None]] | None = None
    n_text_chunks: Counter[Hashable] = Counter()  # number of chunks with texts, by column
    for chunk in _read_chunks(source, rows, open_later):
        table = chunk.table(())
        tables = tables if table is None else [*tables[:2], *tables[2:][-1:], table]  # the first two and the last two
        labels += (row.y for row in map(chunk.row, range(len(chunk))) if isinstance(row, Row)) if table is None else table.y or ()
        has_gaps = has_gaps or table is None or _has_gaps(chunk, table)
        n_first = min(len(chunk), SAMPLE_ROWS - len(rows))
        indices = range(n_first) if n_first > 0 else _choose_rows(chunk, n_text_chunks)
        readable_rows = [row for row in map(chunk.row, indices) if isinstance(row, Row)]
        rows += [row.x if label is None else row.x | {label: row.y} for row in readable_rows]
        if len(rows) >= SAMPLE_ROWS:
            date_formats = _find_ambiguous_formats(rows, excluded) if date_formats is None else date_formats
            if table is not None:
                _narrow_formats(date_formats, table)
    return rows, tables, _find_ambiguous_formats(rows, excluded) if date_formats is None else date_formats, labels, has_gaps


def _read_chunks(source: Source, rows: list[Any], open_later: Callable[[Position], Iterator[Source]] | None) -> Iterator[Chunk]:
    """Yield chunks of a source up to a million cells, or more while ``rows``, the list that the caller fills, is empty. Then
    yield some chunks from later parts of the file: ``open_later``, if any, takes the reached position and yields sources of these
    parts.
    """
    n_cells = 0
    while not rows or n_cells < _MAX_CELLS:
        if (chunk := source.read(_CHUNK_ROWS)) is None:
            return
        yield chunk
        n_cells += len(chunk) * max(1, len(rows[0]) if rows else 1)
    with contextlib.suppress(StreamError):  # the error is reported when learning comes to these rows
        for part in open_later(source.position) if open_later is not None else ():
            with part:
                yield from itertools.islice(iter(partial(part.read, _CHUNK_ROWS), None), _CHUNKS_PER_PART)


def _choose_rows(chunk: Chunk, n_text_chunks: Counter[Hashable]) -> list[int]:
    """Choose a few rows of a chunk to examine, and return their sorted indices: five evenly spaced rows, and the first row with a
    text in each column. ``n_text_chunks`` counts the chunks with texts in each column; texts of a column are ignored after 20
    chunks.
    """
    n, table = len(chunk), chunk.table(())
    indices = {i * n // _ROWS_PER_CHUNK for i in range(_ROWS_PER_CHUNK)} if n > _ROWS_PER_CHUNK else set(range(n))
    if table is not None:
        indices |= set(itertools.islice(table.unparsed_rows, _MAX_EXCEPTIONS))
        for name, values in zip(table.names, table.columns, strict=True):
            if isinstance(values, list) and n_text_chunks[name] < _MAX_EXCEPTIONS:
                first_text = next((i for i, value in enumerate(values) if isinstance(value, str)), None)
                if first_text is not None:
                    n_text_chunks[name] += 1
                    indices.add(first_text)
    return sorted(indices)


def _find_ambiguous_formats(rows: Sequence[Mapping[Any, Any]], excluded: Collection[str | None]) -> dict[Any, list[str | None]]:
    """Return the possible date formats of each column of ``rows`` whose dates fit more than one format, such as day or month
    first. ``excluded`` columns are left out.
    """
    names = dict.fromkeys(name for row in rows for name in row if name not in excluded)
    values_by_column = {name: [value for row in rows if (value := row.get(name)) is not None] for name in names}
    formats_by_column = {name: infer_date_formats(split_missing_markers(values)[1]) for name, values in values_by_column.items()}
    return {name: formats for name, formats in formats_by_column.items() if len(formats) > 1}


def _narrow_formats(formats_by_column: dict[Any, list[str | None]], table: Table) -> None:
    """Remove from ``formats_by_column``, the possible date formats of each column, those that do not fit all dates in a table.
    The last remaining format of a column is not removed.
    """
    for name, formats in formats_by_column.items():
        values = table.get_column(name) if len(formats) > 1 else None
        for text in {value.strip() for value in values if isinstance(value, str)} if isinstance(values, list) else ():
            formats = [form for form in formats if is_date(text, form)] or formats
        formats_by_column[name] = formats


def _infer_all(
    rows: Sequence[Mapping[Any, Any]],
    names: Iterable[str],
    label: str | None,
    class_labels: Iterable[Any],
    table: TableOptions,
    regression: bool,
    rows_may_fail: bool,
    date_formats: Mapping[Any, list[str | None]],
) -> list[InferredColumn]:
    """Infer the kind of each column of ``rows``. Returns a list of `InferredColumn`: first the columns in ``names``, then others.
    Columns that ``table`` declares have that kind, and the ``label`` is described as label or target, also by ``class_labels``,
    those of more rows, if there are many. ``date_formats`` are the possible date formats of ambiguous columns.
    """
    encoder_options = table.encoder
    parser = TableParser(encoder_options.get("columns", ""))
    columns: list[InferredColumn] = []
    targets: Sequence[Any] = ()
    labels = {str(row[label]).strip().lower() for row in rows if row.get(label) is not None}
    for name in dict.fromkeys([*names, *(str(name) for row in rows for name in row)]):
        skips_nan = bool(encoder_options) or name == label
        values = [value for row in rows if (value := row.get(name)) is not None and not (skips_nan and value != value)]
        values = list(map(to_plain_value, values))
        if name == label:
            targets, column = values, infer_label(name, values, regression)
            distinct = list(dict.fromkeys(y for y in class_labels if y is not None and y == y and y.__hash__ is not None))
            if len(distinct) > MAX_CLASSES and not column.note:
                more = infer_label(name, list(map(to_plain_value, distinct[:MAX_COUNTS])), regression)
                column = more._replace(values=column.values)
        elif (kind := parser.get_kind(name)) == DROP:
            column = InferredColumn(name, "dropped", "")
        elif kind in (CATEGORY, TEXT):
            column = InferredColumn(name, kind, format_most_common(values))
        elif kind == DATE:
            invalid = find_invalid_dates(name, values, parser.get_date_format(name))
            column = InferredColumn(name, "date", format_most_common(values, 1), *invalid)
        else:
            column = infer_column(name, values, bool(encoder_options), rows_may_fail, date_formats.get(name))
        kinds = column.kinds | parser.columns
        if (column_kind := ColumnKind.parse(kinds.get(name, NUMBER))).kind == DATE and name != label:
            column = column._replace(times=parse_times(values, column_kind.format))
        elif column.kind == "number" and (ID_NAME.search(name) or are_epochs(values)):  # rows are numbered in order of time
            column = column._replace(times=parse_times(values, "s"))
        column = _note_sentinels(column, column_kind, values, encoder_options.get("missing", ()))
        if not values and column.kind in ("label", "target", CATEGORY, TEXT, DATE):
            column = add_note(column, f"no row has it{suggest_name(name, [other for row in rows for other in row])}")
        label_markers = [text for text in column.required_options.get("missing", ()) if text.lower() in labels]
        if label_markers and name != label and column.kind != "number":  # as markers, they would make labels missing, too
            kind = CATEGORY if len({str(value) for value in values}) <= _MAX_CATEGORIES else DROP
            note = f"{label_markers[0]!r} is also a label"
            column = InferredColumn(name, "string", format_most_common(values), note, make_kind_option(name, kind))
        if 0 < len(values) < len(rows) and column.kind not in ("label", "target", "dropped"):
            column = add_note(column, f"missing in {len(rows) - len(values)}")
        columns.append(column)
    has_comma = any(column.required_options.get("decimal") == "," for column in columns)
    if has_comma and all(map(is_number, targets)) and not all(may_be_thousands(float(y)) for y in targets):
        columns = [_keep_decimal_point(column) if column.name == label else column for column in columns]
    return _note_equal_columns(_localise_markers(columns, rows, labels), rows, label)


def _keep_decimal_point(target: InferredColumn) -> InferredColumn:
    """Return a column of targets with points, such as 45.195, which would be 45,195 with the decimal comma of other columns."""
    is_target = target.kind == "target" or target.note == TARGET_NOTE
    return target._replace(required_options=make_kind_option(target.name, f"{QUANTITY}=.")) if is_target else target


def _note_sentinels(
    column: InferredColumn, kind: ColumnKind, values: Sequence[Any], known_markers: Iterable[str]
) -> InferredColumn:
    """Add a note for the user on numbers or dates that probably mean "missing", such as -999: they are repeated, and far outside
    the range of all other ``values``. Returns the changed column, or the same one without such values. ``known_markers`` are the
    missing-value markers that the user has set.
    """
    markers = list(dict.fromkeys([*known_markers, *column.required_options.get("missing", ())]))
    if column.kind == "date":
        sentinels = find_sentinel_dates(values, kind.format)
    elif column.kind in ("number", "target") and kind.markers is None:
        numbers = [value for value in values if isinstance(value, int | float) and abs(value) < math.inf]
        sentinels = list(map(format_sentinel, find_sentinels(numbers)))
    else:
        return column
    if not sentinels or column.alternative:
        return column
    markers += sentinels
    is_number_column = column.kind == "number"
    alternative = make_kind_option(column.name, f"{NUMBER}={'|'.join(markers)}") if is_number_column else {"missing": markers}
    note = f"{' and '.join(sentinels)}, far from all others, may mean missing"
    return add_note(column, note)._replace(alternative=alternative)


def _localise_markers(
    columns: Sequence[InferredColumn], rows: Sequence[Mapping[Any, Any]], labels: Collection[str]
) -> list[InferredColumn]:
    """Return the columns, changed so that a marker such as ``NA`` means "missing" only in its own numeric column. This is done
    for markers that are also one of the ``labels``, or a code in a column of categories (``NA`` for North America).
    """
    codes: set[str] = set()
    for column in columns:
        is_text_category = column.kind == "string" and column.required_options == make_kind_option(column.name, CATEGORY)
        if column.kind == "category" or is_text_category:
            values = {str(value).strip() for row in rows if (value := row.get(column.name)) is not None}
            if len(values) > 1 and all(value.isupper() and 1 < len(value) <= _MAX_CODE_LENGTH for value in values):
                codes |= values
    changed = []
    for column in columns:
        markers = column.required_options.get("missing", ())
        if column.kind == "number" and any(marker in codes or marker.lower() in labels for marker in markers):
            column = column._replace(required_options=make_kind_option(column.name, f"{NUMBER}={'|'.join(markers)}"))
        changed.append(column)
    return changed


def _note_equal_columns(
    columns: Sequence[InferredColumn], rows: Sequence[Mapping[Any, Any]], label: str | None
) -> list[InferredColumn]:
    """Add a note for the user to each column whose values equal those of an earlier column, or of the label, in all ``rows``.
    Returns all columns.
    """
    first_columns: dict[tuple[str, ...], str] = {}
    notes: dict[str, str] = {}
    for column in sorted(columns, key=lambda column: column.name != label):  # the label first
        values = tuple(_to_comparable(row.get(column.name)) for row in rows)
        is_comparable = len(set(values)) > 1 and len(values) >= MIN_ROWS_TO_JUDGE
        equal_name = first_columns.setdefault(values, column.name) if is_comparable else column.name
        if equal_name != column.name:
            is_label = equal_name == label
            name = "the label: is it known when a row is predicted?" if is_label else repr(shorten(equal_name, MAX_NAME_LENGTH))
            notes[column.name] = f"equal to {name}"
    return [add_note(column, notes.get(column.name, "")) for column in columns]


def _to_comparable(value: Any) -> str:
    """Return a value as text for a comparison: equal numbers of different types have the same text."""
    try:
        return str(value if isinstance(value, bool) else float(value))
    except (TypeError, ValueError, OverflowError):
        return str(value)


# Sentinels: values far from all others, which may mean a missing value --------------------------------------------------------

_MAX_SENTINELS = 3  # below the other values, and above them
_MIN_ROWS, _MIN_OTHER_VALUES = 20, 5  # rows, and distinct values beside the sentinels
#: A sentinel is this many ranges of the other values away from them; a typical sentinel such as -999 may be nearer.
_MIN_GAP, _MIN_GAP_TYPICAL = 5.0, 0.25
_MIN_REPETITIONS = 3  # rows with the value; one fewer for a typical sentinel
_TYPICAL_SENTINEL = re.compile(r"-?(9{3,}|9{2,}8|32768|32767|2147483648|2147483647)")
_HUGE, _MIN_VALUE_BESIDE_ZERO = 1e30, 1000.0
_MAX_ZERO_SHARE = 0.5  # if more rows have zero, it is a common value
_TYPICAL_SENTINEL_DATES = tuple(map(to_seconds, ("0001-01-01", "1900-01-01", "1970-01-01", "9999-12-31")))


def find_sentinels(numbers: Sequence[float], typical: Sequence[float] = ()) -> list[float]:
    """Return the numbers that probably mean "missing", such as -999: they are repeated, and far outside the range of all others.
    Up to three on each side are returned; an empty list for fewer than 20 numbers. Values in ``typical`` are often used as
    sentinels, and may be less far.

    A value such as -999, 32767 or 1e38, or one of ``typical``, may be nearer than other values. Zero is a sentinel if all other
    values are at least a thousand, unless most rows have it, as is common for amounts.

    >>> ages = [20 + i * i % 61 for i in range(40)]
    >>> find_sentinels([*ages, -999, -999]), find_sentinels([*ages, 300, 300])
    ([-999], [])
    >>> find_sentinels([*ages, 1e38, 1e38, -999, -998, -998, -999])
    [-999, -998, 1e+38]
    >>> find_sentinels([0] * 95 + [1848, 1848, 1887, 1902, 1977, 2001])
    []
    """
    if len(numbers) < _MIN_ROWS:
        return []
    counts = Counter(numbers)
    values = sorted(counts)
    is_zero_common = counts[0] >= _MAX_ZERO_SHARE * len(numbers)
    sentinels: list[float] = []
    for n_low, n_high in itertools.product(range(_MAX_SENTINELS + 1), repeat=2):
        inner = values[n_low : len(values) - n_high]
        outer = (*values[:n_low], *values[len(values) - n_high :])
        if len(inner) < _MIN_OTHER_VALUES or len(outer) <= len(sentinels) or (is_zero_common and 0 in outer):
            continue
        n_rows = sum(counts[value] for value in outer)
        if n_rows < len(numbers) and all(_is_far(value, inner, counts[value], value in typical) for value in outer):
            sentinels = list(outer)
    if not sentinels and values[0] == 0 and len(values) > _MIN_OTHER_VALUES and values[1] >= _MIN_VALUE_BESIDE_ZERO:
        return [values[0]] if counts[0] >= _MIN_REPETITIONS and not is_zero_common else []
    return sentinels


def _is_far(value: float, inner: Sequence[float], count: int, is_typical: bool) -> bool:
    """Return whether a value may stand for "missing": it lies far outside the range of ``inner``, the sorted other values, and
    occurs in several rows (``count``). For values that are often used so, such as -999 or those with ``is_typical``, a smaller
    distance and fewer rows suffice.
    """
    is_typical = is_typical or abs(value) >= _HUGE or _TYPICAL_SENTINEL.fullmatch(format_sentinel(value)) is not None
    smallest, largest = float(inner[0]), float(inner[-1])
    gap = max(smallest - float(value), float(value) - largest)
    return gap > (_MIN_GAP_TYPICAL if is_typical else _MIN_GAP) * (largest - smallest) and count >= _MIN_REPETITIONS - is_typical


def format_sentinel(value: float) -> str:
    """Format a number as the text of a missing-value marker, without ``.0`` for integers.

    >>> format_sentinel(-999.0), format_sentinel(1e38), format_sentinel(99.9)
    ('-999', '1e+38', '99.9')
    """
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))


def find_sentinel_dates(values: Iterable[Any], date_format: str | None) -> list[str]:
    """Return the dates that probably mean "missing", as texts, such as 9999-12-31: those repeated far outside all others.
    ``values`` are dates, or texts with dates in ``date_format`` (None: ISO 8601).

    >>> find_sentinel_dates([f"2024-01-{i + 1:02d}" for i in range(30)] + ["9999-12-31"] * 2, None)
    ['9999-12-31']
    """
    texts = [text for value in values if isinstance(value, str | date) and is_date(text := str(value).strip(), date_format)]
    times = {text: to_seconds(text, date_format) for text in dict.fromkeys(texts)}
    sentinels = find_sentinels([times[text] for text in texts], _TYPICAL_SENTINEL_DATES)
    return [text for text, seconds in times.items() if seconds in sentinels]
