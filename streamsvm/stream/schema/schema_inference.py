"""A first look at a table: what each column is, and the options that read it so, or the question that is open."""

from __future__ import annotations

import codecs
import contextlib
import csv
import io
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from streamsvm.files.messages import shorten
from streamsvm.stream.endpoints import StreamError
from streamsvm.stream.schema.column_inference import InferredColumn, is_number, make_kind_option
from streamsvm.stream.schema.source_sample import SAMPLE_ROWS, SourceSample
from streamsvm.stream.schema.table_inference import TARGET_NOTE, infer_columns
from streamsvm.stream.tables.chunk import Row
from streamsvm.stream.tables.column_kinds import CATEGORY, DATE, DROP, NUMBER, OTHER_COLUMNS, ColumnKind, merge_options
from streamsvm.stream.tables.table_parser import TableParser
from streamsvm.stream.tables.table_schema import (
    PARSER_OPTIONS,
    ColumnSchema,
    TableOptions,
    TableSchema,
    apply_kinds,
    resolve_table_options,
)


class SchemaProblem(NamedTuple):
    """A matter that the rows do not decide, or why there is nothing to learn."""

    text: str
    options: Mapping[str, Any] = MappingProxyType({})
    """Those to try."""
    regression: bool = False
    """Whether to try a regression."""


class NoFeatureColumnsError(ValueError):
    """No column is left to learn from."""


class ProposedOptions(NamedTuple):
    """Options that read columns which cannot be learned as they are, or better otherwise."""

    columns: list[InferredColumn]
    """These columns."""
    options: dict[str, Any]

    @property
    def problem(self) -> SchemaProblem:
        """The question that names the columns, and the options to try."""
        if odd := [column.name for column in self.columns if not column.name.isprintable() or column.name == OTHER_COLUMNS]:
            return SchemaProblem(
                f"column {odd[0]!r} needs an answer, and its name cannot be written in one: give it another name"
            )
        notes = ", ".join(f"{column.name} ({column.note or column.kind})" for column in self.columns[:10])
        count = "1 column needs an answer" if len(self.columns) == 1 else f"{len(self.columns)} columns need an answer"
        return SchemaProblem(f"{count}: {notes}{', ...' * (len(self.columns) > 10)}", self.options)


def propose_options(
    columns: Iterable[InferredColumn],
    table: TableOptions,
    rows_may_fail: bool = False,
    try_out: Callable[[Mapping[str, Any]], set[str]] | None = None,
) -> ProposedOptions | None:
    """Propose options for columns that cannot be learned as they are, or that are read better otherwise; None if none are needed.

    Where rows may fail, a text among numbers costs its row and needs no answer. ``try_out`` returns the columns that cannot be
    learned with some options. Raises NoFeatureColumnsError if no column is left to learn from.
    """
    columns = list(columns)
    kinds = {name: ColumnKind.of(kind).kind for name, kind in table.columns.items()}
    columns = [_as_number(column) if kinds.get(column.name) == NUMBER else column for column in columns]
    open_ = [column for column in columns if column.required_options.keys() - ({"missing"} if rows_may_fail else set())]
    suggested = [
        column._replace(required_options=column.suggested_options)
        for column in columns
        if column.suggested_options and kinds.get(column.name) != NUMBER
    ]
    if not open_ and not suggested:
        return None
    open_ = [*suggested, *open_]
    if unnamed := [column._replace(is_ambiguous=True) for column in open_ if column.name == OTHER_COLUMNS]:
        return ProposedOptions(unnamed, {})
    options = _options_answered(open_, table)
    if try_out is not None:
        before = {name for name, kind in kinds.items() if kind in (CATEGORY, DATE)}
        while bad := try_out(options) - before - _dropped_columns(options):
            others = bad - {column.name for column in open_}
            if unasked := [column for column in columns if column.name in others and column.required_options]:
                open_ = [*open_, *unasked]  # whose texts would have cost their rows alone, without these options
            else:
                features = [column for column in open_ if column.kind not in ("label", "target")]
                reads_decimals = {column.name for column in features if "decimal" in column.required_options}
                if reads_decimals and others:  # it does not suit the other columns
                    bad = reads_decimals
                named = {column.name: column for column in columns}
                changed = [named[name]._replace(required_options=make_kind_option(name, DROP)) for name in bad if name in named]
                open_ = [column for column in open_ if column.name not in bad] + changed
            options = _options_answered(open_, table)
        dropped = _dropped_columns(options)
        if all(column.kind in ("label", "target", "dropped") or column.name in dropped for column in columns):
            if suggested:  # better an id than nothing
                return propose_options(
                    [column._replace(suggested_options={}) for column in columns], table, rows_may_fail, try_out
                )
            seen = ", ".join(
                f"{column.name} ({column.note or column.kind})" for column in columns if column.kind not in ("label", "target")
            )
            raise NoFeatureColumnsError(f"no column is left to learn from: {shorten(seen, 400)}")
    return ProposedOptions(open_, options)


