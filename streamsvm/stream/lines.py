"""The bytes of a file, a pipe or standard input, unpacked, and their lines, as soon as they come; a wait can be ended."""

from __future__ import annotations

import bz2
import codecs
import gzip
import hashlib
import io
import itertools
import os
import select
import stat
import sys
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from streamsvm.files.messages import missing_package_error
from streamsvm.stream.endpoints import StreamError

_CHUNK_BYTES, _PACKED_BYTES = 2**18, 2**12
#: How files that are no text begin, what they are, and what to do about it.
_UNLIKE_TEXT = {
    b"\x1f\x8b\x08": ("compressed by gzip", "Give it a name that ends in .gz, or unpack it: gzip -d"),
    b"BZh": ("compressed by bzip2", "Give it a name that ends in .bz2, or unpack it: bzip2 -d"),
    b"\x28\xb5\x2f\xfd": ("compressed by zstd", "Give it a name that ends in .zst, or unpack it: zstd -d"),
    b"\xfd7zXZ\0": ("compressed by xz", "Unpack it: xz -d"),
    b"PK\x03\x04": ("a zip archive, as spreadsheets are too", "Unpack it, or save the spreadsheet as CSV"),
    b"PAR1": ("a Parquet file", "Give it a name that ends in .parquet"),
}
#: Whether a wait for a pipe can be ended: not on Windows.
_CAN_POLL = hasattr(select, "poll") and hasattr(os, "O_NONBLOCK")


class ByteStream:
    """The bytes of a file (``.gz``, ``.bz2`` and ``.zst``: unpacked), a FIFO or standard input (``"-"``).

    Raises
    ------
    StreamError
        The stream cannot be opened or, while reading, is corrupt or cannot be read.
    MissingPackageError
        zstandard is not installed, which ``.zst`` needs.
    """

    name: str
    """Name of the stream in messages."""
    is_pipe: bool = False
    """Whether what comes next may have to be waited for."""
    stopped: bool = False
    """Whether `stop` was called. Then the stream seems to end."""
    _wakes: tuple[io.FileIO, io.FileIO] | None = None

    def __init__(self, path: str | Path) -> None:
        standard = str(path) == "-"
        self.name = "standard input" if standard else str(path)
        try:
            if standard:
                self._file = io.FileIO(sys.stdin.fileno(), closefd=False)
            else:  # without O_NONBLOCK, opening a FIFO would wait for its writer, and nothing could stop that
                no_wait = os.O_NONBLOCK if _CAN_POLL else 0
                self._file = io.FileIO(path, opener=lambda path, flags: os.open(path, flags | no_wait))
        except OSError as error:
            raise StreamError(f"{self.name}: {error.strerror or error}") from error
        except AttributeError:  # sys.stdin is None then
            raise StreamError(f"{self.name} is closed") from None
        self._unpacked = _unpacking_file(self._file, self.name)
        regular = stat.S_ISREG(os.fstat(self._file.fileno()).st_mode)
        self._is_seekable = regular and not standard and self._unpacked is None
        self._read, self._first = 0, b""  # number of bytes that were read; bytes that were peeked at
        if not regular and _CAN_POLL:  # else only the next bytes end a wait
            self.is_pipe = True
            receiver, sender = os.pipe()  # `stop` writes to it, to end a wait
            self._wakes = io.FileIO(receiver), io.FileIO(sender, "w")
            self._poll = select.poll()
            self._poll.register(self._file, select.POLLIN)
            self._poll.register(receiver, select.POLLIN)

    def __str__(self) -> str:
        return self.name

    def read(self) -> bytes:
        """Read the bytes that have come, or wait for some; none at the end of the stream, or if stopped."""
        if self._first and not self.stopped:
            peeked, self._first = self._first, b""
            return peeked
        return self._next_bytes()

    def _next_bytes(self) -> bytes:
        chunk: bytes | None = None
        while chunk is None:  # or again, if another reader of the pipe was quicker
            self._bytes_come(None)
            if self.stopped:
                return b""
            try:
                chunk = self._file.read(_CHUNK_BYTES) if self._unpacked is None else self._unpacked.read1(_CHUNK_BYTES)
            except (OSError, EOFError, zlib.error) as error:
                raise StreamError(f"{self.name}, after byte {self._read:,}: {error}") from error
        if not self._read:
            for begin, (what, advice) in _UNLIKE_TEXT.items():
                if chunk.startswith(begin) and (begin != b"BZh" or chunk[4:10] == b"1AY&SY"):
                    raise StreamError(f"{self.name} is {what}, and no text. {advice}")
        self._read += len(chunk)
        return chunk

    def _bytes_come(self, seconds: float | None) -> bool:
        """Wait for bytes, or the end, at most so long; whether there are some."""
        return not self.is_pipe or bool(self._poll.poll(None if seconds is None else 1000 * seconds))

    def peek(self, lines: int, least: int, most_bytes: int, seconds: float, wait_on: Callable[[], bool]) -> bytes:
        """Return the first bytes of the stream, in whole lines if it has any. `read` returns them again.

        Read up to ``lines`` or ``most_bytes``. Wait for the ``least`` lines that are not empty, and up to ``seconds`` for the
        others. If the former have not come within ``seconds``, ``wait_on`` is called and returns whether to wait for them.
        """
        parts: list[bytes] = []
        n_lines = n_filled = n_bytes = 0
        line, ended, patient = b"", False, False  # the beginning of the last line
        end = time.monotonic() + seconds
        while n_lines < lines and n_bytes <= most_bytes:
            is_enough = n_filled >= least
            if not self._bytes_come(max(end - time.monotonic(), 0.0) if is_enough or not patient else None):
                if is_enough or not (patient := wait_on()):
                    break
                continue
            chunk = self._next_bytes()
            if ended := not chunk:
                break
            parts.append(chunk)
            n_bytes += len(chunk)
            *whole, line = (line[-1:] + chunk).split(b"\n")  # of whose beginning it only counts whether it is there
            n_lines += len(whole)
            n_filled += sum(bool(text.strip()) for text in whole)
            if n_filled >= least and not is_enough:
                end = time.monotonic() + seconds
        data = self._first = b"".join(parts)
        return data if ended else data[: data.rfind(b"\n") + 1] or data

    def can_skip_to(self, offset: int) -> bool:
        """Return whether this is a plain file of at least ``offset`` bytes, so that `seek` can go there."""
        return self._is_seekable and offset <= os.fstat(self._file.fileno()).st_size

    def seek(self, offset: int) -> None:
        """Move to an offset of a file, at which `read` continues."""
        self._file.seek(offset)
        self._read = offset

    def stop(self) -> None:
        """End a wait for bytes that have not come yet. Called from a signal handler or another thread.

        Where the system has no ``select.poll`` (Windows), a wait for a pipe ends when its next bytes come.
        """
        self.stopped = True
        if self._wakes is not None:
            self._wakes[1].write(b"\0")

    def close(self) -> None:
        """Close the file. Standard input stays open."""
        for file in (*(self._wakes or ()), self._unpacked, self._file):
            if file is not None:
                file.close()
        self._wakes = None


