"""How the columns of a table look, by the rows that were seen of it."""

from __future__ import annotations

import contextlib
import itertools
import math
import re
import time
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from datetime import date
from functools import partial
from typing import Any

from streamsvm.files.messages import short_repr, shorten
from streamsvm.stream.endpoints import Position, Source, StreamError
from streamsvm.stream.schema.column_inference import (
    MIN_ROWS_TO_JUDGE,
    InferredColumn,
    find_invalid_dates,
    format_most_common,
    infer_column,
    infer_date_formats,
    is_number,
    make_kind_option,
    may_group_thousands,
    split_missing_markers,
)
from streamsvm.stream.schema.source_sample import SAMPLE_ROWS, SourceSample
from streamsvm.stream.tables.chunk import Chunk, Row
from streamsvm.stream.tables.column_kinds import CATEGORY, DATE, DROP, NUMBER, OTHER_COLUMNS, ColumnKind
from streamsvm.stream.tables.table_parser import TableParser, to_plain_value
from streamsvm.stream.tables.table_schema import TableOptions
from streamsvm.stream.tables.values import is_date, to_seconds

#: The note on a label that is not named as a target.
TARGET_NOTE = "a number to predict"
#: The longest name of a column that is shown, in characters.
MAX_NAME_LENGTH = 40
_UNITS = "numbers with a unit stay names: take it off to predict them"
_MANY_CLASSES = 100
_POINTED = "or with points between thousands"
_MOST_NAMES = 64  # of a column that is learned as names
_LONGEST_CODE = 6  # of regions and the like, in letters
_SECONDS = 0.9  # for which a file is read from its beginning
_AT_ONCE, _SOME = 1000, 5  # rows that are read together beyond the first ones, and how many of them are looked at
_LATER = 4  # times in the middle and at the end of a file
_ODD = 20  # rows that are looked at because a column has a text for the first time, or because they are read one by one
_TEXT_OPTIONS = ("delimiter", "encoding", "missing", "decimal")  # with which a table is looked at


def infer_columns(
    beginning: SourceSample, label: str | None, table: TableOptions, regression: bool = False, rows_may_fail: bool = False
) -> tuple[int, list[InferredColumn]]:
    """Look at the first rows of a source, and at some of all of a file that can be read within a second.

    Of a file that is longer, and can be sought, some rows from its middle and its end are looked at, too. The ``label`` is shown
    but needs no answer. Returned are the number of rows that were seen, and the columns in their order. A StreamError says that
    the source cannot be read.
    """
    table_options = table.encoder | table.source
    options = {name: table_options[name] for name in _TEXT_OPTIONS if name in table_options}
    kinds = {name: ColumnKind.of(kind) for name, kind in table.encoder.get("columns", {}).items() if name != OTHER_COLUMNS}
    dropped = [name for name, kind in kinds.items() if kind.kind == DROP]
    marked = {name: f"{NUMBER}={'|'.join(kind.marks)}" for name, kind in kinds.items() if kind.marks is not None}
    options["columns"] = dict.fromkeys(dropped, DROP) | marked  # a dropped column with all that lies in it
    with beginning.open_rows(label=label, **options) as source:
        later = partial(beginning.open_later_parts, label=label, **options) if beginning.open_later_parts else None
        rows, forms = _seen_rows(source, label, {label, *(name for name, kind in kinds.items() if kind.kind == DATE)}, later)
        names = [*source.columns, *(str(name) for row in rows for name in row), *dropped]
    columns = _described_columns(rows, names, label, table, regression, rows_may_fail, forms)
    if beginning.format == "csv":
        _warn_of_header(beginning.name, columns, rows)
    _warn_of_spellings(beginning.name, label, rows)
    if beginning.format == "csv" and "decimal" not in options:
        pointed = _pointed_columns(beginning, label, options, rows, columns)
        for i, column in enumerate(columns):
            if column.name in pointed:
                columns[i] = _noted_column(column._replace(note=_POINTED, alternative={"decimal": ","}), column.note)
    return len(rows), columns


