"""Where the fields of the records in one of Kafka's batches lie, found by one compiled call.

A batch (message format 2, behind its header, uncompressed) is records behind each other. A record is the number of its bytes, a
byte of attributes, and numbers of one to ten bytes: time and offset, which are relative to those of the batch, the lengths of key
and value, each before its bytes, and the count of headers, before these. Anybody may have written it, so no byte is believed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from streamsvm.core.compiling.functions import compiled

#: The columns of `find_fields`: relative time and offset, where key and value begin and how long they are, the count of headers.
TIME, OFFSET, KEY, KEY_LENGTH, VALUE, VALUE_LENGTH, HEADERS = range(7)
#: The fewest bytes of a record: seven numbers of a byte each.
SHORTEST = 7
#: The most bytes of a number. The last one is the bit that the others have left of 64.
_LONGEST = 10


@compiled
def _read_varint(data: Any, at: Any, end: Any) -> Any:
    """Return the number that begins at a position, and the position after it, which is -1 if there is none before ``end``."""
    bits = np.uint64(0)
    for i in range(_LONGEST):
        if at >= end:
            break
        byte = np.uint64(data[at])
        at += 1
        if i == _LONGEST - 1 and byte > np.uint64(1):
            break
        bits |= (byte & np.uint64(127)) << np.uint64(7 * i)
        if byte < np.uint64(128):  # zigzag: the lowest bit is the sign
            return np.int64(bits >> np.uint64(1)) ^ -np.int64(bits & np.uint64(1)), np.int64(at)
    return np.int64(0), np.int64(-1)


@compiled
def find_fields(data: Any, at: Any, columns: Any) -> Any:
    """Find the fields of the records that begin at a position, the last of which ends the data; return the bytes of all records.

    ``data`` is uint8; ``columns``, int64 [records, 7], are written. A length of -1 is a field that is null. It returns -1 if
    anything is not as it has to be: a number that does not fit into 64 bits, another negative length, a field that leaves its
    record, a record that leaves the data or ends elsewhere than it says, attributes that need a second byte, or data after the
    last record. The headers of a record that has some are not looked at.
    """
    end, total = data.shape[0], 0
    for i in range(columns.shape[0]):
        size, at = _read_varint(data, at, end)
        if at < 0 or size < 0 or size > end - at or at >= end or data[at] > 127:
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
    return total if at == end else -1
