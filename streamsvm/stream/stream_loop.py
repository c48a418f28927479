"""The base of the learning and the prediction loop: it predicts and scores each row, alone or in batches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from river import base

from streamsvm.core.checks import check_number
from streamsvm.core.warning import warn
from streamsvm.files.messages import format_names, suggest_name
from streamsvm.files.river_metrics import metrics
from streamsvm.stream.batches import Batch, next_batch, supports_batches
from streamsvm.stream.checkpoint import CheckpointError
from streamsvm.stream.drift import DriftWatch
from streamsvm.stream.endpoints import Prediction, Sink, Source, StreamError
from streamsvm.stream.prediction_fields import ComputedFields, PredictionExtension, abstain_below, select_probabilities
from streamsvm.stream.progress import CurvePoint, LearningCurve, Progress, Timings
from streamsvm.stream.refusals import RefusedRowHandler
from streamsvm.stream.resumable_run import ResumableRun, RunOptions
from streamsvm.stream.rows import (
    SETTLED_ROWS,
    LabelRules,
    RowError,
    ValidatingPipeline,
    classify_error,
    get_learned_columns,
    get_learned_labels,
    has_probabilities,
    parse_target,
)
from streamsvm.stream.scores.base import ProbabilityColumns, ScoreError, ScoreReport
from streamsvm.stream.scores.score_set import ScoreSet
from streamsvm.stream.tables.chunk import MIN_BATCH_ROWS, BadRow, Chunk, WeightedLabel, process_rows
from streamsvm.stream.tables.column_monitor import ColumnMonitor, GapWatch
from streamsvm.stream.tables.table_parser import Names

#: A river metric, or the name of one.
Metric = metrics.base.ClassificationMetric | metrics.base.RegressionMetric | str

_MAX_BATCH_PROBABILITIES = 2**21  # probabilities of all labels in one batch
_ROWS_COMPARED = 100  # rows to predict, before a warning that they lack a learned column


class StreamLoop(ResumableRun):
    """A run over a source that predicts and scores each row.

    `LearningLoop` and `PredictionLoop` derive from it. They define how a label is processed (`_make_row_learner`), the contents
    of a checkpoint (`_make_checkpoint_parts`), and how a run continues from one (`_resume_run`).
    """

    rows: int
    learned: int
    unlabelled: int
    empty: int
    abstained: int
    _field_names: tuple[str, ...] = ("row", "y_pred", "y_true", "probability")  # the standard fields of predictions
    _learns = False
    _needs_labels = False  # whether a row without a usable label is refused, and a run without labels is an error
    #: The `DelayedLabels` of a loop whose labels come from another stream.
    delayed: Any = None

    def __init__(
        self,
        source: Source,
        model: Any,
        metric: Metric | Sequence[Metric] | None,
        *,
        sink: Sink | None = None,
        positive: Hashable = None,
        window: int = 1000,
        abstain: float = 0.0,
        on_error: str | Path | Sink = "stop",
        error_limit: int | None = None,
        error_share: float = 0.5,
        passthrough: Names = (),
        computed_fields: Sequence[ComputedFields] = (),
        **run_options: Unpack[RunOptions],
    ) -> None:
        check_number("abstain", abstain, 0.0, inclusive=True, high=1.0)
        self._pipeline, self._abstain = ValidatingPipeline(model, self._learns), abstain
        last_step = self._pipeline.last_step
        self._regression = isinstance(last_step, base.Regressor) or self._pipeline.detects_anomalies  # predictions are numbers
        if self._pipeline.detects_anomalies and metric is not None:
            raise ValueError(f"a {type(last_step).__name__} learns without labels, so nothing is scored: leave the metric out")
        self._has_probabilities = not self._regression and has_probabilities(last_step)
        self._scores = ScoreSet(metric, window, positive, bool(getattr(model, "_multiclass", False)), self._regression)
        if not (self._regression or self._has_probabilities) and (metric_name := self._scores.probability_metric):
            raise ValueError(f"{metric_name} needs probabilities, but {type(last_step).__name__} has none: try Accuracy or F1")
        if abstain and not self._has_probabilities:
            raise ValueError(f"abstain is a probability, and {type(last_step).__name__} gives none: leave it out")
        extension = PredictionExtension(source, sink, passthrough, self._field_names, computed_fields)
        refusals = RefusedRowHandler(on_error, error_limit, error_share)
        super().__init__(source, sink, extension, refusals, **run_options)
        source.skip_columns(self._pipeline.dropped_columns)
        #: The columns and names of rows, compared with those of the model; not counted if the loop learns.
        self.columns: ColumnMonitor = ColumnMonitor(ignored=self._extension.field_names)
        if not self._learns:
            self.columns.compare_with(get_learned_columns(model), self._pipeline.table_encoder, get_learned_labels(model))
        self.curve: LearningCurve = LearningCurve(self._scores.first.name, window)
        if not self._needs_labels:  # computing the points would take a third of the time of predictions
            self.curve.every = sys.maxsize
        self.drift: DriftWatch | None = None
        self._labels = LabelRules()
        self.scored: int = 0
        self._uses_batches = not (sink is not None and computed_fields) and supports_batches(self._pipeline, self._learns)
        #: Observes the times of rows; None if they are not measured.
        self.timings: Timings | None = None
        self._has_warned_of_labels = self._has_compared_columns = False
        self._last_x: Any = {}  # the features of the last row that was processed alone
        self._gaps: GapWatch | None = None
        self._process: Callable[[Any, Any], Prediction | None] = lambda x, y: None  # noqa: ARG005 - set by `_prepare_run`

    def watch_gaps(self) -> None:
        """Warn, once, of a missing number that counts as 0 because the model has no encoder. LIBSVM text leaves out zeros."""
        self._gaps = GapWatch(self.source.name) if self._pipeline.is_bare_learner and self.source.has_names else None

    @property
    def model(self) -> Any:
        """The model that this loop currently uses. It is another object after the loop has resumed a checkpoint or switched to a
        newer model.
        """
        return self._pipeline.model

    @property
    def metric(self) -> Any:
        """The river metric object over all scored rows, the first one if the loop has several."""
        return self._scores.first.metric

    @property
    def windowed(self) -> Any:
        """The river metric object over the last ``window`` rows, of the first metric if the loop has several."""
        return self._scores.first.windowed

    def _make_progress(self, rows_per_second: float, seconds: float, ended: bool = False) -> Progress:
        return Progress(
            rows=self.rows,
            model=self.model,
            learns=self._learns,
            learned=self.learned,
            scored=self.scored,
            unlabelled=self.unlabelled,
            empty=self.empty,
            refused=self.refused,
            refusal_messages=self._refusals.messages,
            abstained=self.abstained,
            window=self._scores.first.window,
            scores=self._make_score_reports(),
            columns=self.columns,
            schema_changes=dict(self.schema.changes),
            delayed=None if self.delayed is None else self.delayed.counts,
            drifts=None if self.drift is None else self.drift.drifts,
            rows_per_second=rows_per_second,
            seconds=seconds,
            ended=ended,
            interrupted=ended and self._stopped,
        )

    def _make_score_reports(self) -> tuple[ScoreReport, ...]:
        """Return the current values of the metrics; none for an anomaly detector, which is not scored."""
        return () if self._pipeline.detects_anomalies else self._scores.make_reports()

    def _flush_scores(self) -> None:
        self._scores.flush()

    def _prepare_run(self) -> None:
        self._process = self._make_row_processor()

    def _max_batch_rows(self) -> int:
        max_rows = super()._max_batch_rows()
        if self._scores.probability_metric:
            n_labels = len(getattr(self._pipeline.last_step, "labels", ()))
            max_rows = min(max_rows, max(_MAX_BATCH_PROBABILITIES // max(n_labels, 1), 1))
        return max_rows

    def _process_chunk(self, chunk: Chunk) -> None:
        first, n = 0, len(chunk)
        if self.timings is not None:  # a row of each chunk is timed, alone
            self._process_row(chunk, 0)
            first = 1
        process_rows(first, n, n, partial(self._process_batch, chunk), partial(self._process_row, chunk))

    def _process_batch(self, chunk: Chunk, start: int, stop: int) -> int:
        """Process the rows of a chunk from ``start`` to at most ``stop`` (exclusive) in one call of the model: predict them,
        learn them if the loop learns, and write the predictions. Return the number of processed rows: 0 if row ``start`` must be
        processed alone, and -1, with nothing changed, if the caller must try a smaller batch.
        """
        if not self._uses_batches:
            return 0
        batch = next_batch(chunk, start, stop, self._pipeline, self._learns, self._knows_label, self._regression)
        n = 0 if batch is None else len(batch.X)
        if batch is None or n < MIN_BATCH_ROWS:
            for i in range(start, start + n):
                self._process_row(chunk, i)
            return n
        try:
            columns = self._extension.copy_columns(chunk, start, start + n)
            messages = self._extension.copy_messages(chunk, start, start + n)
        except RowError:
            return -1
        if (predictions := self._predict_batch(batch)) is None:
            return -1
        batch.update_encoder()
        if self.sink is not None:
            self.sink.write_many({"row": range(self.rows, self.rows + n), **predictions, **columns}, messages)
        self.rows += n
        return n

    def _process_row(self, chunk: Chunk, i: int) -> None:
        """Process row ``i`` of a chunk alone: predict it, score the prediction, learn the row if the loop learns, and write the
        prediction. If the row is invalid, refuse it.
        """
        row, self._row_index = chunk.row(i), i
        if type(row) is BadRow:
            self._refusals.handle_row(self.rows, row.place, row.raw, row.kind, row.reason)
        else:
            x, y = row
            self._last_x = x
            if self.timings is not None:
                self.timings.start_row()
            try:
                fields, messages = ({}, None) if self._extension.is_empty else self._extension.read_row(chunk, i, self.model, x)
                prediction = self._process(x, y)
            except (MemoryError, StreamError, CheckpointError):
                raise
            except Exception as error:  # noqa: BLE001 - of the learner, or of any step before it
                kind, reason = classify_error(error, x, self._pipeline)
                raw = chunk.raw(i)
                self._refusals.handle_row(self.rows, self._current_place, (x, y) if raw is None else raw, kind, reason)
            else:
                if self.sink is not None and prediction is not None:
                    record = {**prediction, **fields}
                    if messages is None:
                        self.sink.write(record)
                    else:
                        self.sink.write_many({name: [value] for name, value in record.items()}, messages)
        self.rows += 1
        if self.rows % self.curve.every == 0:
            self._add_curve_point(self.rows)

    @property
    def _needs_probability(self) -> bool:
        """Whether the probability of each predicted label must be computed: for the sink, or to abstain if it is small."""
        return self._has_probabilities and (self.sink is not None or self._abstain > 0.0)

    def _make_row_predictor(self) -> Callable[[Any], tuple[Any, Any, Any, float | None]]:
        """Return a function that predicts one row from its features, a dict of values by name. It returns a tuple: the
        transformed features, the predicted label, the probabilities of all labels (None unless scores need them), and the
        probability of the predicted label (None unless predictions need it).
        """
        prepare_row, last_step = self._pipeline.prepare_row, self._pipeline.last_step
        add_row = None if self._learns else self.columns.add_row
        needs_all = bool(self._scores.probability_metric)
        needs_probabilities = needs_all or self._needs_probability
        predict_one = self._pipeline.predict_one

        def predict(x: Any) -> tuple[Any, Any, Any, float | None]:
            if add_row is not None:
                add_row(x)
            features = x if prepare_row is None else prepare_row(x)
            if not needs_probabilities:
                return features, predict_one(features), None, None
            probabilities = last_step.predict_proba_one(features)
            label = last_step.predict_one(features)
            probability = probabilities.get(label, max(probabilities.values(), default=None))
            return features, label, probabilities if needs_all else None, probability

        return predict

    def _make_row_processor(self) -> Callable[[Any, Any], Prediction | None]:
        """Return a function of a row's features and label that predicts, scores and, if the loop learns, learns the row. It
        returns the prediction record for the sink; None without a sink.
        """
        predict, learn = self._make_row_predictor(), self._make_row_learner()
        has_sink, timings = self.sink is not None, self.timings
        learn_without_label = self._learn_without_label if self._pipeline.detects_anomalies else None

        def process(x: Any, y: Any) -> Prediction | None:
            features, label, probabilities, probability = predict(x)
            abstains = probability is not None and probability < self._abstain
            label = None if abstains else label
            if timings is not None:
                timings.observe_prediction()
            y, weight = y if type(y) is WeightedLabel else (y, None)
            if learn_without_label is not None:
                self.learned += learn_without_label(x, features)
            elif y is None:
                self.unlabelled += 1
            else:
                y = learn(x, y, features, label, probabilities, weight)
            self.abstained += abstains
            if not x:
                self.empty += 1
            elif self._gaps is not None and len(x) != self._gaps.n_columns:
                self._gaps.add_row(x, self.rows, self._pipeline.last_step)
            return Prediction(row=self.rows, y_pred=label, y_true=y, probability=probability) if has_sink else None

        return process

    def _learn_without_label(self, x: Any, features: Any) -> bool:  # noqa: ARG002
        """Let an anomaly detector learn the row ``x`` with its transformed ``features``. Return whether this loop learns."""
        return False

    def _make_row_learner(self) -> Callable[..., Any]:
        """Return a function to call with each labelled row after its prediction. It updates the metrics, lets the model learn the
        row if this is a `LearningLoop`, and returns the label.

        Its arguments are row, label, features after all transformers, predicted label, probabilities of all labels, and weight.
        """
        update, add_labels, pipeline = self._scores.update, self.columns.add_labels, self._pipeline

        def score(x: Any, y: Any, features: Any, predicted: Any, probabilities: Any, weight: float | None = None) -> Any:  # noqa: ARG001
            if (label := self._validate_label(y)) is None:
                self.unlabelled += 1
                return y
            add_labels([label])
            self._scores.update_keys([label], [predicted], pipeline.find_key_labels(features))
            update(label, predicted, probabilities)
            self.scored += 1
            return label

        return score

    def _validate_label(self, y: Any) -> Any:
        """Check a label, and return it (in a regression, as a float); None if it is missing. If it is invalid, raise a RowError
        if the loop needs labels, else return None.
        """
        if y is None:
            return None
        try:
            if self._regression:
                return parse_target(y)
            is_new = self._labels.check_is_new(y)
        except RowError:
            if self._needs_labels:
                raise
            return None
        if self._scores.is_binary:
            self._check_positive_label(y)
        if is_new:
            self._labels.add(y)
        return y

    def _validate_labels(self, ys: list[Any]) -> list[Any] | None:
        """Check the labels of several rows, and return them (in a regression, as floats) with None for missing ones. Return None
        if one is invalid, so that the rows must be processed one by one.
        """
        try:
            labels = {y: self._validate_label(y) for y in dict.fromkeys(ys)}
            return [labels[y] for y in ys]
        except (RowError, TypeError):  # TypeError: an unhashable label
            return None

    def _check_positive_label(self, y: Any) -> None:
        """Raise a StreamError if the loop has a metric with a positive label, such as F1, and the label ``y`` shows that the
        positive label is unknown: it was not specified, or does not occur in the stream.
        """
        try:
            self._scores.labels.check_label(y)
        except ScoreError as error:
            raise StreamError(f"{self._current_place}: {error}") from error

    def _predict_batch(self, batch: Batch) -> dict[str, Sequence[Any]] | None:
        """Predict the rows of a batch in one call of the model, learn them if the loop learns, and update the metrics. Return the
        prediction fields by name (without ``row``), each with one value per row; None, with nothing changed, if the rows must be
        processed one by one.
        """
        learns, n = self._learns, len(batch.y)
        labels = batch.y if learns else self._validate_labels(batch.y)
        if labels is None:
            return None
        n_labelled = n - labels.count(None)
        needs_all = n_labelled > 0 and bool(self._scores.probability_metric)
        needed = "all" if needs_all else self._needs_probability
        ys, weights = (batch.y, batch.weights) if learns else ([None] * n, None)
        predictions = self._pipeline.last_step.predict_then_learn(batch.X, batch.names, ys, needed, weights)
        if predictions is None:
            return None
        predicted, probabilities = predictions
        label_probabilities = None if needs_all else probabilities  # of the predicted labels
        if needs_all and self._needs_probability and probabilities:
            label_probabilities = select_probabilities(probabilities, predicted)
        if self._abstain:
            predicted, n_abstained = abstain_below(predicted, label_probabilities, self._abstain)
            self.abstained += n_abstained
        self.columns.add_table(batch.table, batch.start, batch.start + n)
        self.columns.add_labels(labels)
        if learns:
            n_learned = n_labelled
            if weights is not None:
                n_learned = sum(y is not None and weight > 0.0 for y, weight in zip(ys, weights.tolist(), strict=True))
            self.learned += n_learned
        self.scored += n_labelled
        self.unlabelled += n - n_labelled
        self.empty += batch.n_empty
        if self._gaps is not None:
            for i in (batch.start, batch.first_gap):
                self._gaps.add_row(batch.table.row(i).x, self.rows + i - batch.start, self._pipeline.last_step)
        key_labels = self._pipeline.find_key_labels(dict(zip(batch.names, batch.X.T, strict=True)))
        self._score_batch(labels, predicted, probabilities if needs_all else None, key_labels)
        y_true = labels if learns else [y if label is None else label for y, label in zip(batch.y, labels, strict=True)]
        return {"y_pred": predicted, "y_true": y_true, "probability": label_probabilities or [None] * n}

    def _score_batch(
        self, ys: list[Any], predicted: list[Any], probabilities: ProbabilityColumns | None, key_labels: list[Any]
    ) -> None:
        """Update the metrics and the drift detection with n rows: their labels ``ys``, their predictions, their ``probabilities``
        [n] by label, and the previous labels of their keys (empty without keys). Also add a point to the learning curve at each
        of its intervals that ends within these rows.
        """
        start, n = 0, len(ys)
        if self._scores.first.has_rows:
            self.curve.make_room(self.rows, self.rows + n)
        while start < n:
            next_point = self.curve.find_next_row(self.rows + start) - self.rows
            stop = min(next_point, n)
            part = None if probabilities is None else {label: column[start:stop] for label, column in probabilities.items()}
            self._scores.update_keys(ys[start:stop], predicted[start:stop], key_labels[start:stop])
            self._scores.update_many(ys[start:stop], predicted[start:stop], part)
            if self.drift is not None:
                for i in range(start, stop):
                    if ys[i] is not None:
                        self.drift.update(ys[i], predicted[i], self.rows + i)
            if stop == next_point:
                self._add_curve_point(self.rows + stop)
            start = stop

    def _add_curve_point(self, rows: int) -> None:
        """Add a point with the current metrics to the learning curve after ``rows`` rows, unless no row was scored yet."""
        self._scores.flush()
        if (score := self._scores.first).has_rows:
            drifts = None if self.drift is None else self.drift.drifts
            baseline = self._scores.find_best_baseline(is_windowed=False)
            windowed_baseline = baseline if rows <= score.window else self._scores.find_best_baseline(is_windowed=True)
            scores = score.value, score.windowed_value, baseline
            self.curve.add(CurvePoint(rows, *scores, self._refusals.n_refused, drifts, windowed_baseline))

    def _knows_label(self, y: Any) -> bool:  # noqa: ARG002
        """Return whether rows with the label ``y`` may be learned together in one call: the label was learned before."""
        return True

    def _check_end(self) -> None:
        if self.learned or not self._needs_labels or (self.scored and not self._learns):
            return
        if not self.rows:
            raise StreamError(f"{self.source.name} has no rows: there is nothing to {'learn' if self._learns else 'score'}")
        done = "learned" if self._learns else "scored"
        text = f"{self.source.name} ended, and none of its {self.rows:,} rows"
        if self.source.weight is not None and self.rows > self.unlabelled + self._refusals.n_refused:
            raise StreamError(f"{text} was learned: those with a label have the weight 0, in column {self.source.weight!r}")
        if self.refused:
            counts = ", ".join(f"{kind} {count:,}" for kind, count in self.refused.items())
            example = "".join(f". The first{example}" for example in [*self._refusals.examples.values()][:1])
            raise StreamError(f"{text} was {done}: {self.unlabelled:,} had no label, and refused were {counts}{example}")
        raise StreamError(f"{text} had a label: nothing was {done}. {self._label_advice}")

    @property
    def _label_advice(self) -> str:
        """Advice for the user if no row has a label: the features of the last row, and a name that is similar to the label's."""
        label, names = self.source.position.get("label"), format_names(self._last_x, 10) or "no features"
        return f"Is its name right? The last row had {names}{suggest_name(label, self._last_x) if label else ''}"

    def _warn_after_chunk(self) -> None:
        if not self._has_compared_columns and self.columns.rows >= _ROWS_COMPARED:
            self._has_compared_columns = True
            if changes := self.columns.describe_changes():
                warn(f"{self.source.name}: of the columns that the model has learned, {changes}. This is said once")
        if self._needs_labels:
            self._warn_of_missing_labels()

    def _warn_of_missing_labels(self) -> None:
        """Warn, once, if none of the first 1,000 rows (`SETTLED_ROWS`) had a label."""
        has_labels = self.learned or self.scored or self._refusals.n_refused
        if self._has_warned_of_labels or has_labels or self.unlabelled < SETTLED_ROWS:
            return
        self._has_warned_of_labels, done = True, "learned" if self._learns else "scored"
        warn(f"{self.source.name}: none of the first {self.rows:,} rows has a label, so nothing is {done}. {self._label_advice}")