def _warn_of_header(name: str, columns: Sequence[InferredColumn], rows: Sequence[Mapping[Any, Any]]) -> None:
    """Warn where all names of columns look like values of them, though not where they count the columns."""
    names = [column.name for column in columns]
    numbers = [float(name) for name in names if is_number(name)]
    counted = numbers and [number - numbers[0] for number in numbers] == list(range(len(names)))
    if len(names) > 1 and rows and not counted and all(_is_like_values(name, rows) for name in names):
        warnings.warn(
            f"{name}: its first line looks like a row, and is taken for the names of the columns: "
            f"{shorten(', '.join(names), 80)}. "
            "If it is one, put a line with names before it",
            stacklevel=2,
        )


def _is_like_values(name: str, rows: Sequence[Mapping[Any, Any]]) -> bool:
    values = {row[name] for row in rows if row.get(name) is not None}
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return bool(values) and is_number(name)
    texts = {str(value).strip() for value in values}
    return name in texts or any(all(is_date(text, form) for text in texts) for form in infer_date_formats([name]))


def _warn_of_spellings(name: str, label: str | None, rows: Sequence[Mapping[Any, Any]]) -> None:
    """Warn where two labels differ in nothing but capital letters."""
    texts = dict.fromkeys(y for row in rows if isinstance(y := row.get(label), str))
    spelled: dict[str, str] = {}
    for text in texts:
        if (other := spelled.setdefault(text.casefold(), text)) != text:
            spellings = f"{short_repr(other)} and {short_repr(text)}"
            warnings.warn(f"{name}: {spellings} are two labels. If they mean one, write them alike", stacklevel=2)
            return


def _pointed_columns(
    beginning: SourceSample,
    label: str | None,
    options: Mapping[str, Any],
    rows: Sequence[Mapping[Any, Any]],
    columns: Iterable[InferredColumn],
) -> set[str]:
    """The columns of numbers of a CSV file whose points may stand between thousands, by their texts."""
    named = [
        column.name
        for column in columns
        if column.kind == "number"
        and column.required_options.keys() <= {"missing"}
        and any(isinstance(value := row.get(column.name), float) and not value.is_integer() for row in rows)
    ]
    if not named:
        return set()
    with beginning.open_rows(label=label, **{**options, "columns": dict.fromkeys(named, CATEGORY)}) as source:
        seen = [row.x for row in itertools.islice(source, SAMPLE_ROWS) if isinstance(row, Row)]
    return {name for name in named if may_group_thousands([str(row[name]) for row in seen if name in row])}


def _noted_column(column: InferredColumn, note: str) -> InferredColumn:
    return column._replace(note="; ".join(filter(None, (note, column.note))))


def _seen_rows(
    source: Source, label: str | None, known: Collection[str | None], later: Callable[[Position], Iterator[Source]] | None
) -> tuple[list[Mapping[Any, Any]], dict[Any, list[str | None]]]:
    """Return rows that were looked at, with their labels, and the formats that dates may have, but for ``known`` columns.

    They are the first rows, a few of the others, and those in which a column has a text for the first time.
    """
    rows: list[Mapping[Any, Any]] = []
    forms: dict[Any, list[str | None]] | None = None
    texts: Counter[Hashable] = Counter()  # chunks in which columns had some
    for chunk in _chunks_to_see(source, rows, later):
        first = len(rows) < SAMPLE_ROWS
        places = range(min(len(chunk), SAMPLE_ROWS - len(rows))) if first else _worth_a_look(chunk, texts)
        seen = [row for row in map(chunk.row, places) if isinstance(row, Row)]
        rows += [row.x if label is None else row.x | {label: row.y} for row in seen]
        if len(rows) >= SAMPLE_ROWS or forms is not None:
            forms = _date_forms(rows, known) if forms is None else forms
            _settle_formats(forms, chunk)
    return rows, _date_forms(rows, known) if forms is None else forms


