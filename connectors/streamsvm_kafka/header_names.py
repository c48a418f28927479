"""Headers of messages whose name is no text: kafka-python would not read past them.

A broker takes any bytes as the name of a header. kafka-python 3.0.12 fails at those that are not UTF-8, at the same message each
time, so that one message would end all reading of its partition.
"""

from __future__ import annotations

from typing import Any

from kafka.record.default_records import DefaultRecordBatch
from kafka.record.util import decode_varint

__all__ = ["read_any_name"]

_read = DefaultRecordBatch._read_msg


def read_any_name() -> None:
    """Have kafka-python, in this process, read a name that is no text as so many question marks."""
    DefaultRecordBatch._read_msg = _read_message


def _read_message(batch: Any) -> Any:
    try:
        return _read(batch)
    except UnicodeDecodeError:
        _blank_names(batch._buffer, batch._pos)
        return _read(batch)


def _blank_names(buffer: bytearray, at: int) -> None:
    """Put question marks in the place of names that are no text, in the message that begins there."""
    for _ in range(4):  # length, attributes, time, offset
        _, at = decode_varint(buffer, at)
    for _ in range(2):  # key, value
        size, at = decode_varint(buffer, at)
        at += max(size, 0)
    count, at = decode_varint(buffer, at)
    for _ in range(count):
        size, at = decode_varint(buffer, at)
        if size < 0:  # which is refused when it is read
            return
        try:
            buffer[at : at + size].decode()
        except UnicodeDecodeError as error:
            buffer[at : at + size] = b"?" * len(error.object)
        size, at = decode_varint(buffer, at + size)
        at += max(size, 0)
