"""The learning loop: source, predict, score, learn, checkpoint; and how a checkpoint knows the model that it continues."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any, Unpack

from river import base, compose, metrics

from streamsvm.core.checks import checked_count
from streamsvm.core.warning import warn
from streamsvm.stream.checkpoint import CheckpointError, Checkpoints
from streamsvm.stream.drift import DriftWatch
from streamsvm.stream.endpoints import START_AFRESH, Prediction, Record, Sink, Source, StreamError
from streamsvm.stream.rows import (
    MOST_LABELS,
    SETTLED,
    GuardedModel,
    LabelRules,
    checked_number,
    gives_probabilities,
    listed,
)
from streamsvm.stream.score import LearningCurve, Score, ScoreError
from streamsvm.stream.stream_loop import LoopOptions, Progress, StreamLoop
from streamsvm.stream.tables.chunk import Chunk, Weighted
from streamsvm.stream.together import Together
from streamsvm.stream.weights import check_takes_weights


def parameters_of(model: Any) -> str:
    """Return the parameters of a model that has learned nothing."""
    # Taken before the first row, for some models show state in their repr; without addresses in memory. A wrapper's repr says
    # of what it wraps the name only.
    kind = type(model).__name__
    texts = [repr(model).replace(kind, "Pipeline", 1) if isinstance(model, compose.Pipeline) else repr(model)]
    for step in model.steps.values() if isinstance(model, compose.Pipeline) else [model]:
        while isinstance(step, base.Wrapper):
            step = step._wrapped_model
            texts.append(repr(step))
    return re.sub(r" at 0x[0-9a-f]+", "", "\n".join(texts))


def differing(then: str, now: str) -> str:
    """Say which lines of the parameters of two models differ."""
    before, after = (Counter(filter(None, (line.strip(" (),") for line in text.splitlines()))) for text in (then, now))
    learned, asked = (", ".join((one - other).elements()) for one, other in ((before, after), (after, before)))
    parts = [f"it was learned with {learned}"] * bool(learned) + [f"asked for is {asked}"] * bool(asked)
    return ", and ".join(parts) or "its steps have another order"


class LearningLoop(StreamLoop[Progress]):
    """Learns a stream row by row, and scores each prediction before the row is learned (prequentially).

    If the model does not predict a row yet (None, or no probabilities), the row is learned but not scored, as in river's
    evaluate. If the source cannot read a row, or the model would refuse it, the whole row is refused before any part of a
    pipeline learns it, and ``on_error`` decides what happens next.

    A checkpoint is one file with the model, the metrics, and the positions of source and sink. A run that finds one in its
    folder continues from it, even after a kill, and ends with the same bytes as a run that was never interrupted. Only the
    digest of a file of dead letters may differ, because dead letters contain the time.

    Parameters
    ----------
    source
        Source of the rows, such as a `CSVSource`, an `IterableSource` or a Kafka topic (`Source`).
    model
        River classifier, regressor or pipeline that has not learned yet. If ``checkpoints`` holds a checkpoint, the model in it
        replaces this one, and must have the same parameters.
    metric
        River metric that is a single number, for classifiers or regressors like the model. The default is accuracy or MAE.
    positive
        Label that a binary metric (F1, ROCAUC, LogLoss) counts as positive; not needed for bools, 0 and 1, or -1 and 1.
    sink
        Sink for the predictions, such as a `FileSink`; None writes none. Checkpoints hold its position, so every run with the
        same folder needs the same sink.
    checkpoints
        Place for checkpoints, such as a `CheckpointFolder`; None, the default, writes none. Once a row was learned, one is
        written every ``checkpoint_every`` rows, and at the end.
    checkpoint_every
        Number of rows of the stream between two checkpoints, by default 10,000. None writes them by time alone.
    checkpoint_seconds
        Number of seconds after which one is also written, if rows have come since the last. None, the default, goes by rows
        alone.
    window
        Number of last rows over which the windowed metric is computed.
    on_progress
        Function that is called with a `Progress` a few times a second, and at the end.
    on_error
        What happens to a refused row. ``"stop"``, the default, ends the run with a StreamError. ``"skip"`` counts the row and
        leaves it out. A path, a URL or an open `Sink` also gets it as a dead letter (bytes, place, reason and time): a file
        once, however often the run is killed, because checkpoints hold its position; a topic at least once.
    error_limit
        Maximum number of refused rows; one more ends the run with a StreamError. None, the default, sets no limit.
    error_share
        Maximum share of refused rows among about the last 1,000, from 0 to 1, by default 0.5, once 100 were refused; beyond,
        the run ends too.
    keep
        Columns that are copied from each row into its prediction, as they came, for whoever joins the two. One that a row does
        not have is None. Predictions of a topic's rows also have ``partition`` and ``offset`` of the message, and ``within`` if
        messages have many rows.
    classes
        Labels that rows may have. None accepts any label of the type of the first one, and refuses labels of other types.
    drift
        `DriftWatch` that watches the errors of predictions; its state is in the checkpoints. None watches nothing.

    Attributes
    ----------
    model
        The model in its present state; another object if there was a checkpoint, or after a drift that began a new model.
    curve : LearningCurve
        The scores at fewer than 200 rows of the stream. Checkpoints hold those of earlier runs.
    rows, learned : int
        Number of rows read and learned so far, as in `Progress`.

    Raises
    ------
    CheckpointError
        The checkpoint is of a run with another model, metric, positive label, window or sink.
    StreamError
        The source or the sink cannot continue from the position in the checkpoint.
    ValueError
        The metric is not a single number, or a parameter is out of its range.

    Examples
    --------
    >>> from river import datasets, preprocessing
    >>> from streamsvm import BSGDClassifier
    >>> from streamsvm.stream import IterableSource, LearningLoop
    >>> model = preprocessing.StandardScaler() | BSGDClassifier(budget=50)
    >>> loop = LearningLoop(IterableSource(datasets.Bananas()), model)
    >>> loop.run().rows
    5300
    >>> round(loop.metric.get(), 2)
    0.88
    """

    def __init__(
        self,
        source: Source,
        model: base.Classifier | base.Regressor | compose.Pipeline,
        metric: metrics.base.ClassificationMetric | metrics.base.RegressionMetric | None = None,
        *,
        positive: Hashable = None,
        sink: Sink | None = None,
        window: int = 1000,
        classes: Iterable[Hashable] | None = None,
        drift: DriftWatch | None = None,
        **options: Unpack[LoopOptions[Progress]],
    ) -> None:
        super().__init__(source, model, learns=True, sink=sink, **options)
        last = self._guarded.last
        scored: Any = metric
        if metric is None:
            scored = metrics.MAE() if self._regression else metrics.Accuracy()  # type: ignore[no-untyped-call]
        self._score = Score(scored, window, positive, bool(getattr(model, "_multiclass", False)), self._regression)
        self.curve: LearningCurve = LearningCurve(self._score.name, window)
        self.learned: int = 0
        self.unlabelled: int = 0
        self.empty: int = 0
        self._warned = False
        if classes is not None and self._regression:
            raise ValueError(f"classes are declared, and {type(last).__name__} predicts numbers: leave them out")
        if not (self._regression or self._score.wants_labels or gives_probabilities(last)):
            raise ValueError(
                f"{self._score.name} needs probabilities, which {type(last).__name__} does not give: try Accuracy or F1"
            )
        # Probabilities of all labels are asked for row by row.
        self._at_once = self._at_once and self._score.wants_labels
        self._weight = source.weight
        if self._weight is not None:
            check_takes_weights(model, self._weight)
        self._labels = LabelRules(classes)
        most = getattr(last, "max_classes", math.inf)
        if self._labels.classes is not None and len(self._labels.classes) > most:
            raise ValueError(f"{len(self._labels.classes)} classes are declared, and the model has max_classes={most}")
        self._parameters = parameters_of(model)
        if drift is not None:
            drift.begin(model, self._regression, source.name)
            self._at_once = self._at_once and not drift.renews  # for the next row is for another model
        self.drift = drift
        if self._checkpoints is not None:
            self._resume(self._checkpoints)

    @property
    def metric(self) -> Any:
        """The metric over all rows."""
        return self._score.metric

    @property
    def windowed(self) -> Any:
        """The metric over the last ``window`` rows."""
        return self._score.windowed

    def _resume(self, checkpoints: Checkpoints) -> None:
        found = checkpoints.newest()
        if found is None:
            checkpoints.check(self.model, self._checkpoint()[1])
            return
        header, folder = found.header, checkpoints.path
        try:
            parameters, scored, _ = header["parameters"], header["scored"], header["sink"]
            rows, learned, unlabelled, empty = (
                checked_count(key, header[key]) for key in ("rows", "learned", "unlabelled", "empty")
            )
            if learned + unlabelled > rows or empty > rows:
                raise ValueError(f"of {rows:,} rows {learned:,} were learned, {unlabelled:,} had no label, {empty:,} no feature")
            labels, (metric, windowed, rows_anew, *parts) = header["label_rules"], found.metric
            if (watched := header.get("drift")) is not None:
                self._resume_drift(folder, watched, parts.pop(0))
            self._resume_delayed(folder, header.get("delayed"), parts, rows)
            curve = LearningCurve.of(header["curve"], rows)
        except (LookupError, TypeError, ValueError) as error:
            text = f"{folder}: its checkpoint was not written by a learning loop ({error}): give another folder"
            raise CheckpointError(text) from None
        if parameters != self._parameters:
            raise CheckpointError(
                f"{folder} holds a model with other parameters: {differing(str(parameters), self._parameters)}. "
                f"Ask for the same, {START_AFRESH}"
            )
        if scored != repr(self._score):
            raise CheckpointError(f"{folder} has scored with {scored}, not {self._score!r}: ask for the same, {START_AFRESH}")
        if (weight := header.get("weight")) != self._weight:
            raise CheckpointError(
                f"{folder} was learned with the weight {weight!r}, not {self._weight!r}: ask for the same, {START_AFRESH}"
            )
        self._score.resume(metric, windowed, rows_anew)
        try:
            self._labels.resume(labels)
        except ValueError as error:
            raise CheckpointError(f"{folder}: {error}: give another folder") from None
        self._score.admitted(self._labels.known)
        self._go_on(folder, found)
        self.curve = curve
        self._guarded = GuardedModel(found.model)
        self.learned, self.unlabelled, self.empty = learned, unlabelled, empty

    def _resume_drift(self, folder: Path | str, facts: Any, detector: Any) -> None:
        if self.drift is None:
            raise CheckpointError(f"{folder} was learned with a detector of drift: give --drift, {START_AFRESH}")
        try:
            self.drift.resume(facts, detector)
        except ValueError as error:
            raise CheckpointError(f"{folder}: {error}, {START_AFRESH}") from None

    def _resume_delayed(self, folder: Path | str, facts: Any, parts: list[Any], rows: int) -> None:  # noqa: ARG002
        """Go on with the rows and labels that wait in a checkpoint; an error if the loop is of another kind."""
        if facts is not None or parts:
            raise CheckpointError(f"{folder} was learned with labels from another stream: give --labels, {START_AFRESH}")

    def _predictor(self, guarded: GuardedModel) -> Callable[[Any], tuple[Any, Any, Any, float | None]]:
        """Return the function that predicts a row: the row as the last step sees it, the label, what is scored, probability."""
        score, prepare, predictor = self._score, guarded.prepare, guarded.last
        wanted = self.sink is not None and not self._regression
        wants_probability = not score.wants_labels or (wanted and gives_probabilities(predictor))

        def predict(x: Any) -> tuple[Any, Any, Any, float | None]:
            seen = x if prepare is None else prepare(x)
            if not wants_probability:
                label = predictor.predict_one(seen)
                return seen, label, label, None
            probabilities = predictor.predict_proba_one(seen)
            label = predictor.predict_one(seen)
            return seen, label, label if score.wants_labels else probabilities, max(probabilities.values(), default=None)

        return predict

    def _learner(self, guarded: GuardedModel) -> Callable[..., Any]:
        """Return the function that learns a row and scores its prediction: row, label, row as the last step sees it, prediction.

        A weight ``w`` is for the model alone; a row of weight 0 is scored and not learned. The function returns the label, of a
        regression as a number. A label that is refused raises before anything was learned.
        """
        model, score, labels = self.model, self._score, self._labels
        check, timings, regression, drift = guarded.check, self.timings, self._regression, self.drift
        learned: set[Any] = set()  # labels that this model knows

        def learn(x: Any, y: Any, seen: Any, predicted: Any, w: float | None = None) -> Any:
            first = new = False
            if regression:
                y = checked_number(y)
            else:
                try:
                    first = y not in learned
                except TypeError:
                    first = True
                if first:
                    new = labels.check(y)
                    if guarded.check_new is not None:
                        guarded.check_new(seen, y)
            if check is not None:
                check(seen, y)
            if score.binary:
                try:
                    score.admit(y)
                except ScoreError as error:  # of all rows with that label
                    raise StreamError(f"{self._place}: {error}") from error
            if w is None:
                model.learn_one(x, y)
            elif w:
                model.learn_one(x, y, w=w)
            if guarded.new_names and w != 0.0:
                guarded.learned(x)
            score.update(y, predicted)
            if drift is not None:
                drift.update(y, predicted, self.rows)
            if w == 0.0:
                return y
            self.learned += 1
            if new:
                if not self._warned and (late := labels.late(y, self.learned - 1)):
                    self._warned = True
                    warn(f"{self._place}: {late}")
                labels.add(y)
            if first and len(learned) < MOST_LABELS:
                learned.add(y)
            if timings is not None:
                timings.learned()
            return y

        return learn

    def _taker(self, guarded: GuardedModel) -> Callable[[Any, Any], Record | None]:
        predict, learn = self._predictor(guarded), self._learner(guarded)
        wanted, timings = self.sink is not None, self.timings

        def take(x: Any, y: Any) -> Prediction | None:
            seen, label, predicted, probability = predict(x)
            if timings is not None:
                timings.predicted()
            y, w = y if type(y) is Weighted else (y, None)
            if y is None:
                self.unlabelled += 1
            else:
                y = learn(x, y, seen, predicted, w)
            if not x:
                self.empty += 1
            return Prediction(self.rows, label, y, probability) if wanted else None

        return take

    def _knows(self, y: Any) -> bool:
        return y in self._labels.known

    def _take_together(self, rows: Together) -> tuple[Any, ...] | None:
        ys = rows.y
        probability = self.sink is not None and not self._regression and gives_probabilities(self._guarded.last)
        answers = self._guarded.last.predict_then_learn(rows.X, rows.names, ys, probability, rows.weights)
        if answers is None:
            return None
        predicted, probabilities = answers
        labelled = learned = len(ys) - ys.count(None)
        if rows.weights is not None:
            learned = sum(y is not None and w > 0.0 for y, w in zip(ys, rows.weights.tolist(), strict=True))
        self.learned += learned
        self.unlabelled += len(ys) - labelled
        self.empty += rows.empty
        self._score_many(ys, predicted)
        if self.drift is not None:
            for i, (y, prediction) in enumerate(zip(ys, predicted, strict=True), self.rows):
                if y is not None:
                    self.drift.update(y, prediction, i)
        return predicted, ys, probabilities or [None] * len(ys)

    def _take_one(self, chunk: Chunk, i: int) -> None:
        super()._take_one(chunk, i)
        if self.rows % self.curve.every == 0:
            self._add_point(self.rows)
        if self.drift is not None and self.drift.due:
            self.drift.due = False
            self._guarded = GuardedModel(self.model.clone())
            self._take = self._taker(self._guarded)

    def _score_many(self, ys: list[Any], predicted: list[Any]) -> None:
        """Score predictions, with the points of the curve that are due between them."""
        first, n = 0, len(ys)
        while first < n:
            point = self.curve.next_after(self.rows + first) - self.rows
            end = min(point, n)
            self._score.update_many(ys[first:end], predicted[first:end])
            if end == point:
                self._add_point(self.rows + end)
            first = end

    def _add_point(self, rows: int) -> None:
        if self._score.counted:
            self.curve.add(rows, self._score.value, self._score.windowed_value)

    @property
    def _worth_saving(self) -> bool:
        return self.learned > 0

    def _check_end(self) -> None:
        if self.learned:
            return
        if not self.rows:
            raise StreamError(f"{self.source.name} has no rows: there is nothing to learn")
        end = f"{self.source.name} ended, and none of its {self.rows:,} rows"
        if self._weight is not None and self.rows > self.unlabelled + self._refusals.total:
            raise StreamError(f"{end} was learned: those with a label have the weight 0, in column {self._weight!r}")
        if self.refused:
            counted = ", ".join(f"{kind} {count:,}" for kind, count in self.refused.items())
            raise StreamError(f"{end} was learned: {self.unlabelled:,} had no label, and refused were {counted}")
        raise StreamError(
            f"{end} had a label: nothing was learned. Is its name right? The last row had {listed(self._x, 10) or 'no features'}"
        )

    def _checkpoint(self) -> tuple[Any, Any, dict[str, Any]]:
        value = self._score.value
        facts = {
            "learned": self.learned,
            "unlabelled": self.unlabelled,
            "empty": self.empty,
            "label_rules": self._labels.state,
            "parameters": self._parameters,
            "scored": repr(self._score),
            "curve": self.curve.state,
            # Rounded, for the last digits of some metrics depend on the order of their sums.
            "score": {"name": self._score.name, "value": round(value, 12) if math.isfinite(value) else None},
        }
        facts |= {} if self._weight is None else {"weight": self._weight}
        if self.drift is None:
            return self.model, self._score.state, facts
        return self.model, (*self._score.state, self.drift.detector), facts | {"drift": self.drift.facts}

    @property
    def _delayed_counts(self) -> Mapping[str, int] | None:
        return None

    def _take_all(self, chunk: Chunk) -> None:
        super()._take_all(chunk)
        if not (self.learned or self._warned or self._refusals.total) and self.unlabelled >= SETTLED:
            self._warned = True
            text = (
                f"{self.source.name}: none of the first {self.rows:,} rows has a label, so nothing is learned. Is its name right?"
            )
            warn(f"{text} The last row had {listed(self._x, 10) or 'no features'}")

    def _progress(self, rows_per_second: float, seconds: float, ended: bool = False) -> Progress:
        score = self._score
        values = (score.value, score.windowed_value) if score.counted else (math.nan, math.nan)
        scores = score.name, *values, score.window
        interrupted = ended and self._stopped
        counts = self.refused, self.unlabelled, self.empty, self._delayed_counts
        drifts = None if self.drift is None else self.drift.drifts
        now = self.rows, self.learned, rows_per_second, *scores, self.model, seconds
        return Progress(*now, ended, interrupted, *counts, drifts=drifts, majority=score.majority)
