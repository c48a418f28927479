"""Reads bytes and lines of files, pipes and standard input, decompressed and as soon as they arrive; a wait can be ended."""

from __future__ import annotations

import bz2
import codecs
import gzip
import hashlib
import io
import itertools
import os
import re
import select
import stat
import sys
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from streamsvm.files.messages import missing_package_error
from streamsvm.stream.endpoints import StreamError

_CHUNK_BYTES, _COMPRESSED_CHUNK_BYTES = 2**18, 2**12
#: First bytes of files that are not text, with the kind of file and the advice for a message.
_BINARY_SIGNATURES = {
    b"\x1f\x8b\x08": ("compressed by gzip", "Give it a name that ends in .gz, or unpack it: gzip -d"),
    b"BZh": ("compressed by bzip2", "Give it a name that ends in .bz2, or unpack it: bzip2 -d"),
    b"\x28\xb5\x2f\xfd": ("compressed by zstd", "Give it a name that ends in .zst, or unpack it: zstd -d"),
    b"\xfd7zXZ\0": ("compressed by xz", "Unpack it: xz -d"),
    b"PK\x03\x04": ("a zip archive, as spreadsheets are too", "Unpack it, or save the spreadsheet as CSV"),
    b"PAR1": ("a Parquet file", "Give it a name that ends in .parquet"),
}
#: First bytes of text in UTF-16: a byte order mark, or four letters of ASCII. The names of the groups are those of the encodings.
_UTF_16 = re.compile(rb"(?P<utf_16>\xff\xfe(?!\0\0)|\xfe\xff)|(?P<utf_16_le>(?:[^\0]\0){4})|(?P<utf_16_be>(?:\0[^\0]){4})")
#: Whether a wait for a pipe can be ended, which Windows does not support.
_CAN_POLL = hasattr(select, "poll") and hasattr(os, "O_NONBLOCK")


