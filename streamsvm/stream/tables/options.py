"""How a table is read: as options, on a command line and in Python, and as a first look has found it, for people and a model."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from streamsvm.core.checks import checked_count
from streamsvm.files.messages import cut, quoted_name, shown, written_names
from streamsvm.stream.tables.reading import Reading

#: The options that a text such as ``"id:drop,city:category"`` gives.
ROLES = ("drop", "categorical", "dates", "features", "numbers", "marks")
READING = ("features", "drop", "categorical", "dates", "missing", "decimal", "marks")
TEXT = ("delimiter", "encoding")
#: What each format can be read with; of a URL nothing, for messages name their fields and have their encoding.
KNOWN: dict[str, tuple[str, ...]] = {
    "csv": (*READING, *TEXT),
    "jsonl": (*READING, "encoding"),
    "parquet": READING,
    "arrow": READING,
}
_KINDS = {"drop": "drop", "category": "categorical", "number": "numbers"}
_NAME = r'\s*("(?:[^"]|"")*"|[^",:]*?)\s*'  # perhaps in quotes
_FORMAT = r'\s*("(?:[^"]|"")*"|[^",]*?)\s*'
_COLUMN = re.compile(f"{_NAME}:\\s*(drop|category|date|number)(?:={_FORMAT})?\\s*(?:,|$)")


class TableOptions(NamedTuple):
    """How a table is read, for those who read it."""

    source: dict[str, Any]
    """Options of `open_source`."""
    encoder: dict[str, Any]
    """Parameters of `TableEncoder`; empty where no encoder is needed."""
    numbers: Sequence[str] = ()
    """Columns that are said to hold numbers."""


def columns_of(*texts: str) -> dict[str, Any]:
    """Return the options that texts such as ``"id:drop,city:category"`` give, those of `ROLES`.

    Where several name a column, its last kind counts. A ValueError says that it is not NAME:KIND,..., or names a column twice.

    >>> columns_of('id:drop, "last, first":category, since:date=%d.%m.%Y %H:%M')
    {'drop': ['id'], 'categorical': ['last, first'], 'dates': {'since': '%d.%m.%Y %H:%M'}}
    >>> columns_of("country:category=,age:number=NA|-")
    {'categorical': ['country'], 'marks': {'country': [], 'age': ['NA', '-']}, 'numbers': ['age']}
    >>> columns_of("city:category,age:number,*:drop")
    {'categorical': ['city'], 'features': ['city', 'age']}
    """
    kinds: dict[str, tuple[str, str | None]] = {}
    others_dropped = False
    for text in texts:
        found, drops = _kinds_of(text)
        kinds, others_dropped = kinds | found, others_dropped or drops
    options: dict[str, Any] = {}
    for name, (kind, how) in kinds.items():
        if kind == "date":
            options.setdefault("dates", {})[name] = how or None
            continue
        if kind != "number" or not others_dropped:
            options.setdefault(_KINDS[kind], []).append(name)
        if how is not None:
            options.setdefault("marks", {})[name] = [mark for mark in how.split("|") if mark]
    if others_dropped:
        options["features"] = [name for name, (kind, _) in kinds.items() if kind != "drop"]
        if not options["features"]:
            raise ValueError(f"columns {','.join(texts)}: all columns are dropped, and nothing is left to learn from")
    return options


def _kinds_of(text: str) -> tuple[dict[str, tuple[str, str | None]], bool]:
    """Return the kind and the format of each column that is named, and whether all others are dropped."""
    form = (
        "it is NAME:KIND,..., where KIND is drop, category, date, date=FORMAT or number; or, with the marks of missing values of "
        "that column, category=MARK|MARK or number=MARK"
    )
    kinds: dict[str, tuple[str, str | None]] = {}
    place, others_dropped = 0, False
    while place < len(text):
        if others_dropped:
            raise ValueError(f"columns {text}: *:drop is about all other columns, and stands at the end")
        if (found := _COLUMN.match(text, place)) is None:
            raise ValueError(f"columns {text}: {text[place:]} cannot be read: {form}; other names stand in double quotes")
        place, (name, kind, how) = found.end(), found.groups()
        if how is not None and kind == "drop":
            raise ValueError(f"columns {text}: {name} is dropped, and neither has a format nor marks of missing values")
        others_dropped = name == "*"
        if others_dropped and kind != "drop":
            raise ValueError(f"columns {text}: * stands for all other columns, which can be dropped: *:drop")
        if not name:
            raise ValueError(f"columns {text}: a name is empty: {form}")
        if not others_dropped:
            if (name := _plain_text(name)) in kinds:
                raise ValueError(f"columns {text}: {name} stands there twice")
            kinds[name] = kind, None if how is None else _plain_text(how)
    return kinds, others_dropped


def _plain_text(text: str) -> str:
    return text[1:-1].replace('""', '"') if text.startswith('"') else text


def columns_text(options: Mapping[str, Any]) -> str:
    """Return options as a text that `columns_of` reads.

    >>> columns_text({"drop": ["id"], "categorical": ["last, first"], "dates": {"since": "%d.%m.%Y", "to": None}})
    'id:drop,"last, first":category,since:date=%d.%m.%Y,to:date'
    """
    dates: Mapping[str, str | None] = options.get("dates", {})
    own = {name: f"={_text_after('|'.join(marks))}" for name, marks in options.get("marks", {}).items()}
    parts = [f"{quoted_name(name)}:drop" for name in options.get("drop", ())]
    parts += [f"{quoted_name(name)}:category{own.get(name, '')}" for name in options.get("categorical", ())]
    for name, how in dates.items():
        form = "" if how is None else _text_after(how)
        parts.append(f"{quoted_name(name)}:date{form and f'={form}'}")
    named = {*options.get("drop", ()), *options.get("categorical", ()), *dates}
    numbers = dict.fromkeys([*options.get("features", ()), *options.get("numbers", ()), *own])
    parts += [f"{quoted_name(name)}:number{own.get(name, '')}" for name in numbers if name not in named]
    return ",".join([*parts, "*:drop"] if options.get("features") else parts)


def _text_after(text: str) -> str:
    """Return what stands after a kind, in quotes where that must be."""
    return quoted_name(text) if set(text) & set(',"') or text != text.strip() else text


def table_options(given: Mapping[str, Any], text_format: str | None) -> TableOptions:
    """Return how a table of a format, None for a URL and rows in Python, is read; ValueError if options exclude each other."""
    Reading(**{name: value for name, value in given.items() if name in READING})
    numbers = given.get("numbers", [])
    encoder = {name: value for name, value in given.items() if name not in (*TEXT, "numbers")}
    if numbers and not encoder and text_format != "csv":  # which reads text as numbers anyway
        encoder = {"drop": []}
    source = {name: given[name] for name in KNOWN.get(text_format or "", ()) if name in given}
    return TableOptions(source, encoder, numbers)


def flags_of(options: Mapping[str, Any]) -> str:
    """Return options as they stand on a command line.

    >>> flags_of({"drop": ["id"], "dates": {"since": "%d.%m.%Y", "to": None}, "missing": ["NA", "?"]})
    "--columns id:drop,since:date=%d.%m.%Y,to:date --missing 'NA,?'"
    """
    parts = []
    for name, value in as_arguments(options).items():
        text = written_names(value) if isinstance(value, list) else str(value)
        between = "=" if text.startswith("-") else " "
        parts.append(f"--{name.replace('_', '-')}{between}{shlex.quote(text)}")
    return " ".join(parts)


def arguments_of(options: Mapping[str, Any]) -> str:
    """Return options as they stand in a call in Python.

    >>> arguments_of({"drop": ["id"], "dates": {"since": "%d.%m.%Y", "to": None}, "missing": ["NA", "?"]})
    "columns='id:drop,since:date=%d.%m.%Y,to:date', missing=['NA', '?']"
    """
    return ", ".join(f"{name}={value!r}" for name, value in as_arguments(options).items())


def as_arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with those of `ROLES` as one text, ``columns``."""
    columns = columns_text(options)
    others = {name: value for name, value in options.items() if name not in ROLES}
    return ({"columns": columns} if columns else {}) | others


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
