"""Rows that a source or a model refuses: they are counted, limited, and written as dead letters."""

from __future__ import annotations

import base64
import math
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from streamsvm.core.checks import validate_mapping
from streamsvm.core.saved import Resumable
from streamsvm.files.messages import format_count, suggest_name
from streamsvm.stream.continuation import describe_place, report_change
from streamsvm.stream.endpoints import DeadLetter, Sink, StreamError
from streamsvm.stream.open import open_sink

MAX_RAW_BYTES = 2**17  # of a row in a dead letter, which must fit into a Kafka message
_MAX_REASON_CHARS = 1000
_WINDOW_ROWS = 1000  # a refused row has 1 / e of its weight in the share of refused rows after this many further rows
_MIN_REFUSED_ROWS = 100  # the share of refused rows is not limited before
_SKIP_ADVICE = "To skip such rows: --on-error skip; to save them too: --on-error PATH; in Python: LearningLoop(on_error=...)"


def describe_on_error_problem(on_error: object) -> str:
    """Return why a value of ``on_error`` is invalid, for a message after its name; "" if it is valid. A word other than ``stop``
    and ``skip`` is probably a typing error, and not the name of a file.

    >>> describe_on_error_problem("skp")
    "must be stop, skip, or a file with a folder or an ending (./skp, skp.jsonl), not 'skp'. Perhaps 'skip'"
    """
    if not isinstance(on_error, str) or on_error in ("stop", "skip", "-") or "." in on_error or Path(on_error).name != on_error:
        return ""
    valid = f"must be stop, skip, or a file with a folder or an ending (./{on_error}, {on_error}.jsonl)"
    return f"{valid}, not {on_error!r}{suggest_name(on_error, ('skip', 'stop'))}"