class ByteStream:
    """The bytes of a file, decompressed if it is named ``.gz``, ``.bz2`` or ``.zst``, of a FIFO, or of standard input (``"-"``).
    Text in UTF-16 is converted to UTF-8.

    Raises
    ------
    StreamError
        The stream cannot be opened or, while reading, is corrupt or cannot be read.
    MissingPackageError
        zstandard is not installed, which ``.zst`` needs.
    """

    name: str
    """Name of the stream in messages."""
    line_name: str = "line"
    """Word for a line in messages: "object" if each JSON object is put on a line."""
    is_pipe: bool = False
    """Whether `read` may have to wait for bytes."""
    stopped: bool = False
    """Whether `stop` was called. Then `read` returns no more bytes."""
    _wake_pipe: tuple[io.FileIO, io.FileIO] | None = None
    _decoder: codecs.IncrementalDecoder | None = None  # of text in UTF-16

    def __init__(self, path: str | Path) -> None:
        is_standard = str(path) == "-"
        self.name = "standard input" if is_standard else str(path)
        try:
            if is_standard:
                self._file = io.FileIO(sys.stdin.fileno(), closefd=False)
            else:  # without O_NONBLOCK, opening a FIFO would wait for its writer, and could not be stopped
                nonblocking = os.O_NONBLOCK if _CAN_POLL else 0
                self._file = io.FileIO(path, opener=lambda path, flags: os.open(path, flags | nonblocking))
        except OSError as error:
            raise StreamError(f"{self.name}: {error.strerror or error}") from error
        except AttributeError:  # sys.stdin is missing
            raise StreamError(f"{self.name} is closed") from None
        self._decompressed = _open_decompressed(self._file, self.name)
        is_regular = stat.S_ISREG(os.fstat(self._file.fileno()).st_mode)
        self._is_seekable = is_regular and not is_standard and self._decompressed is None
        self._n_read, self._peeked = 0, b""  # number of bytes read; bytes that `peek` has read
        if not is_regular and _CAN_POLL:  # otherwise only the next bytes end a wait
            self.is_pipe = True
            receiver, sender = os.pipe()  # `stop` writes to it, to end a wait
            self._wake_pipe = io.FileIO(receiver), io.FileIO(sender, "w")
            self._poll = select.poll()
            self._poll.register(self._file, select.POLLIN)
            self._poll.register(receiver, select.POLLIN)

    def __str__(self) -> str:
        return self.name

    def read(self, seconds: float | None = None) -> bytes | None:
        """Return the next decompressed bytes of this stream, and wait for at least one. Empty at the end of the stream, or after
        `stop`. None if no bytes of a pipe arrive within ``seconds``; by default, wait without a limit.
        """
        if self._peeked and not self.stopped:
            peeked, self._peeked = self._peeked, b""
            return peeked
        return self._read_bytes(seconds)

    def _read_bytes(self, seconds: float | None) -> bytes | None:
        """Read and decompress the next bytes of the file, ignoring those that `peek` has read; empty at the end, or after `stop`.
        None if no bytes arrive within ``seconds`` (None: no limit). Raise a StreamError if the file is corrupt or not text.
        """
        chunk: bytes | None = None
        while chunk is None:  # None if another reader of the pipe was quicker
            if self.is_pipe and not self._poll.poll(None if seconds is None else 1000 * seconds):
                return None
            if self.stopped:
                return b""
            try:
                chunk = self._file.read(_CHUNK_BYTES) if self._decompressed is None else self._decompressed.read1(_CHUNK_BYTES)
            except (OSError, EOFError, zlib.error) as error:
                raise StreamError(f"{self.name}, after byte {self._n_read:,}: {error}") from error
        if not self._n_read:
            for signature, (kind, advice) in _BINARY_SIGNATURES.items():
                if chunk.startswith(signature) and (signature != b"BZh" or chunk[4:10] == b"1AY&SY"):
                    raise StreamError(f"{self.name} is {kind}, not plain text. {advice}")
            if match := _UTF_16.match(chunk):
                self._decoder, self._is_seekable = codecs.getincrementaldecoder(str(match.lastgroup))("replace"), False
        self._n_read += len(chunk)
        if self._decoder is None:
            return chunk
        text = self._decoder.decode(chunk, not chunk)
        return text.encode() if text or not chunk else self._read_bytes(seconds)

    def peek(self, max_lines: int, min_lines: int, max_bytes: int, seconds: float, ask_to_wait: Callable[[], bool]) -> bytes:
        """Return the first bytes of this stream, without consuming them: at most about ``max_lines`` lines or ``max_bytes``. Wait
        for at least ``min_lines`` lines; ``ask_to_wait`` is called after ``seconds``, and returns whether to wait longer.

        Blank lines do not count for ``min_lines``. After these lines, wait up to ``seconds`` for further ones. The result ends at
        the end of a line, if there is one.
        """
        parts: list[bytes] = []
        n_lines = n_filled = n_bytes = 0
        line, has_ended, waits_on = b"", False, False
        deadline = time.monotonic() + seconds
        while n_lines < max_lines and n_bytes <= max_bytes:
            is_enough = n_filled >= min_lines
            chunk = self._read_bytes(None if waits_on and not is_enough else max(deadline - time.monotonic(), 0.0))
            if chunk is None:
                if is_enough or not (waits_on := ask_to_wait()):
                    break
                continue
            if has_ended := not chunk:
                break
            parts.append(chunk)
            n_bytes += len(chunk)
            *complete, line = (line[-1:] + chunk).split(b"\n")  # the last byte of an unfinished line shows that it is not blank
            n_lines += len(complete)
            n_filled += sum(bool(text.strip()) for text in complete)
            if n_filled >= min_lines and not is_enough:
                deadline = time.monotonic() + seconds
        data = self._peeked = b"".join(parts)
        return data if has_ended else data[: data.rfind(b"\n") + 1] or data

    def can_skip_to(self, offset: int) -> bool:
        """Return whether `seek` can move to ``offset``: this is an uncompressed regular file with at least ``offset`` bytes."""
        return self._is_seekable and offset <= os.fstat(self._file.fileno()).st_size

    def seek(self, offset: int) -> None:
        """Move to ``offset`` in the file, in bytes from its start, where the next `read` begins."""
        self._file.seek(offset)
        self._n_read = offset

    def stop(self) -> None:
        """End a wait of `read` for bytes, from a signal handler or another thread. From then on, `read` returns no bytes.

        Where the system has no ``select.poll`` (Windows), a wait for a pipe ends when its next bytes come.
        """
        self.stopped = True
        if self._wake_pipe is not None:
            self._wake_pipe[1].write(b"\0")

    def close(self) -> None:
        """Close the file of this stream. Standard input stays open."""
        for file in (*(self._wake_pipe or ()), self._decompressed, self._file):
            if file is not None:
                file.close()
        self._wake_pipe = None


