"""Lines of a stream of bytes, given as soon as they come."""

from __future__ import annotations

import codecs
import hashlib
import io
import itertools
import re
from pathlib import Path

from streamsvm.stream.byte_streams import ByteStream
from streamsvm.stream.endpoints import StreamError

#: A line is held in memory whole, so its length is bounded.
LONGEST_LINE = 16 * 2**20
#: The end of a line that is longer is looked for within so many bytes.
LONGEST_SKIPPED = 2**30
#: A stream is recognised by digests of as many bytes at most: at its beginning, and before the position.
FINGERPRINT_BYTES = 4096
_BLANK = re.compile(rb"(?:\r?\n)*")


def hex_digest(data: bytes) -> str:
    """SHA-256 in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def checked_encoding(name: str) -> str:
    """Return the usual name of an encoding in which lines can be found; StreamError if it is none."""
    try:
        usual = codecs.lookup(name).name
        newline = "\n".encode(usual)
    except (LookupError, TypeError, ValueError):
        raise StreamError(f"encoding {name!r} is not known: utf-8, latin-1, cp1252 or shift_jis are") from None
    if usual == "utf-8-sig":
        return "utf-8"
    if newline != b"\n":
        raise StreamError(f"text in {name} cannot be read line by line. Convert it: iconv -f {name} -t utf-8 rows.csv")
    return usual


class LineReader:
    """Reads lines of a file (``.gz``: unpacked), a FIFO, standard input (``"-"``) or bytes, and can recognise the stream later.

    A StreamError says that the stream cannot be opened or, while reading, is corrupt or cannot be read.
    """

    def __init__(self, path: str | Path | ByteStream) -> None:
        self._stream = path if isinstance(path, ByteStream) else ByteStream(path)
        self.name: str = self._stream.name
        self.mark: int = 0  # the offset when `set_mark` was called last, after a row
        self.row_begin: int = 0  # the offset where that row begins
        self.header: int = 0  # the offset where the first row begins
        # The buffer holds the stream from byte `_base` up to the last byte that was read; its first `_at` bytes were given out.
        self._buffer, self._base, self._at = b"", 0, 0
        self._head = b""
        self._before_skip = b""

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called. Lines in memory are still given out, then the stream seems to end."""
        return self._stream.stopped

    @property
    def is_pipe(self) -> bool:
        """Whether what comes next may have to be waited for."""
        return self._stream.is_pipe

    @property
    def has_line(self) -> bool:
        """Whether a whole line has been read from a file, which never has to be waited for, and not given out yet."""
        return not self._stream.is_pipe and self._buffer.find(b"\n", self._at) >= 0

    @property
    def offset(self) -> int:
        """Bytes of the unpacked stream that were given out."""
        return self._base + self._at

    def readline(self) -> bytes:
        """Read the next line with its newline; empty at the end or if stopped. A line over `LONGEST_LINE` is cut off there."""
        begin = self._at
        end = self._buffer.find(b"\n", begin) + 1
        while end == 0:
            searched = len(self._buffer) - begin
            if searched > LONGEST_LINE or not self._fill():
                if self.stopped:  # in the middle of a line
                    return b""
                end = len(self._buffer)
                begin = self._at
                break
            begin = self._at  # filling has moved it
            end = self._buffer.find(b"\n", begin + searched) + 1
        self._at = end
        return self._buffer[begin:end]

    def whole_lines(self, most: int) -> list[bytes]:
        """The next lines with their newlines, at least one and at most so many; `give` gives them out.

        There is none where the next line must be waited for or has no newline, or one is longer than `LONGEST_LINE`.
        """
        searched = 0
        while self._buffer.find(b"\n", self._at + searched) < 0:
            searched = len(self._buffer) - self._at
            if self._stream.is_pipe or searched > LONGEST_LINE or not self._fill():
                return []
        rest = io.BytesIO(self._buffer)  # without a copy
        rest.seek(self._at)
        lines = list(itertools.islice(rest, most))
        if not lines[-1].endswith(b"\n"):
            lines.pop()
        return lines if max(map(len, lines)) <= LONGEST_LINE else []

    def give(self, lines: list[bytes]) -> None:
        """Give out lines that `whole_lines` has found, each of them a row; the mark is after the last one."""
        end = self._at + sum(map(len, lines))
        if len(lines) > 1:
            self._at = end - len(lines[-1])
            self.set_mark()
        self._at = end
        self.set_mark()

    def set_mark(self) -> None:
        """Move the mark here, after a row: `before_mark` returns the bytes before it, `row` those since the last mark."""
        self.row_begin = self.mark or self.header
        self.mark = self._base + self._at

    @property
    def row(self) -> bytes:
        """The bytes between the last two marks, or what is left of them after `skip_line`."""
        return self._buffer[max(self.row_begin - self._base, 0) : max(self.mark - self._base, 0)]

    def rewind(self, offset: int) -> None:
        """Go back to an offset that is not before the mark."""
        self._at = offset - self._base

    def skip_blank(self, most: int) -> int:
        """Give out the empty lines that come next and are in memory, at most so many bytes; the number of them."""
        begin = self._at
        found = _BLANK.match(self._buffer, begin, begin + max(most, 0))
        self._at = begin if found is None else found.end()
        return self._buffer.count(b"\n", begin, self._at)

    def skip_line(self) -> bytes:
        """Read to the end of the line at hand without holding it; the bytes that were given out of it already.

        A StreamError says that it has none within `LONGEST_SKIPPED` bytes: the stream may have none at all.
        """
        given = self._buffer[self.mark - self._base : self._at]
        self._before_skip = self.before_mark()
        end, last = 0, self.offset + LONGEST_SKIPPED
        while end == 0:
            if self.offset > last:
                raise StreamError(
                    f"{self.name}, after byte {self.mark:,}: a line does not end within {LONGEST_SKIPPED:,} bytes. "
                    "Is it text, with a row on each line?"
                )
            dropped = max(len(self._buffer) - FINGERPRINT_BYTES, 0)
            self._buffer, self._base = self._buffer[dropped:], self._base + dropped
            searched = self._at = len(self._buffer)
            if not self._fill():
                break
            end = self._buffer.find(b"\n", searched) + 1
        self._at = end or len(self._buffer)
        return given

    def head(self, size: int) -> bytes:
        """The first ``size`` bytes of the stream, at most `FINGERPRINT_BYTES`; fewer if it ends before."""
        size = min(size, FINGERPRINT_BYTES)
        while len(self._head) < size and self._fill():
            pass
        return self._head[:size]

    def before_mark(self) -> bytes:
        """The last bytes before the mark, at most `FINGERPRINT_BYTES`."""
        end = self.mark - self._base
        if end < 0:  # a line is being skipped
            return self._before_skip
        return self._buffer[max(end - FINGERPRINT_BYTES, 0) : end]

    def skip_to(self, offset: int) -> None:
        """Go forward to an offset and set the mark there; StreamError if the stream ends before it."""
        begin = max(offset - FINGERPRINT_BYTES, 0)
        if offset > self._base + len(self._buffer) and self._stream.can_skip_to(offset):
            self._stream.seek(begin)
            self._buffer, self._base, self._at = b"", begin, 0
            self.mark = begin
        while self._base + len(self._buffer) < offset:
            self._at = len(self._buffer)
            self.set_mark()
            if not self._fill():
                raise StreamError(
                    f"{self.name} ends at byte {self.offset:,}, before byte {offset:,}, the position of the checkpoint: "
                    "it was cut off, or it is another stream"
                )
        self._at = offset - self._base
        self.set_mark()

    def stop(self) -> None:
        """End a wait for bytes that have not come yet, as `ByteStream.stop`."""
        self._stream.stop()

    def close(self) -> None:
        """Close the stream."""
        self._stream.close()

    def _fill(self) -> bool:
        # Read the bytes that have come, or wait for some. False at the end of the stream, or if stopped.
        read, chunk = self._base + len(self._buffer), self._stream.read()
        if not chunk:
            return False
        if read == len(self._head):
            self._head += chunk[: FINGERPRINT_BYTES - read]
        dropped = max(self.mark - FINGERPRINT_BYTES - self._base, 0)
        self._buffer = self._buffer[dropped:] + chunk
        self._base += dropped
        self._at -= dropped
        return True
