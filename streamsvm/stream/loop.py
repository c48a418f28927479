"""The learning loop: it predicts each row of a source, scores the prediction, learns the row, and writes checkpoints."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from river import base, compose

from streamsvm.core.warning import warn
from streamsvm.stream.checkpoint import Checkpoint, CheckpointError, check_has_model
from streamsvm.stream.continuation import adopt_parameters, check_same_weight, report_change
from streamsvm.stream.drift import DriftWatch
from streamsvm.stream.endpoints import KEEP_MODEL, Sink, Source
from streamsvm.stream.prediction import open_followed
from streamsvm.stream.progress import LearningCurve
from streamsvm.stream.resumable_run import LoopOptions
from streamsvm.stream.rows import (
    MAX_LABELS,
    LabelRules,
    ValidatingPipeline,
    describe_parameters,
    get_learned_labels,
    parse_target,
)
from streamsvm.stream.scores.score_set import split_metrics, without_window
from streamsvm.stream.stream_loop import Metric, StreamLoop
from streamsvm.stream.tables.chunk import Chunk
from streamsvm.stream.weights import check_accepts_weights


class LearningLoop(StreamLoop):
    """Learns a stream row by row, and scores each prediction before the row is learned (prequentially).

    If the model does not predict a row yet (None, or no probabilities), the row is learned but not scored, as in river's
    evaluate. If the source cannot read a row, or the model would refuse it, the whole row is refused before a learner or
    transformer of this library learns it, and ``on_error`` decides what happens next. A river transformer may remember a new name
    of a refused row, and has learned a part of the row if it fails at a text in a new column.

    A checkpoint is one file with the model, the metrics, and the positions of source and sink. A run that finds one in its
    folder continues from it, even after a kill, and ends with the same bytes as a run that was never interrupted. Only the
    digest of a file of dead letters may differ, because dead letters contain the time.

    A run that continues may have another sink, other dead letters, metrics, a window, fields, drift detection or delayed labels.
    Unchanged parts continue, metrics with their counts. New parts begin, and each change is logged as the event ``changed``.

    Parameters
    ----------
    source
        Source of the rows, such as a `CSVSource`, an `IterableSource` or a Kafka topic (`Source`).
    model
        River classifier, regressor or pipeline that has not learned yet. If there is a checkpoint to continue from, its model
        replaces this one, and gets those of its parameters that ``mutate`` can change; others must be the same. None keeps the
        model of the checkpoint unchanged.
    metric
        River metric that is a single number, for classifiers or regressors like the model, or its name. The default is accuracy
        or MAE. ``"ROCAUC"``, ``"AveragePrecision"``, ``"LogLoss"`` and ``"BrierScore"`` are metrics of this library: in bounded
        memory they are within .001 of scikit-learn's, where river's ROCAUC has 10 thresholds unless you give more. Of a list,
        the first metric is the score, and the others are in the ``scores`` of the progress; these may be
        ``"ConfusionMatrix"``, ``"ClassificationReport"``, ``"Calibration"`` and ``"Thresholds"``, too.
    positive
        Label that a binary metric (F1, ROCAUC, LogLoss) counts as positive; not needed for bools, 0 and 1, or -1 and 1.
    sink
        Sink for the predictions, such as a `FileSink`; None writes none. Checkpoints hold its position.
    checkpoints
        Store for checkpoints, such as a `CheckpointFolder`; None, the default, writes no checkpoints. Once a row was learned, one
        is written every ``checkpoint_every`` rows, and at the end. The start offsets of a topic are saved immediately, so that a
        loop that is killed before its first row skips no rows.
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
    passthrough
        Columns that are copied unchanged from each row into its prediction, so that you can join the two. A missing value is
        None. Predictions of a topic's rows also have ``partition`` and ``offset`` of the message, and ``within`` if messages have
        many rows.
    computed_fields
        Additional fields of predictions that the model computes, each a
        `streamsvm.stream.prediction_fields.ComputedFields`. Rows are then processed one by one.
    on_schema
        What happens when the columns of the stream have changed: a column is gone or new, or its values are of another kind, are
        missing, or have names that did not occur before, in far more rows than before. ``"warn"``, the default, logs one warning
        for each change. ``"stop"`` ends the run with a StreamError before the changed rows are processed, after a checkpoint.
    classes
        Labels that rows may have. None accepts any label of the type of the first one, and refuses labels of other types.
    drift
        `DriftWatch` that watches the errors of predictions; its state is in the checkpoints. None watches nothing.
    abstain
        Probability from 0 to 1 below which a label is not predicted, and not scored. 0, the default, predicts all.
    start_from
        Checkpoint, file, folder or URL of a model topic, which is only read. If ``checkpoints`` is empty, the run begins with its
        model, its scores and its counts of rows, and at the start of the source.
    flags
        Mapping of names to texts or numbers that checkpoints save in their header, such as flags of the command line.

    Attributes
    ----------
    model
        The model in its present state; another object if there was a checkpoint, or after a drift that has reset the model.
    curve : LearningCurve
        The scores at fewer than 200 rows of the stream. Checkpoints hold those of earlier runs.
    rows, learned : int
        Number of rows read and learned so far, as in `Progress`.

    Raises
    ------
    CheckpointError
        The checkpoint contradicts this run: its model is of another class or has other parameters that cannot change, or rows
        have another column of weights.
    StreamError
        The source or the sink cannot continue from the position in the checkpoint, or the label is another one. If the checkpoint
        is of another stream, set ``source.start`` to begin this one with its model.
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

    Another run begins with the model that a run has saved:

    >>> import tempfile
    >>> from streamsvm.stream import CheckpointFolder
    >>> with CheckpointFolder(tempfile.mkdtemp()) as folder:
    ...     _ = LearningLoop(IterableSource(datasets.Bananas()), model.clone(), checkpoints=folder).run(1000)
    >>> LearningLoop(IterableSource(datasets.Bananas()), None, start_from=folder.path).run(100).learned
    1100
    """

    _learns = _needs_labels = True
    _saves_unlearned = False

    def __init__(
        self,
        source: Source,
        model: base.Classifier | base.Regressor | compose.Pipeline | None,
        metric: Metric | Sequence[Metric] | None = None,
        *,
        sink: Sink | None = None,
        classes: Iterable[Hashable] | None = None,
        drift: DriftWatch | None = None,
        start_from: Path | str | Checkpoint | None = None,
        flags: Mapping[str, Any] | None = None,
        **options: Unpack[LoopOptions],
    ) -> None:
        checkpoints = options.get("checkpoints")
        newest = None if checkpoints is None else checkpoints.newest()
        saved = newest if newest is not None and not newest.is_start else None
        if saved is not None and checkpoints is not None:
            check_has_model(checkpoints.path, saved)
        start = None if saved is not None or start_from is None else _read_start(start_from)
        if keeps_model := model is None:
            if (continued := saved or start) is None:
                raise ValueError("model=None continues the model of a checkpoint, and there is none yet: give a model")
            model = continued.model
        super().__init__(source, model, metric, sink=sink, **options)
        last_step = self._pipeline.last_step
        if classes is not None and self._regression:
            raise ValueError(f"classes are declared, and {type(last_step).__name__} predicts numbers: leave them out")
        self._labels = LabelRules(classes)
        max_classes = getattr(last_step, "max_classes", math.inf)
        if self._labels.classes is not None and len(self._labels.classes) > max_classes:
            raise ValueError(f"{len(self._labels.classes)} classes are declared, and the model has max_classes={max_classes}")
        if drift is not None and self._pipeline.detects_anomalies:
            raise ValueError(f"drift is detected by errors, and a {type(last_step).__name__} learns without labels: leave it out")
        if drift is not None:
            drift.start(model, self._regression, source.name)
            self._uses_batches = self._uses_batches and not drift.resets_model  # after a drift, the next row is for a new model
        self.drift = drift
        if source.weight is not None:
            check_accepts_weights(model, source.weight)
        self._flags = flags
        #: The parameters of the model before its first row, as text; None to keep those of the checkpoint.
        self._parameters: str | None = None if keeps_model else describe_parameters(model)
        self._resume_or_start(newest, start)

    def _resume_run(self, folder: Path | str, checkpoint: Checkpoint, is_warm: bool = False) -> None:
        header, state = checkpoint.header, checkpoint.state
        self._parameters = adopt_parameters(folder, checkpoint, self._parameters, self.model)
        check_same_weight(folder, checkpoint, self.source.weight)
        if "metrics" in header or not is_warm:  # else it is only a model
            try:
                self._resume_counts(header)
                self._resume_drift(folder, header.get("drift"), state)
                if is_warm:  # then the rows that wait for their labels are of other streams
                    self._refusals.resume({**header["refused"], "dead_letters": None})
                else:
                    self._resume_delayed(folder, header.get("delayed"), state)
                curve, metrics = LearningCurve.from_state(header["curve"], self.rows), str(header["metrics"])
                self._labels.resume(header["labels"])
                self.schema.resume(state.get("schema", self.schema.state))
                scores = state["scores"]
            except (LookupError, TypeError, ValueError) as error:
                text = f"{folder}: its checkpoint was not written by a learning loop ({error})"
                raise CheckpointError(f"{text}. Give another folder, {KEEP_MODEL}") from None
            for text in self._scores.resume(scores, metrics):
                report_change(folder, "metrics", f"{text}, from row {self.rows:,} on", self.rows)
            if without_window(split_metrics(metrics)[0]) == without_window(repr(self._scores.first)):
                self.curve = curve
        elif not self._regression:
            self._labels.resume({"classes": None, "seen": get_learned_labels(checkpoint.model)})
        if self._scores.is_binary:  # the positive label may be new
            for y in sorted(self._labels.known_labels, key=lambda y: bool(y != self._scores.labels.positive)):
                self._check_positive_label(y)
        facts = {"parameters": self._parameters, "metrics": repr(self._scores), "flags": self._flags or None}
        self._has_changed = any(header.get(name) != fact for name, fact in facts.items())
        self._pipeline = ValidatingPipeline(checkpoint.model)

    def _resume_drift(self, folder: Path | str, saved: Any, state: Mapping[str, Any]) -> None:
        """Continue the drift detection of this loop from its ``saved`` state and the river detector in the ``state`` of a
        checkpoint in ``folder``. If the detector is new, another one or missing, report that. Raise a ValueError if it is
        corrupt.
        """
        now, earlier = self.drift and self.drift.description, saved and saved["description"]
        if now != earlier:
            text = f"drift is detected by {now or 'nothing'} from row {self.rows:,} on; until then by {earlier or 'nothing'}"
            report_change(folder, "drift", text, self.rows)
        elif self.drift is not None:
            self.drift.restore(saved, state["detector"])

    def _resume_delayed(self, folder: Path | str, counts: Any, state: Mapping[str, Any]) -> None:  # noqa: ARG002
        """Check the saved ``counts`` of labels from another stream in the checkpoint of ``folder``. This loop reads no such
        labels, so it reports it if ``counts`` is not None. A subclass that reads them continues from the counts and the saved
        ``state``.
        """
        if counts is not None:
            text = f"labels come with their rows from row {self.rows:,} on; the rows that waited for theirs are dropped"
            report_change(folder, "delayed labels", text, self.rows)

    def _make_row_learner(self) -> Callable[..., Any]:
        # A weight does not affect scores, so a row of weight 0 is scored, but not learned. All checks come before any learning.
        if not self._learns:
            return super()._make_row_learner()
        pipeline, model, scores, labels = self._pipeline, self.model, self._scores, self._labels
        check_row, timings, regression, drift = pipeline.check_row, self.timings, self._regression, self.drift
        learned_labels: set[Any] = set()  # labels that this model object has learned

        def learn(x: Any, y: Any, features: Any, predicted: Any, probabilities: Any, weight: float | None = None) -> Any:
            is_unchecked = is_new = False
            if regression:
                y = parse_target(y)
            else:
                try:
                    is_unchecked = y not in learned_labels
                except TypeError:
                    is_unchecked = True
                if is_unchecked:
                    is_new = labels.check_is_new(y)
                    if pipeline.check_new_label is not None:
                        pipeline.check_new_label(features, y)
            if check_row is not None:
                check_row(features, y)
            if scores.is_binary:
                self._check_positive_label(y)
            scores.update_keys([y], [predicted], pipeline.find_key_labels(features))
            if weight is None:
                model.learn_one(x, y)
            elif weight:
                model.learn_one(x, y, w=weight)
            scores.update(y, predicted, probabilities)
            if drift is not None:
                drift.update(y, predicted, self.rows)
            self.scored += 1
            if weight == 0.0:
                return y
            self.learned += 1
            if is_new:
                if not self._has_warned_of_labels and (text := labels.describe_late_label(y, self.learned - 1)):
                    self._has_warned_of_labels = True
                    warn(f"{self._current_place}: {text}")
                labels.add(y)
            if is_unchecked and len(learned_labels) < MAX_LABELS:
                learned_labels.add(y)
            if timings is not None:
                timings.observe_learning()
            return y

        return learn

    def _learn_without_label(self, x: Any, features: Any) -> bool:
        if self._pipeline.check_row is not None:
            self._pipeline.check_row(features, None)
        self.model.learn_one(x)
        if self.timings is not None:
            self.timings.observe_learning()
        return True

    def _knows_label(self, y: Any) -> bool:
        return y in self._labels.known_labels

    def _process_chunk(self, chunk: Chunk) -> None:
        self._set_column_order()
        super()._process_chunk(chunk)

    def _set_column_order(self) -> None:
        """Pass the source's column names to the model, so that its features have the same order. Nothing happens if the source
        has no columns, or the loop does not learn.
        """
        note_columns = getattr(self._pipeline.last_step, "note_columns", None)
        if note_columns is not None and self._learns and self.source.columns:
            note_columns(self.source.columns)

    def _process_row(self, chunk: Chunk, i: int) -> None:
        super()._process_row(chunk, i)
        if self.drift is not None and self.drift.is_reset_due:
            self.drift.is_reset_due = False
            self._pipeline = ValidatingPipeline(self.model.clone())
            if self._checkpoints is not None:
                self._checkpoints.check(self.model, None)  # so that it stores models of keys as the model before did
            self._set_column_order()
            self._process = self._make_row_processor()

    def _make_checkpoint_parts(self) -> tuple[Any, dict[str, Any], dict[str, Any]]:
        facts = {
            "labels": self._labels.state,
            "parameters": self._parameters,
            "metrics": repr(self._scores),
            "curve": self.curve.state,
            "scores": [report.saved for report in self._make_score_reports()],
        }
        facts |= {} if self.source.weight is None else {"weight": self.source.weight}
        facts |= {"flags": dict(self._flags)} if self._flags else {}
        state: dict[str, Any] = {"scores": self._scores.state, "schema": self.schema.state}
        if self.drift is not None:
            state |= {"detector": self.drift.detector}
            facts |= {"drift": self.drift.state}
        return self.model, state, facts


def _read_start(place: Path | str | Checkpoint) -> Checkpoint:
    """Read the checkpoint with whose model a run begins, from a file, a folder or the URL of a model topic. Raise a
    CheckpointError if it has no model.
    """
    if isinstance(place, Checkpoint):
        check_has_model(place.place, place)
        return copy.deepcopy(place)  # other runs may begin with it, too
    with contextlib.closing(open_followed(place)) as models:
        return models.read()
