"""How a table is read, as a first look has found it or somebody has said: what is shown, changed, and kept with a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from streamsvm.core.checks import checked_count
from streamsvm.files.messages import cut, shown
from streamsvm.stream.tables.options import arguments_of, as_arguments, columns_of, table_options

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
    """What is odd about it."""
    otherwise: Mapping[str, Any] | None = None
    """Options that read it as the note says that it may also be."""


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
    TableReading(label='y', columns='city:category,id:number')
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
        """Options with which `streamsvm.stream.open_source` reads such a file of CSV; other formats have no ``delimiter``."""
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
            There is no such option, it cannot be read, or the options exclude each other.
        """
        if unknown := options.keys() - {"columns", "missing", "decimal", "when_missing", "cycles", "delimiter", "encoding"}:
            raise ValueError(f"there is no option {min(unknown)!r}")
        said, others = as_arguments(self.options), dict(options)
        texts = [text for text in (said.pop("columns", ""), others.pop("columns", "")) if text]
        if texts and texts[0].endswith("*:drop") and len(texts) > 1:  # it stands at the end
            texts = [texts[0].removesuffix("*:drop").rstrip(","), f"{texts[1].removesuffix(',*:drop')},*:drop"]
        found = columns_of(*texts) | said | {name: value for name, value in others.items() if value is not None}
        table_options(found, None)
        return TableReading(self.name, self.n_rows, self.label, self.regression, as_read(self.columns, found), found)

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        try:
            name, label, regression = state["name"], state["label"], state["regression"]
            columns = [SeenColumn(str(a), str(b), str(c), str(d), _checked_otherwise(e)) for a, b, c, d, e in state["columns"]]
            options = {str(key): value for key, value in state["options"].items()}
            made = TableReading(name, checked_count("n_rows", state["n_rows"]), label, regression, columns, options)
            table_options(options, None)
            str(made)
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise ValueError(f"the reading of a table is none: {shown(state)}") from error
        if not (isinstance(name, str) and isinstance(label, str | None) and isinstance(regression, bool)):
            raise ValueError(f"the reading of a table is none: {shown(state)}")
        vars(self).update(vars(made))


def _checked_otherwise(otherwise: Any) -> Mapping[str, Any] | None:
    return None if otherwise is None else {str(name): value for name, value in otherwise.items()}


def as_read(columns: Sequence[SeenColumn], options: Mapping[str, Any]) -> list[SeenColumn]:
    """Return columns with the kinds that options read them as."""
    kinds: dict[str, str] = dict.fromkeys(options.get("drop", ()), "dropped")
    kinds |= dict.fromkeys(options.get("categorical", ()), "category") | dict.fromkeys(options.get("dates", ()), "date")
    kinds |= dict.fromkeys(options.get("numbers", ()), "number")
    learned = options.get("features")
    found = []
    for column in columns:
        usual = column.kind if learned is None or column.name in learned else "dropped"
        kind = column.kind if column.kind in ("label", "target") else kinds.get(column.name, usual)
        found.append(column._replace(kind=kind))
    return found


def drawn_table(name: str, n_rows: int, columns: Sequence[SeenColumn], written: Callable[[Mapping[str, Any]], str]) -> str:
    """Return the table that is shown; ``written`` says options as their reader would write them."""
    lines = [f"first look at {name}" + (f", {n_rows:,} rows" if n_rows > 1 else "")]
    rows = [("column", "kind", "values", "")]
    for column in columns[:_MOST_COLUMNS]:
        note = column.note + (f" ({written(column.otherwise)})" if column.otherwise else "")
        rows.append((cut(column.name, _LONGEST_NAME), column.kind, column.values, note))
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    for *cells, note in rows:
        padded = "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        lines.append(f"  {padded}  {note}".rstrip())
    if len(columns) > _MOST_COLUMNS:
        kinds = Counter(column.kind for column in columns[_MOST_COLUMNS:])
        lines.append("  and " + ", ".join(f"{count} of {kind}" for kind, count in kinds.items()))
    return "\n".join(lines)
