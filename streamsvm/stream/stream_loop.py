"""The loop over the rows of a stream that learning and predicting share: refused rows, checkpoints, progress, the end."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from river import base

from streamsvm.core.checks import check_number, validate_count, validate_mapping
from streamsvm.core.warning import warn
from streamsvm.files.messages import short_repr
from streamsvm.files.river_metrics import metrics
from streamsvm.stream.batches import Batch, next_batch, supports_batches
from streamsvm.stream.checkpoint import Checkpoint, CheckpointError, Checkpoints
from streamsvm.stream.columns import ColumnMonitor
from streamsvm.stream.drift import DriftWatch
from streamsvm.stream.endpoints import START_AFRESH, Prediction, Sink, Source, StreamError
from streamsvm.stream.prediction_fields import (
    ComputedFields,
    PredictionExtension,
    abstain_below,
    check_same_fields,
    select_probabilities,
)
from streamsvm.stream.progress import LearningCurve, Progress, Timings
from streamsvm.stream.refusals import RefusedRowHandler
from streamsvm.stream.rows import (
    SETTLED_ROWS,
    LabelRules,
    RowError,
    ValidatingPipeline,
    classify_error,
    format_names,
    get_learned_columns,
    has_probabilities,
    parse_target,
)
from streamsvm.stream.scores.base import ProbabilityColumns, ScoreError
from streamsvm.stream.scores.score_set import ScoreSet
from streamsvm.stream.tables.chunk import MIN_ROWS_TOGETHER, BadRow, Chunk, WeightedLabel, process_rows
from streamsvm.stream.tables.table_parser import Names

#: A metric of river, or a name.
Metric = metrics.base.ClassificationMetric | metrics.base.RegressionMetric | str


class LoopOptions(TypedDict, total=False):
    """The arguments that all loops have, as `LearningLoop` describes them."""

    positive: Hashable
    window: int
    abstain: float
    checkpoints: Checkpoints | None
    checkpoint_every: int | None
    checkpoint_seconds: float | None
    on_progress: Callable[[Progress], None] | None
    on_error: str | Path | Sink
    error_limit: int | None
    error_share: float
    passthrough: Names
    computed_fields: Sequence[ComputedFields]


_PROGRESS_SECONDS = 0.25  # between two calls of `on_progress`
_ROWS_AT_ONCE = 1000  # the most that are taken together: a signal waits for them


_COUNTS = ("learned", "unlabelled", "empty", "abstained")  # that are saved, beside that of rows
_MOST_PROBABILITIES = 2**21  # of rows that are taken together
#: Rows before columns are said to have changed: at the end, and while rows come.
MIN_ROWS_COMPARED, _ROWS_COMPARED = 50, 100


class StreamLoop:
    """A run over a source that predicts and scores each row, can be stopped, and continues from its newest checkpoint.

    `LearningLoop` and `PredictionLoop` define how a row and its label are processed (`_make_row_learner`), the contents of a
    checkpoint (`_make_checkpoint_parts`), and how a run continues from it (`_resume_run`).
    """

    _fields: tuple[str, ...] = (
        "row",
        "y_pred",
        "y_true",
        "probability",
    )  # of predictions, without those of `PredictionExtension`
    _learns = False
    _needs_labels = False  # a row is refused if its label cannot be scored, and a run needs a label

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
        checkpoints: Checkpoints | None = None,
        checkpoint_every: int | None = 10_000,
        checkpoint_seconds: float | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        on_error: str | Path | Sink = "stop",
        error_limit: int | None = None,
        error_share: float = 0.5,
        passthrough: Names = (),
        computed_fields: Sequence[ComputedFields] = (),
    ) -> None:
        if checkpoint_every is not None and checkpoint_every < 1:
            raise ValueError(f"checkpoint_every must be at least 1, not {checkpoint_every}")
        if checkpoint_seconds is not None and not checkpoint_seconds > 0.0:
            raise ValueError(f"checkpoint_seconds must be above 0, not {checkpoint_seconds}")
        check_number("abstain", abstain, 0.0, inclusive=True, high=1.0)
        self._pipeline, self._abstain = ValidatingPipeline(model, self._learns), abstain
        last = self._pipeline.last_step
        self._regression = isinstance(last, base.Regressor)
        self._has_probabilities = not self._regression and has_probabilities(last)
        self._scores = ScoreSet(metric, window, positive, bool(getattr(model, "_multiclass", False)), self._regression)
        if not (self._regression or self._has_probabilities) and (wanting := self._scores.wants_probabilities):
            raise ValueError(f"{wanting} needs probabilities, which {type(last).__name__} does not give: try Accuracy or F1")
        if abstain and not self._has_probabilities:
            raise ValueError(f"abstain is a probability, and {type(last).__name__} gives none: leave it out")
        self.source: Source = source
        self.sink: Sink | None = sink
        self._extension = PredictionExtension(source, sink, passthrough, self._fields, computed_fields)
        #: The columns and names of rows, compared with those that the model has learned; of a model that learns, those after a
        #: checkpoint.
        self.columns: ColumnMonitor = ColumnMonitor(ignored=self._extension.field_names)
        if not self._learns:
            self.columns.compare_with(get_learned_columns(model), self._pipeline.encoder)
        self.curve: LearningCurve = LearningCurve(self._scores.first.name, window)
        if not self._needs_labels:  # readings of the metric would take a third of the time of predictions
            self.curve.every = sys.maxsize
        self.drift: DriftWatch | None = None
        self._labels = LabelRules()
        self.rows: int = 0
        self.learned: int = 0
        self.scored: int = 0
        self.unlabelled: int = 0
        self.empty: int = 0
        self.abstained: int = 0
        self._refusals = RefusedRowHandler(on_error, error_limit, error_share)
        self._refuse_circles(predictions=sink, checkpoints=checkpoints, refused=self._refusals.sink)
        self._checkpoints, self._every, self._on_progress = checkpoints, checkpoint_every or sys.maxsize, on_progress
        self._saved_rows = -1
        self._seconds, self._saved_at = checkpoint_seconds or math.inf, time.monotonic()
        #: The time after which a checkpoint must be written.
        self._longest = (None if checkpoints is None else checkpoints.max_seconds) or math.inf
        self._at_once = not (sink is not None and computed_fields) and supports_batches(self._pipeline, self._learns)
        self._stopped = False
        #: Where the times of rows are counted; None: nowhere.
        self.timings: Timings | None = None
        self._unusable = ""  # the reason why no further run is possible
        self._chunk: Chunk | None = None  # that was read last; None before the first
        self._index = 0  # of the row in the chunk
        self._has_read = self._warned = self._compared = False
        self._x: Any = {}  # the features of the row that was taken last by itself
        self._take: Callable[[Any, Any], Prediction | None] = lambda x, y: None  # noqa: ARG005 - until the run begins
        self._running = False

    @property
    def model(self) -> Any:
        """The model in its present state: another object once a checkpoint or a newer model has taken its place."""
        return self._pipeline.model

    @property
    def refused(self) -> Mapping[str, int]:
        """Number of refused rows, by kind of reason."""
        return dict(self._refusals.counts)

    @property
    def state(self) -> str:
        """``"new"``, ``"running"``, ``"failed"``, ``"stopped"`` or ``"ended"``, after which you can run the loop again."""
        if self._unusable:
            return self._unusable.removeprefix("has ").removeprefix("was ")
        return "running" if self._running else "ended" if self._has_read else "new"

    @property
    def saved_rows(self) -> int | None:
        """Number of rows at the newest checkpoint; None if there is none."""
        return None if self._saved_rows < 0 else self._saved_rows

    @property
    def progress(self) -> Progress:
        """The progress now, without rates and times. You can read it from another thread."""
        return self._progress_now(math.nan, math.nan)

    @property
    def metric(self) -> Any:
        """The metric over all rows."""
        return self._scores.first.metric

    @property
    def windowed(self) -> Any:
        """The metric over the last ``window`` rows."""
        return self._scores.first.windowed

    @property
    def _wants_probability(self) -> bool:
        """Whether the probability of each predicted label is needed."""
        return self._has_probabilities and (self.sink is not None or self._abstain > 0.0)

    def _make_row_predictor(self) -> Callable[[Any], tuple[Any, Any, Any, float | None]]:
        """Return the function that predicts a row: the row as the last step sees it, label, all probabilities, the label's.

        Probabilities are None unless scores need all of them, or predictions that of the label.
        """
        prepare, predictor = self._pipeline.prepare_row, self._pipeline.last_step
        add_row = self.columns.add_row if self.columns.compares else None
        wants_all = bool(self._scores.wants_probabilities)
        wants_probabilities = wants_all or self._wants_probability

        def predict(x: Any) -> tuple[Any, Any, Any, float | None]:
            if add_row is not None:
                add_row(x)
            seen = x if prepare is None else prepare(x)
            if not wants_probabilities:
                return seen, predictor.predict_one(seen), None, None
            probabilities = predictor.predict_proba_one(seen)
            label = predictor.predict_one(seen)
            probability = probabilities.get(label, max(probabilities.values(), default=None))
            return seen, label, probabilities if wants_all else None, probability

        return predict

    def _make_row_processor(self) -> Callable[[Any, Any], Prediction | None]:
        """Return the function that takes a row: its features and label; what it returns goes into the sink."""
        predict, learn = self._make_row_predictor(), self._make_row_learner()
        wanted, timings = self.sink is not None, self.timings

        def take(x: Any, y: Any) -> Prediction | None:
            seen, label, probabilities, probability = predict(x)
            abstains = probability is not None and probability < self._abstain
            label = None if abstains else label
            if timings is not None:
                timings.predicted()
            y, w = y if type(y) is WeightedLabel else (y, None)
            if y is None:
                self.unlabelled += 1
            else:
                y = learn(x, y, seen, label, probabilities, w)
            self.abstained += abstains
            if not x:
                self.empty += 1
            return Prediction(row=self.rows, y_pred=label, y_true=y, probability=probability) if wanted else None

        return take

    def _make_row_learner(self) -> Callable[..., Any]:
        """Return the function that scores the prediction of a row, and learns the row, if the loop does.

        It takes the row, its label, the row as the last step sees it, the predicted label, probabilities, and the weight of the
        row, if it has one. It returns the label, of a regression as a number.
        """
        update = self._scores.update

        def score(x: Any, y: Any, seen: Any, predicted: Any, probabilities: Any, w: float | None = None) -> Any:  # noqa: ARG001
            if (label := self._scored_label(y)) is None:
                self.unlabelled += 1
                return y
            update(label, predicted, probabilities)
            self.scored += 1
            return label

        return score

    def _scored_label(self, y: Any) -> Any:
        """Return a label as it is scored; None for no label, or for one that cannot be scored and is not needed."""
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
        if self._scores.binary:
            self._admit_label(y)
        if is_new:
            self._labels.add(y)
        return y

    def _scored_labels(self, ys: list[Any]) -> list[Any] | None:
        """Return labels as `_scored_label` does; None where a row has to be taken by itself."""
        try:
            labels = {y: self._scored_label(y) for y in dict.fromkeys(ys)}
            return [labels[y] for y in ys]
        except (RowError, TypeError):  # a TypeError of a label that cannot be hashed
            return None

    def _admit_label(self, y: Any) -> None:
        """Raise a StreamError where a score cannot count rows with that label."""
        try:
            self._scores.labels.check_label(y)
        except ScoreError as error:
            raise StreamError(f"{self._current_place}: {error}") from error

    def _predict_batch(self, rows: Batch) -> dict[str, Sequence[Any]] | None:
        """Predict, learn and score a batch, and return the predictions as columns, without the column ``row``.

        Return None, without any effect, if the rows must be processed one by one.
        """
        learns, n = self._learns, len(rows.y)
        scored = rows.y if learns else self._scored_labels(rows.y)
        if scored is None:
            return None
        n_labelled = n - scored.count(None)
        wants, wants_all = self._wants_probability, n_labelled > 0 and bool(self._scores.wants_probabilities)
        ys, weights = (rows.y, rows.weights) if learns else ([None] * n, None)
        predictions = self._pipeline.last_step.predict_then_learn(rows.X, rows.names, ys, "all" if wants_all else wants, weights)
        if predictions is None:
            return None
        labels, chances = predictions
        probabilities = chances if not wants_all else select_probabilities(chances, labels) if wants and chances else None
        if self._abstain:
            labels, unsure = abstain_below(labels, probabilities, self._abstain)
            self.abstained += unsure
        self.columns.add_table(rows.table, rows.start, rows.start + n)
        if learns:
            learned = n_labelled
            if weights is not None:
                learned = sum(y is not None and w > 0.0 for y, w in zip(ys, weights.tolist(), strict=True))
            self.learned += learned
        self.scored += n_labelled
        self.unlabelled += n - n_labelled
        self.empty += rows.n_empty
        self._score_many(scored, labels, chances if wants_all else None)
        y_true = scored if learns else [y if label is None else label for y, label in zip(rows.y, scored, strict=True)]
        return {"y_pred": labels, "y_true": y_true, "probability": probabilities or [None] * n}

    def _score_many(self, ys: list[Any], predicted: list[Any], probabilities: ProbabilityColumns | None) -> None:
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
        self._scores.flush_first()
        if (score := self._scores.first).has_rows:
            drifts = None if self.drift is None else self.drift.drifts
            self.curve.add(rows, score.value, score.windowed_value, self._scores.best_baseline, self._refusals.total, drifts)

    def _knows_label(self, y: Any) -> bool:  # noqa: ARG002
        """Whether a label is one that was learned before."""
        return True

    def _make_checkpoint_parts(self) -> tuple[Any, Any, dict[str, Any]]:
        """Return what a checkpoint holds: the model, the state of the run, and facts."""
        raise NotImplementedError

    @property
    def _delayed_counts(self) -> Mapping[str, int] | None:
        return None

    def _progress_now(self, rows_per_second: float, seconds: float, ended: bool = False) -> Progress:
        return Progress(
            rows=self.rows,
            model=self.model,
            learns=self._learns,
            learned=self.learned,
            scored=self.scored,
            unlabelled=self.unlabelled,
            empty=self.empty,
            refused=self.refused,
            abstained=self.abstained,
            window=self._scores.first.window,
            scores=self._scores.reports(),
            majority=self._scores.first.majority,
            columns=self.columns,
            delayed=self._delayed_counts,
            drifts=None if self.drift is None else self.drift.drifts,
            rows_per_second=rows_per_second,
            seconds=seconds,
            ended=ended,
            interrupted=ended and self._stopped,
        )

    @property
    def _is_worth_saving(self) -> bool:
        return True

    def _check_end(self) -> None:
        """Raise a StreamError where the stream has ended and the run was in vain."""
        if self._learns:  # other loops have `Progress.columns` at the end
            self._compare_columns(MIN_ROWS_COMPARED)
        if self.learned or not self._needs_labels or (self.scored and not self._learns):
            return
        if not self.rows:
            raise StreamError(f"{self.source.name} has no rows: there is nothing to {'learn' if self._learns else 'score'}")
        done = "learned" if self._learns else "scored"
        end = f"{self.source.name} ended, and none of its {self.rows:,} rows"
        if self.source.weight is not None and self.rows > self.unlabelled + self._refusals.total:
            raise StreamError(f"{end} was learned: those with a label have the weight 0, in column {self.source.weight!r}")
        if self.refused:
            counted = ", ".join(f"{kind} {count:,}" for kind, count in self.refused.items())
            raise StreamError(f"{end} was {done}: {self.unlabelled:,} had no label, and refused were {counted}")
        raise StreamError(
            f"{end} had a label: nothing was {done}. Is its name right? The last row had "
            f"{format_names(self._x, 10) or 'no features'}"
        )

    def _compare_columns(self, min_rows: int = _ROWS_COMPARED) -> None:
        """Warn, once and after some rows, if the columns are not those that the model has learned."""
        if self._compared or self.columns.rows < min_rows:
            return
        self._compared = True
        if (changes := self.columns.changes) and (self._learns or self.columns.gone):
            when = "since the checkpoint" if self._learns else "that the model has learned"
            warn(f"{self.source.name}: of the columns {when}, {changes}. This is said once")

    def _warn_of_labels(self) -> None:
        """Warn, once, if no row has had a label yet."""
        if self._warned or self.learned or self.scored or self._refusals.total or self.unlabelled < SETTLED_ROWS:
            return
        self._warned, done = True, "learned" if self._learns else "scored"
        warn(
            f"{self.source.name}: none of the first {self.rows:,} rows has a label, so nothing is {done}. Is its name right? "
            f"The last row had {format_names(self._x, 10) or 'no features'}"
        )

    def _refuse_circles(self, **places: object) -> None:
        """Raise a StreamError where the source would read what the run writes."""
        for what, place in places.items():
            if place is not None and self.source.reads_from(place):
                kind = "rows that were refused" if what == "refused" else what
                raise StreamError(
                    f"{self.source.name} is where {kind} would go, and this run would read them there: give another topic"
                )

    def _begin_run(self) -> None:
        """Go on from the newest checkpoint; without one, save where the source begins, if it would be elsewhere later."""
        if (checkpoints := self._checkpoints) is None:
            return
        checkpoint = checkpoints.newest()
        if checkpoint is not None and not checkpoint.is_start:
            self._resume_run(checkpoints.path, checkpoint)
            return
        checkpoints.check(*self._make_checkpoint_parts()[:2])
        if checkpoint is not None:
            self.source.seek(checkpoint.position(checkpoints.path))
        elif self.source.start_can_change:
            self._save_beginning(checkpoints)

    def _resume_run(self, folder: Path | str, checkpoint: Checkpoint) -> None:
        raise NotImplementedError

    def _save_beginning(self, checkpoints: Checkpoints) -> None:
        checkpoints.begin(_checked_position(self.source.name, "position", self.source.position))
        self.source.on_checkpoint()

    def _resume_counts(self, header: Mapping[str, Any]) -> None:
        """Continue the counts in the header of a checkpoint; raise an error if they are missing or invalid."""
        counts = {name: validate_count(name, header[name]) for name in ("rows", *_COUNTS)}
        if max(counts.values()) > counts["rows"]:
            raise ValueError(f"the counts {counts} have more than all rows")
        vars(self).update(counts)

    def _continue_at(self, folder: Path | str, checkpoint: Checkpoint) -> None:
        """Continue source, sink and refusals at their positions in a checkpoint; raise a CheckpointError if it has none."""
        header, saved = checkpoint.header, checkpoint.header.get("sink")
        if self.sink is not None and saved is None:
            raise CheckpointError(f"{folder} was written without a sink: leave it out, {START_AFRESH}")
        if self.sink is None and saved is not None:
            name = saved.get("name", "of another kind") if isinstance(saved, dict) else short_repr(saved)
            raise CheckpointError(f"{folder} was written with a sink of predictions, {name}: give it too, {START_AFRESH}")
        check_same_fields(folder, header, self._extension.field_names)
        try:
            self._refusals.resume(header["refused"])
            sink = None if saved is None else validate_mapping("sink", saved)
        except (LookupError, TypeError, ValueError) as error:
            raise CheckpointError(f"{folder}: the checkpoint is corrupt ({error}): give another folder") from None
        self.source.seek(checkpoint.position(folder))
        if self.sink is not None and sink is not None:  # last, for it drops the predictions after the checkpoint
            self.sink.seek(sink)
        self._saved_rows = self.rows

    def stop(self) -> None:
        """End the run after the current row, with a checkpoint. You can call it from a signal handler or another thread."""
        self._stopped = True
        self.source.stop()

    def run(self, max_rows: int | None = None) -> Progress:
        """Learn or predict until the stream ends or `stop` is called, and write a checkpoint at the end.

        Parameters
        ----------
        max_rows
            Number of rows after which to end; you can call `run` again to continue. None sets no limit.

        Returns
        -------
        Progress

        Raises
        ------
        StreamError
            The stream failed; a refused row ends the run (the message names its place); or the run was in vain, as no row had a
            label, or a feature that the model knows. The checkpoints stay as they were.
        CheckpointError
            A checkpoint cannot be written.
        ValueError
            ``max_rows`` is negative.
        RuntimeError
            An earlier run of this loop has failed or was stopped. A new loop continues from the checkpoint.
        """
        return self._run_guarded(max_rows, True)

    def run_step(self, max_rows: int) -> Progress:
        """Process up to so many rows, or those that are ready, without a checkpoint at the end; the next call continues."""
        return self._run_guarded(max_rows, False)

    def write_checkpoint(self, always: bool = False) -> None:
        """Write a checkpoint, if there is a place for it and rows have come since the last one.

        With ``always=True``, write it even if no row has come, because a source may have moved without giving a row.
        """
        if self._checkpoints is not None and (always or (self._saved_rows != self.rows and self._is_worth_saving)):
            self._save_checkpoint(self._checkpoints)

    def write_checkpoint_if_due(self) -> None:
        """Write a checkpoint if it is time for one: between two calls of `take`, while no rows come."""
        if self._checkpoints is None or self._saved_rows == self.rows or not self.rows:
            return
        late = time.monotonic() - self._saved_at
        if late >= self._longest or ((self.rows % self._every == 0 or late >= self._seconds) and self._is_worth_saving):
            self._save_checkpoint(self._checkpoints)

    def _run_guarded(self, max_rows: int | None, ends: bool) -> Progress:
        if self._unusable:
            raise RuntimeError(
                f"this loop {self._unusable}. Make a new source, sink and loop to continue from the newest checkpoint"
            )
        if max_rows is not None and max_rows < 0:
            raise ValueError(f"max_rows must be at least 0, not {max_rows}")
        try:
            self._running = True
            self._refusals.open()
            self._refuse_circles(refused=self._refusals.sink)
            progress = self._run_chunks(None if max_rows is None else self.rows + max_rows, ends)
        except BaseException:  # also Ctrl-C: the model may have learned half a row
            self._unusable = "has failed"
            raise
        finally:
            self._running = False
            self._refusals.close()
        if self._stopped:
            self._unusable = "was stopped"
        return progress

    def _run_chunks(self, last: int | None, ends: bool) -> Progress:
        self._take = self._make_row_processor()
        began = last_shown = last_scored = time.perf_counter()
        rows_shown = first_row = self.rows
        if not self._has_read:
            self._has_read, self._saved_at = True, time.monotonic()
        while not self._stopped and self.rows != last:
            # The first row by itself: it is slow, for it may have to be compiled for.
            if (chunk := self.source.read(1 if self.rows == first_row else self._most_together(last))) is None:
                if ends and not self._stopped:
                    self._check_end()
                break
            if len(chunk):
                self._chunk = chunk
                self._process_chunk(chunk)
                self._compare_columns()
                if self._needs_labels:
                    self._warn_of_labels()
            self.write_checkpoint_if_due()
            now = time.perf_counter()
            if now - last_scored >= _PROGRESS_SECONDS:
                self._scores.flush()
                last_scored = now
            if self._on_progress is not None:
                if rows_shown == first_row < self.rows:  # the first ones are slow
                    last_shown, rows_shown = now, self.rows
                elif now - last_shown >= _PROGRESS_SECONDS:
                    self._on_progress(self._progress_now((self.rows - rows_shown) / (now - last_shown), now - began))
                    last_shown, rows_shown = now, self.rows
        self._scores.flush()
        seconds = time.perf_counter() - began
        if not ends:
            return self.progress
        if self._checkpoints is not None and not self.rows:
            self._save_beginning(self._checkpoints)
        elif self._checkpoints is not None and self._saved_rows != self.rows:
            self._save_checkpoint(self._checkpoints)
        elif self.sink is not None:
            self.sink.flush()
        progress = self._progress_now((self.rows - rows_shown) / max(time.perf_counter() - last_shown, 1e-9), seconds, ended=True)
        if self._on_progress is not None:
            self._on_progress(progress)
        return progress

    def _most_together(self, last: int | None) -> int:
        """Return how many rows may be taken together, so that a checkpoint and the end come after the last of them."""
        most = _ROWS_AT_ONCE if last is None else min(last - self.rows, _ROWS_AT_ONCE)
        if self._scores.wants_probabilities:  # of all labels, which may be many
            most = min(most, max(_MOST_PROBABILITIES // max(len(getattr(self._pipeline.last_step, "labels", ())), 1), 1))
        return most if self._checkpoints is None else min(most, self._every - self.rows % self._every)

    def _process_chunk(self, chunk: Chunk) -> None:
        begin, n = 0, len(chunk)
        if self.timings is not None:  # which are those of single rows
            self._process_row(chunk, 0)
            begin = 1
        process_rows(
            begin, n, n, lambda first, end: self._process_batch(chunk, first, end), lambda i: self._process_row(chunk, i)
        )

    def _process_batch(self, chunk: Chunk, first: int, end: int) -> int:
        """Take rows at once, as many as can be from the first on; return how many, or -1 where a later one has to be left out."""
        if not self._at_once:
            return 0
        rows = next_batch(chunk, first, end, self._pipeline, self._learns, self._knows_label, self._regression)
        n = 0 if rows is None else len(rows.X)
        if rows is None or n < MIN_ROWS_TOGETHER:
            for i in range(first, first + n):
                self._process_row(chunk, i)
            return n
        try:
            further = self._extension.copy_columns(chunk, first, first + n)
            messages = self._extension.copy_messages(chunk, first, first + n)
        except RowError:
            return -1
        if (predictions := self._predict_batch(rows)) is None:
            return -1
        rows.update_encoder()
        if self.sink is not None:
            self.sink.write_many({"row": range(self.rows, self.rows + n), **predictions, **further}, messages)
        self.rows += n
        return n

    def _process_row(self, chunk: Chunk, i: int) -> None:
        row, self._index = chunk.row(i), i
        if type(row) is BadRow:
            self._refusals.add(self.rows, row[0], row[1], "malformed", row[2])
        else:
            x, y = row
            self._x = x
            if self.timings is not None:
                self.timings.began()
            try:
                further, messages = ({}, None) if self._extension.is_empty else self._extension.read_row(chunk, i, self.model, x)
                prediction = self._take(x, y)
            except (MemoryError, StreamError):
                raise
            except Exception as error:  # noqa: BLE001 - of the learner, or of any step before it
                kind, reason = classify_error(error, x, self._pipeline)
                raw = chunk.raw(i)
                self._refusals.add(self.rows, self._current_place, (x, y) if raw is None else raw, kind, reason)
            else:
                if self.sink is not None and prediction is not None:
                    record = {**prediction, **further}
                    if messages is None:
                        self.sink.write(record)
                    else:
                        self.sink.write_many({name: [value] for name, value in record.items()}, messages)
        self.rows += 1
        if self.rows % self.curve.every == 0:
            self._add_point(self.rows)

    @property
    def _current_place(self) -> str:
        return self.source.name if self._chunk is None else self._chunk.place(self._index)

    def _save_checkpoint(self, checkpoints: Checkpoints) -> None:
        self._scores.flush()
        model, state, facts = self._make_checkpoint_parts()
        if self._extension.field_names:
            facts["further_fields"] = self._extension.field_names
        checkpoints.save(
            model,
            state,
            rows=self.rows,
            **{name: getattr(self, name) for name in _COUNTS},
            refused=self._refusals.state,
            position=_checked_position(self.source.name, "position", self.source.position),
            sink=None if self.sink is None else _checked_position(self.sink.name, "flush()", self.sink.flush()),
            source=self.source.name,
            **facts,
        )
        self._saved_rows, self._saved_at = self.rows, time.monotonic()
        self.source.on_checkpoint()


def _checked_position(name: str, method: str, position: Any) -> dict[str, Any]:
    if not isinstance(position, Mapping):
        raise StreamError(f"{name}: its {method} must return its position as a mapping, not {position!r}")
    return dict(position)
