"""Converts the flags about a table to options of the source and of the encoder, combined with those of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamsvm.cli import CommandError, UsageError
from streamsvm.cli.arguments import as_usage_error, parse_names
from streamsvm.stream.rows import get_learned_columns, split_pipeline
from streamsvm.stream.tables import TableEncoder, TableModel
from streamsvm.stream.tables.column_kinds import DROP, MESSAGE_COLUMN, NUMBER, OTHER_COLUMNS, find_label_problem, parse_columns
from streamsvm.stream.tables.table_schema import (
    OPTIONS_BY_FORMAT,
    PARSER_OPTIONS,
    TEXT_OPTIONS,
    TableOptions,
    format_flags,
    resolve_table_options,
)

_ENCODER_OPTIONS = ("when_missing", "cycles")


def parse_table_flags(arguments: Any) -> dict[str, Any]:
    """Return the options of reading a table (``--columns``, ``--missing``, ...) by name; UsageError for an invalid value."""
    options: dict[str, Any] = {}
    with as_usage_error("--"):
        for text in arguments.columns or ():
            options["columns"] = options.get("columns", {}) | parse_columns(text)
    for name in ("missing", "cycles"):
        if (text := getattr(arguments, name)) is not None:
            options[name] = parse_names(text if text != [] else "--")  # argparse removes the value --
    if options.get("cycles") == ["none"]:
        options["cycles"] = []
    for name in ("when_missing", "decimal", *TEXT_OPTIONS):
        if (text := getattr(arguments, name)) is not None:
            options[name] = text
    if options.get("delimiter") in ("tab", "\\t"):
        options["delimiter"] = "\t"
    return options


def combine_table_options(
    flag_options: Mapping[str, Any], text_format: str | None, label: str | None, saved: Any = None, predict: bool = False
) -> TableOptions:
    """Return the options of reading a table: those from flags, and for the rest those that the checkpoint ``saved`` has stored.
    Raise an error if a flag contradicts the checkpoint, or does not fit the file's format. With ``predict``, some may differ.

    Parameters
    ----------
    flag_options
        The options from flags, as `parse_table_flags` returns them.
    text_format
        The format of the source; None for a URL.
    label
        Name of the label from ``--label``, or None.
    saved
        The checkpoint that is resumed or predicts, or None.
    predict
        Whether rows are only predicted: then the file may have another delimiter or encoding, may lack columns that the model
        drops, and may drop columns that the model does not know.

    Raises
    ------
    CommandError
        A flag contradicts the checkpoint.
    UsageError
        A flag has no meaning for the format, or contradicts another one.
    """
    options = dict(flag_options)
    columns: dict[str, str] = options.get("columns", {})
    if text_format == "libsvm" and options:
        raise UsageError(f"{format_flags(options)} means nothing for LIBSVM text, which has numbers only")
    valid_names = OPTIONS_BY_FORMAT.get(text_format or "", ())
    if invalid := [name for name in TEXT_OPTIONS if name in options and name not in valid_names]:
        flag = format_flags({invalid[0]: options[invalid[0]]})
        raise UsageError(f"{flag} means nothing for {text_format or 'a stream with a URL'}")
    dropped: dict[str, str] = {}
    if saved is not None:
        # The file may contain columns that the model does not know.
        dropped = {name: kind for name, kind in columns.items() if kind == DROP and name != OTHER_COLUMNS}
        options["columns"] = {name: kind for name, kind in columns.items() if name not in dropped}
        if learned := {name: kind for name, kind in dropped.items() if name in get_learned_columns(saved.model)}:
            flag = format_flags({"columns": learned})
            raise CommandError(f"{flag} contradicts the model, which has learned it. Leave the flag out")
        text_options = {name: value for name, value in options.items() if name in TEXT_OPTIONS}
        saved_options = _read_saved_options(saved)
        _check_same_options({n: value for n, value in options.items() if n not in text_options}, saved_options)
        options = saved_options | text_options
    if not predict and (problem := find_label_problem(options.get("columns", {}) | dropped, label)):
        raise UsageError(f"--{problem}")
    with as_usage_error("--"):
        table = resolve_table_options(options, text_format)
    if text_format is None:
        names = [name for name, kind in columns.items() if kind != DROP and name != label and MESSAGE_COLUMN.fullmatch(name)]
        if saved is not None:  # a run that continues reads the parts of messages that it has read so far
            position = saved.get_facts("position", "rows") or saved.get_facts("position")
            names = position.get("message_columns", [] if "topic" in position else names)
        table.source["message_columns"] = names
    kinds = table.source.get("columns", {})
    if predict:
        kinds = {name: kind for name, kind in kinds.items() if kind != DROP}
    elif dropped.keys() <= kinds.keys() or text_format is None:
        return table
    return table._replace(source=table.source | {"columns": kinds | dropped})


def _check_same_options(options: Mapping[str, Any], saved_options: Mapping[str, Any]) -> None:
    """Raise a CommandError if an option of reading a table that a flag sets differs from the checkpoint's ``saved_options``."""
    saved_kinds = saved_options.get("columns", {})
    default_kind = saved_kinds.get(OTHER_COLUMNS, NUMBER)
    kinds = {name: kind for name, kind in options["columns"].items() if saved_kinds.get(name, default_kind) != kind}
    for name, value in {**options, "columns": kinds}.items():
        saved_value = saved_options.get(name, type(value)())
        if kinds if name == "columns" else sorted(value) != sorted(saved_value):
            saved_flag = format_flags({name: saved_value} if saved_value else {}) or f"no --{name.replace('_', '-')}"
            text = f"{format_flags({name: value})} contradicts the checkpoint, which was learned with {saved_flag}"
            raise CommandError(f"{text}. Leave the flag out to keep its model")


def read_saved_label(saved: Any) -> str | None:
    """Return the name of the label's column that a checkpoint's model has learned; None if it has no name."""
    label = saved.get_facts("position").get("label")
    if isinstance(label, str):
        return label
    return saved.model.label if isinstance(saved.model, TableModel) else None


def _read_saved_options(checkpoint: Any) -> dict[str, Any]:
    """Return the options of reading a table that a checkpoint's rows were read with, by name, from its header and model."""
    encoder = next((step for step in split_pipeline(checkpoint.model)[0] if isinstance(step, TableEncoder)), None)
    table = checkpoint.get_facts("position", "table")
    options: dict[str, Any] = {name: value for name, value in table.items() if name in TEXT_OPTIONS and isinstance(value, str)}
    if encoder is not None:
        parameters = {name: getattr(encoder, name) for name in (*PARSER_OPTIONS, *_ENCODER_OPTIONS)}
        options |= {name: value for name, value in parameters.items() if value}
    return options
