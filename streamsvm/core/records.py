"""Compiled parser of the records in a Kafka record batch, which returns the offsets and lengths of their fields.

After its header, an uncompressed batch (message format 2) is a sequence of records. A record is its size, a byte of attributes,
and varints of one to ten bytes: timestamp delta, offset delta, key length before the key, value length before the value, and the
number of headers before these. Batches can come from anybody, so all sizes are checked.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from streamsvm.core.compiling.functions import compiled

#: Columns of `find_fields`: timestamp and offset deltas, position and length of key and value, number of headers.
TIME, OFFSET, KEY, KEY_LENGTH, VALUE, VALUE_LENGTH, HEADERS = range(7)
#: Bytes of the shortest record: seven fields of one byte.
MIN_RECORD_BYTES = 7
#: Bytes of the longest varint, whose last byte contains a single bit.
_MAX_VARINT_BYTES = 10


@compiled
def _read_varint(data: Any, at: Any, limit: Any) -> Any:
    """Decode the zigzag varint (a signed integer of variable length, as Kafka uses) at position ``at`` of the bytes ``data``.
    Returns (value, position after it). The position is -1 if the varint is invalid: longer than 64 bits, or cut off by ``limit``.
    """
    bits = np.uint64(0)
    for i in range(_MAX_VARINT_BYTES):
        if at >= limit:
            break
        byte = np.uint64(data[at])
        at += 1
        if i == _MAX_VARINT_BYTES - 1 and byte > np.uint64(1):
            break
        bits |= (byte & np.uint64(127)) << np.uint64(7 * i)
        if byte < np.uint64(128):  # in zigzag encoding, the lowest bit is the sign
            return np.int64(bits >> np.uint64(1)) ^ -np.int64(bits & np.uint64(1)), np.int64(at)
    return np.int64(0), np.int64(-1)


@compiled
def find_fields(data: Any, at: Any, columns: Any) -> Any:
    """Parse the records of a Kafka record batch, the bytes ``data`` from position ``at`` on. Writes one row for each record into
    ``columns``, int64 [records, 7]: timestamp delta, offset delta, position and length of the key and of the value, number of
    headers. Returns the total size of the records in bytes, or -1 if they are invalid.

    A length of -1 is a null field. The headers of a record are not parsed. Returns the total size of the records, without the
    varints of their sizes; -1 if the data are invalid: a varint of more than 64 bits, a negative length other than -1, a field
    beyond its record, a record beyond the data or of another size than stated, attributes of more than a byte, or data after the
    last record.
    """
    limit, total = data.shape[0], 0
    for i in range(columns.shape[0]):
        size, at = _read_varint(data, at, limit)
        if at < 0 or size < 0 or size > limit - at or at >= limit or data[at] > 127:
            return -1
        stop = at + size
        columns[i, TIME], at = _read_varint(data, at + 1, stop)
        if at < 0:
            return -1
        columns[i, OFFSET], at = _read_varint(data, at, stop)
        if at < 0:
            return -1
        for field in (KEY, VALUE):
            length, at = _read_varint(data, at, stop)
            if at < 0 or length < -1 or length > stop - at:
                return -1
            columns[i, field], columns[i, field + 1] = at, length
            at += max(length, 0)
        columns[i, HEADERS], at = _read_varint(data, at, stop)
        if at < 0 or columns[i, HEADERS] < 0 or (columns[i, HEADERS] == 0 and at != stop):
            return -1
        at = stop
        total += size
    return total if at == limit else -1