def _dropped_columns(options: Mapping[str, Any]) -> set[str]:
    return {name for name, kind in options.get("columns", {}).items() if kind == DROP}


def _as_number(column: InferredColumn) -> InferredColumn:
    """Return a column that is said to hold numbers; where it holds something else, that is a question."""
    if column.proposed_kind == NUMBER:
        return column
    return column._replace(note=f"said to be a number, and has {column.values or 'none'}", is_ambiguous=True)


def _options_answered(open_: Sequence[InferredColumn], table: TableOptions) -> dict[str, Any]:
    """Return the options that answer for columns, merged with what was given before for these options."""
    answers: dict[str, Any] = {}
    for column in open_:
        answers = merge_options(answers, column.required_options)
    kinds = answers.pop("columns", {})
    # Text is read as numbers where any option says how columns are read.
    kinds = {name: kind for name, kind in kinds.items() if kind != NUMBER} or ({} if answers else kinds)
    if kinds:
        answers["columns"] = kinds
    options = {**table.encoder, "columns": table.columns}
    return merge_options({name: options[name] for name in answers if options.get(name)}, answers)


def find_unlearnable_columns(
    beginning: SourceSample, label: str | None, table: TableOptions, options: Mapping[str, Any]
) -> set[str]:
    """Return the columns that cannot be learned when first rows, those left out that cannot be read, are read with options."""
    parser_options = {name: value for name, value in {**table.encoder, **options}.items() if name in PARSER_OPTIONS}
    parser, bad = TableParser(**parser_options), set()
    text_format = {name: table.source[name] for name in ("delimiter", "encoding") if name in table.source}
    with beginning.open_rows(label=label, **text_format, **parser_options) as source:
        for row in itertools.islice(source, SAMPLE_ROWS):
            for name, value in row.x.items() if isinstance(row, Row) else ():
                is_text = not parser.options and isinstance(value, str)
                reads = isinstance(value, int | float) or (is_text and (not value.strip() or is_number(value)))
                if not (reads or parser.get_kind(name) == CATEGORY):
                    bad.add(str(name))
    return bad


class InferredSchema(NamedTuple):
    """The findings of a first look."""

    columns: list[ColumnSchema]
    """The columns as they are read."""
    n_rows: int
    """The number of rows that were seen."""
    new_options: dict[str, Any]
    """The options that were found."""
    options: dict[str, Any]
    """All options, those that were given too."""
    is_target: bool
    """Whether the label looks like a number to predict, and nothing was said of it."""
    problem: SchemaProblem | None
    """The question that must be answered before the table is learned."""

    def make_schema(self, name: str, label: str | None, regression: bool) -> TableSchema:
        """Return the reading that is kept with a model."""
        return TableSchema(name, self.n_rows, label, regression, self.columns, self.options)

    def format_error(self, name: str, written: Callable[[Mapping[str, Any]], str], regression: str) -> str:
        """Return the question as an error says it.

        ``written`` says options as their reader would write them, and ``regression`` that the label is a number.
        """
        if self.problem is None:
            return ""
        said = ", ".join([regression] * self.problem.regression + [text for text in [written(self.problem.options)] if text])
        return f"{name}: {self.problem.text}" + (f". Try: {said}" if said else "")


