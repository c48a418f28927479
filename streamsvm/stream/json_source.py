"""Rows of JSON lines."""

from __future__ import annotations

import json
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from streamsvm.files.messages import shown
from streamsvm.stream.endpoints import Row
from streamsvm.stream.sources import TextSource
from streamsvm.stream.tables.reading import TextOptions
from streamsvm.stream.tables.values import at_path, flat
from streamsvm.stream.text_numbers import JSONNumbers, laid_out

_OF_LISTS = "; in a list of rows, write each on a line of its own (in pandas: to_json(orient='records', lines=True))"


class JSONLinesSource(TextSource):
    """Rows of a file with one JSON object on each line.

    A null is a missing feature. The values of an object within the object are columns of their own, named by their path:
    ``payload.after.amount``. `TextSource` describes the parameters.
    """

    def __init__(self, path: str | Path, label: str | None = None, **reading: Unpack[TextOptions]) -> None:
        super().__init__(path, label, **reading)
        self._numbers = JSONNumbers(label)

    def _rows_at_hand(self, most: int) -> list[bytes]:
        if self._keep or self._reads or self._ended or self._encoding != "utf-8":
            return []
        lines = self._reader.whole_lines(most)
        return lines if {line[0] for line in lines} == {ord("{")} else []

    def _numbers_of(self, lines: list[bytes], names: Sequence[Hashable]) -> tuple[np.ndarray, list[Any]] | None:
        return self._numbers.decode(*laid_out(lines), names)

    def _parse(self, line: str) -> Row | None:
        if line.isspace():
            return None
        hint = _OF_LISTS if line.lstrip()[:1] == "[" else ""
        try:
            x = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"not JSON ({error}){hint}: {shown(line)}") from None
        if not isinstance(x, dict):
            raise ValueError(f"not a JSON object{hint}: {shown(line)}")
        if self._keep:
            self._kept = [at_path(x, name) for name in self._keep]
        if "{" in line[1:]:
            x = flat(x, self._label, self._reading.drop)
        y = x.pop(self._label, None) if self._label is not None else None
        if self._reads:
            x, y = self._reading.row(x.items()), self._reading.label(y)
        if self._reads or "null" in line:
            x = {name: value for name, value in x.items() if value is not None}
        return Row(x, y)
