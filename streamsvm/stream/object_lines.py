"""Puts JSON objects that are written over several lines, or without line ends, on one line each."""

from __future__ import annotations

import json
import re

from streamsvm.stream.lines import MAX_LINE_BYTES, ByteStream

_decode = json.JSONDecoder().raw_decode
_MAX_TOKEN_CHARS = 16  # an error this close to the end of the text may be a number or a word that is not complete yet
_MAX_CHARS_BEFORE = 2**14  # a malformed object, whose error counts the lines in them
_NONBLANK, _NEXT_OBJECT = re.compile(r"\S"), re.compile(r"\}\s*(?=\{)")
_BLANKS_AND_MARK = " \t\r\n\xef\xbb\xbf"  # with the bytes of a byte order mark, which may arrive one by one
_NEWLINES_TO_BLANKS = str.maketrans("\r\n", "  ")


class ObjectLines(ByteStream):
    r"""The bytes of another stream of JSON objects. If the first object has several lines, or shares its line with the next one,
    each object is put on a line of its own. Otherwise, the bytes are unchanged.

    >>> from streamsvm.stream.lines import BytesInMemory
    >>> ObjectLines(BytesInMemory("rows", b'{"a": 1}{"a":\n2}')).read()
    b'{"a": 1}\n{"a": 2}\n'
    """

    _changes_lines: bool | None = None  # None until the first object has been read

    def __init__(self, stream: ByteStream) -> None:
        self.name: str = stream.name
        self.is_pipe: bool = stream.is_pipe
        self._stream, self._peeked = stream, b""
        self._text = ""  # the bytes that belong to no line yet, as Latin-1: a character for each byte

    @property
    def line_name(self) -> str:  # type: ignore[override]
        return "object" if self._changes_lines else "line"

    def _read_bytes(self, seconds: float | None) -> bytes | None:
        while (chunk := self._stream.read(seconds)) is not None:
            if self._changes_lines is False or (not chunk and self.stopped):
                return chunk
            self._text += chunk.decode("latin-1")
            if self._changes_lines is None:
                self._changes_lines = _needs_own_lines(self._text, not chunk)
            lines = self._cut_objects(not chunk) if self._changes_lines else ""
            if self._changes_lines is False:
                lines, self._text = self._text, ""
            if lines or not chunk:
                return lines.encode("latin-1")
        return None

    def _cut_objects(self, has_ended: bool) -> str:
        """Remove all complete objects from the text, and return them as lines. A malformed object ends where another begins."""
        lines, start, text = [], 0, self._text.removeprefix("\xef\xbb\xbf")
        while (first := _NONBLANK.search(text, start)) is not None:
            start = first.start()
            stop = _find_end(text, start, has_ended)
            if stop == 0:
                text, start = (text[start:], 0) if start > _MAX_CHARS_BEFORE else (text, start)
                border = _NEXT_OBJECT.search(text, start + 1)
                is_long = has_ended or len(text) - start > MAX_LINE_BYTES
                stop = border.end() if border is not None else len(text) if is_long else -1
            if stop < 0:
                break
            lines.append(text[start:stop].rstrip().translate(_NEWLINES_TO_BLANKS) + "\n")
            start = stop
        self._text = "" if first is None else text[start:]
        return "".join(lines)

    def can_skip_to(self, offset: int) -> bool:
        return not self._changes_lines and self._stream.can_skip_to(offset)

    def seek(self, offset: int) -> None:
        self._stream.seek(offset)

    def stop(self) -> None:
        self.stopped = True
        self._stream.stop()

    def close(self) -> None:
        self._stream.close()


def _find_end(text: str, start: int, has_ended: bool) -> int:
    """Return the position in ``text`` after the JSON value at ``start``; -1 if it is incomplete, and 0 if it is malformed."""
    try:
        return _decode(text, start)[1]
    except (ValueError, RecursionError) as error:
        is_string = str(error).startswith("Unterminated string")
        may_continue = is_string or len(text) - getattr(error, "pos", start) < _MAX_TOKEN_CHARS
        return -1 if may_continue and not has_ended and len(text) - start <= MAX_LINE_BYTES else 0


def _needs_own_lines(text: str, has_ended: bool) -> bool | None:
    """Return whether the first JSON object of a text has several lines, or shares its line with the next object or many blanks;
    None if that is not known yet. Many blanks before it may be left out, too.
    """
    is_long, text = len(text) > MAX_LINE_BYTES, text.lstrip(_BLANKS_AND_MARK)
    end = _find_end(text, 0, has_ended) if text[:1] == "{" else -1 if not (text or has_ended) else 0
    rest = text[end:].lstrip(" \t\r")
    if end < 0 or not (rest or has_ended):
        return is_long or None
    return end > 0 and ("\n" in text[:end] or rest[:1] == "{")
