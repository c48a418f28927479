"""A learner for each partition, and one model of them all; they travel as the bytes of model files, of which nothing can run."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from streamsvm.files.model_file import serialize_parts
from streamsvm.learners.budgeted import BudgetedEstimator
from streamsvm.stream.checkpoint import parse_checkpoint
from streamsvm_spark.columns import RowsError, arrow_schema, check_widths, rows_of_batch


def bytes_of(learner: Any) -> bytes:
    """Return a learner as the bytes of a model file."""
    return serialize_parts({"model": learner}, {"kind": "model"})


def find_learner(file: bytes, place: str = "the model") -> Any:
    """Return the learner that such bytes hold, which may be changed; messages name the place."""
    return parse_checkpoint(file, place).model


@lru_cache(maxsize=4)
def shared_learner_of(file: bytes) -> Any:
    """Return the learner that such bytes hold, to be read only: a process makes it once."""
    return find_learner(file)


_MOST_ROWS = 16_000  # that the coefficients are fitted to
_ROWS_OF_PART, _BYTES_OF_PART = 2_000, 2**20  # that a partition sends, at most


class Sample(NamedTuple):
    """Some of the rows of a partition, each with the same chance to be here, in an order of chance."""

    X: np.ndarray  # float32 [n, features]
    y: np.ndarray  # float64 [n]
    w: np.ndarray  # float64 [n]

    def to_bytes(self) -> bytes:
        return b"".join([len(self.X).to_bytes(8, "little"), self.X.tobytes(), self.y.tobytes(), self.w.tobytes()])

    @classmethod
    def of_bytes(cls, content: bytes) -> Self:
        n = int.from_bytes(content[:8], "little")
        end = len(content) - 16 * n
        y, w = np.split(np.frombuffer(content, np.float64, 2 * n, end), 2)
        return cls(np.frombuffer(content[8:end], np.float32).reshape(n, -1) if n else np.empty((0, 0), np.float32), y, w)


class Reservoir:
    """Rows that are drawn from a stream of any length: those with the smallest of random numbers, of which each row gets one.

    The same rows in the same order give the same sample, whatever batches they come in: at most ``size``, or as many as fit 1
    MiB, if that is less. O(1) a row, and the memory of these rows and of a batch.

    >>> reservoir = Reservoir(seed=0, size=2)
    >>> X = np.arange(10.0, dtype=np.float32)[:, None]
    >>> reservoir.add(X[:4], X[:4, 0], np.ones(4))
    >>> reservoir.add(X[4:], X[4:, 0], np.ones(6))
    >>> reservoir.sample().y
    array([3., 2.])
    """

    def __init__(self, seed: Any, size: int = _ROWS_OF_PART) -> None:
        self._rng, self._size = np.random.default_rng(seed), size
        self._keys, self._held = np.empty(0), Sample(np.empty((0, 0), np.float32), np.empty(0), np.empty(0))

    def add(self, X: np.ndarray, y: np.ndarray, w: np.ndarray) -> None:
        """Take the next rows: X float32 [n, features], y and w float64 [n]."""
        keys = self._rng.random(len(X))
        if not len(self._keys):
            self._held = self._held._replace(X=np.empty((0, X.shape[1]), np.float32))
            self._size = min(self._size, max(_BYTES_OF_PART // (4 * X.shape[1] + 16), 1))
        elif len(self._keys) == self._size:
            some = np.flatnonzero(keys < self._keys[-1])
            X, y, w, keys = X[some], y[some], w[some], keys[some]
        keys = np.append(self._keys, keys)
        order = np.argsort(keys)[: self._size]
        self._keys = keys[order]
        self._held = Sample(*(np.concatenate(both)[order] for both in zip(self._held, (X, y, w), strict=True)))

    def sample(self) -> Sample:
        return self._held


def joined_samples(samples: Sequence[Sample], rows: Sequence[int]) -> Sample:
    """Return one sample of those of partitions, which have some number of rows each.

    Each row weighs what it does itself, times the rows that it stands for, of which the mean is made 1.
    """
    total = sum(rows)
    counts = [min(-(-_MOST_ROWS * n // total), len(sample.X)) for sample, n in zip(samples, rows, strict=True)]
    stands = [n / max(count, 1) * sum(counts) / total for n, count in zip(rows, counts, strict=True)]
    X = np.vstack([sample.X[:count] for sample, count in zip(samples, counts, strict=True)])
    y = np.concatenate([sample.y[:count] for sample, count in zip(samples, counts, strict=True)])
    w = np.concatenate([s * sample.w[:count] for sample, count, s in zip(samples, counts, stands, strict=True)])
    return Sample(X, y, w)


#: What a partition gives back, as a schema of Spark, and as one of Arrow.
PARTS = "part int, rows long, skipped long, model binary, sample binary"
_PARTS = arrow_schema(PARTS)


class PartitionResult(NamedTuple):
    """The model and the counts that one partition gives back."""

    part: int  # its number
    rows: int
    skipped: int
    model: bytes | None  # a model file; None where it has no rows
    sample: bytes | None  # a `Sample` of its rows; None likewise, and of a linear learner


class Task(NamedTuple):
    """The task of each partition: it learns its rows, in their order, and gives back one model, and a sample of the rows.

    Batches have the columns ``features`` and ``label``, and ``weight`` if they are weighted.
    """

    kind: type  # the class of the learner
    parameters: Mapping[str, Any]  # of its constructor, but for ``max_features``
    passes: int = 1
    skip: bool = False
    classes: bool = False
    seed: int = 0  # of the sample

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Learn the batches of a partition; `PARTS` is what comes back, one row."""
        number = TaskContext.get().partitionId()
        reservoir = Reservoir([self.seed % 2**64, number]) if issubclass(self.kind, BudgetedEstimator) else None
        model, rows, skipped = self.learned(batches, reservoir)
        file = None if model is None else bytes_of(model)
        sample = None if reservoir is None or model is None else reservoir.sample().to_bytes()
        yield pa.RecordBatch.from_pylist([PartitionResult(number, rows, skipped, file, sample)._asdict()], _PARTS)

    def learned(self, batches: Iterator[pa.RecordBatch], reservoir: Reservoir | None = None) -> tuple[Any, int, int]:
        """Return the learner of batches, None where they have no rows; the number of rows, and how many were skipped.

        The reservoir gets each row once. Memory is that of a batch, of it and of the model. For more than one pass the rows are
        kept in a temporary file.
        """
        if self.passes == 1:
            return self._pass_over(None, batches, reservoir)
        with tempfile.TemporaryFile() as file:
            model, rows, skipped = self._pass_over(None, _copied_batches(batches, file), reservoir)
            for _ in range(1, self.passes):
                file.seek(0)
                if rows:
                    model = self._pass_over(model, pa.ipc.open_stream(file))[0]
        return model, rows, skipped

    def _pass_over(self, model: Any, batches: Any, reservoir: Reservoir | None = None) -> tuple[Any, int, int]:
        learned = skipped = 0
        for batch in batches:
            rows = rows_of_batch(batch, skip=self.skip, classes=self.classes)
            skipped += len(rows.kept) - len(rows.X)
            if not len(rows.X):
                continue
            if model is None:
                model = self.kind(**self.parameters, max_features=max(rows.X.shape[1], 1))
            else:
                check_widths(len(model.feature_names), rows.X.shape[1])
            model.learn_many(rows.X, rows.y, rows.w)
            if getattr(model, "n_ignored", 0):  # a stream would go on without these rows
                raise RowsError(
                    f"rows have more than the {model.max_classes} labels that {type(model).__name__} is for: take another "
                    "learner, or OneVsRest"
                )
            if reservoir is not None:
                reservoir.add(rows.X, rows.y, rows.w)
            learned += len(rows.X)
        return model, learned, skipped


