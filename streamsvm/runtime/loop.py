"""The learning loop: source, predict, score, learn, checkpoint."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from river import base, metrics

from streamsvm.runtime.checkpoint import CheckpointError, CheckpointFolder
from streamsvm.runtime.endpoints import START_AFRESH, Prediction, Row, Sink, Source, StreamError
from streamsvm.runtime.score import Score

__all__ = ["LearningLoop", "Progress", "explained", "listed"]

_PROGRESS_SECONDS = 0.25  # between two calls of `on_progress`


@dataclass(frozen=True)
class Progress:
    """The progress of a loop.

    Parameters
    ----------
    rows, learned
        Rows of the stream so far, those of earlier runs included; and those of them that had a label.
    rows_per_second
        Since the progress before.
    metric_name, metric, windowed, window
        The metric over all rows, and over the last ``window`` rows (over all if there are fewer). NaN if it has no value.
    model
        The model in its present state.
    seconds
        Since this run began.
    ended, interrupted
        Whether this is the end of the run, and whether `LearningLoop.stop` ended it.
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

    A row that the model does not predict yet (None, or no probabilities) is learned and not scored, as in river's evaluate.

    A checkpoint is one file with the model, the metrics and the positions of source and sink. A run that finds one in its folder
    goes on from it, and ends with the same bytes as one that was never interrupted.

    Parameters
    ----------
    source
        The rows.
    model
        A river classifier or pipeline that has not learned yet. If the folder holds a checkpoint, the model in it replaces this
        one, whose parameters it must have.
    metric
        A river metric for classifiers that is one number; by default accuracy.
    positive
        The label that a binary metric (F1, ROCAUC, LogLoss) counts as positive. Not needed if labels are bools, 0 and 1, or -1
        and 1.
    sink
        For the predictions. Its position is in the checkpoint, so every run of a folder needs the same sink.
    checkpoints
        The folder for checkpoints; one is written every ``checkpoint_every`` rows (once a row was learned) and at the end.
    checkpoint_every
        Rows of the stream between two checkpoints.
    window
        Rows of the windowed metric.
    on_progress
        Called a few times a second, and at the end.

    Attributes
    ----------
    model
        The model in its present state.
    rows, learned : int
        As in `Progress`.

    Raises
    ------
    CheckpointError
        The checkpoint is of a run with another model, metric, positive label or window, or with another sink.
    StreamError
        The source or the sink cannot go on from the position in the checkpoint.
    ValueError
        The metric is not one number, or a parameter is out of its range.

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
        positive: Hashable = None,
        sink: Sink | None = None,
        checkpoints: CheckpointFolder | None = None,
        checkpoint_every: int = 10_000,
        window: int = 1000,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> None:
        if checkpoint_every < 1 or window < 1:
            raise ValueError(f"checkpoint_every and window must be at least 1, not {checkpoint_every} and {window}")
        self.source, self.model, self.sink = source, model, sink
        if metric is None:
            metric = metrics.Accuracy()  # type: ignore[no-untyped-call]
        self._score = Score(metric, window, positive, bool(getattr(model, "_multiclass", False)))
        self.rows = self.learned = 0
        self._checkpoints, self._every, self._on_progress = checkpoints, checkpoint_every, on_progress
        # Taken before the first row, for some models show state in their repr; without addresses in memory.
        self._parameters = re.sub(r" at 0x[0-9a-f]+", "", repr(model))
        self._saved_rows = -1
        self._stopped = False
        self._ended_by = ""  # why no further run is possible
        self._iterator: Iterator[Row] | None = None
        if checkpoints is not None:
            self._resume(checkpoints)

    @property
    def metric(self) -> Any:
        """The metric over all rows."""
        return self._score.metric

    @property
    def windowed(self) -> Any:
        """The metric over the last rows."""
        return self._score.windowed

    def _resume(self, checkpoints: CheckpointFolder) -> None:
        found = checkpoints.newest()
        if found is None:
            return
        header, folder = found.header, checkpoints.path
        try:
            parameters, scored, sink = header["parameters"], header["scored"], header["sink"]
            rows, learned, (metric, windowed) = header["rows"], header["learned"], found.metric
        except (KeyError, TypeError, ValueError):
            raise CheckpointError(f"{folder}: its checkpoint was not written by a learning loop: give another folder") from None
        if parameters != self._parameters:
            raise CheckpointError(
                f"{folder} holds a model with other parameters:\n{parameters}\nthan the one asked for:\n{self._parameters}\n"
                f"Ask for the same, {START_AFRESH}"
            )
        if scored != repr(self._score):
            raise CheckpointError(f"{folder} has scored with {scored}, not {self._score!r}: ask for the same, {START_AFRESH}")
        if self.sink is not None and sink is None:
            raise CheckpointError(f"{folder} was written without a sink: leave it out, {START_AFRESH}")
        if self.sink is None and sink is not None:
            name = sink.get("name", sink)
            raise CheckpointError(f"{folder} was written with a sink of predictions, {name}: give it too, {START_AFRESH}")
        self.source.seek(header["position"])
        if self.sink is not None:  # last, for it drops the predictions after the checkpoint
            self.sink.seek(sink)
        self.model, self._score.metric, self._score.windowed = found.model, metric, windowed
        self.rows, self.learned = rows, learned
        self._saved_rows = self.rows

    def stop(self) -> None:
        """End the run after the present row, with a checkpoint. May be called from a signal handler or another thread."""
        self._stopped = True
        self.source.stop()

    def run(self, max_rows: int | None = None) -> Progress:
        """Learn until the stream ends or `stop` is called.

        Parameters
        ----------
        max_rows
            End after so many rows; another run may go on then. None: no limit.

        Returns
        -------
        Progress

        Raises
        ------
        StreamError
            The stream failed, a row cannot be learned (the message names its place), or the stream ended without any label. The
            checkpoints are as they were.
        CheckpointError
            A checkpoint cannot be written.
        ValueError
            ``max_rows`` is negative.
        RuntimeError
            An earlier run has failed or was stopped. A new loop goes on from the checkpoint.
        """
        if self._ended_by:
            raise RuntimeError(
                f"this loop {self._ended_by}. Make a new source, sink and loop: it goes on from the newest checkpoint"
            )
        if max_rows is not None and max_rows < 0:
            raise ValueError(f"max_rows must be at least 0, not {max_rows}")
        try:
            progress = self._run(None if max_rows is None else self.rows + max_rows)
        except BaseException:  # also Ctrl-C: the model may have learned half a row
            self._ended_by = "has failed"
            raise
        if self._stopped:
            self._ended_by = "was stopped"
        return progress

    def _run(self, last: int | None) -> Progress:
        model, score, sink = self.model, self._score, self.sink
        began = shown = time.perf_counter()
        rows_shown = self.rows
        x: dict[Hashable, Any] = {}
        if self._iterator is None:
            self._iterator = iter(self.source)
        while not self._stopped and self.rows != last:
            row = next(self._iterator, None)
            if row is None:
                if self.rows and not self.learned and not self._stopped:
                    raise StreamError(
                        f"{self.source.name} ended, and none of its {self.rows:,} rows had a label: nothing was learned. "
                        f"Is its name right? The last row had {listed(x, 10) or 'no features'}"
                    )
                break
            x, y = row
            predicted: Any
            probability: float | None = None
            try:
                if score.wants_labels and sink is None:
                    label = predicted = model.predict_one(x)
                else:
                    probabilities = model.predict_proba_one(x)
                    probability = max(probabilities.values(), default=None)
                    label = model.predict_one(x)
                    predicted = label if score.wants_labels else probabilities
                if y is not None:
                    score.update(y, predicted)
                    model.learn_one(x, y)
                    self.learned += 1
            except Exception as error:  # of the learner, or of any step before it
                raise StreamError(f"{self.source.place}: {explained(error, x)}") from error
            if sink is not None:
                sink.write(Prediction(self.rows, label, y, probability))
            self.rows += 1
            if self._checkpoints is not None and self.rows % self._every == 0 and self.learned:
                self._save(self._checkpoints)
            if self._on_progress is not None:
                now = time.perf_counter()
                if now - shown >= _PROGRESS_SECONDS:
                    self._on_progress(self._progress((self.rows - rows_shown) / (now - shown), now - began))
                    shown, rows_shown = now, self.rows
        seconds = time.perf_counter() - began
        if self._checkpoints is not None and self._saved_rows != self.rows:
            self._save(self._checkpoints)
        elif sink is not None:
            sink.flush()
        progress = self._progress((self.rows - rows_shown) / max(time.perf_counter() - shown, 1e-9), seconds, ended=True)
        if self._on_progress is not None:
            self._on_progress(progress)
        return progress

    def _save(self, checkpoints: CheckpointFolder) -> None:
        value = self._score.value
        checkpoints.save(
            self.model,
            (self._score.metric, self._score.windowed),
            rows=self.rows,
            learned=self.learned,
            position=_checked(self.source.name, "position", self.source.position),
            sink=None if self.sink is None else _checked(self.sink.name, "flush()", self.sink.flush()),
            source=self.source.name,
            parameters=self._parameters,
            scored=repr(self._score),
            # Rounded, for the last digits of some metrics depend on the order of their sums.
            score={"name": self._score.name, "value": round(value, 12) if math.isfinite(value) else None},
        )
        self._saved_rows = self.rows

    def _progress(self, rows_per_second: float, seconds: float, ended: bool = False) -> Progress:
        score = self._score
        scores = score.name, score.value, score.windowed_value, score.window
        interrupted = ended and self._stopped
        return Progress(self.rows, self.learned, rows_per_second, *scores, self.model, seconds, ended, interrupted)


def _checked(name: str, method: str, position: Any) -> dict[str, Any]:
    if not isinstance(position, Mapping):
        raise StreamError(f"{name}: its {method} must return its position as a mapping, not {position!r}")
    return dict(position)


def explained(error: Exception, x: Mapping[Hashable, Any]) -> str:
    """The message of an error about a row, with the feature at fault if the message names none."""
    text = str(error) if isinstance(error, ValueError | TypeError) else f"{type(error).__name__}: {error}"
    if isinstance(x, Mapping) and "feature" not in text and "label" not in text:
        for name, value in x.items():
            if not _is_finite(value):
                return f"{text} (feature {name!r} is {value!r})"
    return text


def _is_finite(value: Any) -> bool:
    try:
        return not isinstance(value, str) and math.isfinite(value)
    except (TypeError, OverflowError):
        return False


def listed(names: Iterable[Any], most: int) -> str:
    """The first ``most`` names, for a message."""
    names = list(map(repr, names))
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")
