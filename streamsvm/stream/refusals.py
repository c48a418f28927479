"""The rows that a stream's model or source refuses: counted, written as dead letters, and no more of them than a limit."""

from __future__ import annotations

import base64
import math
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from streamsvm.core.checks import validate_mapping
from streamsvm.core.saved import Resumable
from streamsvm.stream.endpoints import DeadLetter, Sink, StreamError
from streamsvm.stream.open import open_sink

LONGEST_RAW = 2**17  # bytes of a row in a dead letter, which must fit into a message of Kafka
_LONGEST_REASON = 1000
_WINDOW = 1000  # rows of which a share may be refused
_GRACE = 100  # refused rows before a share is one
_LEAVE_OUT = "To skip such rows: --on-error skip; to save them too: --on-error PATH; in Python: LearningLoop(on_error=...)"


class RefusedRowHandler(Resumable):
    """Decides what becomes of a row that was refused. The parameters are those of `LearningLoop` that begin with ``error``.

    >>> refusals = RefusedRowHandler("skip", limit=1)
    >>> refusals.add(7, "rows.csv, line 9", b"1,x", "malformed", "2 cells for 3 columns")
    >>> dict(refusals.counts)
    {'malformed': 1}
    >>> refusals.add(8, "rows.csv, line 10", b"1,y", "malformed", "2 cells for 3 columns")
    Traceback (most recent call last):
        ...
    streamsvm.stream.endpoints.StreamError: rows.csv, line 10: 2 cells for 3 columns. It is the 2nd row that was refused...
    """

    _saved_attributes = ("counts", "_recent", "_recent_row")

    def __init__(self, on_error: str | Path | Sink, limit: int | None = None, share: float = 0.5) -> None:
        if limit is not None and limit < 0:
            raise ValueError(f"the limit of refused rows must be at least 0, not {limit}")
        if not 0.0 <= share <= 1.0:
            raise ValueError(f"the share of refused rows must be from 0 to 1, not {share}")
        self._stops = on_error == "stop"
        self._limit, self._share = limit, share
        self._spec = "" if not isinstance(on_error, str | Path) or on_error in ("stop", "skip") else str(on_error)
        self._given: Sink | None = on_error if not isinstance(on_error, str | Path) else None
        self._sink: Sink | None = None
        self._position: Any = None  # after the dead letters that are durable; None if there were none
        self.counts: Counter[str] = Counter()  # of refused rows, by kind
        # Refused rows, each worth less by a factor e after every `_WINDOW` rows; and the row when that was computed.
        self._recent, self._recent_row = 0.0, 0

    @property
    def sink(self) -> Sink | None:
        """The sink of dead letters; None if there is none, or it is not open yet."""
        return self._given if self._sink is None else self._sink

    @property
    def total(self) -> int:
        """All rows that were refused."""
        return sum(self.counts.values())

    def add(self, row: int, place: str, raw: Any, kind: str, reason: str) -> None:
        """Count a row, its bytes or a Python object, and write it where dead letters go.

        A StreamError says that the row is to stop the process, or is one too many, or its dead letter cannot be written.
        """
        reason = reason if len(reason) <= _LONGEST_REASON else f"{reason[:_LONGEST_REASON]}..."
        if self._stops:
            raise StreamError(f"{place}: {reason}{'' if reason.endswith('.') else '.'} {_LEAVE_OUT}")
        self.report(row, place, raw, kind, reason)
        self.counts[kind] += 1
        self._recent = self._recent * math.exp((self._recent_row - row) / _WINDOW) + 1.0
        self._recent_row = row
        total = self.total
        if self._limit is not None and total > self._limit:
            raise self._too_many(
                f"{place}: {reason}. It is the {_ordinal_text(total)} row that was refused, and at most {self._limit:,} may be"
            )
        window = math.expm1(-(row + 1) / _WINDOW) / math.expm1(-1 / _WINDOW)  # the sum, had all been refused
        if total >= _GRACE and self._recent > self._share * window * (1.0 + 1e-9):
            share = f"of the last rows {self._recent / window:.0%} were refused, and at most {self._share:.0%} may be"
            raise self._too_many(f"{place}: {reason}. Now {share}")

    def _too_many(self, text: str) -> StreamError:
        counted = ", ".join(f"{kind} {count:,}" for kind, count in self.counts.items())
        return StreamError(f"{text} (so far: {counted}). Is it the right stream? If so, raise the limit")

    def report(self, row: int, place: str, raw: Any, kind: str, reason: str) -> None:
        """Write a row where dead letters go, if they go anywhere, without counting it; as `add`."""
        self.open()
        if self._sink is not None:
            time = datetime.now(UTC).isoformat(timespec="milliseconds")
            size, text, encoding = _shown_row(raw)
            letter = DeadLetter(
                row=row, place=place, kind=kind, reason=reason, time=time, bytes=size, raw=text, encoding=encoding
            )
            self._sink.write(letter)

    def open(self) -> None:
        """Open the file or connection for dead letters, if there is one, behind those that are durable, which it must hold."""
        if self._sink is None and (self._spec or self._given is not None):
            self._sink = open_sink(self._spec) if self._given is None else self._given
            if self._position is not None:
                self._sink.seek(self._position)

    def flush(self) -> Any:
        """Make dead letters durable, and return the position after them; StreamError if that fails."""
        if self._sink is not None:
            self._position = dict(self._sink.flush())
        return self._position

    def close(self) -> None:
        """Make dead letters durable, and close the file or connection; `open` goes on with it."""
        if self._sink is not None:
            try:
                self.flush()
            finally:
                if self._given is None:
                    sink, self._sink = self._sink, None
                    sink.close()

    @property
    def state(self) -> dict[str, Any]:
        """The state that a checkpoint saves: counts, the position of the dead letters, and what the limit is computed of."""
        return super().state | {"dead_letters": self.flush()}

    def resume(self, state: Any) -> None:
        """Go on from a saved `state`; an error if it is none. `open` then drops the dead letters after it, if the medium can.

        A run without a sink holds the position for the next run with one.
        """
        saved = dict(state)
        self._position = None if (letters := saved.pop("dead_letters")) is None else validate_mapping("dead_letters", letters)
        super().resume(saved)


def _shown_row(raw: Any) -> tuple[int, str, str]:
    if not isinstance(raw, bytes):
        text = repr(raw)
        return len(text), text[:LONGEST_RAW], "repr"
    begin = raw[:LONGEST_RAW]
    try:
        return len(raw), begin.decode(), "utf-8"
    except UnicodeDecodeError as error:
        if error.reason == "unexpected end of data" and len(begin) < len(raw) and error.end == len(begin):
            return len(raw), begin[: error.start].decode(), "utf-8"
        return len(raw), base64.b64encode(begin).decode(), "base64"


def _ordinal_text(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number:,}{ending}"
