"""The learning loop: source, predict, score, learn, checkpoint."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from river import base, metrics

from streamsvm.runtime.checkpoint import CheckpointError, CheckpointFolder
from streamsvm.runtime.endpoints import START_AFRESH, BadRow, Prediction, Row, Sink, Source, StreamError
from streamsvm.runtime.refusals import Refusals
from streamsvm.runtime.rows import GuardedModel, LabelRules, listed, reason_of
from streamsvm.runtime.score import Score, ScoreError

__all__ = ["LearningLoop", "Progress"]

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
    refused
        Rows that were refused, by kind of reason. They are among ``rows``, and had no influence.
    unlabelled, empty
        Rows without a label, which were predicted only; and rows without any feature.
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
    refused: Mapping[str, int] = field(default_factory=dict)
    unlabelled: int = 0
    empty: int = 0


class LearningLoop:
    """Learns a stream row by row, scoring each prediction before the row is learned (prequential evaluation).

    A row that the model does not predict yet (None, or no probabilities) is learned and not scored, as in river's evaluate.

    A row that the source cannot read, or that the model would refuse, is refused as a whole: it is checked before any part of a
    pipeline learns it (`GuardedModel`), and ``on_error`` decides what becomes of it.

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
    on_error
        For a row that is refused. ``"stop"``: a StreamError ends the run. ``"skip"``: the row is counted and left out. A path or
        URL: it is also written there as a dead letter (its bytes, its place, the reason and the time). Its position is in the
        checkpoint too: a file has each refused row once, however often the run was killed; a topic at least once.
    error_limit, error_share
        The most rows that may be refused (None: no limit), and the most of about the last 1,000 rows (0 to 1, once 100 were
        refused). Beyond, the run ends with a StreamError.
    classes
        The labels that rows may have. None: the type of the first label holds, and a label of another type is refused.

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
        on_error: str | Path = "stop",
        error_limit: int | None = None,
        error_share: float = 0.5,
        classes: Iterable[Hashable] | None = None,
    ) -> None:
        if checkpoint_every < 1 or window < 1:
            raise ValueError(f"checkpoint_every and window must be at least 1, not {checkpoint_every} and {window}")
        self.source, self.model, self.sink = source, model, sink
        if metric is None:
            metric = metrics.Accuracy()  # type: ignore[no-untyped-call]
        self._score = Score(metric, window, positive, bool(getattr(model, "_multiclass", False)))
        self.rows = self.learned = self.unlabelled = self.empty = 0
        self._labels = LabelRules(classes)
        most = getattr(GuardedModel(model).last, "max_classes", math.inf)
        if self._labels.classes is not None and len(self._labels.classes) > most:
            raise ValueError(f"{len(self._labels.classes)} classes are declared, and the model has max_classes={most}")
        self._refusals = Refusals(on_error, error_limit, error_share)
        self._checkpoints, self._every, self._on_progress = checkpoints, checkpoint_every, on_progress
        # Taken before the first row, for some models show state in their repr; without addresses in memory.
        self._parameters = re.sub(r" at 0x[0-9a-f]+", "", repr(model))
        self._saved_rows = -1
        self._stopped = False
        self._unusable = ""  # the reason why no further run is possible
        self._iterator: Iterator[Row | BadRow] | None = None
        if checkpoints is not None:
            self._resume(checkpoints)

    @property
    def refused(self) -> Mapping[str, int]:
        """Rows that were refused, by kind of reason."""
        return dict(self._refusals.counts)

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
            unlabelled, empty, labels, refused = (header[key] for key in ("unlabelled", "empty", "label_rules", "refused"))
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
        self._refusals.resume(refused)
        self._labels.resume(labels)
        self.model, self._score.metric, self._score.windowed = found.model, metric, windowed
        self.rows, self.learned, self.unlabelled, self.empty = rows, learned, unlabelled, empty
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
            The stream failed, a row was refused and is to stop the run, or is one too many (the message names its place), or the
            stream ended without any label. The checkpoints are as they were.
        CheckpointError
            A checkpoint cannot be written.
        ValueError
            ``max_rows`` is negative.
        RuntimeError
            An earlier run has failed or was stopped. A new loop goes on from the checkpoint.
        """
        if self._unusable:
            raise RuntimeError(
                f"this loop {self._unusable}. Make a new source, sink and loop: it goes on from the newest checkpoint"
            )
        if max_rows is not None and max_rows < 0:
            raise ValueError(f"max_rows must be at least 0, not {max_rows}")
        try:
            self._refusals.open()
            progress = self._run(None if max_rows is None else self.rows + max_rows)
        except BaseException:  # also Ctrl-C: the model may have learned half a row
            self._unusable = "has failed"
            raise
        finally:
            self._refusals.close()
        if self._stopped:
            self._unusable = "was stopped"
        return progress

    def _run(self, last: int | None) -> Progress:
        model, score, sink, labels = self.model, self._score, self.sink, self._labels
        known = labels.known
        guarded = GuardedModel(model)
        prepare, check, predictor = guarded.prepare, guarded.check, guarded.last
        began = shown = time.perf_counter()
        rows_shown = first_row = self.rows
        x: dict[Hashable, Any] = {}
        if self._iterator is None:
            self._iterator = iter(self.source)
        while not self._stopped and self.rows != last:
            row = next(self._iterator, None)
            if row is None:
                if self.rows and not self.learned and not self._stopped:
                    raise self._nothing_learned(x)
                break
            if type(row) is BadRow:
                self._refusals.add(self.rows, row[0], row[1], "malformed", row[2])
                self.rows += 1
            else:
                x, y = row
                predicted: Any
                probability: float | None = None
                try:
                    seen = x if prepare is None else prepare(x)
                    if score.wants_labels and sink is None:
                        label = predicted = predictor.predict_one(seen)
                    else:
                        probabilities = predictor.predict_proba_one(seen)
                        probability = max(probabilities.values(), default=None)
                        label = predictor.predict_one(seen)
                        predicted = label if score.wants_labels else probabilities
                    if y is None:
                        self.unlabelled += 1
                    else:
                        try:
                            new = y not in known
                        except TypeError:
                            new = True
                        new = new and labels.check(y)
                        if check is not None:
                            check(seen, y)
                        if score.binary:
                            score.admit(y)
                        model.learn_one(x, y)
                        score.update(y, predicted)
                        self.learned += 1
                        if new:
                            labels.add(y)
                    if not x:
                        self.empty += 1
                except MemoryError:
                    raise
                except ScoreError as error:  # of all rows with that label
                    raise StreamError(f"{self.source.place}: {error}") from error
                except Exception as error:  # noqa: BLE001 - of the learner, or of any step before it
                    self._refuse(x, y, error, guarded)
                else:
                    if sink is not None:
                        sink.write(Prediction(self.rows, label, y, probability))
                self.rows += 1
            if self._checkpoints is not None and self.rows % self._every == 0 and self.learned:
                self._save(self._checkpoints)
            if self._on_progress is not None:
                now = time.perf_counter()
                if rows_shown == first_row:  # the first row is slow, it may have been compiled for
                    shown, rows_shown = now, self.rows
                elif now - shown >= _PROGRESS_SECONDS:
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

    def _nothing_learned(self, x: Mapping[Hashable, Any]) -> StreamError:
        end = f"{self.source.name} ended, and none of its {self.rows:,} rows"
        if self.refused:
            counted = ", ".join(f"{kind} {count:,}" for kind, count in self.refused.items())
            return StreamError(f"{end} was learned: {self.unlabelled:,} had no label, and refused were {counted}")
        return StreamError(
            f"{end} had a label: nothing was learned. Is its name right? The last row had {listed(x, 10) or 'no features'}"
        )

    def _refuse(self, x: Any, y: Any, error: Exception, guarded: GuardedModel) -> None:
        kind, reason = reason_of(error, x, guarded)
        raw = getattr(self.source, "raw", None)
        self._refusals.add(self.rows, self.source.place, (x, y) if raw is None else raw, kind, reason)

    def _save(self, checkpoints: CheckpointFolder) -> None:
        value = self._score.value
        checkpoints.save(
            self.model,
            (self._score.metric, self._score.windowed),
            rows=self.rows,
            learned=self.learned,
            unlabelled=self.unlabelled,
            empty=self.empty,
            label_rules=self._labels.state,
            refused=self._refusals.state,
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
        counts = self.refused, self.unlabelled, self.empty
        return Progress(self.rows, self.learned, rows_per_second, *scores, self.model, seconds, ended, interrupted, *counts)


def _checked(name: str, method: str, position: Any) -> dict[str, Any]:
    if not isinstance(position, Mapping):
        raise StreamError(f"{name}: its {method} must return its position as a mapping, not {position!r}")
    return dict(position)
