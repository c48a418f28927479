"""Parses a whole record batch of kafka-python in one compiled call.

kafka-python parses the records of a batch one by one, in Python. Here, a plain batch yields a single record instead, whose value
is the `Messages` of all its records. Everything else remains kafka-python's: checksums, aborted transactions, control batches,
positions and metrics. A batch that has headers, another format or invalid bytes is parsed by kafka-python, with its own errors.
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

from streamsvm.core.records import HEADERS, KEY, MIN_RECORD_BYTES, OFFSET, TIME, VALUE, find_fields
from streamsvm_kafka.clients.messages import Messages, concatenate_messages

#: The version of the batch format that the compiled parser supports.
_MAGIC = 2


def use_compiled_parsing(consumer: Any) -> None:
    """Replace the record parser of a kafka-python `KafkaConsumer` by one that uses compiled code for batches without headers, and
    that accepts header names that are not UTF-8.

    The consumer must have no deserializers. If its version of kafka-python has other internals, it is left unchanged.
    """
    try:
        consumer._fetcher.PartitionRecords = make_partition_records(consumer._fetcher.PartitionRecords)
    except (AttributeError, TypeError, ValueError):
        return


def records_to_messages(records: Iterable[Any]) -> Messages:
    """Convert kafka-python records from one partition, at least one, to one `Messages` object, which stores offsets, timestamps,
    keys, headers and values as columns. The value of a record may itself be a `Messages` object of many records.
    """
    parts: list[Messages] = []
    single_records: list[Any] = []
    for record in records:
        if type(record.value) is not Messages:
            single_records.append(record)
            continue
        if single_records:
            parts.append(_make_columns(single_records))
            single_records = []
        parts.append(record.value)
    return concatenate_messages([*parts, _make_columns(single_records)] if single_records else parts)


def _make_columns(records: list[Any]) -> Messages:
    """Convert kafka-python records from one partition to a `Messages` object, which stores their fields as columns. Raise a
    CorruptRecordError if an offset or timestamp exceeds 64 bits.
    """
    try:
        offsets = np.array([record.offset for record in records], dtype=np.int64)
        timestamps = np.array([record.timestamp for record in records], dtype=np.int64)
    except OverflowError:
        raise CorruptRecordError("an offset or a timestamp has more than 64 bits") from None
    keys: Any = [record.key for record in records]
    keys = keys if any(key is not None for key in keys) else None
    headers: Any = [record.headers for record in records]
    headers = headers if any(headers) else None
    return Messages(records[0].partition, offsets, timestamps, keys, headers, [record.value for record in records])


@cache
def make_partition_records(library_class: Any) -> Any:
    """Return a subclass of kafka-python's class `PartitionRecords` (``library_class``) that parses batches of records by compiled
    code.

    It is tried on a small batch first; raise a ValueError if its result differs from kafka-python's own.
    """

    class PartitionRecords(library_class):  # type: ignore[misc]
        def _unpack_records(self, tp: Any, records: Any, *deserializers: Any) -> Iterator[Any]:
            has_reached_offset = False  # whether a record at or after the offset of the fetch was yielded
            for record in super()._unpack_records(tp, CompiledBatches(tp, records), *deserializers):
                messages = record.value
                if type(messages) is Messages:
                    self.records_read += len(messages) - 1
                    if not has_reached_offset and messages.offsets[0] < self.fetch_offset <= record.offset:
                        messages = messages[int(np.searchsorted(messages.offsets, self.fetch_offset)) :]
                        record = record._replace(value=messages)
                has_reached_offset = has_reached_offset or record.offset >= self.fetch_offset
                yield record

    builder = DefaultRecordBatchBuilder(_MAGIC, 0, False, -1, -1, -1, 1 << 10)
    builder.append(0, 1, b"key", b"value", [])
    builder.append(1, 2, None, None, [])
    batch = bytes(builder.build())
    if _parse_fetch(library_class, batch) != _parse_fetch(PartitionRecords, batch):
        raise ValueError("this version of kafka-python parses records differently")
    return PartitionRecords


def _parse_fetch(records_class: Any, data: bytes) -> tuple[Any, ...]:
    """Parse ``data``, the bytes of a broker's response, with ``records_class``, a version of kafka-python's class
    `PartitionRecords`. Return a tuple of the messages, the next offset, the leader epoch, and the numbers of records and bytes.
    (Two versions are compared by it.)
    """
    fetch = records_class(0, TopicPartition("topic", 0), MemoryRecords(data))
    return [*records_to_messages(fetch.take())], fetch.next_fetch_offset, fetch.leader_epoch, fetch.records_read, fetch.bytes_read


class CompiledBatches:
    """Iterates over the record batches of a fetch as kafka-python's `MemoryRecords` does, but yields compiled batches."""

    def __init__(self, key: Any, records: Any) -> None:
        self._key, self._records = key, records

    def next_batch(self) -> Any:
        batch = self._records.next_batch()
        return _CompiledBatch(self._key, batch) if type(batch) is DefaultRecordBatch else batch