def _open_decompressed(file: io.FileIO, name: str) -> gzip.GzipFile | bz2.BZ2File | _ZstdFile | None:
    """Return a file object that decompresses ``file``, if its ``name`` ends in ``.gz``, ``.bz2`` or ``.zst``; else None."""
    if name.lower().endswith(".gz"):
        return gzip.GzipFile(fileobj=file)
    if name.lower().endswith(".bz2"):
        return bz2.BZ2File(file)
    return _ZstdFile(file, name) if name.lower().endswith(".zst") else None


class _ZstdFile:
    """Decompresses a file of Zstandard frames as its bytes arrive."""

    def __init__(self, file: io.FileIO, name: str) -> None:
        try:
            import zstandard  # noqa: PLC0415 - of an extra
        except ImportError as error:
            file.close()
            raise missing_package_error(name, "zstandard", "files", error) from error
        self._file, self._error, self._new_frame = file, zstandard.ZstdError, zstandard.ZstdDecompressor().decompressobj
        self._frame: Any = None
        self._compressed = b""

    def read1(self, size: int) -> bytes | None:  # noqa: ARG002 - the result is short, because few compressed bytes are read
        """Return the next decompressed bytes of this Zstandard file, usually fewer than ``size``. Empty at the end of the file;
        None if no bytes have arrived yet.
        """
        while True:
            compressed = self._compressed or self._file.read(_COMPRESSED_CHUNK_BYTES)
            if not compressed:
                if compressed is not None and self._frame is not None:
                    raise EOFError("the compressed file ends within a frame")
                return compressed
            self._compressed = b""
            self._frame = self._frame or self._new_frame()
            try:
                data: bytes = self._frame.decompress(compressed)
            except self._error as error:
                raise OSError(str(error)) from error
            if self._frame.eof:
                self._compressed, self._frame = self._frame.unused_data, None
            if data:
                return data

    def close(self) -> None:
        """Do nothing, because the compressed file belongs to the caller."""


class BytesInMemory(ByteStream):
    """Bytes in memory as a stream, with the name of the stream from which they were read."""

    def __init__(self, name: str, data: bytes) -> None:
        self.name: str = name
        self._data, self._is_seekable = data, False

    def read(self, seconds: float | None = None) -> bytes:  # noqa: ARG002
        data, self._data = self._data, b""
        return data

    def close(self) -> None:
        pass


#: Maximum length of a line, because it must fit into memory.
MAX_LINE_BYTES = 16 * 2**20
#: A longer line is skipped if it ends within this many bytes.
MAX_SKIPPED_BYTES = 2**30
#: A stream is recognised by digests of this many bytes at its beginning, and before the position.
FINGERPRINT_BYTES = 4096
_END_BYTES = 2**16


