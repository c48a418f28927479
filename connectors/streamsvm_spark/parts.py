"""Learning each partition with its own model, and merging the models; they travel as model files, which contain no code."""

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
from streamsvm.stream.checkpoint import read_checkpoint
from streamsvm_spark.columns import RowsError, arrow_schema, check_widths, convert_batch


def serialize_learner(learner: Any) -> bytes:
    """Return a learner as the bytes of a model file, to send it between driver and workers."""
    return serialize_parts({"model": learner}, {"kind": "model"})


def load_learner(file: bytes, name: str = "the model") -> Any:
    """Return the learner from the bytes of a model file, ``file``. ``name`` describes the file in error messages."""
    return read_checkpoint(name, data=file).model


@lru_cache(maxsize=4)
def load_shared_learner(file: bytes) -> Any:
    """Return the learner from the bytes of a model file. It is loaded once per process and then cached, so callers must not
    change it.
    """
    return load_learner(file)


_MAX_SAMPLE_ROWS = 16_000  # of all partitions, to fit the coefficients of the merged model
_MAX_PARTITION_SAMPLE_ROWS, _MAX_PARTITION_SAMPLE_BYTES = 2_000, 2**20


class Sample(NamedTuple):
    """A uniform random sample of the rows of a partition, in random order."""

    X: np.ndarray  # float32 [n, features]
    y: np.ndarray  # float64 [n]
    w: np.ndarray  # float64 [n]

    def to_bytes(self) -> bytes:
        """Return this sample of rows as bytes: its number of rows, then features, labels and weights."""
        return b"".join([len(self.X).to_bytes(8, "little"), self.X.tobytes(), self.y.tobytes(), self.w.tobytes()])

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Return the sample of rows that `to_bytes` converted to ``content``."""
        n = int.from_bytes(content[:8], "little")
        stop = len(content) - 16 * n
        y, w = np.split(np.frombuffer(content, np.float64, 2 * n, stop), 2)
        return cls(np.frombuffer(content[8:stop], np.float32).reshape(n, -1) if n else np.empty((0, 0), np.float32), y, w)


class Reservoir:
    """A uniform sample of a stream of unknown length (reservoir sampling by random keys).

    It has at most ``size`` rows, and at most 1 MiB. The same rows in the same order give the same sample, in batches of any size.
    Amortised O(1) per row; memory for the sample and one batch.

    >>> reservoir = Reservoir(seed=0, size=2)
    >>> X = np.arange(10.0, dtype=np.float32)[:, None]
    >>> reservoir.add(X[:4], X[:4, 0], np.ones(4))
    >>> reservoir.add(X[4:], X[4:, 0], np.ones(6))
    >>> reservoir.get_sample().y
    array([3., 2.])
    """

    def __init__(self, seed: Any, size: int = _MAX_PARTITION_SAMPLE_ROWS) -> None:
        self._rng, self._size = np.random.default_rng(seed), size
        self._keys, self._sample = np.empty(0), Sample(np.empty((0, 0), np.float32), np.empty(0), np.empty(0))

    def add(self, X: np.ndarray, y: np.ndarray, w: np.ndarray) -> None:
        """Add the next rows of the stream to this random sample: X float32 [n, features], labels y and weights w float64 [n]."""
        keys = self._rng.random(len(X))
        if not len(self._keys):
            self._sample = self._sample._replace(X=np.empty((0, X.shape[1]), np.float32))
            self._size = min(self._size, max(_MAX_PARTITION_SAMPLE_BYTES // (4 * X.shape[1] + 16), 1))
        elif len(self._keys) == self._size:
            selected = np.flatnonzero(keys < self._keys[-1])
            X, y, w, keys = X[selected], y[selected], w[selected], keys[selected]
        keys = np.append(self._keys, keys)
        order = np.argsort(keys)[: self._size]
        self._keys = keys[order]
        self._sample = Sample(*(np.concatenate(pair)[order] for pair in zip(self._sample, (X, y, w), strict=True)))

    def get_sample(self) -> Sample:
        """Return a uniform random sample of the rows added so far, with at most ``size`` rows."""
        return self._sample


def combine_samples(samples: Sequence[Sample], rows: Sequence[int]) -> Sample:
    """Join the random samples of several partitions to one sample that represents all rows, and return it. ``rows`` are the
    numbers of rows in the partitions; weights are multiplied so that each partition counts in proportion to its rows.

    The weight of each row is multiplied by the number of rows that it represents, relative to the mean of this number.
    """
    total = sum(rows)
    counts = [min(-(-_MAX_SAMPLE_ROWS * n // total), len(sample.X)) for sample, n in zip(samples, rows, strict=True)]
    factors = [n / max(count, 1) * sum(counts) / total for n, count in zip(rows, counts, strict=True)]
    X = np.vstack([sample.X[:count] for sample, count in zip(samples, counts, strict=True)])
    y = np.concatenate([sample.y[:count] for sample, count in zip(samples, counts, strict=True)])
    w = np.concatenate([factor * sample.w[:count] for sample, count, factor in zip(samples, counts, factors, strict=True)])
    return Sample(X, y, w)


#: The schema of a `PartitionResult`, for Spark.
PARTITION_RESULT_SCHEMA = "part int, rows long, skipped long, model binary, sample binary"
_PARTITION_RESULT_ARROW_SCHEMA = arrow_schema(PARTITION_RESULT_SCHEMA)


class PartitionResult(NamedTuple):
    """The model of one partition, with its numbers of rows."""

    part: int  # number of the partition
    rows: int
    skipped: int
    model: bytes | None  # a model file; None without rows
    sample: bytes | None  # a serialised `Sample` of the rows; None without rows, or for a linear learner


class LearnTask(NamedTuple):
    """The task that learns the rows of a partition in order, and returns a model and a sample of the rows.

    Batches have the columns ``features`` and ``label``, and optionally ``weight``.
    """

    learner_class: type
    parameters: Mapping[str, Any]  # of the learner, without ``max_features``
    passes: int = 1
    skip: bool = False
    classes: bool = False
    seed: int = 0  # for the sample

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Learn the batches of a partition, and yield a batch with one row: its `PartitionResult`."""
        number = TaskContext.get().partitionId()
        reservoir = Reservoir([self.seed % 2**64, number]) if issubclass(self.learner_class, BudgetedEstimator) else None
        model, rows, skipped = self.learn_batches(batches, reservoir)
        file = None if model is None else serialize_learner(model)
        sample = None if reservoir is None or model is None else reservoir.get_sample().to_bytes()
        yield pa.RecordBatch.from_pylist(
            [PartitionResult(number, rows, skipped, file, sample)._asdict()], _PARTITION_RESULT_ARROW_SCHEMA
        )

    def learn_batches(self, batches: Iterator[pa.RecordBatch], reservoir: Reservoir | None = None) -> tuple[Any, int, int]:
        """Learn the rows of all Arrow ``batches`` of a partition in ``passes`` passes, and add each row once to the random sample
        ``reservoir``, if there is one. Return the learner (None without rows), the number of rows, and the number of invalid rows
        that were skipped.

        Memory is needed for one batch, the reservoir and the model. For more than one pass, the rows are stored in a temporary
        file.
        """
        if self.passes == 1:
            return self._run_pass(None, batches, reservoir)
        with tempfile.TemporaryFile() as file:
            model, rows, skipped = self._run_pass(None, _tee_batches(batches, file), reservoir)
            for _ in range(1, self.passes):
                file.seek(0)
                if rows:
                    model = self._run_pass(model, pa.ipc.open_stream(file))[0]
        return model, rows, skipped

    def _run_pass(self, model: Any, batches: Any, reservoir: Reservoir | None = None) -> tuple[Any, int, int]:
        """Learn the rows of all Arrow ``batches`` once with the learner ``model``, or with a new one if it is None. Also add the
        rows to the random sample ``reservoir``, if there is one. Return the learner (None without rows), the number of rows, and
        the number of invalid rows that were skipped.
        """
        n_learned = n_skipped = 0
        for batch in batches:
            rows = convert_batch(batch, skip=self.skip, classes=self.classes)
            n_skipped += len(rows.valid) - len(rows.X)
            if not len(rows.X):
                continue
            if model is None:
                model = self.learner_class(**self.parameters, max_features=max(rows.X.shape[1], 1))
            else:
                check_widths(len(model.feature_names), rows.X.shape[1])
            model.learn_many(rows.X, rows.y, rows.w)
            if getattr(model, "n_ignored", 0):  # a stream would ignore these rows
                raise RowsError(
                    f"rows have more labels than the {model.max_classes} of {type(model).__name__}: "
                    "use another learner, or OneVsRest"
                )
            if reservoir is not None:
                reservoir.add(rows.X, rows.y, rows.w)
            n_learned += len(rows.X)
        return model, n_learned, n_skipped


