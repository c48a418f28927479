"""The flags about a table as options of the source and of the encoder, with those that a checkpoint holds."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from river import compose

from streamsvm.cli import CommandError, UsageError
from streamsvm.cli.arguments import names, written
from streamsvm.files.messages import quoted
from streamsvm.stream.rows import learner_of
from streamsvm.stream.tables import Reading, TableEncoder

_READING = ("features", "drop", "categorical", "dates", "missing", "decimal")
_ENCODING = ("when_missing", "cycles")
_TEXT = ("delimiter", "encoding")
#: What each format can be read with; of a URL nothing, for messages name their fields and have their encoding.
_KNOWN = {"csv": (*_READING, *_TEXT), "jsonl": (*_READING, "encoding"), "parquet": _READING, "arrow": _READING}


class Table(NamedTuple):
    """How a table is read."""

    source: dict[str, Any]
    """Options of `open_source`."""
    encoder: dict[str, Any]
    """Parameters of `TableEncoder`; empty where no encoder is needed."""
    numbers: Sequence[str] = ()
    """Columns that are said to hold numbers."""


#: The options that ``--columns`` gives.
ROLES = ("drop", "categorical", "dates", "features", "numbers")
_KINDS = {"drop": "drop", "category": "categorical", "number": "numbers"}
_NAME = r'\s*("(?:[^"]|"")*"|[^",:]*?)\s*'  # perhaps in quotes
_FORMAT = r'\s*("(?:[^"]|"")*"|[^",]*?)\s*'
_COLUMN = re.compile(f"{_NAME}:\\s*(drop|category|date|number)(?:={_FORMAT})?\\s*(?:,|$)")


def columns_of(*texts: str) -> dict[str, Any]:
    """Return the options that ``--columns`` gives: ``drop``, ``categorical``, ``dates``, ``features`` and ``numbers``.

    Where the flag stands several times, the last kind of a column counts.

    Raises
    ------
    UsageError
        It is not NAME:KIND,..., or names a column twice.

    Examples
    --------
    >>> columns_of('id:drop, "last, first":category, since:date=%d.%m.%Y %H:%M')
    {'drop': ['id'], 'categorical': ['last, first'], 'dates': {'since': '%d.%m.%Y %H:%M'}}
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
        elif kind != "number" or not others_dropped:
            options.setdefault(_KINDS[kind], []).append(name)
    if others_dropped:
        options["features"] = [name for name, (kind, _) in kinds.items() if kind != "drop"]
        if not options["features"]:
            raise UsageError(f"--columns {','.join(texts)}: all columns are dropped, and nothing is left to learn from")
    return options


def _kinds_of(text: str) -> tuple[dict[str, tuple[str, str | None]], bool]:
    """Return the kind and the format of each column that is named, and whether all others are dropped."""
    form = "it is NAME:KIND,..., where KIND is drop, category, date, date=FORMAT or number"
    kinds: dict[str, tuple[str, str | None]] = {}
    place, others_dropped = 0, False
    while place < len(text):
        if others_dropped:
            raise UsageError(f"--columns {text}: *:drop is about all other columns, and stands at the end")
        if (found := _COLUMN.match(text, place)) is None:
            raise UsageError(f"--columns {text}: {text[place:]} cannot be read: {form}; other names stand in double quotes")
        place, (name, kind, how) = found.end(), found.groups()
        if how is not None and kind != "date":
            raise UsageError(f"--columns {text}: only dates have a format, and {name} is of kind {kind}")
        others_dropped = name == "*"
        if others_dropped and kind != "drop":
            raise UsageError(f"--columns {text}: * stands for all other columns, which can be dropped: *:drop")
        if not name:
            raise UsageError(f"--columns {text}: a name is empty: {form}")
        if not others_dropped:
            if (name := _plain(name)) in kinds:
                raise UsageError(f"--columns {text}: {name} stands there twice")
            kinds[name] = kind, None if how is None else _plain(how)
    return kinds, others_dropped


def _plain(text: str) -> str:
    return text[1:-1].replace('""', '"') if text.startswith('"') else text


def columns_text(options: Mapping[str, Any]) -> str:
    """Return options as ``--columns`` gives them.

    Examples
    --------
    >>> columns_text({"drop": ["id"], "categorical": ["last, first"], "dates": {"since": "%d.%m.%Y", "to": None}})
    'id:drop,"last, first":category,since:date=%d.%m.%Y,to:date'
    """
    dates: Mapping[str, str | None] = options.get("dates", {})
    parts = [f"{quoted(name)}:drop" for name in options.get("drop", ())]
    parts += [f"{quoted(name)}:category" for name in options.get("categorical", ())]
    for name, how in dates.items():
        form = "" if how is None else quoted(how) if set(how) & set(',"') or how != how.strip() else how
        parts.append(f"{quoted(name)}:date{form and f'={form}'}")
    named = {*options.get("drop", ()), *options.get("categorical", ()), *dates}
    numbers = dict.fromkeys([*options.get("features", ()), *options.get("numbers", ())])
    parts += [f"{quoted(name)}:number" for name in numbers if name not in named]
    return ",".join([*parts, "*:drop"] if options.get("features") else parts)


