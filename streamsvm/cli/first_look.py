"""A first look at a table: the kind of each column, what looks odd, and which columns need a flag."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

from streamsvm.cli import CommandError
from streamsvm.cli.tables import ROLES, Table, columns_text, flags_of
from streamsvm.stream import BadRow, Row, Rows, open_source
from streamsvm.stream.endpoints import Weighted, WrappedSource
from streamsvm.stream.tables.reading import Reading
from streamsvm.stream.tables.values import UNITS, formats_of, is_date, number, unit_of

ROWS = 200
#: So many rows at least make a constant or an id of a column.
_ENOUGH = 20
_NUMBERED = "looks like an id: leave it out with "
#: The name of a column of ids, which few rows do not show by their values.
_ID = re.compile(r"(^|[_\W])(id|ID|Id)$|[a-z]Id$")
_LONGEST_NAME, _LONGEST_VALUE = 40, 20  # characters
_NOT_THERE = "not in this row"
_MOST_COLUMNS = 40
_MOSTLY = 10  # times as many of one kind
_MOST_MARKS = 3  # texts among numbers that may mean "missing", beside those that usually do
_USUAL_MARKS = {"na", "n/a", "null", "none", "nan", "?", "-", "missing"}
_SETTLING = 20_000  # rows in which it is looked for whether the day or the month comes first
_DECIMALS = (".", ",")
_TEXT_OPTIONS = ("delimiter", "encoding", "missing", "decimal")  # with which a table is looked at
_READS = ("features", "drop", "categorical", "dates", "missing", "decimal")  # with which answers are tried
_TIMES = (10.0**9, 2.0 * 10.0**9)  # seconds since 1970, of 2001 to 2033


class Column(NamedTuple):
    """A column as it was seen."""

    name: str
    kind: str
    """The kind that the column is taken for."""
    values: str
    note: str = ""
    answer: tuple[str, Any] | None = None
    """The flag to try and its value, if the column cannot be learned without one."""


def look(
    path: str, text_format: str | None, label: str | None, table: Table, regression: bool = False, rows_may_fail: bool = False
) -> tuple[int, list[Column]]:
    """Look at the first rows of a file.

    Parameters
    ----------
    path, text_format
        The file; nothing is seen of standard input, pipes, URLs and LIBSVM text, whose rows come once or are numbers.
    label
        Name of the label, which is shown but needs no answer.
    table
        How it is read.
    regression
        Whether the label is a number to predict.
    rows_may_fail
        Whether a row that cannot be used is left out.

    Returns
    -------
    The number of rows that were seen, and the columns in their order.

    Raises
    ------
    StreamError
        The file cannot be read.
    """
    if text_format in (None, "libsvm") or path == "-" or not Path(path).is_file():
        return 0, []
    options = {name: table.source[name] for name in _TEXT_OPTIONS if name in table.source}
    with contextlib.closing(open_source(path, label=label, format=text_format, **options)) as source:
        given = (row for row in source if isinstance(row, Row))
        rows: list[Mapping[Any, Any]] = [
            row.x if label is None else row.x | {label: row.y} for row in itertools.islice(given, ROWS)
        ]
        forms = _settled(rows, given, {label, *table.encoder.get("dates", ())})
        names = getattr(source, "columns", ())
    return len(rows), _described(rows, names, label, table, regression, rows_may_fail, forms)


def _settled(
    rows: Sequence[Mapping[Any, Any]], more: Iterable[Row], known: Collection[str | None]
) -> dict[Any, list[str | None]]:
    """Return the formats of columns whose dates have several in the rows seen, as far as more rows do not tell them apart."""
    values: dict[Any, list[Any]] = {}
    for row in rows:
        for name, value in row.items():
            if name not in known and value is not None:
                values.setdefault(name, []).append(value)
    found = {name: _date_formats(texts) for name, texts in values.items()}
    found = {name: forms for name, forms in found.items() if len(forms) > 1}
    for later in itertools.islice(more, _SETTLING) if found else ():
        for name, forms in found.items():
            if len(forms) > 1 and isinstance(text := later.x.get(name), str):
                found[name] = [form for form in forms if is_date(text.strip(), form)] or forms
        if all(len(forms) == 1 for forms in found.values()):
            break
    return found


def _described(
    rows: Sequence[Mapping[Any, Any]],
    names: Iterable[str],
    label: str | None,
    table: Table,
    regression: bool = False,
    rows_may_fail: bool = False,
    forms: Mapping[Any, list[str | None]] | None = None,
) -> list[Column]:
    """Return the columns of rows, those of ``names`` first; as `look`."""
    answered = table.encoder
    columns = []
    for name in dict.fromkeys([*names, *(str(name) for row in rows for name in row)]):
        values = [value for row in rows if (value := row.get(name)) is not None and not (answered and value != value)]
        if name == label:
            floats = {y for y in values if isinstance(y, float)}
            is_number = len(floats) > _ENOUGH and not all(map(float.is_integer, floats))
            note = "looks like a number to predict: --regression" if is_number and not regression else ""
            columns.append(Column(name, "label", _most_common(values), note))
        elif name in answered.get("drop", ()) or name not in answered.get("features", [name]):
            columns.append(Column(name, "dropped", ""))
        elif name in answered.get("categorical", ()):
            columns.append(Column(name, "category", _most_common(values)))
        elif name in answered.get("dates", ()):
            columns.append(Column(name, "date", _most_common(values, 1), *_not_read(name, values, answered["dates"][name])))
        else:
            columns.append(column_of(name, values, bool(answered), rows_may_fail, (forms or {}).get(name)))
        if 0 < len(values) < len(rows) and columns[-1].kind not in ("label", "dropped"):
            column = columns[-1]
            columns[-1] = column._replace(note="; ".join(filter(None, (column.note, f"missing in {len(rows) - len(values)}"))))
    return columns


class FirstRow(WrappedSource):
    """A source that comes once, such as a pipe or a topic: its first row is looked at when it comes.

    Parameters
    ----------
    source
        The source; all else is asked of it.
    label
        Name of the label.
    table
        How its rows are read.
    show
        Called with the table that is shown.
    rows_may_fail
        Whether a row that cannot be used is left out.
    """

    def __init__(
        self, source: Any, label: str | None, table: Table, show: Callable[[str], None], rows_may_fail: bool = False
    ) -> None:
        super().__init__(source)
        self._label, self._table, self._show, self._rows_may_fail = label, table, show, rows_may_fail
        self._looked = False

    def _changed(self, rows: Sequence[Row | BadRow] | Rows) -> Sequence[Row | BadRow] | Rows:
        row = None if isinstance(rows, Rows) else rows[0]  # a table of numbers needs no look
        if isinstance(row, Row) and not self._looked:
            y = row.y.y if isinstance(row.y, Weighted) else row.y
            labelled = self._label is not None and y is not None
            values = {str(name): value for name, value in (row.x | {self._label: y} if labelled else row.x).items()}
            named = (*self._table.encoder.get("categorical", ()), *self._table.encoder.get("dates", ()))
            names = [*values, *named, *([] if self._label is None else [self._label])]
            columns = _described([values], names, self._label, self._table)
            columns = [column if column.name in values else column._replace(note=_NOT_THERE) for column in columns]
            self._show(drawn(self.place_of(0), 1, columns))
            asks = not (self._table.encoder or self._rows_may_fail)
            if asks and (error := unanswered(self.place_of(0), columns, self._table)) is not None:
                raise error
        self._looked = True
        return rows


def column_of(
    name: str,
    values: Sequence[Any],
    reads_text: bool = False,
    rows_may_fail: bool = False,
    forms: list[str | None] | None = None,
) -> Column:
    """Say what a column of these values, without the missing ones, is taken for.

    Text that comes among ten times as many numbers is not what the column is for: where rows may fail, it needs no answer.
    ``forms`` are the formats of its dates, where more rows have told them.

    Examples
    --------
    >>> column_of("age", [31.0, "?", 40.0, 29.0])
    Column(name='age', kind='number', values='29 to 40', note="'?' in 1 row is not a number", answer=('missing', ['?']))
    >>> column_of("since", ["02.01.2024", "31.12.2023"]).answer
    ('dates', ('since', '%d.%m.%Y'))
    >>> column_of("amount", [950.0, "1,200", "$2,000.50"]).answer
    ('decimal', '.')
    """
    numbers = [value for value in values if isinstance(value, int | float) and value == value]  # no NaN
    others = [value for value in values if not isinstance(value, int | float) or value != value]
    marks = Counter(str(value) for value in others)
    distinct = len({str(value) for value in values})
    if not values:
        return Column(name, "number", "", "no value in these rows")
    if not numbers and all(value != value for value in others):  # NaN
        return Column(name, "number", "", "no value in these rows", ("missing", ["nan"]))
    if not others:
        return Column(name, "number", _range(numbers), _suspicion(name, numbers, distinct))
    if any(isinstance(value, dict | list) for value in others):
        return Column(name, "nested", "", "no number", ("drop", name))
    if decimals := _decimals(numbers, list(marks)):
        what = "numbers with a decimal comma" if decimals == [","] else "numbers with thousands separators, currencies or %"
        note = f"{what}, or with a decimal comma: --decimal ," if len(decimals) > 1 else what
        return Column(name, "text", _most_common(values), note, ("decimal", decimals[0]))
    if numbers and (len(marks) <= _MOST_MARKS or all(text.strip().lower() in _USUAL_MARKS for text in marks)):
        note = ", ".join(f"{text!r} in {count} row{'s' * (count > 1)}" for text, count in marks.items())
        verb = "is not a number" if len(marks) == 1 else "are not numbers"
        return Column(name, "number", _range(numbers), f"{note} {verb}", ("missing", list(marks)))
    if len(numbers) >= _MOSTLY * len(others) and rows_may_fail:
        return Column(name, "number", _range(numbers), f"not a number in {len(others)} rows")
    if all(_is_number(value) for value in others):
        return Column(name, "number", _most_common(values), "numbers as text", None if reads_text else ("features", name))
    if not numbers and (forms := forms or _date_formats(others)):
        either = f", or in the format {' or '.join(map(str, forms[1:]))}: these rows fit both" if len(forms) > 1 else ""
        return Column(name, "date", _most_common(values, 1), f"looks like a date{either}", ("dates", (name, forms[0])))
    if distinct == len(values) >= _ENOUGH:
        return Column(name, "text", _most_common(values), "looks like an id", ("drop", name))
    note = "one value only" if distinct == 1 and len(values) >= _ENOUGH else ""
    return Column(name, "text", _most_common(values), note, ("drop" if note else "categorical", name))


def _decimals(numbers: Sequence[float], texts: Sequence[str]) -> list[str]:
    """The decimal marks with which all texts are numbers as people write them, beside numbers that are plain."""
    if not texts or all(_is_number(text) for text in texts):
        return []
    found = []
    for mark in _DECIMALS:
        reading = Reading(decimal=mark)
        plain = mark == "." or all(float(value).is_integer() for value in numbers)
        if plain and all(_is_number(_or_none(reading.plain, text)) for text in texts):
            found.append(mark)
    return found


def unanswered(
    path: str,
    columns: Iterable[Column],
    table: Table,
    rows_may_fail: bool = False,
    try_out: Callable[[Mapping[str, Any]], set[str]] | None = None,
) -> CommandError | None:
    """Return the error that names the columns that need a flag, and the flags to try; None if no column needs one.

    Where rows may fail, a text among numbers costs its row and needs no answer. ``try_out`` returns the columns that cannot be
    learned with some options.
    """
    columns = list(columns)
    open_ = [column for column in columns if column.answer is not None and not (rows_may_fail and column.answer[0] == "missing")]
    if not open_:
        return None
    numbered = [column.name for column in columns if column.note.startswith(_NUMBERED) and column.name not in table.numbers]
    options = _options(open_, numbered, table)
    if try_out is not None:
        before = {*table.encoder.get("dates", ()), *table.encoder.get("categorical", ())}
        while bad := try_out(options) - before - {*options.get("drop", ())}:
            reads_decimals = [column for column in open_ if column.answer is not None and column.answer[0] == "decimal"]
            if reads_decimals and bad - {column.name for column in open_}:  # it does not suit the other columns
                bad = {column.name for column in reads_decimals}
            named = {column.name: column for column in columns}
            changed = [named[name]._replace(answer=("drop", name)) for name in bad if name in named]
            open_ = [column for column in open_ if column.name not in bad] + changed
            options = _options(open_, numbered, table)
        if all(column.kind in ("label", "dropped") or column.name in options.get("drop", ()) for column in columns):
            seen = ", ".join(f"{column.name} ({column.note or column.kind})" for column in columns if column.kind != "label")
            return CommandError(f"{path}: no column is left to learn from: {_cut(seen, 400)}")
    names = ", ".join(f"{column.name} ({column.note or column.kind})" for column in open_[:10])
    count = "1 column needs a flag" if len(open_) == 1 else f"{len(open_)} columns need a flag"
    return CommandError(f"{path}: {count}: {names}{', ...' * (len(open_) > 10)}. Try: {flags_of(options)}")


def _options(open_: Sequence[Column], numbered: Sequence[str], table: Table) -> dict[str, Any]:
    """Return the options that answer for columns, with what was answered before."""
    options: dict[str, Any] = {"drop": list(numbered)} if numbered else {}
    for flag, value in (column.answer for column in open_ if column.answer is not None):
        if flag == "decimal":
            options[flag] = value
        elif flag == "dates":
            options.setdefault(flag, {})[value[0]] = value[1]
        else:
            known = options.setdefault(flag, [])
            known += [text for text in (value if isinstance(value, list) else [value]) if text not in known]
    numbers = options.pop("features", None)  # text is read as numbers where any flag says how columns are read
    options = options or {"numbers": numbers}
    decimal = options.pop("decimal", None)
    for flag, value in options.items():  # what was answered before stays so
        before = table.encoder.get(flag, {} if flag == "dates" else [])
        options[flag] = before | value if flag == "dates" else [*before, *value]
    if columns_text(options):  # which is one flag
        said = table.encoder | ({"numbers": table.numbers} if table.numbers else {})
        options = {name: said[name] for name in ROLES if name in said} | options
    if decimal is not None:
        options["decimal"] = decimal
    return options


def tried(path: str, text_format: str | None, label: str | None, table: Table, options: Mapping[str, Any]) -> set[str]:
    """Return the columns that cannot be learned when the first rows of a file are read with options.

    Rows that cannot be read at all are left out.
    """
    given = {name: value for name, value in {**table.encoder, **options}.items() if name in _READS}
    reading, bad = Reading(**given), set()
    how = {name: table.source[name] for name in ("delimiter", "encoding") if name in table.source}
    with contextlib.closing(open_source(path, label=label, format=text_format, **how, **given)) as source:
        for row in itertools.islice(source, ROWS):
            for name, value in row.x.items() if isinstance(row, Row) else ():
                is_number = isinstance(value, int | float) or (not reading.options and _is_number(value))
                if not (is_number or reading.category_of(name)):
                    bad.add(str(name))
    return bad


def drawn(path: str, n_rows: int, columns: Sequence[Column]) -> str:
    """Return the table that is shown."""
    shown = [("column", "kind", "values", "")]
    shown += [(_cut(column.name, _LONGEST_NAME), *column[1:4]) for column in columns[:_MOST_COLUMNS]]
    widths = [max(len(row[i]) for row in shown) for i in range(3)]
    lines = [f"first look at {path}" + (f", {n_rows:,} rows" if n_rows > 1 else "")]
    for *cells, note in shown:
        padded = "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        lines.append(f"  {padded}  {note}".rstrip())
    if len(columns) > _MOST_COLUMNS:
        kinds = Counter(column.kind for column in columns[_MOST_COLUMNS:])
        lines.append("  and " + ", ".join(f"{count} of {kind}" for kind, count in kinds.items()))
    return "\n".join(lines)


def _suspicion(name: str, numbers: Sequence[float], distinct: int) -> str:
    whole = all(isinstance(number, int) or number.is_integer() for number in numbers)
    numbered = _NUMBERED + flags_of({"drop": [name]})
    if len(numbers) < _ENOUGH:
        return numbered if whole and _ID.search(name) else ""
    if distinct == 1:
        return "one value only"
    if whole and (unit := _unit(numbers)) is not None:
        as_time = flags_of({"dates": {name: unit}})
        return (
            f"looks like a date: read it with {flags_of({'dates': {name: None}})}"
            if not unit
            else f"a time since 1970, with {as_time}"
        )
    rising = all(a < b for a, b in itertools.pairwise(numbers))
    return numbered if whole and rising else ""


def _unit(numbers: Sequence[float]) -> str | None:
    """The unit of whole numbers that look like times since 1970; an empty text if they look like days such as 20240131."""
    if all(19e6 < number < 21.1e6 and is_date(str(int(number)), "%Y%m%d") for number in numbers):
        return ""
    units = {unit_of(number) for number in numbers}
    unit = units.pop()
    if units or unit == "s":  # which are whole numbers like others
        return None
    return unit if all(_TIMES[0] < number / UNITS[unit][0] < _TIMES[1] for number in numbers) else None


def _not_read(name: str, values: Sequence[Any], form: str | None) -> tuple[str, tuple[str, Any] | None]:
    """Say what is wrong with the dates of a column in a format, and the answer to it."""
    wrong = [value for value in values if isinstance(value, str) and not is_date(value.strip(), form)]
    if form is None or form in UNITS:
        wrong = [value for value in wrong if not _is_number(value)]
    if not wrong:
        return "", None
    note, forms, marks = f"{wrong[0]!r} is not written as {form or 'ISO 8601'}", _date_formats(wrong), list(dict.fromkeys(wrong))
    if not forms and len(marks) <= _MOST_MARKS:
        return note, ("missing", marks)
    return note, ("dates", (name, forms[0] if forms else "FORMAT"))


def _date_formats(values: Sequence[Any]) -> list[str | None]:
    """The formats in which all values are dates, as of `formats_of`."""
    if all(isinstance(value, date) for value in values):
        return [None]
    return formats_of(values) if all(isinstance(value, str) for value in values) else []


def _is_number(value: Any) -> bool:
    return _or_none(number if isinstance(value, str) else float, value) is not None


def _or_none(reads: Callable[[Any], Any], value: Any) -> Any:
    try:
        return reads(value)
    except (TypeError, ValueError):
        return None


def _range(numbers: Sequence[float]) -> str:
    if not numbers:
        return "none"
    low, high = _short(min(numbers)), _short(max(numbers))
    return low if low == high else f"{low} to {high}"


def _short(number: float) -> str:
    try:
        return f"{number:g}"
    except OverflowError:
        return "a huge number"


def _most_common(values: Sequence[Any], most: int = 3) -> str:
    counts = Counter(str(value) for value in values)
    texts = [_cut(text, _LONGEST_VALUE) for text, _ in counts.most_common(most)]
    return ", ".join(texts) + (f", ... ({len(counts)})" if len(counts) > most else "")


def _cut(text: str, most: int) -> str:
    """A text on one line, and no longer than so many characters."""
    text = " ".join(text[: 10 * most].split())
    return text if len(text) <= most else f"{text[: most - 3]}..."
