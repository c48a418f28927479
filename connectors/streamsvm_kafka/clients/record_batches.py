"""Has kafka-python read a batch of records by one compiled call: all dealings with the private parts of it that parse.

kafka-python takes the records of a fetch from its batches one by one, in Python. Here, a batch whose records are plain gives
one record in their place, whose value is the `Messages` of all. What kafka-python does about batches stays its own: checksums,
transactions that were aborted, control batches, the position, metrics. A batch that is not plain, because it has headers, another
format, or mistakes, is read by kafka-python as ever, which raises its own errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import numpy as np
from kafka import TopicPartition
from kafka.errors import CorruptRecordError
from kafka.record.default_records import DefaultRecord, DefaultRecordBatch, DefaultRecordBatchBuilder
from kafka.record.memory_records import MemoryRecords
from kafka.record.util import decode_varint

from streamsvm.core.records import HEADERS, KEY, OFFSET, SHORTEST, TIME, VALUE, find_fields
from streamsvm_kafka.clients.messages import Messages, joined

#: The version of the format of batches that is read here.
_MAGIC = 2


def read_at_once(consumer: Any) -> None:
    """Have a consumer, which has no deserializers, read batches by compiled code, and names that are no text as question marks.

    Another version of kafka-python may have no such parts as are replaced here. Its consumers stay as they are.
    """
    try:
        consumer._fetcher.PartitionRecords = _at_once(consumer._fetcher.PartitionRecords)
    except (AttributeError, TypeError, ValueError):
        return


def messages_of(records: Iterable[Any]) -> Messages:
    """Return the messages of what a consumer gives of a partition, of which there is at least one."""
    parts: list[Messages] = []
    single: list[Any] = []
    for record in records:
        if type(record.value) is not Messages:
            single.append(record)
            continue
        if single:
            parts.append(_record_columns(single))
            single = []
        parts.append(record.value)
    return joined([*parts, _record_columns(single)] if single else parts)


def _record_columns(records: list[Any]) -> Messages:
    try:
        offsets, times = (np.array([getattr(each, name) for each in records], dtype=np.int64) for name in ("offset", "timestamp"))
    except OverflowError:
        raise CorruptRecordError("an offset or a time has more than 64 bits") from None
    keys = [each.key for each in records]
    headers = [each.headers for each in records]
    return Messages(
        records[0].partition,
        offsets,
        times,
        keys if any(key is not None for key in keys) else None,
        headers if any(headers) else None,
        [each.value for each in records],
    )


@cache
def _at_once(own: Any) -> Any:
    """Return kafka-python's class of the records of a fetch with batches as they are here, once they have been tried.

    If it gives anything else than kafka-python's own, it is a ValueError.
    """

    class PartitionRecords(own):  # type: ignore[misc]
        def _unpack_records(self, tp: Any, records: Any, *deserializers: Any) -> Iterator[Any]:
            for record in super()._unpack_records(tp, _Batches(tp, records), *deserializers):
                if type(record.value) is not Messages:
                    yield record
                    continue
                messages = record.value
                self.records_read += len(messages) - 1
                if messages.offsets[0] < self.fetch_offset <= record.offset:  # the fetch begins within the batch
                    messages = messages[int(np.searchsorted(messages.offsets, self.fetch_offset)) :]
                    record = record._replace(value=messages)
                yield record

    builder = DefaultRecordBatchBuilder(_MAGIC, 0, False, -1, -1, -1, 1 << 10)
    builder.append(0, 1, b"key", b"value", [])
    builder.append(1, 2, None, None, [])
    batch = bytes(builder.build())
    if _numbers_taken(own, batch) != _numbers_taken(PartitionRecords, batch):
        raise ValueError("another version of kafka-python reads records otherwise")
    return PartitionRecords


def _numbers_taken(kind: Any, data: bytes) -> tuple[Any, ...]:
    fetch = kind(0, TopicPartition("topic", 0), MemoryRecords(data))
    return [*messages_of(fetch.take())], fetch.next_fetch_offset, fetch.leader_epoch, fetch.records_read, fetch.bytes_read


class _Batches:
    """The batches of a fetch."""

    def __init__(self, key: Any, records: Any) -> None:
        self._key, self._records = key, records

    def next_batch(self) -> Any:
        batch = self._records.next_batch()
        return _Batch(self._key, batch) if type(batch) is DefaultRecordBatch else batch


class _Batch(DefaultRecordBatch):  # type: ignore[misc]
    """A batch that gives one record, whose value is all of its records; itself, if these are not plain."""

    __slots__ = ("_key",)

    def __init__(self, key: Any, batch: Any) -> None:
        super().__init__(batch._buffer)
        self._key = key

    def __iter__(self) -> Iterator[Any]:
        one_by_one: Iterator[Any] = super().__iter__()  # which is uncompressed now
        whole = self._whole()
        return one_by_one if whole is None else iter([whole])

    def _whole(self) -> Any:
        """Return one record for all; None if they are not plain."""
        data, n = bytes(self._buffer), self._num_records
        # The count is what the batch says: no memory is taken for more records than there is room for.
        if self.magic != _MAGIC or not 0 < n <= (len(data) - self._pos) // SHORTEST:
            return None
        columns = np.empty((n, HEADERS + 1), dtype=np.int64)
        size = find_fields(np.frombuffer(data, np.uint8), self._pos, columns)
        if size < 0 or columns[:, HEADERS].any():
            return None
        is_log_time = self.timestamp_type == self.LOG_APPEND_TIME
        times = np.zeros(n, dtype=np.int64) if is_log_time else columns[:, TIME]
        first_time = self.max_timestamp if is_log_time else self.first_timestamp
        if not (_fits_int64(self.base_offset, columns[:, OFFSET]) and _fits_int64(first_time, times)):
            return None
        offsets, times = self.base_offset + columns[:, OFFSET], first_time + times
        if not (offsets[1:] > offsets[:-1]).all():
            return None
        fields = columns[:, KEY], columns[:, KEY + 1], columns[:, VALUE], columns[:, VALUE + 1]
        keys, key_sizes, values, value_sizes = (np.ascontiguousarray(each) for each in fields)
        messages = Messages(
            self._key.partition, offsets, times, _parts_of(data, keys, key_sizes), None, (data, values, value_sizes)
        )
        return DefaultRecord(size, int(offsets[-1]), -1, 0, None, messages, [])

    def _read_msg(self) -> Any:
        try:
            return super()._read_msg()
        except UnicodeDecodeError:
            _blank_names(self._buffer, self._pos)
            return super()._read_msg()


def _fits_int64(first: int, beyond: np.ndarray) -> bool:
    """Whether sums are integers of 64 bits; others are left to Python, whose integers have no end."""
    return first + int(beyond.min()) >= -(1 << 63) and first + int(beyond.max()) < 1 << 63


def _parts_of(data: bytes, begins: np.ndarray, sizes: np.ndarray) -> list[bytes | None] | None:
    """Return parts of data, with None for those with a size of -1; None if all are."""
    if sizes.max() < 0:
        return None
    return [data[at : at + size] if size >= 0 else None for at, size in zip(begins.tolist(), sizes.tolist(), strict=True)]


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
