"""A first look at a table: the kind of each column, what looks odd, and which columns need a flag."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from streamsvm.cli import CommandError, printable
from streamsvm.cli.beginnings import ROWS, Beginning
from streamsvm.cli.column_kinds import (
    ENOUGH,
    Column,
    column_of,
    cut,
    date_formats,
    have_thousands,
    is_number,
    most_common,
    not_read,
    parted,
)
from streamsvm.cli.tables import ROLES, Table, columns_text, flags_of
from streamsvm.stream import Source
from streamsvm.stream.tables.chunk import Chunk, Row
from streamsvm.stream.tables.reading import Reading
from streamsvm.stream.tables.values import is_date

#: The note on a label that is not named as a target.
TARGET = "a number to predict"
_MANY_CLASSES = 100
_LONGEST_NAME = 40  # characters
_POINTED = "or with points between thousands: --decimal ,"
_MOST_COLUMNS = 40
_MOST_NAMES = 64  # that have a feature of their own
_SECONDS = 1.0  # for which a file is looked at
_AT_ONCE, _SOME = 1000, 5  # rows that are read together beyond the first ones, and how many of them are looked at
_ODD = 20  # rows that are looked at because a column has a text for the first time, or because they are read one by one
_TEXT_OPTIONS = ("delimiter", "encoding", "missing", "decimal")  # with which a table is looked at
_READS = ("features", "drop", "categorical", "dates", "missing", "decimal")  # with which answers are tried


def look(
    beginning: Beginning, label: str | None, table: Table, regression: bool = False, rows_may_fail: bool = False
) -> tuple[int, list[Column]]:
    """Look at the first rows of a source, and at some of all of a file that can be read within a second.

    Parameters
    ----------
    beginning
        The rows.
    label
        Name of the label, which is shown but needs no answer.
    table
        How they are read.
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
        The source cannot be read.
    """
    options = {name: table.source[name] for name in _TEXT_OPTIONS if name in table.source}
    dropped = table.encoder.get("drop", [])
    if dropped:
        options["drop"] = dropped  # with all that lies in it
    with contextlib.closing(beginning.opened(label=label, **options)) as source:
        rows, forms = _seen(source, label, {label, *table.encoder.get("dates", ())})
        names = [*source.columns, *(str(name) for row in rows for name in row), *dropped]
    columns = _described(rows, names, label, table, regression, rows_may_fail, forms)
    if beginning.format == "csv" and "decimal" not in options:
        pointed = _pointed(beginning, label, options, rows, columns)
        columns = [_noted(column, _POINTED) if column.name in pointed else column for column in columns]
    return len(rows), columns


def _pointed(
    beginning: Beginning,
    label: str | None,
    options: Mapping[str, Any],
    rows: Sequence[Mapping[Any, Any]],
    columns: Iterable[Column],
) -> set[str]:
    """The columns of numbers of a CSV file whose points may stand between thousands, by their texts."""
    named = [
        column.name
        for column in columns
        if column.kind == "number"
        and all(flag == "missing" for flag, _ in column.answers)
        and any(isinstance(value := row.get(column.name), float) and not value.is_integer() for row in rows)
    ]
    if not named:
        return set()
    with contextlib.closing(beginning.opened(label=label, **options, categorical=named)) as source:
        seen = [row.x for row in itertools.islice(source, ROWS) if isinstance(row, Row)]
    return {name for name in named if have_thousands([str(row[name]) for row in seen if name in row])}


def _noted(column: Column, note: str) -> Column:
    return column._replace(note="; ".join(filter(None, (column.note, note))))


def _seen(
    source: Source, label: str | None, known: Collection[str | None]
) -> tuple[list[Mapping[Any, Any]], dict[Any, list[str | None]]]:
    """Return rows that were looked at, with their labels, and the formats that dates may have, but for ``known`` columns.

    They are the first rows, a few of the others, and those in which a column has a text for the first time.
    """
    rows: list[Mapping[Any, Any]] = []
    forms: dict[Any, list[str | None]] | None = None
    texts: Counter[Hashable] = Counter()  # chunks in which columns had some
    end = time.monotonic() + _SECONDS
    while (not rows or time.monotonic() < end) and (chunk := source.read(_AT_ONCE)) is not None:
        first = len(rows) < ROWS
        places = range(min(len(chunk), ROWS - len(rows))) if first else _worth_a_look(chunk, texts)
        given = [row for row in map(chunk.row, places) if isinstance(row, Row)]
        rows += [row.x if label is None else row.x | {label: row.y} for row in given]
        if len(rows) >= ROWS or forms is not None:
            forms = _date_forms(rows, known) if forms is None else forms
            _settle(forms, chunk)
    return rows, _date_forms(rows, known) if forms is None else forms


def _worth_a_look(chunk: Chunk, texts: Counter[Hashable]) -> list[int]:
    """Return the numbers of the rows of a chunk to look at, and count the columns with texts."""
    n, found = len(chunk), chunk.table(())
    places = {i * n // _SOME for i in range(_SOME)} if n > _SOME else set(range(n))
    if found is not None:
        places |= set(itertools.islice(found.odd, _ODD))
        for name, values in zip(found.names, found.columns, strict=True):
            if isinstance(values, list) and texts[name] < _ODD:
                new = next((i for i, value in enumerate(values) if isinstance(value, str)), None)
                if new is not None:
                    texts[name] += 1
                    places.add(new)
    return sorted(places)


def _date_forms(rows: Sequence[Mapping[Any, Any]], known: Collection[str | None]) -> dict[Any, list[str | None]]:
    """Return the formats of columns whose dates may have several."""
    values: dict[Any, list[Any]] = {}
    for row in rows:
        for name, value in row.items():
            if name not in known and value is not None:
                values.setdefault(name, []).append(value)
    found = {name: date_formats(parted(texts)[1]) for name, texts in values.items()}
    return {name: forms for name, forms in found.items() if len(forms) > 1}


def _settle(forms: dict[Any, list[str | None]], chunk: Chunk) -> None:
    """Take away the formats that dates of a chunk do not have, as far as one is left."""
    found = chunk.table(()) if any(len(some) > 1 for some in forms.values()) else None
    if found is None:
        return
    for name, some in forms.items():
        values = found.column(name)
        for text in {value.strip() for value in values if isinstance(value, str)} if isinstance(values, list) else ():
            if len(some) > 1:
                some = [form for form in some if is_date(text, form)] or some
        forms[name] = some


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
    labels = {str(row[label]).strip().lower() for row in rows if row.get(label) is not None}
    for name in dict.fromkeys([*names, *(str(name) for row in rows for name in row)]):
        values = [value for row in rows if (value := row.get(name)) is not None and not (answered and value != value)]
        if name == label:
            note = TARGET if not regression and _are_targets(values) else ""
            columns.append(Column(name, "target" if regression else "label", most_common(values), note))
        elif name in answered.get("drop", ()) or name not in answered.get("features", [name]):
            columns.append(Column(name, "dropped", ""))
        elif name in answered.get("categorical", ()):
            columns.append(Column(name, "category", most_common(values)))
        elif name in answered.get("dates", ()):
            columns.append(Column(name, "date", most_common(values, 1), *not_read(name, values, answered["dates"][name])))
        else:
            columns.append(column_of(name, values, bool(answered), rows_may_fail, (forms or {}).get(name)))
        marks = [text for flag, texts in columns[-1].answers if flag == "missing" for text in texts if text.lower() in labels]
        if marks and name != label:  # which would mark labels as missing, too
            kind = "categorical" if len({str(value) for value in values}) <= _MOST_NAMES else "drop"
            columns[-1] = Column(name, "text", most_common(values), f"{marks[0]!r} is also a label", ((kind, name),))
        if 0 < len(values) < len(rows) and columns[-1].kind not in ("label", "target", "dropped"):
            columns[-1] = _noted(columns[-1], f"missing in {len(rows) - len(values)}")
    return _compared(columns, rows, label)


def _compared(columns: Sequence[Column], rows: Sequence[Mapping[Any, Any]], label: str | None) -> list[Column]:
    """Return columns with a note where one has the values of another, or of the label, in each row."""
    seen: dict[tuple[str, ...], str] = {}
    found: dict[str, Column] = {}
    for column in sorted(columns, key=lambda column: column.name != label):  # the label first
        values = tuple(_as_compared(row.get(column.name)) for row in rows)
        other = seen.setdefault(values, column.name) if len(set(values)) > 1 and len(values) >= ENOUGH else column.name
        if other == label != column.name:
            column = _noted(column, "equal to the label: is it known when a row is predicted?")
        elif other != column.name:
            column = _noted(column, f"equal to {cut(other, _LONGEST_NAME)!r}")
        found[column.name] = column
    return [found[column.name] for column in columns]


def _as_compared(value: Any) -> str:
    try:
        return str(value if isinstance(value, bool) else float(value))
    except (TypeError, ValueError, OverflowError):
        return str(value)


def _are_targets(labels: Sequence[Any]) -> bool:
    """Whether labels seem to be numbers to predict: with fractions, or as many as no classes are."""
    if not all(isinstance(y, int | float | str) and not isinstance(y, bool) and is_number(y) for y in labels):
        return False
    distinct = set(map(float, labels))
    if len(distinct) > ENOUGH and not all(map(float.is_integer, distinct)):
        return True
    return len(distinct) > _MANY_CLASSES or (len(distinct) > ENOUGH and 2 * len(distinct) > len(labels))


class Proposal(NamedTuple):
    """Options that read columns which cannot be learned as they are, or better otherwise."""

    columns: list[Column]
    """These columns."""
    is_needed: bool
    """Whether one of them cannot be learned as it is."""
    options: dict[str, Any]

    @property
    def is_decided(self) -> bool:
        """Whether the rows seen leave one reading."""
        return not any(column.is_open for column in self.columns)

    def question(self, path: str) -> CommandError:
        """Return the error that names the columns, and the flags to try."""
        if odd := [column.name for column in self.columns if printable(column.name) != column.name]:
            return CommandError(
                f"{path}: column {odd[0]!r} needs a flag, and its name cannot be written in one: give it another name"
            )
        names = ", ".join(f"{column.name} ({column.note or column.kind})" for column in self.columns[:10])
        count = "1 column needs a flag" if len(self.columns) == 1 else f"{len(self.columns)} columns need a flag"
        return CommandError(f"{path}: {count}: {names}{', ...' * (len(self.columns) > 10)}. Try: {flags_of(self.options)}")


def proposal(
    path: str,
    columns: Iterable[Column],
    table: Table,
    rows_may_fail: bool = False,
    try_out: Callable[[Mapping[str, Any]], set[str]] | None = None,
) -> Proposal | None:
    """Return how columns that cannot be learned as they are, or better otherwise, may be read; None if there is no such column.

    Where rows may fail, a text among numbers costs its row and needs no answer. ``try_out`` returns the columns that cannot be
    learned with some options.

    Raises
    ------
    CommandError
        No column is left to learn from.
    """
    columns = list(columns)
    open_ = [column for column in columns if any(not rows_may_fail or flag != "missing" for flag, _ in column.answers)]
    is_needed, told = bool(open_), {*table.numbers, *table.encoder.get("features", ())}
    suggested = [column._replace(answers=column.suggested) for column in columns if column.suggested and column.name not in told]
    if not open_ and not suggested:
        return None
    open_ = [*suggested, *open_]
    options = _options(open_, table)
    if try_out is not None:
        before = {*table.encoder.get("dates", ()), *table.encoder.get("categorical", ())}
        while bad := try_out(options) - before - {*options.get("drop", ())}:
            reads_decimals = [column for column in open_ if "decimal" in dict(column.answers)]
            if reads_decimals and bad - {column.name for column in open_}:  # it does not suit the other columns
                bad = {column.name for column in reads_decimals}
            named = {column.name: column for column in columns}
            changed = [named[name]._replace(answers=(("drop", name),)) for name in bad if name in named]
            open_ = [column for column in open_ if column.name not in bad] + changed
            options = _options(open_, table)
        if all(column.kind in ("label", "target", "dropped") or column.name in options.get("drop", ()) for column in columns):
            if suggested:  # better an id than nothing
                return proposal(path, [column._replace(suggested=()) for column in columns], table, rows_may_fail, try_out)
            seen = ", ".join(
                f"{column.name} ({column.note or column.kind})" for column in columns if column.kind not in ("label", "target")
            )
            raise CommandError(f"{path}: no column is left to learn from: {cut(seen, 400)}")
    return Proposal(open_, is_needed, options)


def _options(open_: Sequence[Column], table: Table) -> dict[str, Any]:
    """Return the options that answer for columns, with what was answered before."""
    options: dict[str, Any] = {}
    for flag, value in itertools.chain.from_iterable(column.answers for column in open_):
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
        new = {column.name for column in open_ if dict(column.answers).keys() & {"drop", "categorical"}}
        if "dates" in options:
            options["dates"] = {name: form for name, form in options["dates"].items() if name not in new}
        for role in {"categorical", "features"} & {*options}:
            options[role] = [name for name in options[role] if name not in options.get("drop", ())]
    return options if decimal is None else {"decimal": decimal, **options}


def tried(beginning: Beginning, label: str | None, table: Table, options: Mapping[str, Any]) -> set[str]:
    """Return the columns that cannot be learned when first rows are read with options.

    Rows that cannot be read at all are left out.
    """
    given = {name: value for name, value in {**table.encoder, **options}.items() if name in _READS}
    reading, bad = Reading(**given), set()
    how = {name: table.source[name] for name in ("delimiter", "encoding") if name in table.source}
    with contextlib.closing(beginning.opened(label=label, **how, **given)) as source:
        for row in itertools.islice(source, ROWS):
            for name, value in row.x.items() if isinstance(row, Row) else ():
                is_text = not reading.options and isinstance(value, str)
                reads = isinstance(value, int | float) or (is_text and (not value.strip() or is_number(value)))
                if not (reads or reading.category_of(name)):
                    bad.add(str(name))
    return bad


def decided(columns: Iterable[Column], options: Mapping[str, Any]) -> list[Column]:
    """Return columns as options read them."""
    kinds: dict[str, str] = dict.fromkeys(options.get("drop", ()), "dropped")
    kinds |= dict.fromkeys(options.get("categorical", ()), "category") | dict.fromkeys(options.get("dates", ()), "date")
    return [column._replace(kind=kinds.get(column.name, column.kind)) for column in columns]


def drawn(path: str, n_rows: int, columns: Sequence[Column]) -> str:
    """Return the table that is shown."""
    shown = [("column", "kind", "values", "")]
    shown += [(cut(column.name, _LONGEST_NAME), *column[1:4]) for column in columns[:_MOST_COLUMNS]]
    widths = [max(len(row[i]) for row in shown) for i in range(3)]
    lines = [f"first look at {path}" + (f", {n_rows:,} rows" if n_rows > 1 else "")]
    for *cells, note in shown:
        padded = "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        lines.append(f"  {padded}  {note}".rstrip())
    if len(columns) > _MOST_COLUMNS:
        kinds = Counter(column.kind for column in columns[_MOST_COLUMNS:])
        lines.append("  and " + ", ".join(f"{count} of {kind}" for kind, count in kinds.items()))
    return "\n".join(lines)
