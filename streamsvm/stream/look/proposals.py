"""How columns that cannot be learned as they are, or better otherwise, may be read."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from streamsvm.files.messages import cut
from streamsvm.stream.look.beginnings import ROWS, Beginning
from streamsvm.stream.look.column_kinds import Column, is_number
from streamsvm.stream.tables.chunk import Row
from streamsvm.stream.tables.options import READING, ROLES, TableOptions, columns_text
from streamsvm.stream.tables.reading import Reading

_BY_COLUMN = ("dates", "marks")  # options that are mappings


class Question(NamedTuple):
    """What the rows do not decide, or why there is nothing to learn."""

    text: str
    options: Mapping[str, Any] = MappingProxyType({})
    """Those to try."""
    regression: bool = False
    """Whether to try a regression."""


class NothingLeftError(ValueError):
    """No column is left to learn from."""


class Proposal(NamedTuple):
    """Options that read columns which cannot be learned as they are, or better otherwise."""

    columns: list[Column]
    """These columns."""
    options: dict[str, Any]

    @property
    def is_decided(self) -> bool:
        """Whether the rows seen leave one reading."""
        return not any(column.is_open for column in self.columns)

    @property
    def question(self) -> Question:
        """What names the columns, and the options to try."""
        if odd := [column.name for column in self.columns if not column.name.isprintable()]:
            return Question(f"column {odd[0]!r} needs an answer, and its name cannot be written in one: give it another name")
        names = ", ".join(f"{column.name} ({column.note or column.kind})" for column in self.columns[:10])
        count = "1 column needs an answer" if len(self.columns) == 1 else f"{len(self.columns)} columns need an answer"
        return Question(f"{count}: {names}{', ...' * (len(self.columns) > 10)}", self.options)


def reading_proposal(
    columns: Iterable[Column],
    table: TableOptions,
    rows_may_fail: bool = False,
    try_out: Callable[[Mapping[str, Any]], set[str]] | None = None,
) -> Proposal | None:
    """Return how columns that cannot be learned as they are, or better otherwise, may be read; None if there is no such column.

    Where rows may fail, a text among numbers costs its row and needs no answer. ``try_out`` returns the columns that cannot be
    learned with some options. A NothingLeftError says that no column is left to learn from.
    """
    columns = list(columns)
    told = {*table.numbers, *table.encoder.get("features", ())}
    columns = [_as_told(column) if column.name in told else column for column in columns]
    open_ = [column for column in columns if any(not rows_may_fail or flag != "missing" for flag, _ in column.answers)]
    suggested = [column._replace(answers=column.suggested) for column in columns if column.suggested and column.name not in told]
    if not open_ and not suggested:
        return None
    open_ = [*suggested, *open_]
    options = _options_answered(open_, table)
    if try_out is not None:
        before = {*table.encoder.get("dates", ()), *table.encoder.get("categorical", ())}
        while bad := try_out(options) - before - {*options.get("drop", ())}:
            reads_decimals = [column for column in open_ if "decimal" in dict(column.answers)]
            if reads_decimals and bad - {column.name for column in open_}:  # it does not suit the other columns
                bad = {column.name for column in reads_decimals}
            named = {column.name: column for column in columns}
            changed = [named[name]._replace(answers=(("drop", name),)) for name in bad if name in named]
            open_ = [column for column in open_ if column.name not in bad] + changed
            options = _options_answered(open_, table)
        if all(column.kind in ("label", "target", "dropped") or column.name in options.get("drop", ()) for column in columns):
            if suggested:  # better an id than nothing
                return reading_proposal([column._replace(suggested=()) for column in columns], table, rows_may_fail, try_out)
            seen = ", ".join(
                f"{column.name} ({column.note or column.kind})" for column in columns if column.kind not in ("label", "target")
            )
            raise NothingLeftError(f"no column is left to learn from: {cut(seen, 400)}")
    return Proposal(open_, options)


def _as_told(column: Column) -> Column:
    """Return a column that is said to hold numbers; where it holds something else, that is a question."""
    if not {flag for flag, _ in column.answers} & {"drop", "categorical", "dates"}:
        return column
    return column._replace(note=f"said to be a number, and has {column.values or 'none'}", is_open=True)


def _options_answered(open_: Sequence[Column], table: TableOptions) -> dict[str, Any]:
    """Return the options that answer for columns, with what was answered before."""
    options: dict[str, Any] = {}
    for flag, value in itertools.chain.from_iterable(column.answers for column in open_):
        if flag == "decimal":
            options[flag] = value
        elif flag in _BY_COLUMN:
            options.setdefault(flag, {})[value[0]] = value[1]
        else:
            known = options.setdefault(flag, [])
            known += [text for text in (value if isinstance(value, list) else [value]) if text not in known]
    numbers = options.pop("features", None)  # text is read as numbers where any flag says how columns are read
    options = options or {"numbers": numbers}
    decimal = options.pop("decimal", None)
    for flag, value in options.items():  # what was answered before stays so
        before = table.encoder.get(flag, {} if flag in _BY_COLUMN else [])
        options[flag] = before | value if flag in _BY_COLUMN else [*before, *value]
    if columns_text(options):  # which is one flag
        said = table.encoder | ({"numbers": table.numbers} if table.numbers else {})
        options = {name: said[name] for name in ROLES if name in said} | options
        new = {column.name for column in open_ if dict(column.answers).keys() & {"drop", "categorical"}}
        if "dates" in options:
            options["dates"] = {name: form for name, form in options["dates"].items() if name not in new}
        for role in {"categorical", "features"} & {*options}:
            options[role] = [name for name in options[role] if name not in options.get("drop", ())]
    return options if decimal is None else {"decimal": decimal, **options}


def tried(beginning: Beginning, label: str | None, table: TableOptions, options: Mapping[str, Any]) -> set[str]:
    """Return the columns that cannot be learned when first rows are read with options.

    Rows that cannot be read at all are left out.
    """
    given = {name: value for name, value in {**table.encoder, **options}.items() if name in READING}
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
