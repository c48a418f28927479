"""The schema of a table, inferred or set by the user, and the options that read the table, as flags or as Python arguments."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from streamsvm.files.messages import join_names, shorten
from streamsvm.stream.tables.column_kinds import DROP, NUMBER, OTHER_COLUMNS, format_columns, merge_options, parse_columns
from streamsvm.stream.tables.table_parser import TableParser

PARSER_OPTIONS = ("columns", "missing", "decimal")
TEXT_OPTIONS = ("delimiter", "encoding")
#: Options that apply to each file format. Topics have none: the codec of the messages defines fields and encoding.
OPTIONS_BY_FORMAT: dict[str, tuple[str, ...]] = {
    "csv": (*PARSER_OPTIONS, *TEXT_OPTIONS),
    "jsonl": (*PARSER_OPTIONS, "encoding"),
    "parquet": PARSER_OPTIONS,
    "arrow": PARSER_OPTIONS,
}


class TableOptions(NamedTuple):
    """The options of a table, split by who uses them."""

    source: dict[str, Any]
    """Options of `open_source`."""
    encoder: dict[str, Any]
    """Parameters of `TableEncoder`; empty if no encoder is needed."""
    columns: Mapping[str, str]
    """The kind of each named column."""


def resolve_table_options(options: Mapping[str, Any], text_format: str | None) -> TableOptions:
    """Split the options that a user has set for a table: returns those of the source, those of the encoder, and the kinds of
    columns. ``text_format`` is the file format, or None for topics and for rows in Python. Raises ValueError if an option is
    invalid.
    """
    columns = TableParser(**{name: value for name, value in options.items() if name in PARSER_OPTIONS}).columns
    if OTHER_COLUMNS in columns and set(columns.values()) == {DROP}:
        raise ValueError(f"columns {format_columns(columns)}: all columns are dropped, and nothing is left to learn from")
    encoder = {name: value for name, value in options.items() if name not in TEXT_OPTIONS and value != []}
    has_only_numbers = set(columns.values()) == {NUMBER} and encoder.keys() == {"columns"}
    if text_format == "csv" and has_only_numbers:  # the default for CSV
        encoder = {}
    applicable = OPTIONS_BY_FORMAT.get(text_format or "", ())
    source = {name: options[name] for name in applicable if name in options and (name in TEXT_OPTIONS or name in encoder)}
    return TableOptions(source, encoder, columns)


def make_label_options(options: Mapping[str, Any], label: str | None) -> dict[str, Any]:
    """Return keyword arguments for a `TableParser` of labels in the column ``label``, from the ``options`` of a table."""
    kinds = {name: kind for name, kind in options.get("columns", {}).items() if name == label}
    return {name: options[name] for name in ("missing", "decimal") if name in options} | {"columns": kinds, "label": label}


def format_flags(options: Mapping[str, Any]) -> str:
    """Format options (value by name) as the flags of a command line, quoted for the shell.

    >>> format_flags({"missing": ["NA", "?"], "columns": {"id": "drop", "since": "date=%d.%m.%Y", "to": "date"}})
    "--columns id:drop,since:date=%d.%m.%Y,to:date --missing 'NA,?'"
    """
    parts = []
    for name, value in _format_kinds(options).items():
        text = (join_names(value) or "none") if isinstance(value, list) else str(value)
        separator = "=" if text.startswith("-") else " "
        parts.append(f"--{name.replace('_', '-')}{separator}{shlex.quote(text)}")
    return " ".join(parts)


def format_arguments(options: Mapping[str, Any]) -> str:
    """Format options (value by name) as the keyword arguments of a Python call.

    >>> format_arguments({"missing": ["NA", "?"], "columns": {"id": "drop", "since": "date=%d.%m.%Y", "to": "date"}})
    "columns='id:drop,since:date=%d.%m.%Y,to:date', missing=['NA', '?']"
    """
    return ", ".join(f"{name}={value!r}" for name, value in _format_kinds(options).items())


def _format_kinds(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of the options for display: the kinds of columns come first, and are one text (``"id:drop"``) instead of a
    dict. They are left out if no kind is set.
    """
    columns = format_columns(options.get("columns", {}))
    return ({"columns": columns} if columns else {}) | {name: value for name, value in options.items() if name != "columns"}


MAX_NAME_LENGTH = 40  # characters of a column name that are shown
_MAX_SHOWN_COLUMNS = 40


