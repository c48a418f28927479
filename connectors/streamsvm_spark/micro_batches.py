"""The source of a learning loop that yields the rows of Spark micro-batches, collected on the driver by one Spark job each."""

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
from streamsvm_spark.columns import check_widths, convert_rows, select_column

_INVALID_REASON = "it has a null or a number that is not finite"
_KEEP_MODEL = "pass the model with a new checkpoint: StreamLearner(streamsvm.load(OLD), NEW)"
_RESET_ADVICE = (
    "To learn the stream from its beginning, use a new checkpoint and a new checkpointLocation. To continue with the model in "
    f"this query, {_KEEP_MODEL}"
)


class MicroBatches(Source):
    """A source of the rows of one micro-batch after the other; `read` returns None at the end of each micro-batch.

    The position contains the query and the last complete micro-batch, so that repeated micro-batches are detected. Without
    ``names``, features are named 0, 1, ... ``weight`` is the column of weights. With ``skip``, rows with nulls or numbers that
    are not finite become `BadRow` objects; otherwise they raise an error. With ``classes``, labels may be strings.
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
        self._max_rows = 1  # of the next chunk

    def start_batch(self, frame: DataFrame, batch: int, query: str | None) -> bool:
        """Prepare to read ``frame``, micro-batch number ``batch`` of the Spark query with the id ``query``, and return True. If
        Spark repeats the last micro-batch, which was learned already, return False and do not read it.

        Raises StreamError if it is not the successor of the last one, or belongs to another query.
        """
        if batch == self._batch and query == self._query:
            return False
        if self._batch < 0:
            if batch > 0:
                warn(f"the model is new, but this is batch {batch} of the query: the model lacks the rows of earlier batches")
        elif problem := self._find_contradiction(batch, query):
            batches = f"batch {self._batch} of query {self._query}, but the next is batch {batch} of query {query}"
            raise StreamError(f"the model has learned {batches}: {problem}. Use matching ones. {_RESET_ADVICE}")
        self._query, self._batch = query, batch
        self._rows = self._read_rows(frame)
        return True

    def _find_contradiction(self, batch: int, query: str | None) -> str | None:
        """Check that micro-batch number ``batch`` of the Spark query with the id ``query`` directly follows the last one that was
        read. Return None if it does, otherwise the reason as text for an error message.
        """
        if query != self._query:
            return "Spark's checkpointLocation is another one, or was deleted"
        if batch < self._batch:
            return "Spark's checkpointLocation is older than the model"
        return "the model's checkpoint is older than Spark's checkpointLocation" if batch > self._batch + 1 else None

    def _read_rows(self, frame: DataFrame) -> Generator[Chunk]:
        """Read the rows of a Spark frame, and yield them in chunks: from each Arrow record batch first the valid rows, then the
        invalid ones as objects that contain the position, the row and the reason.
        """
        first = 0
        columns = [select_column(frame, column).alias(column) for column in self._columns]
        for batch in frame.select(*columns).toArrow().to_batches():
            features, label, *weights = batch.columns
            has_text_labels = self._classes and is_text(label.type)
            numeric_label = pa.array(np.zeros(len(label)), mask=~np.asarray(label.is_valid())) if has_text_labels else label
            X, _, w, valid = convert_rows(features, numeric_label, *weights, skip=self._skip)
            if len(X):
                names, labels = self._check_names(X.shape[1]), label.filter(pa.array(valid)).to_pylist()
                for part in self._split_rows(len(X)):
                    table = Table(names, list(X[part].T), labels[part], w[part] if weights else None)
                    place = partial(self._locate_row, first + part.start)
                    yield Chunk(table, place, partial(_raw_row, table), passthrough_names=self.passthrough_names)
            invalid = {i: _to_json(*(column[i].as_py() for column in batch.columns)) for i in np.flatnonzero(~valid).tolist()}
            bad_rows = [BadRow(self._locate_row(first, i), raw, _INVALID_REASON) for i, raw in invalid.items()]
            for part in self._split_rows(len(bad_rows)):
                places, raws = [row.place for row in bad_rows[part]], [row.raw for row in bad_rows[part]]
                yield Chunk(bad_rows[part], places.__getitem__, raws.__getitem__, passthrough_names=self.passthrough_names)
            first += len(batch)

    def _split_rows(self, n: int) -> Iterator[slice]:
        """Yield consecutive slices of positions that together cover ``n`` rows. Each has the number of rows that the current call
        of `read` requested; the last one may have fewer.
        """
        start = 0
        while start < n:
            stop = min(start + self._max_rows, n)
            yield slice(start, stop)
            start = stop

    def _locate_row(self, first: int, i: int) -> str:
        """Return the position of a row, such as "batch 3, row 17", as text for error messages: ``i`` rows after row ``first`` of
        the micro-batch. It is approximate, because invalid rows are counted separately.
        """
        return f"batch {self._batch}, row {first + i}"

    def _check_names(self, width: int) -> tuple[Hashable, ...]:
        """Return the feature names of vectors with ``width`` features. The first call assigns 0, 1, ... if no names were passed.
        Raise a RowsError if a later vector has another length.
        """
        if self._names is None:
            self._names = tuple(range(width))
        check_widths(len(self._names), width)
        return self._names

    def read(self, max_rows: int) -> Chunk | None:
        """Return the next rows of the current micro-batch, at most ``max_rows``, as a chunk. Return None at the end of the
        micro-batch.
        """
        self._max_rows = max_rows
        return None if self._rows is None else next(self._rows, None)

    @property
    def position(self) -> Position:
        """The position of this source in the stream, for checkpoints: the Spark query, the number of the last micro-batch, the
        feature names and the label column.
        """
        names = None if self._names is None else list(self._names)
        return {"query": self._query, "batch": self._batch, "features": names, "label": self._label}

    def seek(self, position: Position) -> None:
        """Set the position of this source to that of a checkpoint, so that it continues after that micro-batch. Raise a
        StreamError if the position belongs to another kind of source or to other features.
        """
        query, batch, names = position.get("query"), position.get("batch"), position.get("features")
        if (
            type(batch) is not int
            or batch < 0
            or not isinstance(query, str | None)
            or not (names is None or (type(names) is list and all(type(name) in (int, str) for name in names)))
        ):
            raise StreamError(f"the checkpoint is of another kind of stream, {short_repr(dict(position))}: {_KEEP_MODEL}")
        if names is not None and self._names is not None and tuple(names) != self._names:
            raise StreamError(
                f"the checkpoint has learned the features {short_repr(names)}, not {short_repr(list(self._names))}: "
                f"pass the same featureNames, or {_KEEP_MODEL}"
            )
        self._query, self._batch = query, batch
        self._names = self._names if names is None else tuple(names)

    def close(self) -> None:
        """Stop reading the current micro-batch, and release its unread rows on Spark's workers."""
        if self._rows is not None:
            self._rows.close()


def _raw_row(table: Table, i: int) -> bytes:
    """Return row ``i`` of a table of valid rows as JSON bytes, with features, label and weight, for dead letters and messages."""
    x, y = table.row(i)
    return _to_json(list(x.values()), *(y if isinstance(y, WeightedLabel) else (y,)))


def _to_json(*cells: Any) -> bytes:
    """Return a row as JSON bytes: ``cells`` are its features, its label and, if it has one, its weight."""
    return json.dumps(dict(zip(("features", "label", "weight"), cells, strict=False)), default=str).encode()