def _copied_batches(batches: Iterator[pa.RecordBatch], file: Any) -> Iterator[pa.RecordBatch]:
    writer = None
    for batch in batches:
        writer = writer or pa.ipc.new_stream(file, batch.schema)
        writer.write_batch(batch)
        yield batch
    if writer is not None:
        writer.close()


def merge_parts(parts: Sequence[PartitionResult]) -> Any:
    """Return the model of all partitions: the same one whatever the order in which they came back.

    All are merged at once, as `merge_with` does, with a sample of the rows of all. Two by two in a tree would be worse: what is
    known of a support vector, on which side its row was, does not outlive a merge. The model of one partition stays as it is. A
    RowsError says that rows cannot be learned, models cannot be merged, or that there is no row.
    """
    ordered = sorted(parts, key=lambda part: part.part)
    models = [(part, find_learner(part.model, f"partition {part.part}")) for part in ordered if part.model is not None]
    models = [(part, model) for part, model in models if model.n_learned]  # rows without weight are not learned
    if not models:
        raise RowsError("there is no row to learn: the frame is empty, or all its rows were skipped or have no weight")
    learned, (model, *others) = zip(*models, strict=True)
    for part, other in models[1:]:
        check_widths(len(model.feature_names), len(other.feature_names), (learned[0].part, part.part))
    if others:
        samples = [Sample.of_bytes(part.sample) for part in learned if part.sample is not None]
        try:
            model.merge_with(*others, rows=joined_samples(samples, [part.rows for part in learned]) if samples else None)
        except ValueError as error:
            raise RowsError(f"the models of {len(learned)} partitions do not become one: {error}") from error
    return model