def _unpacking_file(file: io.FileIO, name: str) -> gzip.GzipFile | bz2.BZ2File | _ZstdFile | None:
    """Return what unpacks a file, by its name; None where it is not packed."""
    if name.lower().endswith(".gz"):
        return gzip.GzipFile(fileobj=file)
    if name.lower().endswith(".bz2"):
        return bz2.BZ2File(file)
    return _ZstdFile(file, name) if name.lower().endswith(".zst") else None


class _ZstdFile:
    """Unpacks a file of Zstandard frames as its bytes come."""

    def __init__(self, file: io.FileIO, name: str) -> None:
        try:
            import zstandard  # noqa: PLC0415 - of an extra
        except ImportError as error:
            file.close()
            raise missing_package_error(name, "zstandard", "files", error) from error
        self._file, self._error, self._new = file, zstandard.ZstdError, zstandard.ZstdDecompressor().decompressobj
        self._frame: Any = None
        self._packed = b""

    def read1(self, size: int) -> bytes | None:  # noqa: ARG002 - of the packed bytes so few are taken that few come out
        """Return bytes, none at the end; None where they must be waited for."""
        while True:
            packed = self._packed or self._file.read(_PACKED_BYTES)
            if not packed:
                if packed is not None and self._frame is not None:
                    raise EOFError("the compressed file ends within a frame")
                return packed
            self._packed = b""
            self._frame = self._frame or self._new()
            try:
                data: bytes = self._frame.decompress(packed)
            except self._error as error:
                raise OSError(str(error)) from error
            if self._frame.eof:
                self._packed, self._frame = self._frame.unused_data, None
            if data:
                return data

    def close(self) -> None:
        """Leave the file to those who have opened it."""


class BytesInMemory(ByteStream):
    """Bytes in memory, with the name of the stream that they are of."""

    def __init__(self, name: str, data: bytes) -> None:
        self.name: str = name
        self._data, self._is_seekable = data, False

    def read(self) -> bytes:
        data, self._data = self._data, b""
        return data

    def close(self) -> None:
        pass


#: A line is held in memory whole, so its length is bounded.
MAX_LINE_BYTES = 16 * 2**20
#: The end of a longer line is searched for within this many bytes.
MAX_SKIPPED_BYTES = 2**30
#: A stream is recognised by digests of as many bytes at most: at its beginning, and before the position.
FINGERPRINT_BYTES = 4096
_END_BYTES = 2**16


