"""Rows from whatever a user has: a path or URL, a source, or pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["collect"]


def collect(source: Any, label: str | None, limit: int | None, learn: Callable[[Any, Any], None]) -> int:
    """Hand the first ``limit`` rows of a source that have a label to ``learn``; how many they were.

    Raises
    ------
    StreamError
        The source cannot be opened or read, a row is refused (the message tells where it is), or none has a label.
    ValueError
        It is no source.
    """
    from streamsvm.runtime import IterableSource, Source, StreamError, open_source  # noqa: PLC0415  as it brings river's metrics
    from streamsvm.runtime.loop import explained  # noqa: PLC0415

    if isinstance(source, np.ndarray) or hasattr(source, "columns") or not isinstance(source, str | Path | Source | Iterable):
        raise ValueError(
            f"rows come from a frame or array with y, a path, a URL, or pairs (x, y), not from a {type(source).__name__} alone"
        )
    opened = None
    if isinstance(source, str | Path):
        source = opened = open_source(str(source), label=label, stop_at_end=True)
    elif not isinstance(source, Source):
        source = IterableSource(_pairs(source), type(source).__name__)
    given = learned = 0
    rows = iter(source)
    try:
        while learned != limit and (row := next(rows, None)) is not None:
            x, y = row
            given += 1
            if y is not None:
                try:
                    learn(x, y)
                except ValueError as error:
                    raise StreamError(f"{source.place}: {explained(error, x)}") from error
                learned += 1
        if given and not learned:
            raise StreamError(f"{source.name} has no label in any of its {given:,} rows. Is label={label!r} its name?")
        return learned
    finally:
        if opened is not None:
            opened.close()


def _pairs(rows: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    for number, row in enumerate(rows):
        if not isinstance(row, tuple | list) or len(row) != 2:
            raise ValueError(f"row {number} is not a pair (x, y)")
        yield row[0], row[1]