class RefusedRowHandler(Resumable):
    """Counts refused rows, writes them to a sink of dead letters, and ends the run if there are too many.

    ``on_error``, ``limit`` and ``share`` are the parameters ``on_error``, ``error_limit`` and ``error_share`` of `LearningLoop`.

    >>> refusals = RefusedRowHandler("skip", limit=1)
    >>> refusals.handle_row(7, "rows.csv, line 9", b"1,x", "malformed", "2 cells for 3 columns")
    >>> dict(refusals.counts)
    {'malformed': 1}
    >>> refusals.handle_row(8, "rows.csv, line 10", b"1,y", "malformed", "2 cells for 3 columns")
    Traceback (most recent call last):
        ...
    streamsvm.stream.endpoints.StreamError: rows.csv, line 10: 2 cells for 3 columns. The number of refused rows is now 2, ...
    """

    _saved_attributes = ("counts", "_recent", "_recent_row")

    def __init__(self, on_error: str | Path | Sink, limit: int | None = None, share: float = 0.5) -> None:
        if limit is not None and limit < 0:
            raise ValueError(f"the limit of refused rows must be at least 0, not {limit}")
        if not 0.0 <= share <= 1.0:
            raise ValueError(f"the share of refused rows must be from 0 to 1, not {share}")
        if problem := describe_on_error_problem(on_error):
            raise ValueError(f"on_error {problem}")
        self._stops_at_first = on_error == "stop"
        self._limit, self._share = limit, share
        self._sink_spec = "" if not isinstance(on_error, str | Path) or on_error in ("stop", "skip") else str(on_error)
        self._user_sink: Sink | None = on_error if not isinstance(on_error, str | Path) else None
        self._sink: Sink | None = None
        self._position: Any = None  # the position after the last durable dead letter; None before the first
        self.counts: Counter[str] = Counter()  # refused rows by kind of reason
        self.examples: dict[str, str] = {}  # text about the first row of each kind that this run refused: position and reason
        # The exponentially decayed number of refused rows, and the row number for which it was computed.
        self._recent, self._recent_row = 0.0, 0

    @property
    def sink(self) -> Sink | None:
        """The sink that receives refused rows as dead letters; None if the run has no such sink, or has not opened it yet."""
        return self._user_sink if self._sink is None else self._sink

    @property
    def n_refused(self) -> int:
        """Number of rows that were refused so far, of all kinds."""
        return sum(self.counts.values())

    @property
    def messages(self) -> list[str]:
        """One message for each kind of rows that this run refused, with the position of the first one, and the reason."""
        examples = self.examples.items()
        return [f"{format_count(self.counts[kind], 'refused row')} ({kind}), the first{example}" for kind, example in examples]

    def handle_row(self, row: int, place: str, raw: Any, kind: str, reason: str) -> None:
        """Count a refused row, and write it to the dead-letter sink. ``row`` is its number, ``place`` its line or offset, ``raw``
        its content, ``kind`` the short reason that is counted, and ``reason`` the message. Raise a StreamError if more
        rows were refused than the limit allows, or if the row cannot be written.
        """
        reason = reason if len(reason) <= _MAX_REASON_CHARS else f"{reason[:_MAX_REASON_CHARS]}..."
        sentence = f"{place}: {reason}{'' if reason.endswith(('.', '?')) else '.'}"
        if self._stops_at_first:
            raise StreamError(f"{sentence} {_SKIP_ADVICE}")
        self.write_dead_letter(row, place, raw, kind, reason)
        self.examples.setdefault(kind, f"{' in this run' if self.counts[kind] else ''}: {place}: {reason}")
        self.counts[kind] += 1
        self._recent = self._recent * math.exp((self._recent_row - row) / _WINDOW_ROWS) + 1.0
        self._recent_row = row
        total = self.n_refused
        if self._limit is not None and total > self._limit:
            text = f"The number of refused rows is now {total:,}, and at most {self._limit:,} are allowed"
            raise self._limit_error(f"{sentence} {text}")
        decayed_rows = math.expm1(-(row + 1) / _WINDOW_ROWS) / math.expm1(-1 / _WINDOW_ROWS)  # as `_recent`, of all rows
        if total >= _MIN_REFUSED_ROWS and self._recent > self._share * decayed_rows * (1.0 + 1e-9):
            share = f"of the last rows {self._recent / decayed_rows:.0%} were refused, and at most {self._share:.0%} may be"
            raise self._limit_error(f"{sentence} Now {share}")

    def _limit_error(self, text: str) -> StreamError:
        """Return a StreamError that begins with ``text``, and adds the number of refused rows of each kind."""
        counted = ", ".join(f"{kind} {count:,}" for kind, count in self.counts.items())
        text += f" (so far: {counted}). Is it the right stream? If so, raise the limit (--error-limit, --error-share)"
        return StreamError(text)

    def write_dead_letter(self, row: int, place: str, raw: Any, kind: str, reason: str) -> None:
        """Write a refused row to the dead-letter sink, if there is one, without counting it. ``row`` is its number, ``place`` its
        line or offset, ``raw`` its bytes or Python object, ``kind`` the short reason, and ``reason`` the message.
        """
        self.open(row)
        if self._sink is not None:
            time = datetime.now(UTC).isoformat(timespec="milliseconds")
            n, text, encoding = _encode_raw(raw)
            letter = DeadLetter(row=row, place=place, kind=kind, reason=reason, time=time, bytes=n, raw=text, encoding=encoding)
            self._sink.write(letter)

    def open(self, row: int) -> None:
        """Open the dead-letter sink before ``row``, if there is one and it is not open, and continue it at the saved position."""
        if self._sink is None and (self._sink_spec or self._user_sink is not None):
            self._sink = open_sink(self._sink_spec) if self._user_sink is None else self._user_sink
            if self._position is not None and self._sink.owns(self._position):
                self._sink.seek(self._position)
            elif self._position is not None:
                text = f"refused rows are written here; earlier ones are in {describe_place(self._position)}"
                report_change(self._sink.name, "dead letters", text)
                self._sink.begin(row)

    def flush(self) -> Any:
        """Make the written dead letters durable, and return the sink's position after them, for a checkpoint; None if there are
        no dead letters. Raise a StreamError if that fails.
        """
        if self._sink is not None:
            self._position = dict(self._sink.flush())
        return self._position

    def close(self) -> None:
        """Make the written dead letters durable, and close their sink, unless the user has passed it as an object."""
        if self._sink is not None:
            try:
                self.flush()
            finally:
                if self._user_sink is None:
                    sink, self._sink = self._sink, None
                    sink.close()

    @property
    def state(self) -> dict[str, Any]:
        """The state of this object for a checkpoint, as a dict: the number of refused rows by kind, a number of refused rows in
        which older ones count less and less, and the position of the dead-letter sink.
        """
        return super().state | {"dead_letters": self.flush()}

    def resume(self, state: Any) -> None:
        """Continue from a saved `state` (counts of refused rows and position of the dead-letter sink). Raise a ValueError or
        TypeError if it is invalid.

        `open` then drops the dead letters after the saved position, if the sink can. A run without a sink only passes the
        position on, to the next run that has one.
        """
        saved = dict(state)
        letters = saved.pop("dead_letters")
        self._position = None if letters is None else dict(validate_mapping("dead_letters", letters))
        was_dropped, has_sink = "dropped" in (self._position or ()), bool(self._sink_spec) or self._user_sink is not None
        if self._position is not None and not has_sink and not was_dropped:
            report_change(describe_place(self._position), "dead letters", "refused rows are not written here any more")
            self._position["dropped"] = True  # reported once
        elif was_dropped and has_sink:
            del self._position["dropped"]
        super().resume(saved)


def _encode_raw(raw: Any) -> tuple[int, str, str]:
    """Return the length of a refused row (bytes or a Python object), its text for the dead letter, cut if it is long, and the
    encoding of this text: ``"utf-8"``, ``"base64"`` or ``"repr"``.
    """
    if not isinstance(raw, bytes):
        text = repr(raw)
        return len(text), text[:MAX_RAW_BYTES], "repr"
    start = raw[:MAX_RAW_BYTES]
    try:
        return len(raw), start.decode(), "utf-8"
    except UnicodeDecodeError as error:
        if error.reason == "unexpected end of data" and len(start) < len(raw) and error.end == len(start):
            return len(raw), start[: error.start].decode(), "utf-8"
        return len(raw), base64.b64encode(start).decode(), "base64"
