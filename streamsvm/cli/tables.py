"""The flags about a table as options of the source and of the encoder, with those that a checkpoint holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamsvm.cli import CommandError, UsageError
from streamsvm.cli.arguments import as_usage_error, parse_names
from streamsvm.stream.rows import find_learner, split_pipeline
from streamsvm.stream.tables import TableEncoder, TableModel
from streamsvm.stream.tables.column_kinds import DROP, NUMBER, OTHER_COLUMNS, format_columns, parse_columns
from streamsvm.stream.tables.table_schema import (
    OPTIONS_BY_FORMAT,
    PARSER_OPTIONS,
    TEXT_OPTIONS,
    TableOptions,
    format_flags,
    resolve_table_options,
)

_ENCODING = ("when_missing", "cycles")


def parse_table_flags(arguments: Any) -> dict[str, Any]:
    """Return the options of a table that the flags give; a UsageError where one of them cannot be read."""
    options: dict[str, Any] = {}
    with as_usage_error("--"):
        for text in arguments.columns or ():
            options["columns"] = options.get("columns", {}) | parse_columns(text)
    for name in ("missing", "cycles"):
        if (text := getattr(arguments, name)) is not None:
            options[name] = parse_names(text if text != [] else "--")  # which argparse takes away
    for name in ("when_missing", "decimal", *TEXT_OPTIONS):
        if (text := getattr(arguments, name)) is not None:
            options[name] = text
    if options.get("delimiter") in ("tab", "\\t"):
        options["delimiter"] = "\t"
    return options


def combine_table_options(
    given: Mapping[str, Any], text_format: str | None, label: str | None, saved: Any = None, predict: bool = False
) -> TableOptions:
    """Combine the options of a table from flags with those of a checkpoint.

    Parameters
    ----------
    given
        The options that flags give, as `parse_table_flags` returns them.
    text_format
        The format of the source; None for a URL.
    label
        Name of the label, if flags give it.
    saved
        The checkpoint that is resumed or predicts, None where there is none.
    predict
        Whether rows are predicted only: another file may have another delimiter or encoding then, need not have columns that the
        model drops, and may drop others that the model does not know.

    Raises
    ------
    CommandError
        A flag contradicts the checkpoint.
    UsageError
        A flag has no meaning for the format, or contradicts another one.
    """
    given = dict(given)
    columns: dict[str, str] = given.get("columns", {})
    if not predict and label in columns:
        raise UsageError(f"--columns {format_columns(columns)}: {label} is the label, which has no kind")
    if text_format == "libsvm" and given:
        raise UsageError(f"{format_flags(given)} means nothing for LIBSVM text, which has numbers only")
    possible = OPTIONS_BY_FORMAT.get(text_format or "", ())
    if unknown := [name for name in TEXT_OPTIONS if name in given and name not in possible]:
        raise UsageError(
            f"{format_flags({unknown[0]: given[unknown[0]]})} means nothing for {text_format or 'a stream with a URL'}"
        )
    dropped: dict[str, str] = {}
    if saved is not None:
        if predict:  # other columns may be dropped than those that the model knows
            dropped = {name: kind for name, kind in columns.items() if kind == DROP and name != OTHER_COLUMNS}
            given["columns"] = {name: kind for name, kind in columns.items() if name not in dropped}
        if learned := dict.fromkeys(_learned_columns(saved.model) & dropped.keys(), DROP):
            said = format_flags({"columns": learned})
            raise CommandError(f"{said} contradicts the model, which has learned it. Leave the flag out")
        own = {name: value for name, value in given.items() if predict and name in TEXT_OPTIONS}
        options = _saved_options(saved)
        _check_options({name: value for name, value in given.items() if name not in own}, options, predict)
        given = options | own
    with as_usage_error("--"):
        table = resolve_table_options(given, text_format)
    if not predict:
        return table
    kinds = {name: kind for name, kind in table.source.get("columns", {}).items() if kind != DROP}
    return table._replace(source=table.source | {"columns": kinds | dropped})


def _check_options(given: Mapping[str, Any], saved: Mapping[str, Any], predict: bool) -> None:
    """Raise a CommandError where options that flags give differ from those of a checkpoint."""
    for name, value in given.items():
        said, known = {name: value}, {name: saved[name]} if name in saved else {}
        if name == "columns":
            kinds = saved.get(name, {})
            usual = kinds.get(OTHER_COLUMNS, NUMBER)
            said = {name: {column: kind for column, kind in value.items() if kinds.get(column, usual) != kind}}
            same = not said[name]
        else:
            same = sorted(saved.get(name, ())) == sorted(value) if isinstance(value, list) else saved.get(name) == value
        if not same:
            there = format_flags(known) or f"no --{name.replace('_', '-')}"
            raise CommandError(
                f"{format_flags(said)} contradicts the checkpoint, which was learned with {there}. Leave the flag out"
                + ("" if predict else ", or give another checkpoint folder to start from scratch")
            )


def read_saved_label(saved: Any) -> str | None:
    """Return the name that the label had where a checkpoint, or a saved model of a table, was learned; None if it has none."""
    label = _mapping_of(saved.header, "position").get("label")
    if isinstance(label, str):
        return label
    return saved.model.label if isinstance(saved.model, TableModel) else None


def _mapping_of(facts: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a mapping among the facts of a file, which may be anybody's; an empty one where it has none."""
    value = facts.get(name)
    return value if isinstance(value, Mapping) else {}


def _encoder_of(model: Any) -> TableEncoder | None:
    return next((step for step in split_pipeline(model)[0] if isinstance(step, TableEncoder)), None)


def _learned_columns(model: Any) -> set[Any]:
    columns = set(getattr(find_learner(model), "feature_names", ()))
    if (encoder := _encoder_of(model)) is not None:
        columns |= {name for name, kind in encoder.columns.items() if kind != DROP}
    return columns


def _saved_options(checkpoint: Any) -> dict[str, Any]:
    """Return the options with which the rows of a checkpoint were read."""
    encoder = _encoder_of(checkpoint.model)
    table = _mapping_of(_mapping_of(checkpoint.header, "position"), "table")
    options: dict[str, Any] = {name: value for name, value in table.items() if name in TEXT_OPTIONS and isinstance(value, str)}
    for name in (*PARSER_OPTIONS, *_ENCODING) if encoder is not None else ():
        value = getattr(encoder, name)
        if value and not (name == "when_missing" and value == "mean"):
            options[name] = value
    return options