def infer_schema(
    beginning: SourceSample,
    label: str | None,
    given: Mapping[str, Any],
    *,
    regression: bool = False,
    no_features: Iterable[str] = (),
    rows_may_fail: bool = False,
    asks: bool = False,
) -> InferredSchema:
    """Look at the first rows of a table, with the options that were ``given``.

    ``no_features`` are columns that something else reads: keys, times and weights. Where ``rows_may_fail``, a row that cannot be
    used is left out. Where it ``asks``, all that options could say is a question. A StreamError says that the source cannot be
    read.
    """
    new_options: dict[str, Any] = {}
    if beginning.format == "csv":
        new_options |= detect_csv_options(beginning.text, label, given)
    options = new_options | dict(given)
    seen = table = resolve_table_options(options, beginning.format)
    if no_features:
        seen = table._replace(encoder=merge_options(table.encoder, {"columns": dict.fromkeys(no_features, DROP)}))
    n_rows, columns = infer_columns(beginning, label, seen, regression, rows_may_fail)
    is_target = any(column.note == TARGET_NOTE for column in columns)
    proposed, problem = None, None
    try:
        proposed = propose_options(
            columns, table, rows_may_fail, partial(find_unlearnable_columns, beginning, label, table) if columns else None
        )
    except NoFeatureColumnsError as error:
        problem = SchemaProblem(str(error))
    if columns and all(column.kind in ("label", "target") for column in columns):
        problem = SchemaProblem(f"there is no column but {label}: nothing to learn from")
    if proposed is not None and (asks or any(column.is_ambiguous for column in proposed.columns)):
        problem = proposed.problem
    elif asks and is_target:
        problem = SchemaProblem(f"{label} looks like {TARGET_NOTE}", regression=True)
    elif proposed is not None:
        new_options, options = new_options | proposed.options, options | proposed.options
    read = [ColumnSchema(*column[:4], column.alternative) for column in columns]
    return InferredSchema(apply_kinds(read, options), n_rows, new_options, options, is_target, problem)


def read_column_names(beginning: SourceSample) -> list[str]:
    """Return the names of the columns, that of the label too; none where they cannot be seen."""
    options = detect_csv_options(beginning.text, None, {}) if beginning.format == "csv" else {}
    with contextlib.suppress(StreamError), beginning.open_rows(label=None, **options) as source:
        row = next(iter(source), None)
        return list(map(str, source.columns or (row.x if isinstance(row, Row) else ())))
    return []


def guess_label_column(names: Sequence[str]) -> str:
    """Return which of some columns may be the label.

    >>> guess_label_column(["a", "Class", "b"]), guess_label_column(["a", "b"])
    ('Class', 'b')
    """
    return next((name for name in names if name.lower() in _LABELS), names[-1])


_LABELS = {"y", "label", "target", "class", "outcome"}  # usual names


_FEW = 3  # lines
_ROWS, _MOST = 20, 0.8  # and the part of them that must have as many cells as the first
_DELIMITERS = ",;\t|"
#: What text that is not UTF-8 may be: Windows writes it in Western Europe, and it holds all letters of Latin-1.
_OTHER = "cp1252"


def detect_csv_options(data: bytes, label: str | None, given: Mapping[str, Any]) -> dict[str, str]:
    r"""Return the ``encoding`` and the ``delimiter`` of a CSV file that begins so, as far as they are not usual, and not given.

    >>> detect_csv_options("Größe;Preis\n1,5;2\n".encode("latin-1"), "Preis", {})
    {'encoding': 'cp1252', 'delimiter': ';'}
    """
    options: dict[str, str] = {}
    encoding: Any = given.get("encoding") or _encoding_of(data)
    if "encoding" not in given and encoding != "utf-8":
        options["encoding"] = encoding
    if "delimiter" not in given:
        try:
            text = codecs.getincrementaldecoder(encoding)(errors="replace").decode(data.removeprefix(codecs.BOM_UTF8))
        except LookupError:  # is said where the file is opened
            return options
        if (delimiter := _delimiter_of(text, label)) != ",":
            options["delimiter"] = delimiter
    return options


def _encoding_of(data: bytes) -> str:
    """Return the encoding of the beginning of a text; a few lines after the first that are not UTF-8 are damaged."""
    lines = [line for line in data.split(b"\n")[:-1] or [data] if not line.isascii()]
    wrong = [line for line in lines if not _is_in("utf-8", line)]
    is_first = bool(wrong) and data.startswith(wrong[0])
    if not wrong or (not is_first and (len(wrong) < _FEW or len(wrong) < len(lines))):
        return "utf-8"
    return _OTHER if all(_is_in(_OTHER, line) for line in wrong) else "utf-8"


def _is_in(encoding: str, line: bytes) -> bool:
    """Whether a line can be of an encoding."""
    try:
        line.decode(encoding)
    except UnicodeDecodeError:
        return False
    return True


def _delimiter_of(text: str, label: str | None) -> str:
    """Return the delimiter that gives the most columns, among them the label."""
    best, most = ",", 1
    for mark in _DELIMITERS:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=mark, skipinitialspace=True, strict=True)
        try:
            rows = [row for row in itertools.islice(reader, _ROWS) if row]
        except csv.Error:
            continue
        header = [cell.strip() for cell in rows[0]] if rows else []
        n_fit = sum(len(row) == len(header) for row in rows)
        if len(header) > most and n_fit >= _MOST * len(rows) and (label is None or label in header):
            best, most = mark, len(header)
    return best
