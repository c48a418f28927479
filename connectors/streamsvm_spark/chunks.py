"""The rows of a frame, brought to the driver in their order, some at a time."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from operator import itemgetter
from typing import Any

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from streamsvm.stream.endpoints import StreamError
from streamsvm_spark.columns import column_of

_BYTES = 2**23  # of rows that come to the driver at once: its Java holds several copies of them
_WHOLE = 8  # times as many come, if they are all
_FIRST_ROWS = 10_000  # which tell how many bytes a row has
_IN_PARTITION = 2**33 - 1  # of `monotonically_increasing_id`: the bits of a row's number in its partition


class Chunks:
    """Brings rows of frames to the driver: partition by partition, in the order that they have there, some 8 MiB at a time.

    Parameters
    ----------
    columns
        The columns.

    Notes
    -----
    A frame whose partitions have few rows, of 64 MiB in all at most, comes by one job. Another one is computed once and lies on
    the disks of the workers, as Arrow batches, until the last of them has come: so all chunks are of the same rows, and the time
    grows with their number. What few rows are is known from the frame before.
    """

    def __init__(self, *columns: str) -> None:
        self._columns = columns
        self._most, self._few = _FIRST_ROWS, True  # rows at once; whether partitions are expected to have few

    def of(self, frame: DataFrame) -> Generator[pa.RecordBatch]:
        """Give the rows of a frame."""
        rows = frame.select(*(column_of(frame, column).alias(column) for column in self._columns))
        partitions = max(frame.rdd.getNumPartitions(), 1)
        if self._few and (whole := self._whole(rows, _WHOLE * self._most // partitions)) is not None:
            yield from whole.to_batches()
            return
        packed = rows.mapInArrow(_packed, "data binary").rdd.map(_bytes_of).persist(StorageLevel.DISK_ONLY)
        try:
            sizes = packed.mapPartitionsWithIndex(_sizes).collect()
            self._few = max((sum(lengths) for _, lengths in sizes), default=0) <= _WHOLE * _BYTES // partitions
            numbers, chunks = _numbered(sizes, _BYTES)

            def keyed(partition: int, batches: Iterable[bytes]) -> Iterator[tuple[int, tuple[int, int, bytes]]]:
                return ((numbers[partition][i], (partition, i, data)) for i, data in enumerate(batches))

            # A shuffle: to take a chunk from the middle of a partition would be to read all that is before it.
            apart = packed.mapPartitionsWithIndex(keyed).partitionBy(max(chunks, 1), int)
            # Not as a part of the query: of all that its jobs bring, Java would hold the bytes until the micro-batch ends.
            with ThreadPoolExecutor(1) as thread:
                brought = thread.submit(apart.toLocalIterator, prefetchPartitions=True).result()
            for _, chunk in groupby(brought, itemgetter(0)):
                _check_goes_on(frame)
                yield from self._unpacked(data for _, (_, _, data) in sorted(chunk))
        finally:
            packed.unpersist()

    def _whole(self, rows: DataFrame, share: int) -> pa.Table | None:
        """Return all rows; None where a partition has more than its share."""
        place = F.monotonically_increasing_id().bitwiseAND(F.lit(_IN_PARTITION))
        found = rows.withColumn("place", place).filter(F.col("place") <= share).toArrow()
        self._learn_size(len(found), found.nbytes)
        return None if (found.column("place").to_numpy() == share).any() else found.drop_columns("place")

    def _unpacked(self, packed: Iterable[bytes]) -> Iterator[pa.RecordBatch]:
        for data in packed:
            with pa.ipc.open_stream(data) as batches:
                for batch in batches:
                    self._learn_size(len(batch), batch.nbytes)
                    yield batch

    def _learn_size(self, rows: int, size: int) -> None:
        if rows:
            self._most = max(_BYTES * rows // max(size, 1), 1)


def _packed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Give Arrow batches as rows of one column, each a stream of Arrow."""
    for batch in batches:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        yield pa.record_batch({"data": pa.array([sink.getvalue().to_pybytes()], pa.binary())})


def _bytes_of(row: Any) -> bytes:
    return bytes(row[0])


def _sizes(partition: int, batches: Iterable[bytes]) -> list[tuple[int, list[int]]]:
    return [(partition, [len(data) for data in batches])]


def _check_goes_on(frame: DataFrame) -> None:
    """Raise a StreamError where Spark has interrupted the thread of Java that calls: it ends jobs, and waits for this one."""
    if frame.sparkSession.sparkContext._jvm.java.lang.Thread.currentThread().isInterrupted():
        raise StreamError("the query was stopped within a micro-batch, which is learned from its beginning when it goes on")


def _numbered(sizes: Iterable[tuple[int, Sequence[int]]], most: int) -> tuple[dict[int, list[int]], int]:
    """Return the number of the chunk of each batch, by partition, by the sizes of batches, and how many chunks there are.

    A chunk has up to so many bytes, or one batch.
    """
    numbers: dict[int, list[int]] = {}
    chunks, total = 0, 0
    for partition, lengths in sizes:
        numbers[partition] = []
        for length in lengths:
            if not chunks or total + length > most:
                chunks, total = chunks + 1, 0
            numbers[partition].append(chunks - 1)
            total += length
    return numbers, chunks