def flags_of(options: Mapping[str, Any]) -> str:
    """Return options as they stand on a command line.

    Examples
    --------
    >>> flags_of({"drop": ["id"], "dates": {"since": "%d.%m.%Y", "to": None}, "missing": ["NA", "?"]})
    "--columns id:drop,since:date=%d.%m.%Y,to:date --missing 'NA,?'"
    """
    flags = {"columns": columns_text(options)} | {name: value for name, value in options.items() if name not in ROLES}
    parts = []
    for name, value in flags.items():
        text = written(value) if isinstance(value, list) else str(value)
        if name == "columns" and not text:
            continue
        between = "=" if text.startswith("-") else " "
        parts.append(f"--{name.replace('_', '-')}{between}{shlex.quote(text)}")
    return " ".join(parts)


def given_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options of a table that the flags give."""
    found: dict[str, Any] = {}
    if arguments.columns is not None:
        found |= columns_of(*arguments.columns)
    for name in ("missing", "cycles"):
        if (text := getattr(arguments, name)) is not None:
            found[name] = names(text if text != [] else "--")  # which argparse takes away
    for name in ("when_missing", "decimal", *_TEXT):
        if (text := getattr(arguments, name)) is not None:
            found[name] = text
    if found.get("delimiter") in ("tab", "\\t"):
        found["delimiter"] = "\t"
    return found


def table_of(
    given: Mapping[str, Any], text_format: str | None, label: str | None, saved: Any = None, predict: bool = False
) -> Table:
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
    possible = _KNOWN.get(text_format or "", ())
    if unknown := [name for name in _TEXT if name in given and name not in possible]:
        raise UsageError(f"{flags_of({unknown[0]: given[unknown[0]]})} means nothing for {text_format or 'a stream with a URL'}")
    if saved is not None:
        known = _saved(saved)
        dropped = given.pop("drop") if predict and "drop" in given else []
        if learned := [name for name in dropped if name in _columns_of(saved.model)]:
            raise CommandError(f"{flags_of({'drop': learned})} contradicts the model, which has learned it. Leave the flag out")
        others = {*known.get("drop", ()), *known.get("categorical", ()), *known.get("dates", ())}
        for name, value in given.items():
            same = not others & {*value} if name == "numbers" else _same(known.get(name), value)
            if not same and not (predict and name in _TEXT):
                of_flag = ROLES if name in ROLES else (name,)
                said, there = (flags_of({each: of[each] for each in of_flag if each in of}) for of in (given, known))
                there = there or f"no --{'columns' if name in ROLES else name.replace('_', '-')}"
                raise CommandError(
                    f"{said} contradicts the checkpoint, which was learned with {there}. Leave the flag out"
                    + ("" if predict else ", or give another checkpoint folder to start from scratch")
                )
        given |= {name: value for name, value in known.items() if name not in _TEXT or name not in given}
    else:
        dropped = []
    try:
        Reading(**{name: value for name, value in given.items() if name in _READING})
    except ValueError as error:
        raise UsageError(str(error)) from None
    wanted = [name for name in possible if not (predict and name in ("features", "drop"))]
    numbers = given.pop("numbers", [])
    encoder = {name: value for name, value in given.items() if name not in _TEXT}
    if numbers and not encoder and text_format != "csv":  # which reads text as numbers anyway
        encoder = {"drop": []}
    source = {name: given[name] for name in wanted if name in given}
    return Table(source | ({"drop": dropped} if dropped else {}), encoder, numbers)


def _same(known: Any, given: Any) -> bool:
    """Return whether options say the same; the order of columns says nothing."""
    return sorted(known) == sorted(given) if isinstance(known, list | tuple) and isinstance(given, list) else bool(known == given)


def label_of(saved: Any) -> str | None:
    """Return the name that the label had where a checkpoint was learned; None if the checkpoint has none."""
    label = _mapping(saved.header, "position").get("label")
    return label if isinstance(label, str) else None


def _mapping(facts: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a mapping among the facts of a file, which may be anybody's; an empty one where it has none."""
    found = facts.get(name)
    return found if isinstance(found, Mapping) else {}


def _encoder_of(model: Any) -> TableEncoder | None:
    steps = model.steps.values() if isinstance(model, compose.Pipeline) else [model]
    return next((step for step in steps if isinstance(step, TableEncoder)), None)


def _columns_of(model: Any) -> set[Any]:
    """Return the columns that a model has learned."""
    columns = set(getattr(learner_of(model), "feature_names", ()))
    if (encoder := _encoder_of(model)) is not None:
        columns |= {*encoder.categorical, *encoder.dates, *(encoder.features or ())}
    return columns


def _saved(checkpoint: Any) -> dict[str, Any]:
    encoder = _encoder_of(checkpoint.model)
    table = _mapping(_mapping(checkpoint.header, "position"), "table")
    found: dict[str, Any] = {name: value for name, value in table.items() if name in _TEXT and isinstance(value, str)}
    for name in (*_READING, *_ENCODING) if encoder is not None else ():
        value = getattr(encoder, name)
        if value and not (name == "when_missing" and value == "mean"):
            found[name] = value
    if encoder is not None and encoder.buckets is not None:  # of an earlier version
        found |= {"max_values": encoder.max_values, "buckets": encoder.buckets}
    return found