def hex_digest(data: bytes) -> str:
    """SHA-256 in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def digest_file_ends(path: str | Path, size: int, text: str) -> str:
    """Return a digest of a text, and of the first and the last 64 KiB of the first ``size`` bytes of a file."""
    with Path(path).open("rb") as file:
        digest = hashlib.sha256(text.encode() + file.read(min(_END_BYTES, size)))
        begin = max(size - _END_BYTES, 0)
        file.seek(begin)
        digest.update(file.read(size - begin))
    return digest.hexdigest()


def normalize_encoding(name: str) -> str:
    """Return the usual name of an encoding; raise a StreamError if it is unknown, or lines cannot be found in it."""
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

    Once its ``stream`` is stopped, lines in memory are still returned; then it seems to end. Errors are those of `ByteStream`.
    """

    def __init__(self, path: str | Path | ByteStream) -> None:
        self.stream: ByteStream = path if isinstance(path, ByteStream) else ByteStream(path)
        self.name: str = self.stream.name
        # The buffer holds the stream from byte `_base` up to the last byte that was read; its first `_at` bytes were consumed.
        self._buffer, self._base, self._at = b"", 0, 0
        self._head = b""

    @property
    def offset(self) -> int:
        """Number of bytes of the unpacked stream that were consumed."""
        return self._base + self._at

    @property
    def last_bytes(self) -> bytes:
        """The last bytes that were consumed, at most `FINGERPRINT_BYTES`."""
        return self._buffer[max(self._at - FINGERPRINT_BYTES, 0) : self._at]

    def lines(self, most: int, after: int = 0) -> list[bytes]:
        """Return the next lines with their newlines, at least one and at most ``most``, without consuming them.

        They begin ``after`` some bytes. At the end, the last line may have no newline; behind it, and if stopped, there is no
        line. A line over `MAX_LINE_BYTES` is cut.
        """
        begin = searched = self._at + after
        has_ended = False
        while not has_ended and len(self._buffer) - begin <= MAX_LINE_BYTES and self._buffer.find(b"\n", searched) < 0:
            searched = len(self._buffer)
            has_ended = not self._fill_buffer()
        rest = io.BytesIO(self._buffer)  # without a copy
        rest.seek(begin)
        lines = list(itertools.islice(rest, most))
        is_part = lines and lines[-1][-1:] != b"\n" and len(lines[-1]) <= MAX_LINE_BYTES
        return lines[:-1] if is_part and (self.stream.stopped or not has_ended) else lines

    def peek(self, size: int) -> bytes:
        """Return the next bytes, which `lines` has read, without consuming them."""
        return self._buffer[self._at : self._at + size]

    def consume(self, lines: Sequence[bytes]) -> None:
        """Consume lines that `lines` has returned; a line that was cut is consumed as a whole.

        Raise a StreamError if it does not end within `MAX_SKIPPED_BYTES` bytes: the stream may have no newlines at all.
        """
        first = self.offset
        self._at += sum(map(len, lines))
        last, is_part = self.offset + MAX_SKIPPED_BYTES, len(lines[-1]) > MAX_LINE_BYTES and lines[-1][-1:] != b"\n"
        while is_part:
            end = self._buffer.find(b"\n", self._at) + 1
            self._at = end or len(self._buffer)
            self._drop_consumed()
            if self.offset > last:
                raise StreamError(
                    f"{self.name}, after byte {first:,}: a line does not end within {MAX_SKIPPED_BYTES:,} bytes. "
                    "Is it text, with a row on each line?"
                )
            is_part = not end and self._fill_buffer()
        if self._at > _CHUNK_BYTES:
            self._drop_consumed()

    def head(self, size: int) -> bytes:
        """The first ``size`` bytes of the stream, at most `FINGERPRINT_BYTES`; fewer if it ends before."""
        size = min(size, FINGERPRINT_BYTES)
        while len(self._head) < size and self._fill_buffer():
            pass
        return self._head[:size]

    def skip_to(self, offset: int) -> None:
        """Go forward to an offset; StreamError if the stream ends before it."""
        if offset > self._base + len(self._buffer) and self.stream.can_skip_to(offset):
            self._buffer, self._base, self._at = b"", max(offset - FINGERPRINT_BYTES, 0), 0
            self.stream.seek(self._base)
        while self._base + len(self._buffer) < offset:
            self._at = len(self._buffer)
            self._drop_consumed()
            if not self._fill_buffer():
                raise StreamError(
                    f"{self.name} ends at byte {self.offset:,}, before byte {offset:,}, the position of the checkpoint: "
                    "it was cut off, or it is another stream"
                )
        self._at = offset - self._base

    def _drop_consumed(self) -> None:
        # But for the `last_bytes`.
        dropped = max(self._at - FINGERPRINT_BYTES, 0)
        self._buffer, self._base, self._at = self._buffer[dropped:], self._base + dropped, self._at - dropped

    def _fill_buffer(self) -> bool:
        # Read the bytes that have come, or wait for some. False at the end of the stream, or if stopped.
        read, chunk = self._base + len(self._buffer), self.stream.read()
        if read == len(self._head):
            self._head += chunk[: FINGERPRINT_BYTES - read]
        self._buffer += chunk
        return bool(chunk)
