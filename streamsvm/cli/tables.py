"""The flags about a table as options of the source and of the encoder, with those that a checkpoint holds."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from streamsvm.cli import CommandError, UsageError
from streamsvm.cli.arguments import parse_names, wrong_usage
from streamsvm.stream.rows import learner_of, steps_of
from streamsvm.stream.tables import TableEncoder, TableModel
from streamsvm.stream.tables.options import (
    KNOWN,
    READING,
    ROLES,
    TEXT,
    TableOptions,
    columns_of,
    columns_text,
    flags_of,
    table_options,
)

_ENCODING = ("when_missing", "cycles")


def given_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options of a table that the flags give; a UsageError where one of them cannot be read."""
    found: dict[str, Any] = {}
    with wrong_usage("--"):
        if arguments.columns is not None:
            found |= columns_of(*arguments.columns)
    for name in ("missing", "cycles"):
        if (text := getattr(arguments, name)) is not None:
            found[name] = parse_names(text if text != [] else "--")  # which argparse takes away
    for name in ("when_missing", "decimal", *TEXT):
        if (text := getattr(arguments, name)) is not None:
            found[name] = text
    if found.get("delimiter") in ("tab", "\\t"):
        found["delimiter"] = "\t"
    return found


def table_of(
    given: Mapping[str, Any], text_format: str | None, label: str | None, saved: Any = None, predict: bool = False
) -> TableOptions:
    """Return how the flags, or else the checkpoint, say that the source is read.

    Parameters
    ----------
    given
        The options that flags give, as `given_of` returns them.
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
    if not predict and any(label in given.get(role, ()) for role in ROLES):
        raise UsageError(f"--columns {columns_text(given)}: {label} is the label, which has no kind")
    if text_format == "libsvm" and given:
        raise UsageError(f"{flags_of(given)} means nothing for LIBSVM text, which has numbers only")
    possible = KNOWN.get(text_format or "", ())
    if unknown := [name for name in TEXT if name in given and name not in possible]:
        raise UsageError(f"{flags_of({unknown[0]: given[unknown[0]]})} means nothing for {text_format or 'a stream with a URL'}")
    if saved is not None:
        known = _saved_table(saved)
        dropped = given.pop("drop") if predict and "drop" in given else []
        if learned := [name for name in dropped if name in _columns_of(saved.model)]:
            raise CommandError(f"{flags_of({'drop': learned})} contradicts the model, which has learned it. Leave the flag out")
        others = {*known.get("drop", ()), *known.get("categorical", ()), *known.get("dates", ())}
        for name, value in given.items():
            same = not others & {*value} if name == "numbers" else _same_options(known.get(name), value)
            if not same and not (predict and name in TEXT):
                of_flag = ROLES if name in ROLES else (name,)
                said, there = (flags_of({each: of[each] for each in of_flag if each in of}) for of in (given, known))
                there = there or f"no --{'columns' if name in ROLES else name.replace('_', '-')}"
                raise CommandError(
                    f"{said} contradicts the checkpoint, which was learned with {there}. Leave the flag out"
                    + ("" if predict else ", or give another checkpoint folder to start from scratch")
                )
        given |= {name: value for name, value in known.items() if name not in TEXT or name not in given}
    else:
        dropped = []
    with wrong_usage(""):
        table = table_options(given, text_format)
    source = {name: value for name, value in table.source.items() if not (predict and name in ("features", "drop"))}
    return table._replace(source=source | ({"drop": dropped} if dropped else {}))


def _same_options(known: Any, given: Any) -> bool:
    """Return whether options say the same; the order of columns says nothing."""
    return sorted(known) == sorted(given) if isinstance(known, list | tuple) and isinstance(given, list) else bool(known == given)


def label_of(saved: Any) -> str | None:
    """Return the name that the label had where a checkpoint, or a saved model of a table, was learned; None if it has none."""
    label = _mapping_of(saved.header, "position").get("label")
    if isinstance(label, str):
        return label
    return saved.model.label if isinstance(saved.model, TableModel) else None


def _mapping_of(facts: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a mapping among the facts of a file, which may be anybody's; an empty one where it has none."""
    found = facts.get(name)
    return found if isinstance(found, Mapping) else {}


def _encoder_of(model: Any) -> TableEncoder | None:
    return next((step for step in steps_of(model)[0] if isinstance(step, TableEncoder)), None)


def _columns_of(model: Any) -> set[Any]:
    columns = set(getattr(learner_of(model), "feature_names", ()))
    if (encoder := _encoder_of(model)) is not None:
        columns |= {*encoder.categorical, *encoder.dates, *(encoder.features or ())}
    return columns


def _saved_table(checkpoint: Any) -> dict[str, Any]:
    encoder = _encoder_of(checkpoint.model)
    table = _mapping_of(_mapping_of(checkpoint.header, "position"), "table")
    found: dict[str, Any] = {name: value for name, value in table.items() if name in TEXT and isinstance(value, str)}
    for name in (*READING, *_ENCODING) if encoder is not None else ():
        value = getattr(encoder, name)
        if value and not (name == "when_missing" and value == "mean"):
            found[name] = value
    if encoder is not None and encoder.buckets is not None:  # of an earlier version
        found |= {"max_values": encoder.max_values, "buckets": encoder.buckets}
    return found
