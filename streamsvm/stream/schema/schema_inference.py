"""Infers the schema of a table from a sample of its rows: column kinds and the options that read it, or the problem to solve."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from streamsvm.files.messages import shorten
from streamsvm.stream.csv_dialect import detect_csv_options
from streamsvm.stream.endpoints import StreamError
from streamsvm.stream.schema.column_inference import InferredColumn, is_number, make_kind_option
from streamsvm.stream.schema.encoder_options import format_cycles, infer_cycles
from streamsvm.stream.schema.labels import TARGET_NOTE
from streamsvm.stream.schema.source_sample import SAMPLE_ROWS, SourceSample
from streamsvm.stream.schema.table_inference import infer_columns
from streamsvm.stream.tables.chunk import Row
from streamsvm.stream.tables.column_kinds import (
    CATEGORY,
    DATE,
    DROP,
    DURATION,
    NUMBER,
    OTHER_COLUMNS,
    QUANTITY,
    TEXT,
    ColumnKind,
    merge_options,
)
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
    """A problem that the user has to solve: the sample is ambiguous, or no column is left to learn from."""

    text: str
    options: Mapping[str, Any] = MappingProxyType({})
    """Options that may solve it."""
    regression: bool = False
    """Whether learning a regression may solve it."""

    def format_error(self, name: str, format_options: Callable[[Mapping[str, Any]], str], regression: str) -> str:
        """Return an error message that describes this problem and proposes options. ``name`` is the source, ``format_options``
        converts options to flags or arguments, and ``regression`` is the text of the flag or argument for a regression.
        """
        proposal = ", ".join(filter(None, (regression * self.regression, format_options(self.options))))
        return f"{name}: {self.text}" + (f". Try: {proposal}" if proposal else "")


class ProposedOptions(NamedTuple):
    """Options for columns that cannot be learned without them, or that they read better."""

    columns: list[InferredColumn]
    """These columns."""
    options: dict[str, Any]

    @property
    def problem(self) -> SchemaProblem:
        """A message for the user that lists the columns that need a decision, together with the proposed options."""
        names = [column.name for column in self.columns]
        if unwritable := [name for name in names if not name.isprintable() or name == OTHER_COLUMNS]:
            text = f"column {unwritable[0]!r} needs an answer, and its name cannot be written in one: give it another name"
            return SchemaProblem(text)
        notes = ", ".join(f"{column.name} ({column.note or column.kind})" for column in self.columns[:10])
        count = "1 column needs an answer" if len(self.columns) == 1 else f"{len(self.columns)} columns need an answer"
        return SchemaProblem(f"{count}: {notes}{', ...' * (len(self.columns) > 10)}", self.options)


def propose_options(
    columns: Iterable[InferredColumn],
    table: TableOptions,
    rows_may_fail: bool,
    find_unlearnable: Callable[[Mapping[str, Any]], set[str]],
) -> ProposedOptions | SchemaProblem | None:
    """Propose options (column kinds, missing-value markers, decimal mark) for columns that cannot be learned, or are read badly,
    without them. ``table`` has the options set so far. ``find_unlearnable`` takes options and returns the columns that still
    cannot be learned. Returns None if no option is needed.

    If ``rows_may_fail``, a text in a numeric column only costs its row, and needs no option. ``find_unlearnable`` returns the
    names of the columns that cannot be learned with given options: proposals are changed until all can be. Returns
    a `SchemaProblem` if no column is left to learn from.
    """
    kinds = {name: ColumnKind.parse(kind).kind for name, kind in table.columns.items()}
    columns = [_declare_number(column) if kinds.get(column.name) == NUMBER else column for column in columns]
    optional = {"missing"} if rows_may_fail else set()
    suggested = [column._replace(required_options=column.suggested_options) for column in columns if column.suggested_options]
    others = [column for column in columns if not column.suggested_options]
    undecided = [*suggested, *(column for column in others if column.required_options.keys() - optional)]
    if not undecided:
        return None
    if unwritable := [column._replace(is_ambiguous=True) for column in undecided if column.name == OTHER_COLUMNS]:
        return ProposedOptions(unwritable, {})
    options = _merge_column_options(undecided, table)
    declared = {name for name, kind in kinds.items() if kind in (CATEGORY, TEXT, DATE)}
    if "decimal" in table.encoder:  # rows with another mark are refused
        declared |= {
            column.name for column in columns if column.kind == "number" and column.proposed_kind == NUMBER
        } - kinds.keys()
    while unlearnable := find_unlearnable(options) - declared - _find_dropped(options):
        other_names = unlearnable - {column.name for column in undecided}
        changed = (  # without options, texts only cost their rows; then, one decimal mark does not suit all columns
            [column for column in columns if column.name in other_names and column.required_options]
            or [_set_decimal_mark(column) for column in undecided if "decimal" in column.required_options]
            or [_drop_column(column, table.columns.get(column.name)) for column in columns if column.name in unlearnable]
        )
        names = {column.name for column in changed}
        undecided = [column for column in undecided if column.name not in names] + changed
        options = _merge_column_options(undecided, table)
    dropped = _find_dropped(options)
    if all(column.kind in ("label", "target", "dropped") or column.name in dropped for column in columns):
        if suggested:  # learning from an id is better than from nothing
            columns = [column._replace(suggested_options={}) for column in columns]
            return propose_options(columns, table, rows_may_fail, find_unlearnable)
        features = [column for column in columns if column.kind not in ("label", "target")]
        notes = ", ".join(f"{column.name} ({column.note or column.kind})" for column in features)
        return SchemaProblem(f"no column is left to learn from: {shorten(notes, 400)}")
    return ProposedOptions(undecided, options)


def _set_decimal_mark(column: InferredColumn) -> InferredColumn:
    """Return an inferred column that requires the kind ``quantity`` with its decimal mark, in place of the option ``decimal``."""
    options = dict(column.required_options)
    kind = f"{QUANTITY}={options.pop('decimal')}"
    return column._replace(required_options={**options, **make_kind_option(column.name, kind)})


def _drop_column(column: InferredColumn, kind: str | None) -> InferredColumn:
    """Return an inferred column that is dropped; the user is asked if they have declared its ``kind``, which its values lack."""
    column = column._replace(required_options=make_kind_option(column.name, DROP))
    note = f"said to be a {kind}, and has {column.values or 'none'}"
    return column if kind is None else column._replace(note=note, is_ambiguous=True)


def _find_dropped(options: Mapping[str, Any]) -> set[str]:
    """Return the names of the columns that are dropped by ``options``: those with the kind ``drop`` in ``options["columns"]``."""
    return {name for name, kind in options.get("columns", {}).items() if kind == DROP}


def _declare_number(column: InferredColumn) -> InferredColumn:
    """Return an inferred column changed to reflect that the user has declared it as numeric: without suggested options. If its
    values are not all numbers, it gets a note about them, and is marked as ambiguous, so that the user is asked.
    """
    column = column._replace(suggested_options={})
    if column.proposed_kind == NUMBER:
        return column
    return column._replace(note=f"said to be a number, and has {column.values or 'none'}", is_ambiguous=True)


def _merge_column_options(columns: Sequence[InferredColumn], table: TableOptions) -> dict[str, Any]:
    """Merge the required options of all ``columns`` into one dict. Values are added to those that ``table`` already has for the
    same option, such as ``missing``.
    """
    required: dict[str, Any] = {}
    for column in columns:
        required = merge_options(required, column.required_options)
    kinds = required.pop("columns", {})
    # With any option, numbers in text are parsed anyway: then the kind `number` need not be set.
    kinds = {name: kind for name, kind in kinds.items() if kind != NUMBER} or ({} if required else kinds)
    if kinds:
        required["columns"] = kinds
    options = {**table.encoder, "columns": table.columns}
    return merge_options({name: options[name] for name in required if options.get(name)}, required)


def find_bad_columns(sample: SourceSample, label: str | None, table: TableOptions, options: Mapping[str, Any]) -> set[str]:
    """Read the sample with ``options`` added to those of ``table``, and return the names of the columns that still cannot be
    learned: they have texts, but are not declared as categories. ``label`` is the label column.

    Rows that cannot be read at all are ignored.
    """
    parser_options = {name: value for name, value in {**table.encoder, **options}.items() if name in PARSER_OPTIONS}
    parser, unlearnable = TableParser(**parser_options), set()
    text_options = {name: table.source[name] for name in ("delimiter", "encoding") if name in table.source}
    with sample.open_rows(label=label, **text_options, **parser_options) as source:
        for row in itertools.islice(source, SAMPLE_ROWS):
            for name, value in row.x.items() if isinstance(row, Row) else ():
                is_text = not parser.options and isinstance(value, str)
                is_numeric = isinstance(value, int | float) or (is_text and (not value.strip() or is_number(value)))
                if not (is_numeric or parser.get_kind(name) in (CATEGORY, TEXT)):
                    unlearnable.add(str(name))
    return unlearnable


class InferredSchema(NamedTuple):
    """The result of schema inference."""

    columns: list[ColumnSchema]
    """The columns, with the kinds that all options give them."""
    n_rows: int
    """Number of rows in the sample."""
    new_options: dict[str, Any]
    """The inferred options."""
    options: dict[str, Any]
    """All options: the inferred ones and those of the user."""
    is_target: bool
    """Whether the label looks like a number to predict, although no regression was requested."""
    problem: SchemaProblem | None
    """The problem that the user has to solve before the table is learned, or None."""

    def make_schema(self, name: str, label: str | None, regression: bool) -> TableSchema:
        """Convert this inferred schema to the `TableSchema` that is saved with a model. ``name`` is the source's name in
        messages, and ``label`` the label column; None if labels do not come in a column. ``regression``: labels are numbers to
        predict.
        """
        return TableSchema(name, self.n_rows, label, regression, self.columns, dict(self.options))


def infer_schema(
    sample: SourceSample,
    label: str | None,
    options: Mapping[str, Any],
    *,
    regression: bool = False,
    non_feature_columns: Iterable[str] = (),
    rows_may_fail: bool = False,
    asks_user: bool = False,
    always_encodes: bool = False,
) -> InferredSchema:
    """Infer the kind of each column of a table from a sample of its rows, and options for reading it, such as the delimiter.
    ``options`` are those that the user has set; they are not changed. Raises StreamError if the source cannot be read.

    ``non_feature_columns`` are keys, times and weights, which are not learned. If ``rows_may_fail``, a row that cannot be learned
    is skipped. If ``asks_user``, any inferred option is a problem for the user to decide. ``always_encodes``: the model has a
    `TableEncoder`, even if no option needs one.
    """
    new_options: dict[str, Any] = detect_csv_options(sample.head, label, options) if sample.format == "csv" else {}
    options = new_options | dict(options)
    features = table = resolve_table_options(options, sample.format)
    if non_feature_columns:
        features = table._replace(encoder=merge_options(table.encoder, {"columns": dict.fromkeys(non_feature_columns, DROP)}))
    n_rows, columns, is_sparse, has_gaps = infer_columns(sample, label, features, regression, rows_may_fail)
    is_declared = options.get("columns", {}).get(label, "").startswith((QUANTITY, DURATION))
    is_target = not regression and (is_declared or any(column.note == TARGET_NOTE for column in columns))
    problem, proposal = None, propose_options(columns, table, rows_may_fail, partial(find_bad_columns, sample, label, table))
    if isinstance(proposal, SchemaProblem):
        proposal, problem = None, proposal
    kinds = (proposal.options if proposal is not None else options).get("columns", {})
    dates = [column for column in columns if ColumnKind.parse(kinds.get(column.name, NUMBER)).kind == DATE]
    if options.get("cycles") and not dates:
        warnings.warn(
            f"{sample.name}: no column is a date, so cycles of {', '.join(options['cycles'])} add nothing", stacklevel=2
        )
    inferred_cycles = [] if "cycles" in options else format_cycles({column.name: infer_cycles(column.times) for column in dates})
    cycles = {"cycles": inferred_cycles} if inferred_cycles else {}
    if columns and all(column.kind in ("label", "target") for column in columns):
        problem = SchemaProblem(f"there is no column but {label}: nothing to learn from")
    if proposal is not None and (asks_user or any(column.is_ambiguous for column in proposal.columns)):
        problem = proposal.problem._replace(options=dict(proposal.problem.options) | (cycles if asks_user else {}))
    elif asks_user and is_target:
        problem = SchemaProblem(f"{label} looks like {TARGET_NOTE}", regression=True)
    elif asks_user and cycles:
        problem = SchemaProblem("dates have times of day, and need an answer", cycles)
    else:
        new_options |= cycles if proposal is None else proposal.options | cycles
    is_encoded = bool(always_encodes or resolve_table_options(options | new_options, sample.format).encoder)
    has_gaps = has_gaps and is_sparse is False
    if problem is None and "when_missing" not in options and (is_sparse if is_encoded else has_gaps):
        new_options["when_missing"] = "drop" if is_encoded else "mean"  # without an encoder, absent numbers are 0
        if is_sparse and asks_user:
            problem = SchemaProblem("absent numbers may be 0 or missing, and need an answer", {"when_missing": "drop"})
    elif problem is None and "when_missing" not in options and is_encoded and is_sparse is None:
        warnings.warn(f"{sample.name}: {_PERHAPS_SPARSE}", stacklevel=2)
    options |= new_options
    column_schemas = [ColumnSchema(*column[:4], column.alternative) for column in columns]
    return InferredSchema(apply_kinds(column_schemas, options), n_rows, new_options, options, is_target, problem)


_PERHAPS_SPARSE = "many numbers are absent, and count as missing. If they are 0: --when-missing drop (when_missing='drop')"


def read_column_names(sample: SourceSample) -> list[str]:
    """Return the names of all columns of a sampled table, including the label; an empty list if the source cannot be read or has
    no row.
    """
    options = detect_csv_options(sample.head, None, {}) if sample.format == "csv" else {}
    with contextlib.suppress(StreamError), sample.open_rows(label=None, **options) as source:
        rows = itertools.islice(source, SAMPLE_ROWS)  # an object may lack the label
        return list(map(str, source.columns or dict.fromkeys(name for row in rows if isinstance(row, Row) for name in row.x)))
    return []
