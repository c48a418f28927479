"""The micro-batches of a streaming query as a source of rows for a learning loop, collected on the driver by one Spark job."""

from __future__ import annotations

import json
from collections.abc import Generator, Hashable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

from streamsvm.core.warning import warn
from streamsvm.files.messages import short_repr
from streamsvm.stream.endpoints import Position, Source, StreamError
from streamsvm.stream.tables.arrow_columns import is_text
from streamsvm.stream.tables.chunk import BadRow, Chunk, Table, WeightedLabel
from streamsvm_spark.columns import check_widths, column_of, rows_of

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
        self._label, self._columns = label, [features, label, *([] if weight is None else [weight])]
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
        columns = [column_of(frame, column).alias(column) for column in self._columns]
        for batch in frame.select(*columns).toArrow().to_batches():
            features, label, *weights = batch.columns
            texts = self._classes and is_text(label.type)
            present = pa.array(np.zeros(len(label)), mask=~np.asarray(label.is_valid())) if texts else label
            X, _, w, kept = rows_of(features, present, *weights, skip=self._skip)
            if len(X):
                names, labels = self._names_of(X.shape[1]), label.filter(pa.array(kept)).to_pylist()
                for part in self._parts_of(len(X)):
                    table = Table(names, list(X[part].T), labels[part], w[part] if weights else None)
                    place = partial(self._place_of, first + part.start)
                    yield Chunk(table, place, partial(_raw_row, table), passthrough_names=self.passthrough_names)
            refused = {i: _raw_stream(*(column[i].as_py() for column in batch.columns)) for i in np.flatnonzero(~kept).tolist()}
            bad = [BadRow(self._place_of(first, i), raw, _BAD) for i, raw in refused.items()]
            for part in self._parts_of(len(bad)):
                places, raws = [row.place for row in bad[part]], [row.raw for row in bad[part]]
                yield Chunk(bad[part], places.__getitem__, raws.__getitem__, passthrough_names=self.passthrough_names)
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

    def read(self, max_rows: int) -> Chunk | None:
        """Return the next rows of the micro-batch; None at its end."""
        self._most = max_rows
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
            raise StreamError(
                f"the checkpoint is of another kind of stream, {short_repr(dict(position))}: give another checkpoint"
            )
        if names is not None and self._names is not None and tuple(names) != self._names:
            raise StreamError(
                f"the checkpoint has learned the features {short_repr(names)}, not {short_repr(list(self._names))}: "
                "give the same "
                "featureNames, or another checkpoint to start from scratch"
            )
        self._query, self._batch = query, batch
        self._names = self._names if names is None else tuple(names)

    def close(self) -> None:
        """Have the workers drop the rows of a micro-batch that was not read to its end."""
        if self._rows is not None:
            self._rows.close()


def _raw_row(table: Table, i: int) -> bytes:
    """Return a row of a table as JSON."""
    x, y = table.row(i)
    return _raw_stream(list(x.values()), *(y if isinstance(y, WeightedLabel) else (y,)))


def _raw_stream(*cells: Any) -> bytes:
    return json.dumps(dict(zip(("features", "label", "weight"), cells, strict=False)), default=str).encode()
