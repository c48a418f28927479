"""The learning loop: source, predict, score, learn, checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from river import base, metrics, utils

from streamsvm.runtime.checkpoint import CheckpointError, CheckpointFolder
from streamsvm.runtime.endpoints import Prediction, Sink, Source, StreamError

__all__ = ["LearningLoop", "Progress"]

# Progress is told about this often, in seconds; the clock is read once in so many rows.
_TELL_EVERY = 0.25
_ROWS_A_LOOK = 64


@dataclass(frozen=True)
class Progress:
    """How far a loop is.

    Parameters
    ----------
    rows, learned
        Rows of the stream so far, those of earlier runs included; and those of them that had a label.
    rows_per_second
        Of this run, since it was last told.
    metric_name, metric, windowed, window
        The metric over all rows, and over the last ``window`` ones.
    model
        The model as it is now.
    seconds
        Since this run began.
    ended
        Whether this is the end of the run, and ``interrupted`` whether `LearningLoop.stop` brought it about.
    """

    rows: int
    learned: int
    rows_per_second: float
    metric_name: str
    metric: float
    windowed: float
    window: int
    model: base.Classifier
    seconds: float
    ended: bool = False
    interrupted: bool = False


class LearningLoop:
    """Learns a stream row by row, scoring each prediction before the row is learned (prequential evaluation).

    With a checkpoint folder, what a run has learned survives it: the model, the metrics and the position of source and sink are
    one file. A run that finds a checkpoint goes on from it, and ends with the same bytes as one that was never interrupted.

    Parameters
    ----------
    source
        Where the rows come from.
    model
        A river classifier or pipeline. Where the folder holds a checkpoint, the model in it takes its place.
    metric
        A river metric; accuracy where none is given.
    sink
        Where predictions go.
    checkpoints
        Where the state goes, every ``checkpoint_every`` rows and at the end.
    checkpoint_every
        Rows of the stream between two checkpoints.
    window
        Rows of the windowed metric.
    on_progress
        Called a few times a second, and at the end.

    Raises
    ------
    CheckpointError
        The checkpoint is of a model with other parameters.
    StreamError
        The source cannot go on from where the checkpoint stands.

    Examples
    --------
    >>> from river import datasets, preprocessing
    >>> from streamsvm import BSGDClassifier
    >>> from streamsvm.runtime import IterableSource, LearningLoop
    >>> model = preprocessing.StandardScaler() | BSGDClassifier(budget=50)
    >>> loop = LearningLoop(IterableSource(datasets.Bananas()), model)
    >>> loop.run().rows
    5300
    >>> loop.metric
    Accuracy: 87.83%
    """

    def __init__(
        self,
        source: Source,
        model: base.Classifier,
        metric: metrics.base.ClassificationMetric | None = None,
        *,
        sink: Sink | None = None,
        checkpoints: CheckpointFolder | None = None,
        checkpoint_every: int = 10_000,
        window: int = 1000,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> None:
        if checkpoint_every < 1 or window < 1:
            raise ValueError(f"checkpoint_every and window must be at least 1, not {checkpoint_every} and {window}")
        self.source, self.model, self.sink = source, model, sink
        self.metric = metric if metric is not None else metrics.Accuracy()  # type: ignore[no-untyped-call]
        own = {name: value for name, value in self.metric._get_params().items() if name != "cm"}  # not its confusion matrix
        self.windowed: Any = utils.Rolling(type(self.metric), window_size=window, **own)
        self.rows = self.learned = 0
        self._checkpoints, self._every, self._on_progress = checkpoints, checkpoint_every, on_progress
        self._saved = -1
        self._window = window
        self._stopped = False
        if checkpoints is not None:
            self._resume(checkpoints)

    def _resume(self, checkpoints: CheckpointFolder) -> None:
        found = checkpoints.newest()
        if found is None:
            return
        if repr(found.model) != repr(self.model):
            raise CheckpointError(
                f"{checkpoints.path} holds a model with other parameters:\n{found.model!r}\nthan the one asked for:\n"
                f"{self.model!r}\n"
                "Ask for the same, or give another checkpoint folder to start afresh"
            )
        metric, windowed = found.metric
        if type(metric) is not type(self.metric):
            raise CheckpointError(
                f"{checkpoints.path} has scored with {type(metric).__name__}, not {type(self.metric).__name__}: "
                "ask for the same metric, or give another checkpoint folder to start afresh"
            )
        header = found.header
        self.source.seek(header["position"])
        if self.sink is not None:
            if header["sink"] is None:
                raise CheckpointError(f"{checkpoints.path} was written without a sink: leave it out, or start afresh")
            self.sink.seek(header["sink"])
        self.model, self.metric, self.windowed = found.model, metric, windowed
        self.rows, self.learned = header["rows"], header["learned"]
        self._saved = self.rows

    def stop(self) -> None:
        """End the run after the row at hand, with a checkpoint. May be called from a signal handler or another thread."""
        self._stopped = True
        self.source.stop()

    def run(self, max_rows: int | None = None) -> Progress:
        """Learn until the stream ends, `stop` is called, or ``max_rows`` more rows were learned.

        Returns
        -------
        How far it came.

        Raises
        ------
        StreamError
            The stream failed, or a row cannot be learned; the message names it. The checkpoints are as they were.
        """
        model, metric, windowed, sink = self.model, self.metric, self.windowed, self.sink
        wants_labels = metric.requires_labels
        began = told = time.perf_counter()
        rows_told = self.rows
        last = None if max_rows is None else self.rows + max_rows
        source = iter(self.source)
        while not self._stopped and self.rows != last:
            row = next(source, None)
            if row is None:
                break
            x, y = row
            try:
                if wants_labels and sink is None:
                    predicted: Any = model.predict_one(x)
                else:
                    predicted = model.predict_proba_one(x)
                    probability = max(predicted.values(), default=None)
                    label = model.predict_one(x)
                    if wants_labels:
                        predicted = label
                    if sink is not None:
                        sink.write(Prediction(self.rows, label, y, probability))
                if y is not None:
                    metric.update(y, predicted)
                    windowed.update(y, predicted)
                    model.learn_one(x, y)
                    self.learned += 1
            except (ValueError, TypeError) as error:  # of the learner, or of a transformer before it
                raise StreamError(f"{self.source.name}, row {self.rows + 1:,}: {error}") from error
            self.rows += 1
            if self._checkpoints is not None and self.rows % self._every == 0:
                self._save()
            if self._on_progress is not None and self.rows % _ROWS_A_LOOK == 0:
                now = time.perf_counter()
                if now - told >= _TELL_EVERY:
                    self._on_progress(self._progress((self.rows - rows_told) / (now - told), now - began))
                    told, rows_told = now, self.rows
        seconds = time.perf_counter() - began
        if self._checkpoints is not None and self._saved != self.rows:
            self._save()
        elif sink is not None:
            sink.flush()
        progress = self._progress((self.rows - rows_told) / max(time.perf_counter() - told, 1e-9), seconds, ended=True)
        if self._on_progress is not None:
            self._on_progress(progress)
        return progress

    def _save(self) -> None:
        if self._checkpoints is None:
            return
        self._checkpoints.save(
            self.model,
            (self.metric, self.windowed),
            rows=self.rows,
            learned=self.learned,
            position=self.source.position,
            sink=None if self.sink is None else self.sink.flush(),
            source=self.source.name,
            score={"name": type(self.metric).__name__, "value": self.metric.get()},
        )
        self._saved = self.rows

    def _progress(self, rows_per_second: float, seconds: float, ended: bool = False) -> Progress:
        return Progress(
            self.rows,
            self.learned,
            rows_per_second,
            type(self.metric).__name__,
            self.metric.get(),
            self.windowed.get(),
            self._window,
            self.model,
            seconds,
            ended,
            ended and self._stopped,
        )
