"""How a table is read: as options, on a command line and in Python, and as a first look has found it, for people and a model."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from streamsvm.files.messages import join_names, shorten
from streamsvm.stream.tables.column_kinds import DROP, NUMBER, OTHER_COLUMNS, format_columns, merge_options, parse_columns
from streamsvm.stream.tables.table_parser import TableParser

PARSER_OPTIONS = ("columns", "missing", "decimal")
TEXT_OPTIONS = ("delimiter", "encoding")
#: The options that each format can be read with; a URL has none, because messages name their fields and have their encoding.
OPTIONS_BY_FORMAT: dict[str, tuple[str, ...]] = {
    "csv": (*PARSER_OPTIONS, *TEXT_OPTIONS),
    "jsonl": (*PARSER_OPTIONS, "encoding"),
    "parquet": PARSER_OPTIONS,
    "arrow": PARSER_OPTIONS,
}


class TableOptions(NamedTuple):
    """How a table is read, for those who read it."""

    source: dict[str, Any]
    """Options of `open_source`."""
    encoder: dict[str, Any]
    """Parameters of `TableEncoder`; empty where no encoder is needed."""
    columns: Mapping[str, str]
    """The kind of each column that was named."""


def resolve_table_options(options: Mapping[str, Any], text_format: str | None) -> TableOptions:
    """Return how a table of a format, None for a URL and rows in Python, is read; ValueError if an option is invalid."""
    columns = TableParser(**{name: value for name, value in options.items() if name in PARSER_OPTIONS}).columns
    if OTHER_COLUMNS in columns and set(columns.values()) == {DROP}:
        raise ValueError(f"columns {format_columns(columns)}: all columns are dropped, and nothing is left to learn from")
    encoder = {name: value for name, value in options.items() if name not in TEXT_OPTIONS}
    if (
        text_format == "csv" and set(columns.values()) == {NUMBER} and encoder.keys() == {"columns"}
    ):  # CSV is read so without options
        encoder = {}
    source = {
        name: options[name]
        for name in OPTIONS_BY_FORMAT.get(text_format or "", ())
        if name in options and (name in TEXT_OPTIONS or name in encoder)
    }
    return TableOptions(source, encoder, columns)


def format_flags(options: Mapping[str, Any]) -> str:
    """Return options as they stand on a command line.

    >>> format_flags({"missing": ["NA", "?"], "columns": {"id": "drop", "since": "date=%d.%m.%Y", "to": "date"}})
    "--columns id:drop,since:date=%d.%m.%Y,to:date --missing 'NA,?'"
    """
    parts = []
    for name, value in _as_arguments(options).items():
        text = join_names(value) if isinstance(value, list) else str(value)
        between = "=" if text.startswith("-") else " "
        parts.append(f"--{name.replace('_', '-')}{between}{shlex.quote(text)}")
    return " ".join(parts)


def format_arguments(options: Mapping[str, Any]) -> str:
    """Return options as they stand in a call in Python.

    >>> format_arguments({"missing": ["NA", "?"], "columns": {"id": "drop", "since": "date=%d.%m.%Y", "to": "date"}})
    "columns='id:drop,since:date=%d.%m.%Y,to:date', missing=['NA', '?']"
    """
    return ", ".join(f"{name}={value!r}" for name, value in _as_arguments(options).items())


def _as_arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    columns = format_columns(options.get("columns", {}))
    return ({"columns": columns} if columns else {}) | {name: value for name, value in options.items() if name != "columns"}


_LONGEST_NAME = 40  # characters
_MOST_COLUMNS = 40


class ColumnSchema(NamedTuple):
    """A column of a table."""

    name: str
    kind: str
    """``number``, ``category``, ``date``, ``dropped``, ``label`` or ``target``."""
    values: str
    """Some of its values."""
    note: str = ""
    """The thing that is odd about it."""
    alternative: Mapping[str, Any] | None = None
    """Options for the other reading that the note mentions."""


class TableSchema:
    """How a table is read: what kind each of its columns is, and the options that say so.

    `streamsvm.table_model` makes it and the model: ``print(model.schema)``.

    Parameters
    ----------
    name
        Name of the table.
    n_rows
        The number of rows that were looked at.
    label
        Name of the column with the labels or targets. None if rows come with them.
    regression
        Whether the label is a number to predict.
    columns
        The columns.
    options
        How they are read, as options of a source and an encoder.

    Examples
    --------
    >>> import streamsvm
    >>> rows = [{"id": i, "city": "Oslo" if i % 2 else "Paris", "y": i % 3 == 0} for i in range(40)]
    >>> model = streamsvm.table_model(rows, label="y")
    >>> print(model.schema)
    first look at the data, 40 rows
      column  kind      values
      id      dropped   0 to 39       looks like an id
      city    category  Paris, Oslo
      y       label     False, True
    read with columns='id:drop,city:category'
    >>> streamsvm.table_model(model.schema.with_options(columns="id:number")).schema
    TableSchema(label='y', columns='id:number,city:category')
    """

    def __init__(
        self,
        name: str,
        n_rows: int,
        label: str | None,
        regression: bool,
        columns: Sequence[ColumnSchema],
        options: Mapping[str, Any],
    ) -> None:
        self.name: str = name
        self.n_rows: int = n_rows
        self.label: str | None = label
        self.regression: bool = regression
        self.columns: list[ColumnSchema] = list(columns)
        self.options: dict[str, Any] = dict(options)

    def __repr__(self) -> str:
        said = format_arguments(self.options)
        return f"TableSchema(label={self.label!r}{', regression=True' * self.regression}{said and f', {said}'})"

    def __str__(self) -> str:
        said = ", ".join(filter(None, ("regression=True" * self.regression, format_arguments(self.options))))
        return format_schema(self.name, self.n_rows, self.columns, format_arguments) + (f"\nread with {said}" if said else "")

    @property
    def source_options(self) -> dict[str, Any]:
        """Options of `streamsvm.stream.open_source` for a CSV file like this table; other formats have no ``delimiter``."""
        return resolve_table_options(self.options, "csv").source

    @property
    def encoder_options(self) -> dict[str, Any]:
        """Parameters of a `TableEncoder`."""
        return resolve_table_options(self.options, None).encoder

    def with_options(self, **options: Any) -> TableSchema:
        """Return another reading, with other options: ``columns``, ``missing``, ``decimal`` and others of `table_model`.

        ``columns`` is about the columns that it names, such as ``"id:number,zip:category"``; the others stay as they are.

        Raises
        ------
        ValueError
            An option is unknown or invalid.
        """
        if unknown := options.keys() - {"columns", "missing", "decimal", "when_missing", "cycles", "delimiter", "encoding"}:
            raise ValueError(f"there is no option {min(unknown)!r}")
        changed = dict(self.options)
        if columns := options.pop("columns", None):
            changed = merge_options(changed, {"columns": parse_columns(columns)})
        changed |= {name: value for name, value in options.items() if value is not None}
        resolve_table_options(changed, None)
        return TableSchema(self.name, self.n_rows, self.label, self.regression, apply_kinds(self.columns, changed), changed)

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state)
        self.columns = [ColumnSchema(*column) for column in state["columns"]]


_SHOWN_KINDS = {"drop": "dropped", "category": "category", "date": "date", "number": "number"}


def apply_kinds(columns: Sequence[ColumnSchema], options: Mapping[str, Any]) -> list[ColumnSchema]:
    """Return columns with the kinds that options give them."""
    named = options.get("columns", {})
    changed = []
    for column in columns:
        text = named.get(column.name, named.get(OTHER_COLUMNS))
        is_fixed = text is None or column.kind in ("label", "target")
        changed.append(column if is_fixed else column._replace(kind=_SHOWN_KINDS[text.partition("=")[0]]))
    return changed


def format_schema(name: str, n_rows: int, columns: Sequence[ColumnSchema], written: Callable[[Mapping[str, Any]], str]) -> str:
    """Return the table that is shown; ``written`` says options as their reader would write them."""
    lines = [f"first look at {name}" + (f", {n_rows:,} rows" if n_rows > 1 else "")]
    rows = [("column", "kind", "values", "")]
    for column in columns[:_MOST_COLUMNS]:
        note = column.note + (f" ({written(column.alternative)})" if column.alternative else "")
        rows.append((shorten(column.name, _LONGEST_NAME), column.kind, column.values, note))
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    for *cells, note in rows:
        padded = "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        lines.append(f"  {padded}  {note}".rstrip())
    if len(columns) > _MOST_COLUMNS:
        kinds = Counter(column.kind for column in columns[_MOST_COLUMNS:])
        lines.append("  and " + ", ".join(f"{count} of {kind}" for kind, count in kinds.items()))
    return "\n".join(lines)
