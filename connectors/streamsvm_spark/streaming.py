"""StreamLearner, a function for ``foreachBatch`` that learns each micro-batch of a streaming query exactly once."""

from __future__ import annotations

import contextlib
import copy
import os
import sys
import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Self

from pyspark.sql import DataFrame
from pyspark.sql.utils import is_remote
from river import base, compose

from streamsvm.core.checks import check_one_of
from streamsvm.stream.checkpoint import Checkpoints
from streamsvm.stream.checkpoint_folder import CheckpointFolder
from streamsvm.stream.drift import DriftWatch
from streamsvm.stream.endpoints import Record, Sink, StreamError
from streamsvm.stream.loop import LearningLoop
from streamsvm.stream.open import open_checkpoints, open_sink
from streamsvm.stream.progress import Progress
from streamsvm.stream.rows import split_pipeline
from streamsvm_spark.columns import RowsError
from streamsvm_spark.micro_batches import MicroBatches

_QUERY_ID_PROPERTY = "sql.streaming.queryId"  # local property of Spark
_NO_CONNECT = (
    "a StreamLearner learns on the driver and cannot be sent to a server, as Spark Connect would do: use a classic session, "
    "SparkSession.builder.master(...)"
)


class StreamLearner:
    """Learns each micro-batch of a streaming query exactly once.

    Pass it to ``foreachBatch``: ``frame.writeStream.foreachBatch(StreamLearner(model, "state"))``.

    It runs a `LearningLoop` on the driver: each row is predicted and scored before it is learned. After each micro-batch, it
    atomically writes one checkpoint with the model, the metrics, the query and the number of the micro-batch. If Spark repeats a
    micro-batch that is in the checkpoint, it is not learned again. A micro-batch that was not learned completely has no effect. A
    query that is killed at any moment and restarted therefore ends with the same bytes as one that was not killed, if its source
    repeats the rows of a micro-batch in the same order (see Notes).

    Parameters
    ----------
    model
        Learner of streamsvm, or river classifier, regressor or pipeline. It stays unchanged, because a copy learns.
    checkpoint
        Path of a folder on the driver, the URL of a model topic (``kafka://host:port/models?name=spam``), or open checkpoints
        (`CheckpointFolder`, `TopicCheckpoints`). If it contains a model, that model continues learning. ``streamsvm predict
        --follow`` loads each newer model from there.
    featuresCol, labelCol
        Names of the columns. Features are vectors of pyspark.ml or arrays of numbers, all of one length. Labels are numbers or
        bools; for classifiers, also texts.
    weightCol
        Name of the column of weights, numbers of at least 0. None gives every row weight 1. The metric counts each row once,
        regardless of its weight.
    featureNames
        Names of the vectors' entries in the model, for followers that read rows with names. None: 0, 1, ...
    handleInvalid
        Treatment of rows with nulls, with numbers that are not finite, or with labels that the model refuses. ``"error"``: the
        query ends, and the model is that of the previous micro-batch. ``"skip"``: they are counted in ``loop.refused``.
    predictions
        Path of a file (``.csv``, or JSON lines) or URL of a topic, for the prediction of each row before it was learned. A file
        contains each row once, even if the query is killed; a topic at least once. Later runs with the same checkpoint need the
        same value.
    dead_letters
        Path or URL, as for ``predictions``, for the rows that ``handleInvalid="skip"`` omits, with their position and the reason.
    metric, positive, window, classes, drift
        As in `LearningLoop`.
    on_progress
        Function that is called with a `Progress` after each micro-batch.
    trusted
        Whether models may hold classes and functions of your own, as in `CheckpointFolder`.

    Attributes
    ----------
    loop : LearningLoop
        The loop, with ``model``, ``metric``, ``windowed``, ``curve``, ``refused`` and ``progress``. A new loop replaces it after
        an error.

    Raises
    ------
    CheckpointError, ValueError
        As in `LearningLoop`, for example because the checkpoint is of a model with other parameters.
    TypeError
        The session is one of Spark Connect.
    StreamError
        When called: the micro-batch is not the successor of the last one, or belongs to another query. The message contains a
        remedy.
    RowsError
        When called: rows are invalid.

    Notes
    -----
    Rows are learned in the order of partitions, and in their order within a partition. With Kafka, a repeated micro-batch has the
    same partitions and rows; with files, on the same number of cores. After a shuffle, the order is undefined: each row is still
    learned once, but the model may differ.

    All rows of a micro-batch are sent to the driver in one Spark job, so the driver needs memory for them. Limit the size of
    micro-batches in the reader of the stream, for example with ``maxOffsetsPerTrigger``.

    Examples
    --------
    A query::

        learner = StreamLearner(BSCAClassifier(500), "state/model", featuresCol="features", labelCol="label")
        query = frame.writeStream.foreachBatch(learner).option("checkpointLocation", "state/spark").start()
    """

    def __init__(
        self,
        model: base.Classifier | base.Regressor | compose.Pipeline,
        checkpoint: str | os.PathLike[str] | Checkpoints,
        *,
        featuresCol: str = "features",
        labelCol: str = "label",
        weightCol: str | None = None,
        featureNames: Sequence[str] | None = None,
        handleInvalid: str = "error",
        predictions: str | os.PathLike[str] | None = None,
        dead_letters: str | os.PathLike[str] | None = None,
        metric: Any = None,
        positive: Hashable = None,
        window: int = 1000,
        classes: Iterable[Hashable] | None = None,
        drift: DriftWatch | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        trusted: bool = False,
    ) -> None:
        if is_remote():
            raise TypeError(_NO_CONNECT)
        check_one_of("handleInvalid", handleInvalid, ("error", "skip"))
        self._columns, self._skip = (featuresCol, labelCol, featureNames, weightCol), handleInvalid == "skip"
        if dead_letters is not None and not self._skip:
            raise ValueError("dead_letters needs handleInvalid='skip': set both, or neither")
        self._predictions, self._dead_letters, self._on_progress = predictions, dead_letters, on_progress
        self._sinks = contextlib.ExitStack()
        # These stay unchanged: each loop starts with copies of them.
        self._model, self._metric, self._drift = copy.deepcopy((model, metric, drift))
        classes = None if classes is None else list(classes)
        self._options: dict[str, Any] = {"positive": positive, "window": window, "classes": classes}
        self._lock, self._closed = threading.RLock(), False
        self._checkpoints: Checkpoints
        self._owns_checkpoints = isinstance(checkpoint, str | os.PathLike)
        if isinstance(checkpoint, str) and "://" in checkpoint:
            self._checkpoints = open_checkpoints(checkpoint, sources=["-"], trusted=trusted)
        elif isinstance(checkpoint, str | os.PathLike):
            self._checkpoints = CheckpointFolder(os.fspath(checkpoint), trusted)
        else:
            self._checkpoints = checkpoint
        self._loop: LearningLoop | None = None
        try:
            self._loop = self._make_loop()
        except BaseException:
            self.close()
            raise

    def _make_loop(self) -> LearningLoop:
        """Create the learning loop with its source and sinks. It continues from the newest checkpoint, or starts with the initial
        model if the checkpoint folder is empty.
        """
        model, metric, drift = copy.deepcopy((self._model, self._metric, self._drift))
        source = MicroBatches(*self._columns, skip=self._skip, classes=not isinstance(split_pipeline(model)[1], base.Regressor))
        try:
            on_error: Any = "skip" if self._skip else _RaisingSink()
            if self._dead_letters is not None:
                on_error = self._open_sink(self._dead_letters)
            return LearningLoop(
                source,
                model,
                metric,
                sink=None if self._predictions is None else self._open_sink(self._predictions),
                checkpoints=self._checkpoints,
                checkpoint_every=None,
                on_error=on_error,
                error_share=1.0,
                drift=drift,
                **self._options,
            )
        except BaseException:
            self._sinks.close()
            raise

    def _open_sink(self, spec: str | os.PathLike[str]) -> Sink:
        """Open the sink for a path or URL, ``spec``, to which predictions or dead letters are written. It is closed together with
        the learning loop.
        """
        sink = open_sink(os.fspath(spec))
        self._sinks.callback(sink.close)
        return sink

    @property
    def loop(self) -> LearningLoop:
        if (loop := self._loop) is not None:  # other threads may use it while a micro-batch is learned
            return loop
        with self._lock:
            if self._loop is None:
                self._loop = self._make_loop()
            return self._loop

    @property
    def model(self) -> Any:
        """The model after the last complete micro-batch or, while a micro-batch is being learned, in its current state."""
        return self.loop.model

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Learn a micro-batch, unless it is a repetition of the last one; called by Spark."""
        with self._lock:
            loop = self.loop
            source: Any = loop.source
            if not source.start_batch(batch, batch_id, batch.sparkSession.sparkContext.getLocalProperty(_QUERY_ID_PROPERTY)):
                return
            try:
                loop.run_step(sys.maxsize)
                if self._closed:
                    raise StreamError(f"the learner was closed during batch {batch_id}; a new one will learn the whole batch")
                loop.write_checkpoint(always=True)
            except BaseException:  # the model may be incomplete, and it may be unknown whether the checkpoint was written
                self._loop = None
                source.close()
                self._sinks.close()
                raise
        if self._on_progress is not None:
            self._on_progress(loop.progress)

    def __reduce__(self) -> Any:
        raise TypeError(_NO_CONNECT)

    def close(self) -> None:
        """Close the sinks of this learner, and its checkpoint folder if the learner opened it, so that other processes can use
        them.

        A micro-batch that is currently learned fails.
        """
        self._closed = True
        if (loop := self._loop) is not None:
            loop.stop()
        with self._lock:  # waits for the current micro-batch
            try:
                self._sinks.close()
            finally:
                if self._owns_checkpoints:
                    self._checkpoints.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _RaisingSink(Sink):
    """A sink of dead letters that raises RowsError for the first one, which ends the run."""

    name = "handleInvalid='error'"

    def write(self, record: Record) -> None:
        raise RowsError(f"{record['place']}: {record['reason']}. Omit these rows with handleInvalid='skip'")

    def flush(self) -> dict[str, Any]:
        return {}