def _chunks_to_see(
    source: Source, rows: Sequence[Mapping[Any, Any]], later: Callable[[Position], Iterator[Source]] | None
) -> Iterator[Chunk]:
    """Give the rows of a source for a second, until there are some; where it has more, also some of those further on."""
    end = time.monotonic() + _SECONDS
    while not rows or time.monotonic() < end:
        if (chunk := source.read(_AT_ONCE)) is None:
            return
        yield chunk
    with contextlib.suppress(StreamError):  # which is said when the rows before it are learned
        for part in later(source.position) if later is not None else ():
            with part:
                yield from itertools.islice(iter(partial(part.read, _AT_ONCE), None), _LATER)


def _worth_a_look(chunk: Chunk, texts: Counter[Hashable]) -> list[int]:
    """Return the numbers of the rows of a chunk to look at, and count the columns with texts."""
    n, table = len(chunk), chunk.table(())
    places = {i * n // _SOME for i in range(_SOME)} if n > _SOME else set(range(n))
    if table is not None:
        places |= set(itertools.islice(table.unparsed_rows, _ODD))
        for name, values in zip(table.names, table.columns, strict=True):
            if isinstance(values, list) and texts[name] < _ODD:
                new = next((i for i, value in enumerate(values) if isinstance(value, str)), None)
                if new is not None:
                    texts[name] += 1
                    places.add(new)
    return sorted(places)


def _date_forms(rows: Sequence[Mapping[Any, Any]], known: Collection[str | None]) -> dict[Any, list[str | None]]:
    values: dict[Any, list[Any]] = {}
    for row in rows:
        for name, value in row.items():
            if name not in known and value is not None:
                values.setdefault(name, []).append(value)
    forms_by_column = {name: infer_date_formats(split_missing_markers(texts)[1]) for name, texts in values.items()}
    return {name: forms for name, forms in forms_by_column.items() if len(forms) > 1}


def _settle_formats(forms: dict[Any, list[str | None]], chunk: Chunk) -> None:
    """Take away the formats that dates of a chunk do not have, as far as one is left."""
    table = chunk.table(()) if any(len(formats) > 1 for formats in forms.values()) else None
    if table is None:
        return
    for name, formats in forms.items():
        values = table.get_column(name)
        for text in {value.strip() for value in values if isinstance(value, str)} if isinstance(values, list) else ():
            if len(formats) > 1:
                formats = [form for form in formats if is_date(text, form)] or formats
        forms[name] = formats


def _described_columns(
    rows: Sequence[Mapping[Any, Any]],
    names: Iterable[str],
    label: str | None,
    table: TableOptions,
    regression: bool = False,
    rows_may_fail: bool = False,
    forms: Mapping[Any, list[str | None]] | None = None,
) -> list[InferredColumn]:
    """Return the columns of rows, those of ``names`` first; as `infer_columns`."""
    answered = table.encoder
    parser = TableParser(answered.get("columns", ""))
    columns = []
    labels = {str(row[label]).strip().lower() for row in rows if row.get(label) is not None}
    for name in dict.fromkeys([*names, *(str(name) for row in rows for name in row)]):
        values = [
            to_plain_value(value) for row in rows if (value := row.get(name)) is not None and not (answered and value != value)
        ]
        if name == label:
            answers = _decimals_of(values) if "decimal" not in answered else {}
            if answers and not all(is_number(TableParser(**answers).parse_label(str(y))) for y in values):
                answers, note = {}, _UNITS
            else:
                note = TARGET_NOTE if not regression and (answers or _are_targets(values)) else ""
            columns.append(InferredColumn(name, "target" if regression else "label", format_most_common(values), note, answers))
        elif (kind := parser.get_kind(name)) == DROP:
            columns.append(InferredColumn(name, "dropped", ""))
        elif kind == CATEGORY:
            columns.append(InferredColumn(name, "category", format_most_common(values)))
        elif kind == DATE:
            columns.append(
                InferredColumn(
                    name, "date", format_most_common(values, 1), *find_invalid_dates(name, values, parser.get_date_format(name))
                )
            )
        else:
            columns.append(infer_column(name, values, bool(answered), rows_may_fail, (forms or {}).get(name)))
        columns[-1] = _or_far(columns[-1], values, answered)
        marks = [text for text in columns[-1].required_options.get("missing", ()) if text.lower() in labels]
        if marks and name != label and columns[-1].kind != "number":  # which would mark labels as missing, too
            kind = CATEGORY if len({str(value) for value in values}) <= _MOST_NAMES else DROP
            columns[-1] = InferredColumn(
                name, "text", format_most_common(values), f"{marks[0]!r} is also a label", make_kind_option(name, kind)
            )
        if 0 < len(values) < len(rows) and columns[-1].kind not in ("label", "target", "dropped"):
            columns[-1] = _noted_column(columns[-1], f"missing in {len(rows) - len(values)}")
    return _compared_columns(_with_own_marks(columns, rows, labels), rows, label)


def _or_far(column: InferredColumn, values: Sequence[Any], answered: Mapping[str, Any]) -> InferredColumn:
    """Return a column of numbers or dates with a note on those that are repeated far outside all others."""
    marked = list(dict.fromkeys([*answered.get("missing", ()), *column.required_options.get("missing", ())]))
    kind = ColumnKind.of((answered.get("columns", {}) | column.required_options.get("columns", {})).get(column.name, NUMBER))
    if column.kind == "date":
        marks = find_sentinel_dates(values, kind.format)
    elif column.kind in ("number", "target") and kind.marks is None:
        numbers = [value for value in values if isinstance(value, int | float) and abs(value) < math.inf]
        marks = list(map(format_sentinel, find_sentinels(numbers)))
    else:
        return column
    if not marks or column.alternative:
        return column
    marked += marks
    otherwise = make_kind_option(column.name, f"{NUMBER}={'|'.join(marked)}") if column.kind == "number" else {"missing": marked}
    note = f"{' and '.join(marks)}, far from all others, may mean missing"
    return _noted_column(column, note)._replace(alternative=otherwise)


def _with_own_marks(
    columns: Sequence[InferredColumn], rows: Sequence[Mapping[Any, Any]], labels: Collection[str]
) -> list[InferredColumn]:
    """Return columns with marks of their own, where a mark is a label or a name in another column, as ``NA`` is of a region."""
    names: set[str] = set()
    for column in columns:
        if column.kind == "category" or (
            column.kind == "text" and column.required_options == make_kind_option(column.name, CATEGORY)
        ):
            values = {str(value).strip() for row in rows if (value := row.get(column.name)) is not None}
            if len(values) > 1 and all(value.isupper() and 1 < len(value) <= _LONGEST_CODE for value in values):
                names |= values
    changed = []
    for column in columns:
        marks = column.required_options.get("missing", ())
        if column.kind == "number" and any(mark in names or mark.lower() in labels for mark in marks):
            column = column._replace(required_options=make_kind_option(column.name, f"{NUMBER}={'|'.join(marks)}"))
        changed.append(column)
    return changed


def _compared_columns(
    columns: Sequence[InferredColumn], rows: Sequence[Mapping[Any, Any]], label: str | None
) -> list[InferredColumn]:
    """Return columns with a note where one has the values of another, or of the label, in each row."""
    seen: dict[tuple[str, ...], str] = {}
    noted: dict[str, InferredColumn] = {}
    for column in sorted(columns, key=lambda column: column.name != label):  # the label first
        values = tuple(_as_compared(row.get(column.name)) for row in rows)
        other = seen.setdefault(values, column.name) if len(set(values)) > 1 and len(values) >= MIN_ROWS_TO_JUDGE else column.name
        if other == label != column.name:
            column = _noted_column(column, "equal to the label: is it known when a row is predicted?")
        elif other != column.name:
            column = _noted_column(column, f"equal to {shorten(other, MAX_NAME_LENGTH)!r}")
        noted[column.name] = column
    return [noted[column.name] for column in columns]


def _as_compared(value: Any) -> str:
    try:
        return str(value if isinstance(value, bool) else float(value))
    except (TypeError, ValueError, OverflowError):
        return str(value)


def _decimals_of(labels: Sequence[Any]) -> dict[str, str]:
    """Return the ``decimal`` with which labels are numbers that people have written, if they are such, and many."""
    texts = [str(y) for y in labels]
    if len(set(texts)) <= MIN_ROWS_TO_JUDGE or all(map(is_number, texts)):
        return {}
    return {name: value for name, value in infer_column("label", labels).required_options.items() if name == "decimal"}


def _are_targets(labels: Sequence[Any]) -> bool:
    """Whether labels seem to be numbers to predict: with fractions, or as many as no classes are."""
    if not all(isinstance(y, int | float | str) and not isinstance(y, bool) and is_number(y) for y in labels):
        return False
    distinct = set(map(float, labels))
    if len(distinct) > 2 and not all(map(float.is_integer, distinct)):
        return True
    return len(distinct) > _MANY_CLASSES or (len(distinct) > MIN_ROWS_TO_JUDGE and 2 * len(distinct) > len(labels))


# Values far from all others, which may be marks of missing values --------------------------------------------------------------

_MAX_MARKS = 3  # on each side of the other values
_MIN_ROWS, _MIN_OTHERS = 20, 5  # rows, and other values than the marks
#: A value this many widths of the other values away is far from them; fewer for a value that is often a mark.
_FAR, _FAR_MARK = 5.0, 0.25
_MIN_REPEATED = 3  # rows with the value; one fewer for a value that is often a mark
_OFTEN_A_MARK = re.compile(r"-?(9{3,}|9{2,}8|32768|32767|2147483648|2147483647)")
_HUGE, _MIN_BESIDE_ZERO = 1e30, 1000.0
_MAX_ZEROS = 0.5  # of the rows
_OFTEN_NO_DATES = tuple(map(to_seconds, ("0001-01-01", "1900-01-01", "1970-01-01", "9999-12-31")))


def find_sentinels(numbers: Sequence[float], marks: Sequence[float] = ()) -> list[float]:
    """Return the values that are repeated far outside the others, at most three on each side.

    A value such as -999, 32767 or 1e38, or one of ``marks``, may be nearer than other values. Zero is far if all other values are
    at least a thousand. It never is if most rows have it, as sums do.

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
    is_zero_usual = counts[0] >= _MAX_ZEROS * len(numbers)
    far: list[float] = []
    for low, high in itertools.product(range(_MAX_MARKS + 1), repeat=2):
        others, ends = values[low : len(values) - high], (*values[:low], *values[len(values) - high :])
        if len(others) < _MIN_OTHERS or len(ends) <= len(far) or (is_zero_usual and 0 in ends):
            continue
        n_ends = sum(counts[end] for end in ends)
        if n_ends < len(numbers) and all(_is_far(end, others, counts[end], end in marks) for end in ends):
            far = list(ends)
    if not far and values[0] == 0 and len(values) > _MIN_OTHERS and values[1] >= _MIN_BESIDE_ZERO:
        return [values[0]] if counts[0] >= _MIN_REPEATED and not is_zero_usual else []
    return far


def _is_far(value: float, others: Sequence[float], count: int, is_mark: bool) -> bool:
    is_mark = is_mark or abs(value) >= _HUGE or _OFTEN_A_MARK.fullmatch(format_sentinel(value)) is not None
    least, largest = float(others[0]), float(others[-1])
    gap = max(least - float(value), float(value) - largest)
    return gap > (_FAR_MARK if is_mark else _FAR) * (largest - least) and count >= _MIN_REPEATED - is_mark


def format_sentinel(value: float) -> str:
    """Return a number as a mark of missing values is written.

    >>> format_sentinel(-999.0), format_sentinel(1e38), format_sentinel(99.9)
    ('-999', '1e+38', '99.9')
    """
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))


def find_sentinel_dates(values: Iterable[Any], form: str | None) -> list[str]:
    """Return the dates, and texts that are dates in a format, that are far from the others, as `find_sentinels` of numbers.

    >>> find_sentinel_dates([f"2024-01-{i + 1:02d}" for i in range(30)] + ["9999-12-31"] * 2, None)
    ['9999-12-31']
    """
    texts = [text for value in values if isinstance(value, str | date) and is_date(text := str(value).strip(), form)]
    times = {text: to_seconds(text, form) for text in dict.fromkeys(texts)}
    far = find_sentinels([times[text] for text in texts], _OFTEN_NO_DATES)
    return [text for text, time in times.items() if time in far]
