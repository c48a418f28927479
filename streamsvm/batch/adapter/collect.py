"""Rows from a path or URL, a source, pairs, or a frame with the label in a column."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from river.utils import dataframe

__all__ = ["collect", "without_label"]


def collect(
    source: Any,
    label: str | None,
    format: str | None,  # noqa: A002
    limit: int | None,
    learn: Callable[[Any, Any], None],
) -> None:
    """Give the first ``limit`` rows of a source that have a label to ``learn``.

    Raises
    ------
    StreamError
        The source cannot be opened or read, a row is refused (the message tells where it is), or no row has a label.
    ValueError
        ``source`` is of no type that can be read.
    """
    from streamsvm.stream import IterableSource, Source, StreamError, open_source  # noqa: PLC0415 - imports river's metrics
    from streamsvm.stream.endpoints import BadRow  # noqa: PLC0415

    if isinstance(source, np.ndarray) or hasattr(source, "columns") or not isinstance(source, str | Path | Source | Iterable):
        raise ValueError(
            "rows come from a frame or array with y, a frame with label=, a path, a URL, or pairs (x, y), not from a "
            f"{type(source).__name__} alone"
        )
    opened = None
    if isinstance(source, str | Path):
        source = opened = open_source(str(source), label=label, format=format, stop_at_end=True)
    elif not isinstance(source, Source):
        source = IterableSource(_pairs(source), type(source).__name__)
    read = learned = 0
    rows = iter(source)
    try:
        while learned != limit and (row := next(rows, None)) is not None:
            if isinstance(row, BadRow):
                raise StreamError(f"{row.place}: {row.reason}")
            x, y = row
            read += 1
            if y is not None:
                try:
                    learn(x, y)
                except ValueError as error:
                    raise StreamError(f"{source.place}: {error}") from error
                learned += 1
        if read and not learned:
            advice = "" if opened is None else ": give label=, its name" if label is None else f". Is label={label!r} its name?"
            raise StreamError(f"{source.name} has no label in any of its {read:,} rows{advice}")
    finally:
        if opened is not None:
            opened.close()


def without_label(frame: Any, label: str) -> tuple[Any, list[Any], np.ndarray]:
    """Return a frame without the column ``label``, that column, and a weight for each row: 0 where the label is missing, else 1.

    Raises
    ------
    ValueError
        ``frame`` is no eager frame, or has no such column.
    """
    try:
        whole = dataframe.into_frame(frame)
    except TypeError:
        raise ValueError(f"rows come from an eager frame, not from a {type(frame).__name__}") from None
    if label not in whole.columns:
        raise ValueError(f"the frame has no column {label!r} for the label. It has: {', '.join(map(str, whole.columns))}")
    labels = whole[label]
    return whole.drop(label).to_native(), labels.to_list(), 1.0 - labels.is_null().to_numpy()


def _pairs(rows: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    for number, row in enumerate(rows):
        if not isinstance(row, tuple | list) or len(row) != 2:
            raise ValueError(f"row {number} is not a pair (x, y)")
        yield row[0], row[1]