def hex_digest(data: bytes) -> str:
    """Return the SHA-256 digest of bytes in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def digest_tail(file: BinaryIO, offset: int) -> str:
    """Return a SHA-256 digest (hexadecimal) of the last 4,096 bytes (`FINGERPRINT_BYTES`) before ``offset`` in an open file, and
    stay at the current position.
    """
    start, position = max(offset - FINGERPRINT_BYTES, 0), file.tell()
    file.seek(start)
    tail = file.read(offset - start)
    file.seek(position)
    return hex_digest(tail)


def digest_file_ends(path: str | Path, size: int, prefix: str) -> str:
    """Return a SHA-256 digest (hexadecimal) of ``prefix`` and of the first ``size`` bytes of a file. To save time, only the first
    and the last 64 KiB of these are read.
    """
    with Path(path).open("rb") as file:
        digest = hashlib.sha256(prefix.encode() + file.read(min(_END_BYTES, size)))
        start = max(size - _END_BYTES, 0)
        file.seek(start)
        digest.update(file.read(size - start))
    return digest.hexdigest()


def normalize_encoding(name: str) -> str:
    """Return Python's canonical name of a text encoding, such as ``utf-8``. Raise a StreamError if the encoding is unknown, or if
    it does not encode a newline as a single byte, as with UTF-32.
    """
    try:
        canonical = codecs.lookup(name).name
        newline = "\n".encode(canonical)
    except (LookupError, TypeError, ValueError):
        raise StreamError(f"encoding {name!r} is not known: utf-8, latin-1, cp1252 or shift_jis are") from None
    if canonical in ("utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"):  # `ByteStream` converts UTF-16
        return "utf-8"
    if newline != b"\n":
        raise StreamError(f"text in {name} cannot be read line by line. Convert it: iconv -f {name} -t utf-8 old.csv > new.csv")
    return canonical


def can_decode(data: bytes, encoding: str) -> bool:
    """Return whether bytes are valid text in an encoding."""
    try:
        data.decode(encoding)
    except UnicodeDecodeError:
        return False
    return True


_LETTERS = "[À-ÖØ-öø-þŒœŠšŽž]"  # without ÿ, which is byte FF
_WINDOWS_TEXT = re.compile(rf"(?:[\0-\x7f]|(?<=[A-Za-z]){_LETTERS}|{_LETTERS}(?=[A-Za-z])|(?<=[\w ])[\xa0-¿€\u2013-\u2026])*")


def decode_windows(line: bytes) -> str | None:
    r"""Decode a line that is not UTF-8 as text of Windows in Western Europe (cp1252). Return None if it is not plausible text.

    >>> decode_windows("Köln".encode("cp1252")), decode_windows(b"\xff,1")
    ('Köln', None)
    """
    text = line.decode("cp1252", errors="replace")
    return text if _WINDOWS_TEXT.fullmatch(text) else None


class LineReader:
    """Reads lines of a `ByteStream`, tracks the offset, and computes digests to recognise the stream later.

    After its ``stream`` was stopped, it still returns the lines in memory. Errors are those of `ByteStream`.
    """

    def __init__(self, path: str | Path | ByteStream) -> None:
        self.stream: ByteStream = path if isinstance(path, ByteStream) else ByteStream(path)
        self.name: str = self.stream.name
        # The buffer begins at offset `_base` of the stream, and its first `_n_consumed` bytes were consumed.
        self._buffer, self._base, self._n_consumed = b"", 0, 0
        self._head = b""

    @property
    def offset(self) -> int:
        """Number of (decompressed) bytes of the stream that were consumed so far."""
        return self._base + self._n_consumed

    @property
    def last_bytes(self) -> bytes:
        """The last bytes that were consumed, at most 4,096 (`FINGERPRINT_BYTES`), to recognise the stream later."""
        return self._buffer[max(self._n_consumed - FINGERPRINT_BYTES, 0) : self._n_consumed]

    def peek_lines(self, max_lines: int, skip: int = 0, seconds: float | None = None) -> list[bytes]:
        """Return the next lines of the stream as bytes with their newlines, at most ``max_lines``, without consuming them.
        ``skip`` is the number of bytes to leave out before the first line. Raise a TimeoutError if a pipe is silent for
        ``seconds`` (None: wait without a limit).

        There is at least one line, unless the stream has ended or was stopped. The last line of a stream may have no newline. A
        line over `MAX_LINE_BYTES` is cut.
        """
        start = searched = self._n_consumed + skip
        has_ended = False
        while not has_ended and len(self._buffer) - start <= MAX_LINE_BYTES and self._buffer.find(b"\n", searched) < 0:
            searched = len(self._buffer)
            has_ended = not self._fill_buffer(seconds)
        rest = io.BytesIO(self._buffer)  # without a copy
        rest.seek(start)
        lines = list(itertools.islice(rest, max_lines))
        is_unfinished = lines and lines[-1][-1:] != b"\n" and len(lines[-1]) <= MAX_LINE_BYTES
        return lines[:-1] if is_unfinished and (self.stream.stopped or not has_ended) else lines

    def peek(self, size: int) -> bytes:
        """Return the next ``size`` bytes without consuming them. Only bytes that `peek_lines` has read before are returned."""
        return self._buffer[self._n_consumed : self._n_consumed + size]

    def consume_lines(self, lines: Sequence[bytes]) -> None:
        """Advance past ``lines``, which `peek_lines` has returned. If the last one was cut because it is longer than 16 MiB
        (`MAX_LINE_BYTES`), also skip the rest of that line.

        Raises a StreamError if that line does not end within `MAX_SKIPPED_BYTES`: the stream may have no newlines at all.
        """
        start = self.offset
        self._n_consumed += sum(map(len, lines))
        limit, is_cut = self.offset + MAX_SKIPPED_BYTES, len(lines[-1]) > MAX_LINE_BYTES and lines[-1][-1:] != b"\n"
        while is_cut:
            line_end = self._buffer.find(b"\n", self._n_consumed) + 1
            self._n_consumed = line_end or len(self._buffer)
            self._drop_consumed()
            if self.offset > limit:
                text = f"{self.name}, after byte {start:,}: a line does not end within {MAX_SKIPPED_BYTES:,} bytes"
                raise StreamError(f"{text}. Is it text, with a row on each line?")
            is_cut = not line_end and self._fill_buffer()
        if self._n_consumed > _CHUNK_BYTES:
            self._drop_consumed()

    def read_head(self, size: int) -> bytes:
        """Return the first ``size`` bytes of the stream, at most 4,096 (`FINGERPRINT_BYTES`), even if they were already consumed.
        Fewer if the stream is shorter.
        """
        size = min(size, FINGERPRINT_BYTES)
        while len(self._head) < size and self._fill_buffer():
            pass
        return self._head[:size]

    def skip_to(self, offset: int) -> None:
        """Move forward to ``offset``, in decompressed bytes from the start of the stream. Raise a StreamError if the stream ends
        before it.
        """
        if offset > self._base + len(self._buffer) and self.stream.can_skip_to(offset):
            self._buffer, self._base, self._n_consumed = b"", max(offset - FINGERPRINT_BYTES, 0), 0
            self.stream.seek(self._base)
        while self._base + len(self._buffer) < offset:
            self._n_consumed = len(self._buffer)
            self._drop_consumed()
            if not self._fill_buffer():
                text = f"{self.name} ends at byte {self.offset:,}, before byte {offset:,}, the position of the checkpoint"
                raise StreamError(f"{text}: it was cut off, or it is another stream")
        self._n_consumed = offset - self._base

    def _drop_consumed(self) -> None:
        # The buffer keeps the `last_bytes`.
        dropped = max(self._n_consumed - FINGERPRINT_BYTES, 0)
        self._buffer, self._base, self._n_consumed = self._buffer[dropped:], self._base + dropped, self._n_consumed - dropped

    def _fill_buffer(self, seconds: float | None = None) -> bool:
        """Read more bytes of the stream into the buffer, and wait for at least one. Return False at the end of the stream, or if
        it was stopped. Raise a TimeoutError if none arrives within ``seconds``.
        """
        n_read, chunk = self._base + len(self._buffer), self.stream.read(seconds)
        if chunk is None:
            raise TimeoutError
        if n_read == len(self._head):
            self._head += chunk[: FINGERPRINT_BYTES - n_read]
        self._buffer += chunk
        return bool(chunk)
