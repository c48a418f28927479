"""The rows of a frame, brought to the driver in their order, some at a time."""

from __future__ import annotations

from collections.abc import Generator

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

__all__ = ["Chunks"]

_BYTES = 2**25  # of rows that come to the driver at once
_WHOLE = 4  # times as many come, if they are all
_FIRST_ROWS = 10_000  # which tell how many bytes a row has
_PARTITION_BITS = 33  # of `monotonically_increasing_id`: the bits of a row's number in its partition
_IN_PARTITION = (1 << _PARTITION_BITS) - 1


class Chunks:
    """Brings rows of frames to the driver: partition by partition, in the order that they have there, some 32 MiB at a time.

    Parameters
    ----------
    columns
        The columns.

    Notes
    -----
    A frame whose partitions have few rows, of 128 MiB in all at most, comes by one job. Another one is computed once and lies
    with the workers (``MEMORY_AND_DISK``) until its last row has come, so that all chunks are of the same rows. How many bytes a
    row has, and whether partitions have few, is known from the frame before.
    """

    def __init__(self, *columns: str) -> None:
        self._columns = columns
        self._most, self._few = _FIRST_ROWS, True  # rows at once; whether partitions are expected to have few

    def of(self, frame: DataFrame) -> Generator[pa.RecordBatch]:
        """Give the rows of a frame; behind the columns is one more, of increasing numbers."""
        rows = frame.select(*(F.col(column) for column in self._columns), F.monotonically_increasing_id().alias("number"))
        partitions = max(frame.rdd.getNumPartitions(), 1)
        if self._few and (whole := self._whole(rows, _WHOLE * self._most // partitions)) is not None:
            yield from whole.to_batches()
            return
        rows.persist()
        try:
            partition = F.shiftright("number", _PARTITION_BITS)
            counted = rows.groupBy(partition.alias("partition")).count().collect()
            left = sorted((int(part) << _PARTITION_BITS, int(count)) for part, count in counted)
            largest = max((count for _, count in left), default=0)
            while left:
                begin, end, left = _cut(left, self._most)
                yield from self._brought(rows.filter((F.col("number") >= begin) & (F.col("number") < end))).to_batches()
            self._few = largest <= _WHOLE * self._most // partitions
        finally:
            rows.unpersist()

    def _whole(self, rows: DataFrame, share: int) -> pa.Table | None:
        """Return all rows; None where a partition has more than its share."""
        place = F.col("number").bitwiseAND(F.lit(_IN_PARTITION))
        found = self._brought(rows.filter(place <= share))
        places = found["number"].to_numpy() & _IN_PARTITION
        return None if (places == share).any() else found

    def _brought(self, rows: DataFrame) -> pa.Table:
        found = rows.toArrow()
        if len(found):
            self._most = max(_BYTES * len(found) // max(found.nbytes, 1), 1)
        return found


def _cut(left: list[tuple[int, int]], most: int) -> tuple[int, int, list[tuple[int, int]]]:
    """Return where the next ``most`` rows begin and end, and what is left: numbers of first rows, and counts."""
    begin, rows = left[0][0], 0
    for i, (first, count) in enumerate(left):
        if rows + count > most:
            end = first + most - rows
            return begin, end, [(end, count - (most - rows)), *left[i + 1 :]]
        rows += count
    return begin, left[-1][0] + left[-1][1], []
