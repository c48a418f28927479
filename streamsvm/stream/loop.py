"""The learning loop: source, predict, score, learn, checkpoint."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from river import base, compose

from streamsvm.core.checks import checked_count
from streamsvm.core.warning import warn
from streamsvm.files.river_metrics import metrics
from streamsvm.stream.checkpoint import Checkpoint, CheckpointError
from streamsvm.stream.drift import DriftWatch
from streamsvm.stream.endpoints import START_AFRESH, Prediction, Sink, Source, StreamError
from streamsvm.stream.progress import LearningCurve, Progress
from streamsvm.stream.rows import (
    MOST_LABELS,
    SETTLED,
    GuardedModel,
    LabelRules,
    RowError,
    as_now,
    checked_number,
    columns_of,
    differing_lines,
    gives_probabilities,
    listed,
    parameters_of,
)
from streamsvm.stream.scores.base import Both, Columns, ScoreError
from streamsvm.stream.scores.several import Scores
from streamsvm.stream.stream_loop import LoopOptions, StreamLoop
from streamsvm.stream.tables.chunk import Chunk, Row, Weighted
from streamsvm.stream.together import Together
from streamsvm.stream.unfamiliar import LEAST, ROWS, ChangedColumns
from streamsvm.stream.weights import check_takes_weights

#: A metric of river, or a name.
Metric = metrics.base.ClassificationMetric | metrics.base.RegressionMetric | str

_MOST_PROBABILITIES = 2**21  # of rows that are taken together


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
        River metric that is a single number, for classifiers or regressors like the model, or its name. The default is accuracy
        or MAE. ``"ROCAUC"``, ``"AveragePrecision"``, ``"LogLoss"`` and ``"BrierScore"`` are metrics of this library: in bounded
        memory they are within .001 of scikit-learn's, where river's ROCAUC has 10 thresholds unless you give more. Of a list,
        the first metric is the score, and the others are in the ``scores`` of the progress; these may be
        ``"ConfusionMatrix"``, ``"ClassificationReport"``, ``"Calibration"`` and ``"Thresholds"``, too.
    positive
        Label that a binary metric (F1, ROCAUC, LogLoss) counts as positive; not needed for bools, 0 and 1, or -1 and 1.
    sink
        Sink for the predictions, such as a `FileSink`; None writes none. Checkpoints hold its position, so every run with the
        same folder needs the same sink.
    checkpoints
        Place for checkpoints, such as a `CheckpointFolder`; None, the default, writes none. Once a row was learned, one is
        written every ``checkpoint_every`` rows, and at the end. Of a topic, where it begins is saved at once: a loop that dies
        before its first row leaves none out.
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
    answers
        What predictions say beside the label, each a `streamsvm.stream.answers.ExtraFields`. Rows are then taken
        one by one.
    classes
        Labels that rows may have. None accepts any label of the type of the first one, and refuses labels of other types.
    drift
        `DriftWatch` that watches the errors of predictions; its state is in the checkpoints. None watches nothing.
    learns
        Whether rows are learned. False predicts and scores them only, by a model that has learned before, and without
        checkpoints; ``learned`` then counts the rows with a label.
    abstain
        Of a loop that does not learn: the probability below which a label is not predicted, and not scored.

    Attributes
    ----------
    model
        The model in its present state; another object if there was a checkpoint, or after a drift that began a new model.
    curve : LearningCurve
        The scores at fewer than 200 rows of the stream. Checkpoints hold those of earlier runs.
    rows, learned : int
        Number of rows read and learned so far, as in `Progress`.
    unfamiliar : Unfamiliar
        Of a loop that does not learn: what its rows have that the model has not met.

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
        metric: Metric | Sequence[Metric] | None = None,
        *,
        positive: Hashable = None,
        sink: Sink | None = None,
        window: int = 1000,
        classes: Iterable[Hashable] | None = None,
        drift: DriftWatch | None = None,
        learns: bool = True,
        abstain: float = 0.0,
        **options: Unpack[LoopOptions[Progress]],
    ) -> None:
        super().__init__(source, model, learns=learns, sink=sink, abstain=abstain, **options)
        last = self._guarded.last
        has_probabilities = not self._regression and gives_probabilities(last)
        if not learns and (self._checkpoints is not None or drift is not None):
            raise ValueError("a loop that does not learn has neither checkpoints nor a detector of drift: leave them out")
        if abstain and (learns or not has_probabilities):
            raise ValueError("abstain is of a loop that does not learn, and of a classifier with probabilities: leave it out")
        self._scores = Scores(metric, window, positive, bool(getattr(model, "_multiclass", False)), self._regression)
        self.curve: LearningCurve = LearningCurve(self._scores.first.name, window)
        self.learned: int = 0
        self.unlabelled: int = 0
        self.empty: int = 0
        self._warned = False
        if classes is not None and self._regression:
            raise ValueError(f"classes are declared, and {type(last).__name__} predicts numbers: leave them out")
        if not (self._regression or has_probabilities) and (wanting := self._scores.wants_probabilities):
            raise ValueError(f"{wanting} needs probabilities, which {type(last).__name__} does not give: try Accuracy or F1")
        self._wants = has_probabilities and (sink is not None or abstain > 0.0)  # the probabilities of labels
        self._asks = self._wants or bool(self._scores.wants_probabilities)
        self._labels = LabelRules(classes)
        most = getattr(last, "max_classes", math.inf)
        if self._labels.classes is not None and len(self._labels.classes) > most:
            raise ValueError(f"{len(self._labels.classes)} classes are declared, and the model has max_classes={most}")
        if drift is not None:
            drift.begin(model, self._regression, source.name)
            self._at_once = self._at_once and not drift.renews  # for the next row is for another model
        self.drift: DriftWatch | None = drift
        self._weight = source.weight
        if self._weight is not None:
            check_takes_weights(model, self._weight)
        self._parameters = parameters_of(model)
        self._changed: ChangedColumns | None = None  # that look at the first rows after a checkpoint
        self._begin_run()

    @property
    def metric(self) -> Any:
        """The metric over all rows."""
        return self._scores.first.metric

    @property
    def windowed(self) -> Any:
        """The metric over the last ``window`` rows."""
        return self._scores.first.windowed

    def _resume_run(self, folder: Path | str, found: Checkpoint) -> None:
        header = found.header
        try:
            parameters, scored, _ = header["parameters"], header["scored"], header["sink"]
            rows, learned, unlabelled, empty = (
                checked_count(key, header[key]) for key in ("rows", "learned", "unlabelled", "empty")
            )
            if learned + unlabelled > rows or empty > rows:
                raise ValueError(f"of {rows:,} rows {learned:,} were learned, {unlabelled:,} had no label, {empty:,} no feature")
            if (watched := header.get("drift")) is not None:
                self._resume_drift(folder, watched, found.metric["detector"])
            self._resume_delayed(folder, header.get("delayed"), found.metric)
            curve, scores = LearningCurve.of(header["curve"], rows), found.metric["scores"]
            self._labels.resume(header["label_rules"])
        except (LookupError, TypeError, ValueError) as error:
            text = f"{folder}: its checkpoint was not written by a learning loop ({error}): give another folder"
            raise CheckpointError(text) from None
        if self._parameters not in (parameters, as_now(parameters)):
            raise CheckpointError(
                f"{folder} holds a model with other parameters: {differing_lines(str(parameters), self._parameters)}. "
                f"Ask for the same, {START_AFRESH}"
            )
        if scored != repr(self._scores):
            advice = self._scores.advice(str(scored))
            raise CheckpointError(
                f"{folder} has scored with {scored}, not {self._scores!r}: ask for the same, {START_AFRESH}{advice}"
            )
        if (weight := header.get("weight")) != self._weight:
            raise CheckpointError(
                f"{folder} was learned with the weight {weight!r}, not {self._weight!r}: ask for the same, {START_AFRESH}"
            )
        self._scores.resume(scores)
        self._scores.labels.admitted(self._labels.known)
        self._go_on(folder, found)
        self.curve = curve
        self._guarded = GuardedModel(found.model)
        if known := columns_of(found.model):
            self._changed = ChangedColumns(known, self._guarded.encoder)
        self.learned, self.unlabelled, self.empty = learned, unlabelled, empty

    def _take_all(self, chunk: Chunk) -> None:
        self._note_columns()
        if self._changed is not None:
            for i in range(min(len(chunk), ROWS)):
                if type(row := chunk.row(i)) is Row and row.x:  # a label that comes later has nothing else
                    self._changed.add(row.x)
            if self._changed.rows >= ROWS:
                self._tell_changes()
        super()._take_all(chunk)
        if not (self.learned or self._warned or self._refusals.total) and self.unlabelled >= SETTLED:
            self._warned, done = True, "learned" if self._learns else "scored"
            text = (
                f"{self.source.name}: none of the first {self.rows:,} rows has a label, so nothing is {done}. Is its name right?"
            )
            warn(f"{text} The last row had {listed(self._x, 10) or 'no features'}")

    def _tell_changes(self) -> None:
        changed, self._changed = self._changed, None
        if changed is not None and changed.rows >= LEAST and (text := changed.text):
            warn(f"{self.source.name}: of the columns since the checkpoint, {text}. This is said once")

    def _check_end(self) -> None:
        self._tell_changes()
        if self.learned:
            return
        if not self.rows:
            raise StreamError(f"{self.source.name} has no rows: there is nothing to {'learn' if self._learns else 'score'}")
        end, done = f"{self.source.name} ended, and none of its {self.rows:,} rows", "learned" if self._learns else "scored"
        if self._weight is not None and self.rows > self.unlabelled + self._refusals.total:
            raise StreamError(f"{end} was learned: those with a label have the weight 0, in column {self._weight!r}")
        if self.refused:
            counted = ", ".join(f"{kind} {count:,}" for kind, count in self.refused.items())
            raise StreamError(f"{end} was {done}: {self.unlabelled:,} had no label, and refused were {counted}")
        raise StreamError(
            f"{end} had a label: nothing was {done}. Is its name right? The last row had {listed(self._x, 10) or 'no features'}"
        )

    def _resume_drift(self, folder: Path | str, facts: Any, detector: Any) -> None:
        if self.drift is None:
            raise CheckpointError(f"{folder} was learned with a detector of drift: give --drift, {START_AFRESH}")
        try:
            self.drift.go_on(facts, detector)
        except ValueError as error:
            raise CheckpointError(f"{folder}: {error}, {START_AFRESH}") from None

    def _resume_delayed(self, folder: Path | str, facts: Any, parts: Mapping[str, Any]) -> None:  # noqa: ARG002
        """Go on with the rows and labels that wait in a checkpoint; an error if the loop is of another kind."""
        if facts is not None:
            raise CheckpointError(f"{folder} was learned with labels from another stream: give --labels, {START_AFRESH}")

    def _row_learner(self) -> Callable[..., Any]:
        """Return the function that learns a row and scores its prediction: row, label, row as the last step sees it, prediction.

        A weight ``w`` is for the model alone; a row of weight 0 is scored and not learned. The function returns the label, of a
        regression as a number. A label that is refused raises before anything was learned.
        """
        guarded, model, scores, labels = self._guarded, self.model, self._scores, self._labels
        check, timings, regression, drift = guarded.check, self.timings, self._regression, self.drift
        learns = self._learns
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
                    if learns and guarded.check_new is not None:
                        guarded.check_new(seen, y)
            if learns and check is not None:
                check(seen, y)
            if scores.binary:
                self._admit_label(y)
            if not learns:
                pass
            elif w is None:
                model.learn_one(x, y)
            elif w:
                model.learn_one(x, y, w=w)
            if guarded.new_names and learns and w != 0.0:
                guarded.learned(x)
            scores.update(y, predicted)
            if drift is not None:
                drift.update(y, predicted.label if type(predicted) is Both else predicted, self.rows)
            if w == 0.0:
                return y
            self.learned += 1
            if new:
                if not self._warned and (late := labels.late(y, self.learned - 1)):
                    self._warned = True
                    warn(f"{self._row_place}: {late}")
                labels.add(y)
            if first and len(learned) < MOST_LABELS:
                learned.add(y)
            if timings is not None:
                timings.learned()
            return y

        return learn

    def _row_taker(self) -> Callable[[Any, Any], Prediction | None]:
        predict, learn = self._row_predictor(self._asks), self._row_learner()
        wanted, timings, scored_of = self.sink is not None, self.timings, self._scores.scored_of

        def take(x: Any, y: Any) -> Prediction | None:
            seen, label, probabilities, probability = predict(x)
            if self._abstain:
                label = self._label_if_sure(label, probability)
            predicted = label if probabilities is None else scored_of(label, probabilities)
            if timings is not None:
                timings.predicted()
            y, w = y if type(y) is Weighted else (y, None)
            if y is None:
                self.unlabelled += 1
            else:
                y = learn(x, y, seen, predicted, w)
            if not x:
                self.empty += 1
            return Prediction(row=self.rows, y_pred=label, y_true=y, probability=probability) if wanted else None

        return take

    def _knows_label(self, y: Any) -> bool:
        return y in self._labels.known

    def _take_together(self, rows: Together) -> dict[str, Sequence[Any]] | None:
        ys = rows.y if self._learns else self._scored_labels(rows.y)
        if ys is None:
            return None
        if (answers := self._answers_together(rows, self._wants, bool(self._scores.wants_probabilities))) is None:
            return None
        predicted, probabilities, each = answers
        labelled = learned = len(ys) - ys.count(None)
        if rows.weights is not None:
            learned = sum(y is not None and w > 0.0 for y, w in zip(ys, rows.weights.tolist(), strict=True))
        self.learned += learned
        self.unlabelled += len(ys) - labelled
        self.empty += rows.empty
        self._score_many(ys, predicted, each)
        return {"y_pred": predicted, "y_true": ys, "probability": probabilities or [None] * len(ys)}

    def _most_together(self, last: int | None) -> int:
        most = super()._most_together(last)
        if self._scores.wants_probabilities:  # of all labels, which may be many
            most = min(most, max(_MOST_PROBABILITIES // max(len(getattr(self._guarded.last, "labels", ())), 1), 1))
        return most

    def _scored_labels(self, ys: list[Any]) -> list[Any] | None:
        """Return labels as they are scored where nothing is learned; None where one of them is refused."""
        try:
            if self._regression:
                return [None if y is None else checked_number(y) for y in ys]
            new = {y: self._labels.check(y) for y in set(ys) - {None}}
        except (RowError, TypeError):  # a TypeError of a label that is none
            return None
        for y, is_new in new.items():
            if self._scores.binary:
                self._admit_label(y)
            if is_new:
                self._labels.add(y)
        return ys

    def _admit_label(self, y: Any) -> None:
        """Raise a StreamError where a score cannot count rows with that label."""
        try:
            self._scores.labels.admit(y)
        except ScoreError as error:
            raise StreamError(f"{self._row_place}: {error}") from error

    def _score_many(self, ys: list[Any], predicted: list[Any], probabilities: Columns | None) -> None:
        """Score predictions and watch them for drift, with the points of the curve that are due between them."""
        first, n = 0, len(ys)
        while first < n:
            point = self.curve.next_after(self.rows + first) - self.rows
            end = min(point, n)
            part = None if probabilities is None else {label: column[first:end] for label, column in probabilities.items()}
            self._scores.update_many(ys[first:end], predicted[first:end], part)
            if self.drift is not None:
                for i in range(first, end):
                    if ys[i] is not None:
                        self.drift.update(ys[i], predicted[i], self.rows + i)
            if end == point:
                self._add_point(self.rows + end)
            first = end

    def _add_point(self, rows: int) -> None:
        if (score := self._scores.first).counted:
            drifts = None if self.drift is None else self.drift.drifts
            self.curve.add(rows, score.value, score.windowed_value, self._scores.best_guess, self._refusals.total, drifts)

    def _note_columns(self) -> None:
        """Tell a new model in which order the source has its columns, if it has any."""
        note = getattr(self._guarded.last, "note_columns", None) if self._learns and self.source.columns else None
        if note is not None:
            note(self.source.columns)

    def _take_one(self, chunk: Chunk, i: int) -> None:
        super()._take_one(chunk, i)
        if self.rows % self.curve.every == 0:
            self._add_point(self.rows)
        if self.drift is not None and self.drift.due:
            self.drift.due = False
            self._guarded = GuardedModel(self.model.clone())
            self._note_columns()
            self._take = self._row_taker()

    @property
    def _worth_saving(self) -> bool:
        return self.learned > 0

    def _checkpoint_contents(self) -> tuple[Any, dict[str, Any], dict[str, Any]]:
        reports = self._scores.reports()
        facts = {
            "learned": self.learned,
            "unlabelled": self.unlabelled,
            "empty": self.empty,
            "label_rules": self._labels.state,
            "parameters": self._parameters,
            "scored": repr(self._scores),
            "curve": self.curve.state,
            "score": reports[0].saved,
            "scores": [report.saved for report in reports],
        }
        facts |= {} if self._weight is None else {"weight": self._weight}
        parts: dict[str, Any] = {"scores": self._scores.state}
        if self.drift is not None:
            parts |= {"detector": self.drift.detector}
            facts |= {"drift": self.drift.state}
        return self.model, parts, facts

    @property
    def _delayed_counts(self) -> Mapping[str, int] | None:
        return None

    def _progress_now(self, rows_per_second: float, seconds: float, ended: bool = False) -> Progress:
        reports = self._scores.reports()
        scores = *reports[0][:3], self._scores.first.window
        interrupted = ended and self._stopped
        counts = self.refused, self.unlabelled, self.empty, self._delayed_counts
        drifts = None if self.drift is None else self.drift.drifts
        now = self.rows, self.learned, rows_per_second, *scores, self.model, seconds
        return Progress(*now, ended, interrupted, *counts, drifts, self._scores.first.majority, reports, self.abstained)