def _tee_batches(batches: Iterator[pa.RecordBatch], file: Any) -> Iterator[pa.RecordBatch]:
    """Yield Arrow record batches unchanged, and write a copy of each to the open ``file``, for further passes."""
    writer = None
    for batch in batches:
        writer = writer or pa.ipc.new_stream(file, batch.schema)
        writer.write_batch(batch)
        yield batch
    if writer is not None:
        writer.close()


def merge_parts(parts: Sequence[PartitionResult]) -> Any:
    """Merge the models that the partitions learned into one, and return it. ``parts`` are the results of the partitions, in any
    order. Raise a RowsError if there are no rows, or the models cannot be merged.

    All models are merged at once by `merge_with`, with a sample of all rows. Merging pairs in a tree would be less accurate,
    because a merge loses the labels of support vectors. The model of a single partition is returned unchanged.
    """
    ordered = sorted(parts, key=lambda part: part.part)
    models = [(part, load_learner(part.model, f"partition {part.part}")) for part in ordered if part.model is not None]
    models = [(part, model) for part, model in models if model.n_learned]  # rows of weight 0 are not learned
    if not models:
        raise RowsError("no rows to learn: the frame is empty, or all its rows were skipped or have weight 0")
    results, (model, *further_models) = zip(*models, strict=True)
    for part, further_model in models[1:]:
        check_widths(len(model.feature_names), len(further_model.feature_names), (results[0].part, part.part))
    if further_models:
        samples = [Sample.from_bytes(part.sample) for part in results if part.sample is not None]
        rows = combine_samples(samples, [part.rows for part in results]) if samples else None
        try:
            model.merge_with(*further_models, rows=rows)
        except ValueError as error:
            raise RowsError(f"the models of {len(results)} partitions cannot be merged: {error}") from error
    return model
