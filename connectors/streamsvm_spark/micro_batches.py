"""The micro-batches of a streaming query as a source of rows for a learning loop, brought to the driver some at a time."""

from __future__ import annotations

import json
from collections.abc import Generator, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from streamsvm.core.warning import warn
from streamsvm.files.messages import shown
from streamsvm.stream.endpoints import Position, Source, StreamError
from streamsvm.stream.tables.arrow_columns import is_text
from streamsvm.stream.tables.chunk import BadRow, Chunk, RowsChunk, Table, TableChunk, Weighted
from streamsvm_spark.columns import check_widths, column_of, rows_of

_BYTES = 2**23  # of rows that come to the driver at once: its Java holds several copies of them
_WHOLE = 8  # times as many come, if they are all
_FIRST_ROWS = 10_000  # which tell how many bytes a row has
_IN_PARTITION = 2**33 - 1  # of `monotonically_increasing_id`: the bits of a row's number in its partition


class Chunks:
    """Brings rows of frames to the driver: partition by partition, in the order that they have there, some 8 MiB at a time.

    A frame whose partitions have few rows, of 64 MiB in all at most, comes by one job. Another one is computed once and lies on
    the disks of the workers, as Arrow batches, until the last of them has come: so all chunks are of the same rows, and the time
    grows with their number. What few rows are is known from the frame before.
    """

    def __init__(self, *columns: str) -> None:
        self._columns = columns
        self._most, self._few = _FIRST_ROWS, True  # rows at once; whether partitions are expected to have few

    def of(self, frame: DataFrame) -> Generator[pa.RecordBatch]:
        rows = frame.select(*(column_of(frame, column).alias(column) for column in self._columns))
        partitions = max(frame.rdd.getNumPartitions(), 1)
        if self._few and (whole := self._whole_rows(rows, _WHOLE * self._most // partitions)) is not None:
            yield from whole.to_batches()
            return
        packed = (
            rows.mapInArrow(_packed_batches, "data binary").rdd.map(lambda row: bytes(row[0])).persist(StorageLevel.DISK_ONLY)
        )
        try:
            sizes = packed.mapPartitionsWithIndex(lambda number, batches: [(number, list(map(len, batches)))]).collect()
            self._few = max((sum(lengths) for _, lengths in sizes), default=0) <= _WHOLE * _BYTES // partitions
            numbers, chunks = _chunk_numbers(sizes, _BYTES)

            def keyed(partition: int, batches: Iterable[bytes]) -> Iterator[tuple[int, tuple[int, int, bytes]]]:
                return ((numbers[partition][i], (partition, i, data)) for i, data in enumerate(batches))

            # A shuffle: to take a chunk from the middle of a partition would be to read all that is before it.
            apart = packed.mapPartitionsWithIndex(keyed).partitionBy(max(chunks, 1), int)
            # Not as a part of the query: of all that its jobs bring, Java would hold the bytes until the micro-batch ends.
            with ThreadPoolExecutor(1) as thread:
                brought = thread.submit(apart.toLocalIterator, prefetchPartitions=True).result()
            for _, chunk in groupby(brought, itemgetter(0)):
                _check_goes_on(frame)
                yield from self._unpacked_rows(data for _, (_, _, data) in sorted(chunk))
        finally:
            packed.unpersist()

    def _whole_rows(self, rows: DataFrame, share: int) -> pa.Table | None:
        """Return all rows; None where a partition has more than its share."""
        place = F.monotonically_increasing_id().bitwiseAND(F.lit(_IN_PARTITION))
        found = rows.withColumn("place", place).filter(F.col("place") <= share).toArrow()
        self._learn_size(len(found), found.nbytes)
        return None if (found.column("place").to_numpy() == share).any() else found.drop_columns("place")

    def _unpacked_rows(self, packed: Iterable[bytes]) -> Iterator[pa.RecordBatch]:
        for data in packed:
            with pa.ipc.open_stream(data) as batches:
                for batch in batches:
                    self._learn_size(len(batch), batch.nbytes)
                    yield batch

    def _learn_size(self, rows: int, size: int) -> None:
        if rows:
            self._most = max(_BYTES * rows // max(size, 1), 1)


def _packed_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Give Arrow batches as rows of one column, each a stream of Arrow."""
    for batch in batches:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        yield pa.record_batch({"data": pa.array([sink.getvalue().to_pybytes()], pa.binary())})


def _check_goes_on(frame: DataFrame) -> None:
    """Raise a StreamError where Spark has interrupted the thread of Java that calls: it ends jobs, and waits for this one."""
    if frame.sparkSession.sparkContext._jvm.java.lang.Thread.currentThread().isInterrupted():
        raise StreamError("the query was stopped within a micro-batch, which is learned from its beginning when it goes on")


def _chunk_numbers(sizes: Iterable[tuple[int, Sequence[int]]], most: int) -> tuple[dict[int, list[int]], int]:
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


_BAD = "it has a null, or a number that is not finite"
_ANEW = (
    "To learn the stream from its beginning, give a new checkpoint and a new checkpointLocation. To continue with the model in "
    "this query, give it with a new checkpoint: StreamLearner(streamsvm.load(OLD), NEW)"
)


class MicroBatches(Source):
    """The rows of micro-batches, one micro-batch after the other: a source that ends with each of them.

    Its position is after a whole micro-batch. It has the query and the number of the micro-batch, so that one that comes again is
    known. Without ``names``, features are 0, 1, ... ``weight`` is the column of weights. Rows with nulls, or numbers that are not
    finite, are given as `BadRow` where ``skip``, else are an error. Labels may be texts where ``classes``.
    """

    name = "micro-batches of Spark"

    def __init__(
        self, features: str, label: str, names: Sequence[str] | None, weight: str | None, *, skip: bool, classes: bool
    ) -> None:
        self.weight: str | None = weight
        self._label, self._chunks = label, Chunks(features, label, *([] if weight is None else [weight]))
        self._names: tuple[Hashable, ...] | None = None if names is None else tuple(names)
        self._skip, self._classes = skip, classes
        self._query: str | None = None
        self._batch = -1
        self._rows: Generator[Chunk] | None = None
        self._most = 1  # rows of the next chunk

    def begin(self, frame: DataFrame, batch: int, query: str | None) -> bool:
        """Begin with the rows of a micro-batch. Return whether there is anything to do: it may be the last one once more.

        A StreamError says that it is not the one after the last, or of another query.
        """
        if batch == self._batch and query == self._query:
            return False
        if self._batch < 0:
            if batch > 0:
                warn(f"the model is new, and this is batch {batch} of the query: rows of the batches before are not in the model")
        elif problem := self._problem_with(batch, query):
            learned = (
                f"the model has learned batch {self._batch} of query {self._query}, and now comes batch {batch} of query {query}"
            )
            raise StreamError(f"{learned}: {problem}. Give the one that belongs to it. {_ANEW}")
        self._query, self._batch = query, batch
        self._rows = self._read_rows(frame)
        return True

    def _problem_with(self, batch: int, query: str | None) -> str | None:
        if query != self._query:
            return "Spark's checkpointLocation is another one, or was deleted"
        if batch < self._batch:
            return "Spark's checkpointLocation is older than the model"
        return "the model's checkpoint is older than Spark's checkpointLocation" if batch > self._batch + 1 else None

    def _read_rows(self, frame: DataFrame) -> Generator[Chunk]:
        """Give the rows of a frame; of those that Spark brings together first the good ones."""
        first = 0
        for batch in self._chunks.of(frame):
            features, label, *weights = batch.columns
            texts = self._classes and is_text(label.type)
            present = pa.array(np.zeros(len(label)), mask=~np.asarray(label.is_valid())) if texts else label
            X, _, w, kept = rows_of(features, present, *weights, skip=self._skip)
            if len(X):
                names, labels = self._names_of(X.shape[1]), label.filter(pa.array(kept)).to_pylist()
                for part in self._parts_of(len(X)):
                    table = Table(names, list(X[part].T), labels[part], w[part] if weights else None)
                    yield _GoodRows(table, partial(self._place_of, first + part.start), self.kept_names)
            raws = {i: _raw_stream(*(column[i].as_py() for column in batch.columns)) for i in np.flatnonzero(~kept).tolist()}
            bad = [BadRow(self._place_of(first, i), raw, _BAD) for i, raw in raws.items()]
            for part in self._parts_of(len(bad)):
                places = [row.place for row in bad[part]]
                yield RowsChunk(bad[part], places.__getitem__, [row.raw for row in bad[part]], self.kept_names)
            first += len(batch)

    def _parts_of(self, n: int) -> Iterator[slice]:
        """Give parts of so many rows, each with as many as are asked for then."""
        begin = 0
        while begin < n:
            end = min(begin + self._most, n)
            yield slice(begin, end)
            begin = end

    def _place_of(self, first: int, i: int) -> str:
        # About which row: those that are left out are not counted.
        return f"batch {self._batch}, row {first + i}"

    def _names_of(self, width: int) -> tuple[Hashable, ...]:
        if self._names is None:
            self._names = tuple(range(width))
        check_widths(len(self._names), width)
        return self._names

    def read(self, most: int) -> Chunk | None:
        """Return the next rows of the micro-batch; None at its end."""
        self._most = most
        return None if self._rows is None else next(self._rows, None)

    @property
    def position(self) -> Position:
        """The query, its last micro-batch, and the columns."""
        names = None if self._names is None else list(self._names)
        return {"query": self._query, "batch": self._batch, "features": names, "label": self._label}

    def seek(self, position: Position) -> None:
        """Continue after the micro-batch of a position; StreamError where it is of another stream, or of other features."""
        query, batch, names = position.get("query"), position.get("batch"), position.get("features")
        if (
            type(batch) is not int
            or batch < 0
            or not isinstance(query, str | None)
            or not (names is None or (type(names) is list and all(type(name) in (int, str) for name in names)))
        ):
            raise StreamError(f"the checkpoint is of another kind of stream, {shown(dict(position))}: give another checkpoint")
        if names is not None and self._names is not None and tuple(names) != self._names:
            raise StreamError(
                f"the checkpoint has learned the features {shown(names)}, not {shown(list(self._names))}: give the same "
                "featureNames, or another checkpoint to start from scratch"
            )
        self._query, self._batch = query, batch
        self._names = self._names if names is None else tuple(names)

    def close(self) -> None:
        """Have the workers drop the rows of a micro-batch that was not read to its end."""
        if self._rows is not None:
            self._rows.close()


class _GoodRows(TableChunk):
    """Rows of a micro-batch that can be learned."""

    def raw(self, i: int) -> bytes:
        """Return a row as JSON."""
        x, y = self._rows.row(i)
        return _raw_stream(list(x.values()), *(y if isinstance(y, Weighted) else (y,)))


def _raw_stream(*cells: Any) -> bytes:
    return json.dumps(dict(zip(("features", "label", "weight"), cells, strict=False)), default=str).encode()