class ColumnSchema(NamedTuple):
    """A column of a `TableSchema`."""

    name: str
    kind: str
    """``number``, ``category``, ``key``, ``text``, ``date``, ``dropped``, ``label`` or ``target``."""
    values: str
    """Some of its values, or their range, as text."""
    note: str = ""
    """Remark on anything unusual."""
    alternative: Mapping[str, Any] | None = None
    """Options for the other interpretation that the note mentions."""


@dataclass(eq=False, repr=False)
class TableSchema:
    """The schema of a table: the kind of each column, and the options that read it.

    `streamsvm.table_model` infers it, and stores it in the model: ``print(model.schema)``.

    Parameters
    ----------
    name
        Name of the table.
    n_rows
        Number of rows from which it was inferred.
    label
        Name of the column with the labels or targets. None if they come beside the rows.
    regression
        Whether the label is a number to predict.
    columns
        The columns.
    options
        Options of the source and the encoder that read the table.

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

    name: str
    n_rows: int
    label: str | None
    regression: bool
    columns: list[ColumnSchema]
    options: dict[str, Any]

    def __repr__(self) -> str:
        arguments = format_arguments(self.options)
        return f"TableSchema(label={self.label!r}{', regression=True' * self.regression}{arguments and f', {arguments}'})"

    def __str__(self) -> str:
        arguments = ", ".join(filter(None, ("regression=True" * self.regression, format_arguments(self.options))))
        last_line = f"\nread with {arguments}" if arguments else ""
        return format_schema(self.name, self.n_rows, self.columns, format_arguments) + last_line

    @property
    def source_options(self) -> dict[str, Any]:
        """Keyword arguments for `streamsvm.stream.open_source` that read a CSV file with this schema. For other file formats,
        leave out ``delimiter``.
        """
        return resolve_table_options(self.options, "csv").source

    @property
    def encoder_options(self) -> dict[str, Any]:
        """Keyword arguments for `TableEncoder` that encode the rows of a table with this schema."""
        return resolve_table_options(self.options, None).encoder

    def with_options(self, **options: Any) -> TableSchema:
        """Return a copy of this schema with changed options: ``columns``, ``missing``, ``decimal``, ``when_missing``, ``cycles``,
        ``delimiter`` or ``encoding``, as in `table_model`.

        ``columns``, such as ``"id:number,zip:category"``, only changes the columns that it names.

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
        self.__init__(**state)  # type: ignore[misc] # which refuses other names
        self.columns = [ColumnSchema(*column) for column in state["columns"]]


_SHOWN_KINDS = {"drop": "dropped", "quantity": "number", "duration": "number"}  # other kinds are shown by their names


def apply_kinds(columns: Sequence[ColumnSchema], options: Mapping[str, Any]) -> list[ColumnSchema]:
    """Return a copy of ``columns`` with the kinds that ``options["columns"]`` sets. Columns without an entry there, and the label
    or target column, are unchanged.
    """
    kinds = options.get("columns", {})
    changed = []
    for column in columns:
        text = kinds.get(column.name, kinds.get(OTHER_COLUMNS))
        if text is not None and column.kind not in ("label", "target"):
            kind = text.partition("=")[0]
            column = column._replace(kind=_SHOWN_KINDS.get(kind, kind))
        changed.append(column)
    return changed


def format_schema(name: str, n_rows: int, columns: Sequence[ColumnSchema], formatter: Callable[[Mapping[str, Any]], str]) -> str:
    """Format the columns of a schema as a text table for the user: name, kind, values and notes. ``name`` is the source,
    ``n_rows`` the number of sampled rows. ``formatter`` is a function that converts options to command-line flags or Python
    arguments.
    """
    lines = [f"first look at {name}" + (f", {n_rows:,} rows" if n_rows > 1 else "")]
    rows = [("column", "kind", "values", "")]
    for column in columns[:_MAX_SHOWN_COLUMNS]:
        note = column.note + (f" ({formatter(column.alternative)})" if column.alternative else "")
        rows.append((shorten(column.name, MAX_NAME_LENGTH), column.kind, column.values, note))
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    for *cells, note in rows:
        padded = "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        lines.append(f"  {padded}  {note}".rstrip())
    if len(columns) > _MAX_SHOWN_COLUMNS:
        kinds = Counter(column.kind for column in columns[_MAX_SHOWN_COLUMNS:])
        lines.append("  and " + ", ".join(f"{count} of {kind}" for kind, count in kinds.items()))
    return "\n".join(lines)
