"""A learner for ``foreachBatch``: the micro-batches of a streaming query are learned by a model, each once."""

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
from streamsvm.stream.checkpoint import CheckpointFolder, Checkpoints
from streamsvm.stream.drift import DriftWatch
from streamsvm.stream.endpoints import Record, Sink, StreamError
from streamsvm.stream.loop import LearningLoop
from streamsvm.stream.open import open_checkpoints, open_sink
from streamsvm.stream.progress import Progress
from streamsvm.stream.rows import split_pipeline
from streamsvm_spark.columns import RowsError
from streamsvm_spark.micro_batches import MicroBatches

_QUERY = "sql.streaming.queryId"  # the property in which Spark says which query a job is of
_NO_CONNECT = (
    "a StreamLearner learns on the driver and is not sent anywhere, as Spark Connect would send it: begin a session of another "
    "kind, SparkSession.builder.master(...)"
)


class StreamLearner:
    """Learns the micro-batches of a streaming query, each once.

    Pass it to ``foreachBatch``: ``frame.writeStream.foreachBatch(StreamLearner(model, "state"))``.

    It is a `LearningLoop` on the driver: each row is predicted and scored before it is learned. After each micro-batch, it
    writes one checkpoint, atomically, with the model, the metrics, the query and the number of the micro-batch. Spark repeats a
    micro-batch if it was stopped before it noted the end of it; such a micro-batch is not learned again. A micro-batch that was
    not learned completely leaves nothing behind. A query that is killed at any moment and started again therefore ends with the
    same bytes as one that was not, as long as its source repeats the rows of a micro-batch in the same order (see Notes).

    Parameters
    ----------
    model
        Learner of streamsvm, or river classifier, regressor or pipeline. It stays as it is: a copy learns.
    checkpoint
        Path of a folder on the driver, the URL of a model topic (``kafka://host:port/models?name=spam``), or open checkpoints
        (`CheckpointFolder`, `TopicCheckpoints`). A model that is there continues learning. ``streamsvm predict --follow`` finds
        each newer model there.
    featuresCol, labelCol
        Names of the columns. Features are vectors of pyspark.ml or arrays of numbers, all of one length. Labels are numbers or
        bools; for classifiers, also texts.
    weightCol
        Name of the column of weights, numbers from 0 on. None gives every row weight 1. The metric counts each row once,
        whatever its weight.
    featureNames
        Names of the vectors' entries in the model, for followers that read rows with names. None: 0, 1, ...
    handleInvalid
        What happens to rows with nulls, with numbers that are not finite, or with labels that the model refuses. ``"error"``:
        the query ends, and the model stays as it was before the micro-batch. ``"skip"``: they are counted in ``loop.refused``.
    predictions
        Path of a file (``.csv``, or JSON lines) or URL of a topic, for the prediction of each row before it was learned. A file
        gets each row once, however often the query is killed; a topic gets it at least once. Once given, later runs with the
        checkpoint need the same.
    dead_letters
        Path or URL, as for ``predictions``, for the rows that ``handleInvalid="skip"`` leaves out, with the place and the
        reason.
    metric, positive, window, classes, drift
        As in `LearningLoop`.
    on_progress
        Function that is called with a `Progress` after each micro-batch.
    trusted
        Whether models may hold classes and functions of your own, as in `CheckpointFolder`.

    Attributes
    ----------
    loop : LearningLoop
        The loop, with ``model``, ``metric``, ``windowed``, ``curve``, ``refused`` and ``progress``. After an error, it is
        another one.

    Raises
    ------
    CheckpointError, ValueError
        As in `LearningLoop`, for example because the checkpoint is of a model with other parameters.
    TypeError
        The session is one of Spark Connect.
    StreamError
        When called: the micro-batch is not the one after the last, or is of another query. The message says what to do.
    RowsError
        When called: rows cannot be learned.

    Notes
    -----
    Rows are learned in the order of partitions, and within a partition in its order. Kafka gives a repeated micro-batch the
    same partitions and rows; a source of files does so on the same number of cores. After a shuffle, the order is not known:
    each row is still learned once, but the model may differ.

    All rows of a micro-batch come to the driver in one Spark job, so the driver needs memory for them. Limit the size of
    micro-batches where the stream is read, for example with ``maxOffsetsPerTrigger``.

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
            raise ValueError("dead_letters are the rows that handleInvalid='skip' leaves out: set that, too, or leave both out")
        self._predictions, self._dead_letters, self._on_progress = predictions, dead_letters, on_progress
        self._sinks = contextlib.ExitStack()
        # None of them learns: a loop begins with copies of them.
        self._model, self._metric, self._drift = copy.deepcopy((model, metric, drift))
        classes = None if classes is None else list(classes)
        self._how: dict[str, Any] = {"positive": positive, "window": window, "classes": classes}
        self._lock, self._closed = threading.RLock(), False
        self._checkpoints: Checkpoints
        self._opened = isinstance(checkpoint, str | os.PathLike)
        if isinstance(checkpoint, str) and "://" in checkpoint:
            self._checkpoints = open_checkpoints(checkpoint, sources=["-"], trusted=trusted)
        elif isinstance(checkpoint, str | os.PathLike):
            self._checkpoints = CheckpointFolder(os.fspath(checkpoint), trusted)
        else:
            self._checkpoints = checkpoint
        self._loop: LearningLoop | None = None
        try:
            self._loop = self._begun_loop()
        except BaseException:
            self.close()
            raise

    def _begun_loop(self) -> LearningLoop:
        """Return a loop that goes on from the newest checkpoint."""
        model, metric, drift = copy.deepcopy((self._model, self._metric, self._drift))
        source = MicroBatches(*self._columns, skip=self._skip, classes=not isinstance(split_pipeline(model)[1], base.Regressor))
        try:
            on_error: Any = "skip" if self._skip else _Refusing()
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
                **self._how,
            )
        except BaseException:
            self._sinks.close()
            raise

    def _open_sink(self, spec: str | os.PathLike[str]) -> Sink:
        """Return the sink of a path or a URL, which is closed with the loop."""
        sink = open_sink(os.fspath(spec))
        self._sinks.callback(sink.close)
        return sink

    @property
    def loop(self) -> LearningLoop:
        if (loop := self._loop) is not None:  # which a thread may ask for while a micro-batch is learned
            return loop
        with self._lock:
            if self._loop is None:
                self._loop = self._begun_loop()
            return self._loop

    @property
    def model(self) -> Any:
        """The model after the last micro-batch; within a micro-batch, its present state."""
        return self.loop.model

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Learn a micro-batch, unless it is learned; Spark calls it."""
        with self._lock:
            loop = self.loop
            source: Any = loop.source
            if not source.begin(batch, batch_id, batch.sparkSession.sparkContext.getLocalProperty(_QUERY)):
                return
            try:
                loop.run_step(sys.maxsize)
                if self._closed:
                    raise StreamError(f"the learner was closed in batch {batch_id}, which a new one learns from its beginning")
                loop.write_checkpoint(always=True)
            except BaseException:  # the model may have learned a part, and whether there is a checkpoint may not be known
                self._loop = None
                source.close()
                self._sinks.close()
                raise
        if self._on_progress is not None:
            self._on_progress(loop.progress)

    def __reduce__(self) -> Any:
        raise TypeError(_NO_CONNECT)

    def close(self) -> None:
        """Let other processes write to the checkpoint, if it was opened here.

        A micro-batch that is being learned fails.
        """
        self._closed = True
        if (loop := self._loop) is not None:
            loop.stop()
        with self._lock:  # once that has ended
            try:
                self._sinks.close()
            finally:
                if self._opened:
                    self._checkpoints.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Refusing(Sink):
    """A sink of dead letters that takes none: the first one ends the run."""

    name = "handleInvalid='error'"

    def write(self, record: Record) -> None:
        raise RowsError(f"{record['place']}: {record['reason']}. Leave such rows out with handleInvalid='skip'")

    def flush(self) -> dict[str, Any]:
        return {}
