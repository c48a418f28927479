"""The micro-batches of a streaming query as a source of rows for a learning loop, brought to the driver some at a time."""

from __future__ import annotations

import json
from collections.abc import Generator, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
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
from streamsvm.stream.endpoints import BadRow, Position, Row, Rows, StreamError, Weighted
from streamsvm_spark.columns import RowsError, column_of, is_text, rows_of

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


_BAD = "it has a null, or a number that is not finite"
_ANEW = (
    "To learn the stream from its beginning, give a new checkpoint and a new checkpointLocation. To continue with the model in "
    "this query, give it with a new checkpoint: StreamLearner(streamsvm.load(OLD), NEW)"
)


class MicroBatches:
    """The rows of micro-batches, one micro-batch after the other: a `BatchSource` that ends with each of them.

    Its position is after a whole micro-batch. It has the query and the number of the micro-batch, so that one that comes again is
    known. Without ``names``, features are 0, 1, ... With ``weight``, the column of weights, labels are given as `Weighted`. Rows
    with nulls, or numbers that are not finite, are given as `BadRow` where ``skip``, else are an error. Labels may be texts where
    ``classes``.
    """

    name = "micro-batches of Spark"
    raw = None

    def __init__(
        self, features: str, label: str, names: Sequence[str] | None, weight: str | None, *, skip: bool, classes: bool
    ) -> None:
        #: The name of the column of weights; None: rows have none.
        self.weight: str | None = weight
        self._label, self._chunks = label, Chunks(features, label, *([] if weight is None else [weight]))
        self._names: tuple[Hashable, ...] | None = None if names is None else tuple(names)
        self._skip, self._classes = skip, classes
        self._query: str | None = None
        self._batch = -1
        self._rows: Generator[tuple[int, Rows | list[BadRow]]] | None = None
        self._at_hand: Rows | list[BadRow] = []
        self._taken, self._first = 0, 0  # of those at hand; and the number of the first of them in the micro-batch
        self._last = 0  # the number of the first row that was taken last

    def begin(self, frame: DataFrame, batch: int, query: str | None) -> bool:
        """Begin with the rows of a micro-batch. Return whether there is anything to do: it may be the last one once more.

        A StreamError says that it is not the one after the last, or of another query.
        """
        if batch == self._batch and query == self._query:
            return False
        if self._batch < 0:
            if batch > 0:
                warn(f"the model is new, and this is batch {batch} of the query: rows of the batches before are not in the model")
        elif problem := self._problem(batch, query):
            learned = (
                f"the model has learned batch {self._batch} of query {self._query}, and now comes batch {batch} of query {query}"
            )
            raise StreamError(f"{learned}: {problem}. Give the one that belongs to it. {_ANEW}")
        self._query, self._batch = query, batch
        self._rows, self._at_hand, self._taken, self._first, self._last = self._read(frame), [], 0, 0, 0
        return True

    def _problem(self, batch: int, query: str | None) -> str | None:
        if query != self._query:
            return "Spark's checkpointLocation is another one, or was deleted"
        if batch < self._batch:
            return "Spark's checkpointLocation is older than the model"
        return "the model's checkpoint is older than Spark's checkpointLocation" if batch > self._batch + 1 else None

    def _read(self, frame: DataFrame) -> Generator[tuple[int, Rows | list[BadRow]]]:
        """Give the rows of a frame with the number of the first; of a chunk first those that are good."""
        first = 0
        for chunk in self._chunks.of(frame):
            features, label, *weights = chunk.columns
            texts = self._classes and is_text(label.type)
            present = pa.array(np.zeros(len(label)), mask=~np.asarray(label.is_valid())) if texts else label
            X, _, w, kept = rows_of(features, present, *weights, skip=self._skip)
            if len(X):
                labels: list[Any] = label.filter(pa.array(kept)).to_pylist()
                if weights:
                    labels = list(map(Weighted, labels, w.tolist()))
                yield first, Rows(self._names_of(X.shape[1]), X, labels)
            if not kept.all():
                bad = {i: _raw(*(column[i].as_py() for column in chunk.columns)) for i in np.flatnonzero(~kept).tolist()}
                yield first, [BadRow(f"batch {self._batch}, row {first + i}", raw, _BAD) for i, raw in bad.items()]
            first += len(chunk)

    def _names_of(self, width: int) -> tuple[Hashable, ...]:
        if self._names is None:
            self._names = tuple(range(width))
        if len(self._names) != width:
            raise RowsError(f"vectors are of {len(self._names)} and of {width} features: all must be of one length")
        return self._names

    def take(self, most: int) -> Sequence[Row | BadRow] | Rows | None:
        """Return the next rows of the micro-batch; None at its end."""
        if self._taken == len(self._at_hand):
            if self._rows is None or (found := next(self._rows, None)) is None:
                return None
            (self._first, self._at_hand), self._taken = found, 0
        begin, self._last = self._taken, self._first + self._taken
        self._taken = end = min(begin + most, len(self._at_hand))
        return self._at_hand.part(begin, end) if isinstance(self._at_hand, Rows) else self._at_hand[begin:end]

    def __iter__(self) -> Iterator[Row | BadRow]:
        while rows := self.take(1):
            yield rows.row(0) if isinstance(rows, Rows) else rows[0]

    def place_of(self, i: int) -> str:
        """The micro-batch, and about which row: those that are left out are not counted."""
        return f"batch {self._batch}, row {self._last + i}"

    def raw_of(self, i: int) -> bytes | None:
        """Return a row of those that were taken last as JSON."""
        number = self._last - self._first + i
        if not isinstance(self._at_hand, Rows):
            return self._at_hand[number].raw
        label = (self._at_hand.y or ())[number]
        return _raw(self._at_hand.X[number].tolist(), *(label if isinstance(label, Weighted) else (label,)))

    @property
    def place(self) -> str:
        """The row that was given last."""
        return self.place_of(0)

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

    def stop(self) -> None:
        """Do nothing: a query is stopped by Spark."""

    def close(self) -> None:
        """Have the workers drop the rows of a micro-batch that was not read to its end."""
        if self._rows is not None:
            self._rows.close()


def _raw(*cells: Any) -> bytes:
    return json.dumps(dict(zip(("features", "label", "weight"), cells, strict=False)), default=str).encode()
