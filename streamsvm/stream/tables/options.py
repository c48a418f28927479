"""How a table is read: as options, on a command line and in Python, and as a first look has found it, for people and a model."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from streamsvm.files.messages import join_names, shorten
from streamsvm.stream.tables.kinds import DROP, NUMBER, OTHERS, columns_text, merge_options, parse_columns
from streamsvm.stream.tables.reading import Reading

READING = ("columns", "missing", "decimal")
TEXT = ("delimiter", "encoding")
#: The options that each format can be read with; a URL has none, because messages name their fields and have their encoding.
KNOWN: dict[str, tuple[str, ...]] = {
    "csv": (*READING, *TEXT),
    "jsonl": (*READING, "encoding"),
    "parquet": READING,
    "arrow": READING,
}


class TableOptions(NamedTuple):
    """How a table is read, for those who read it."""

    source: dict[str, Any]
    """Options of `open_source`."""
    encoder: dict[str, Any]
    """Parameters of `TableEncoder`; empty where no encoder is needed."""
    columns: Mapping[str, str]
    """The kind of each column that was named."""


def table_options(options: Mapping[str, Any], text_format: str | None) -> TableOptions:
    """Return how a table of a format, None for a URL and rows in Python, is read; ValueError if an option is invalid."""
    columns = Reading(**{name: value for name, value in options.items() if name in READING}).columns
    if OTHERS in columns and set(columns.values()) == {DROP}:
        raise ValueError(f"columns {columns_text(columns)}: all columns are dropped, and nothing is left to learn from")
    encoder = {name: value for name, value in options.items() if name not in TEXT}
    if (
        text_format == "csv" and set(columns.values()) == {NUMBER} and encoder.keys() == {"columns"}
    ):  # CSV is read so without options
        encoder = {}
    source = {
        name: options[name] for name in KNOWN.get(text_format or "", ()) if name in options and (name in TEXT or name in encoder)
    }
    return TableOptions(source, encoder, columns)


def flags_of(options: Mapping[str, Any]) -> str:
    """Return options as they stand on a command line.

    >>> flags_of({"missing": ["NA", "?"], "columns": {"id": "drop", "since": "date=%d.%m.%Y", "to": "date"}})
    "--columns id:drop,since:date=%d.%m.%Y,to:date --missing 'NA,?'"
    """
    parts = []
    for name, value in _as_arguments(options).items():
        text = join_names(value) if isinstance(value, list) else str(value)
        between = "=" if text.startswith("-") else " "
        parts.append(f"--{name.replace('_', '-')}{between}{shlex.quote(text)}")
    return " ".join(parts)


def arguments_of(options: Mapping[str, Any]) -> str:
    """Return options as they stand in a call in Python.

    >>> arguments_of({"missing": ["NA", "?"], "columns": {"id": "drop", "since": "date=%d.%m.%Y", "to": "date"}})
    "columns='id:drop,since:date=%d.%m.%Y,to:date', missing=['NA', '?']"
    """
    return ", ".join(f"{name}={value!r}" for name, value in _as_arguments(options).items())


def _as_arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    columns = columns_text(options.get("columns", {}))
    return ({"columns": columns} if columns else {}) | {name: value for name, value in options.items() if name != "columns"}


_LONGEST_NAME = 40  # characters
_MOST_COLUMNS = 40


class SeenColumn(NamedTuple):
    """A column of a table."""

    name: str
    kind: str
    """``number``, ``category``, ``date``, ``dropped``, ``label`` or ``target``."""
    values: str
    """Some of its values."""
    note: str = ""
    """The thing that is odd about it."""
    otherwise: Mapping[str, Any] | None = None
    """Options for the other reading that the note mentions."""


class TableReading:
    """How a table is read: what kind each of its columns is, and the options that say so.

    `streamsvm.table_model` makes it and the model: ``print(model.reading)``.

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
    >>> print(model.reading)
    first look at the data, 40 rows
      column  kind      values
      id      dropped   0 to 39       looks like an id
      city    category  Paris, Oslo
      y       label     False, True
    read with columns='id:drop,city:category'
    >>> streamsvm.table_model(model.reading.changed(columns="id:number")).reading
    TableReading(label='y', columns='id:number,city:category')
    """

    def __init__(
        self,
        name: str,
        n_rows: int,
        label: str | None,
        regression: bool,
        columns: Sequence[SeenColumn],
        options: Mapping[str, Any],
    ) -> None:
        self.name: str = name
        self.n_rows: int = n_rows
        self.label: str | None = label
        self.regression: bool = regression
        self.columns: list[SeenColumn] = list(columns)
        self.options: dict[str, Any] = dict(options)

    def __repr__(self) -> str:
        said = arguments_of(self.options)
        return f"TableReading(label={self.label!r}{', regression=True' * self.regression}{said and f', {said}'})"

    def __str__(self) -> str:
        said = ", ".join(filter(None, ("regression=True" * self.regression, arguments_of(self.options))))
        return drawn_table(self.name, self.n_rows, self.columns, arguments_of) + (f"\nread with {said}" if said else "")

    @property
    def source(self) -> dict[str, Any]:
        """Options of `streamsvm.stream.open_source` for a CSV file like this table; other formats have no ``delimiter``."""
        return table_options(self.options, "csv").source

    @property
    def encoder(self) -> dict[str, Any]:
        """Parameters of a `TableEncoder`."""
        return table_options(self.options, None).encoder

    def changed(self, **options: Any) -> TableReading:
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
        table_options(changed, None)
        return TableReading(self.name, self.n_rows, self.label, self.regression, with_kinds(self.columns, changed), changed)

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state)
        self.columns = [SeenColumn(*column) for column in state["columns"]]


_SHOWN_KINDS = {"drop": "dropped", "category": "category", "date": "date", "number": "number"}


def with_kinds(columns: Sequence[SeenColumn], options: Mapping[str, Any]) -> list[SeenColumn]:
    """Return columns with the kinds that options give them."""
    named = options.get("columns", {})
    changed = []
    for column in columns:
        text = named.get(column.name, named.get(OTHERS))
        is_fixed = text is None or column.kind in ("label", "target")
        changed.append(column if is_fixed else column._replace(kind=_SHOWN_KINDS[text.partition("=")[0]]))
    return changed


def drawn_table(name: str, n_rows: int, columns: Sequence[SeenColumn], written: Callable[[Mapping[str, Any]], str]) -> str:
    """Return the table that is shown; ``written`` says options as their reader would write them."""
    lines = [f"first look at {name}" + (f", {n_rows:,} rows" if n_rows > 1 else "")]
    rows = [("column", "kind", "values", "")]
    for column in columns[:_MOST_COLUMNS]:
        note = column.note + (f" ({written(column.otherwise)})" if column.otherwise else "")
        rows.append((shorten(column.name, _LONGEST_NAME), column.kind, column.values, note))
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    for *cells, note in rows:
        padded = "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        lines.append(f"  {padded}  {note}".rstrip())
    if len(columns) > _MOST_COLUMNS:
        kinds = Counter(column.kind for column in columns[_MOST_COLUMNS:])
        lines.append("  and " + ", ".join(f"{count} of {kind}" for kind, count in kinds.items()))
    return "\n".join(lines)