class _CompiledBatch(DefaultRecordBatch):  # type: ignore[misc]
    """A record batch that, if it is plain, yields a single record, whose value is the `Messages` of all its records."""

    __slots__ = ("_key",)

    def __init__(self, key: Any, batch: Any) -> None:
        super().__init__(batch._buffer)
        self._key = key

    def __iter__(self) -> Iterator[Any]:
        single_records: Iterator[Any] = super().__iter__()  # this decompresses the batch
        combined = self._parse_combined()
        return single_records if combined is None else iter([combined])

    def _parse_combined(self) -> Any:
        """Parse this batch by compiled code. Return a single record whose value is a `Messages` object of all records; None if
        kafka-python must parse it (older format, with headers, or invalid).
        """
        data, n = bytes(self._buffer), self._num_records
        # The count is untrusted input: do not allocate memory for more records than fit into the bytes of the batch.
        if self.magic != _MAGIC or not 0 < n <= (len(data) - self._pos) // MIN_RECORD_BYTES:
            return None
        fields = np.empty((n, HEADERS + 1), dtype=np.int64)
        size = find_fields(np.frombuffer(data, np.uint8), self._pos, fields)
        if size < 0 or fields[:, HEADERS].any():
            return None
        is_log_append_time = self.timestamp_type == self.LOG_APPEND_TIME
        time_deltas = np.zeros(n, dtype=np.int64) if is_log_append_time else fields[:, TIME]
        base_time = self.max_timestamp if is_log_append_time else self.first_timestamp
        if not (_sums_fit_int64(self.base_offset, fields[:, OFFSET]) and _sums_fit_int64(base_time, time_deltas)):
            return None
        offsets, timestamps = self.base_offset + fields[:, OFFSET], base_time + time_deltas
        if not (offsets[1:] > offsets[:-1]).all():
            return None
        columns = fields[:, KEY], fields[:, KEY + 1], fields[:, VALUE], fields[:, VALUE + 1]
        key_starts, key_sizes, value_starts, value_sizes = map(np.ascontiguousarray, columns)
        keys = _slice_keys(data, key_starts, key_sizes)
        messages = Messages(self._key.partition, offsets, timestamps, keys, None, (data, value_starts, value_sizes))
        return DefaultRecord(size, int(offsets[-1]), -1, 0, None, messages, [])

    def _read_msg(self) -> Any:
        """Parse the next record of the batch by kafka-python's code. Bytes of header names that are not UTF-8 are replaced by
        question marks first.
        """
        try:
            return super()._read_msg()
        except UnicodeDecodeError:
            _replace_invalid_names(self._buffer, self._pos)
            return super()._read_msg()


def _sums_fit_int64(base: int, deltas: np.ndarray) -> bool:
    """Return whether ``base + deltas`` fits into int64 for all int64 ``deltas``. (Otherwise, kafka-python parses the batch with
    Python's unlimited integers.)
    """
    return base + int(deltas.min()) >= -(1 << 63) and base + int(deltas.max()) < 1 << 63


def _slice_keys(data: bytes, starts: np.ndarray, sizes: np.ndarray) -> list[bytes | None] | None:
    """Cut the key of each record out of ``data``, by int64 start positions and sizes in bytes. A size of -1 is a null key, None
    in the list; return None instead of a list if all keys are null.
    """
    if sizes.max() < 0:
        return None
    pairs = zip(starts.tolist(), sizes.tolist(), strict=True)
    return [data[start : start + size] if size >= 0 else None for start, size in pairs]


def _replace_invalid_names(buffer: bytearray, position: int) -> None:
    """Overwrite the names of headers that are not UTF-8 with question marks, in the encoded Kafka record that starts at
    ``position`` of ``buffer``. The sizes of fields do not change.
    """
    for _ in range(4):  # length, attributes, timestamp, offset
        _, position = decode_varint(buffer, position)
    for _ in range(2):  # key, value
        size, position = decode_varint(buffer, position)
        position += max(size, 0)
    count, position = decode_varint(buffer, position)
    for _ in range(count):
        size, position = decode_varint(buffer, position)
        if size < 0:  # invalid: kafka-python raises an error for it
            return
        try:
            buffer[position : position + size].decode()
        except UnicodeDecodeError as error:
            buffer[position : position + size] = b"?" * len(error.object)
        size, position = decode_varint(buffer, position + size)
        position += max(size, 0)
