"""A first look at a table: what each column is, and the options that read it so, or the question that is open."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from streamsvm.stream.endpoints import StreamError
from streamsvm.stream.look.beginnings import Beginning
from streamsvm.stream.look.proposals import NothingLeftError, Question, reading_proposal, tried
from streamsvm.stream.look.seen_columns import TARGET, look
from streamsvm.stream.look.text_files import text_options
from streamsvm.stream.tables.chunk import Row
from streamsvm.stream.tables.options import table_options
from streamsvm.stream.tables.table_reading import SeenColumn, TableReading, as_read


class FirstLook(NamedTuple):
    """What a first look has found."""

    columns: list[SeenColumn]
    """The columns as they are read."""
    n_rows: int
    """The number of rows that were seen."""
    found: dict[str, Any]
    """The options that were found."""
    options: dict[str, Any]
    """All options, those that were given too."""
    is_target: bool
    """Whether the label looks like a number to predict, and nothing was said of it."""
    question: Question | None
    """What must be answered before the table is learned."""

    def reading(self, name: str, label: str | None, regression: bool) -> TableReading:
        """Return the reading that is kept with a model."""
        return TableReading(name, self.n_rows, label, regression, self.columns, self.options)

    def error(self, name: str, written: Callable[[Mapping[str, Any]], str], regression: str) -> str:
        """Return the question as an error says it.

        ``written`` says options as their reader would write them, and ``regression`` that the label is a number.
        """
        if self.question is None:
            return ""
        said = ", ".join([regression] * self.question.regression + [text for text in [written(self.question.options)] if text])
        return f"{name}: {self.question.text}" + (f". Try: {said}" if said else "")


def first_look(
    beginning: Beginning,
    label: str | None,
    given: Mapping[str, Any],
    *,
    regression: bool = False,
    no_features: Iterable[str] = (),
    rows_may_fail: bool = False,
    asks: bool = False,
) -> FirstLook:
    """Look at the first rows of a table, with the options that were ``given``.

    ``no_features`` are columns that something else reads: keys, times and weights. Where ``rows_may_fail``, a row that cannot be
    used is left out. Where it ``asks``, all that options could say is a question. A StreamError says that the source cannot be
    read.
    """
    found: dict[str, Any] = {}
    if beginning.format == "csv":
        found |= text_options(beginning.text, label, given)
    options = found | dict(given)
    seen = table = table_options(options, beginning.format)
    if no_features:
        dropped = dict.fromkeys([*table.encoder.get("drop", ()), *no_features])
        seen = table._replace(encoder=table.encoder | {"drop": list(dropped)})
    n_rows, columns = look(beginning, label, seen, regression, rows_may_fail)
    is_target = any(column.note == TARGET for column in columns)
    proposed, question = None, None
    try:
        proposed = reading_proposal(columns, table, rows_may_fail, partial(tried, beginning, label, table) if columns else None)
    except NothingLeftError as error:
        question = Question(str(error))
    if columns and all(column.kind in ("label", "target") for column in columns):
        question = Question(f"there is no column but {label}: nothing to learn from")
    if proposed is not None and (asks or not proposed.is_decided):
        question = proposed.question
    elif asks and is_target:
        question = Question(f"{label} looks like {TARGET}", regression=True)
    elif proposed is not None:
        found, options = found | proposed.options, options | proposed.options
    read = [SeenColumn(*column[:4], column.otherwise) for column in columns]
    return FirstLook(as_read(read, options), n_rows, found, options, is_target, question)


def names_in(beginning: Beginning) -> list[str]:
    """Return the names of the columns, that of the label too; none where they cannot be seen."""
    options = text_options(beginning.text, None, {}) if beginning.format == "csv" else {}
    with contextlib.suppress(StreamError), contextlib.closing(beginning.opened(label=None, **options)) as source:
        row = next(iter(source), None)
        return list(map(str, source.columns or (row.x if isinstance(row, Row) else ())))
    return []


def likely_label(names: Sequence[str]) -> str:
    """Return which of some columns may be the label.

    >>> likely_label(["a", "Class", "b"]), likely_label(["a", "b"])
    ('Class', 'b')
    """
    return next((name for name in names if name.lower() in _LABELS), names[-1])


_LABELS = {"y", "label", "target", "class", "outcome"}  # usual names
