"""The learning loop for rows with delayed labels from a second stream."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from river import base, compose

from streamsvm.core.warning import warn
from streamsvm.stream.checkpoint import Checkpoint, CheckpointError
from streamsvm.stream.continuation import report_change
from streamsvm.stream.delayed.buffer import DelayedLabels, ExpiredRow, PendingRow
from streamsvm.stream.delayed.events import ArrivedLabel, PendingLabel, pack_prediction, pack_row, unpack_prediction, unpack_row
from streamsvm.stream.drift import DriftWatch
from streamsvm.stream.endpoints import Prediction, Sink, Source, StreamError
from streamsvm.stream.loop import LearningLoop
from streamsvm.stream.resumable_run import LoopOptions
from streamsvm.stream.rows import classify_error
from streamsvm.stream.stream_loop import Metric


class LearningOptions(LoopOptions, total=False):
    """Keyword arguments of `LearningLoop`, beyond those of `LoopOptions`."""

    sink: Sink | None
    classes: Iterable[Hashable] | None
    drift: DriftWatch | None
    start_from: Path | str | Checkpoint | None
    flags: Mapping[str, Any] | None


class DelayedLearningLoop(LearningLoop):
    """Predicts each row when it comes, and learns it when its label comes from another stream.

    When a row comes, it is predicted, and its features and the prediction are stored. The prediction goes to the sink
    immediately, with its key; its label is None there, unless the label came first. When the label comes, that prediction is
    scored (there is no new one), and the stored features are learned with the label. `DelayedLabels` describes which rows wait
    and for how long, and what happens to rows whose label does not come, to labels without a row, and to duplicates.

    Checkpoints contain pending rows, early labels, the positions of both streams, and the counts. If the order of the streams is
    fixed (files, and topics with ``stop_at_end``), a run that was killed and resumed ends with the same bytes as one that was
    not. When both streams have ended, pending rows and early labels are left for the next run.

    A row that cannot be read or predicted is refused, and so is one that the model refuses to learn when its label comes. Its key
    is then settled, and the dead letter has the features and the label.

    Parameters
    ----------
    source
        Rows and labels: a `JoinedSource`.
    model, metric, **options
        As in `LearningLoop`. ``checkpoint_every``, ``max_rows``, and ``rows`` of the progress count the messages of both
        streams.
    delayed
        A new buffer of rows and labels.
    learns
        Whether rows are learned. False only scores the predictions of a trained model.

    Attributes
    ----------
    delayed : DelayedLabels
        The buffer. Its ``counts`` are also in the progress.

    Raises
    ------
    ValueError
        Expired rows become dead letters, but ``on_error`` does not name a file or topic for these.

    Examples
    --------
    >>> from river import datasets
    >>> from streamsvm import BSGDClassifier
    >>> from streamsvm.stream import DelayedLabels, DelayedLearningLoop, IterableSource, JoinedSource
    >>> pairs = list(datasets.Bananas().take(1000))
    >>> rows = IterableSource([({**x, "id": i, "t": float(i)}, None) for i, (x, _) in enumerate(pairs)])
    >>> labels = IterableSource([({"id": i, "t": i + 50.0}, y) for i, (_, y) in enumerate(pairs)])
    >>> source = JoinedSource(rows, labels, key="id", time="t")
    >>> loop = DelayedLearningLoop(source, BSGDClassifier(budget=50), delayed=DelayedLabels(max_age=60.0))
    >>> progress = loop.run()
    >>> progress.rows, progress.learned, progress.delayed["pending"]
    (2000, 1000, 0)
    """

    abstained: int
    empty: int
    _field_names = (*LearningLoop._field_names, "key")
    _saves_unlearned = True

    def __init__(
        self,
        source: Source,
        model: base.Classifier | base.Regressor | compose.Pipeline | None,
        metric: Metric | Sequence[Metric] | None = None,
        *,
        delayed: DelayedLabels,
        learns: bool = True,
        **options: Unpack[LearningOptions],
    ) -> None:
        if delayed.expired == "dead-letter" and options.get("on_error", "stop") in ("stop", "skip"):
            raise ValueError("expired='dead-letter' needs a file or topic for these: give on_error=PATH (--on-error PATH)")
        self.delayed: DelayedLabels = delayed
        self._learns = learns
        self._has_warned_of_expired = False
        super().__init__(source, model, metric, **options)
        if self._pipeline.detects_anomalies:
            raise ValueError(f"a {type(self._pipeline.last_step).__name__} learns without labels: use a LearningLoop")
        self.schema.ignored_label = ArrivedLabel

    def _make_row_processor(self) -> Callable[[Any, Any], Prediction | None]:
        self._predict, self._learn = self._make_row_predictor(), self._make_row_learner()
        return self._process_event

    def _process_event(self, x: Any, event: Any) -> Prediction | None:
        """Process one message of the joined streams. A row with the features ``x`` is predicted; a label is joined to its earlier
        row, which is then learned. ``event`` has the key and the time of the message, and its type tells which of the two it is.
        Returns the prediction of a row, or None.
        """
        if type(event) not in (PendingLabel, ArrivedLabel):
            raise StreamError(f"{self.source.name} is not joined with labels: make a JoinedSource of it and the stream of labels")
        delayed, prediction = self.delayed, None
        n_waiting, clock = delayed.n_waiting, delayed.clock
        for expired in delayed.expire(event.time):
            self._process_expired(expired)
        n_expired = n_waiting - delayed.n_waiting
        if n_expired >= _MIN_EXPIRED_TO_WARN and 2 * n_expired >= n_waiting and not self._has_warned_of_expired:
            self._warn_of_expired(n_expired, n_waiting, event.time - clock)
        if type(event) is PendingLabel:
            prediction = self._predict_row(x, event)
        elif (pending := delayed.add_label(*event)) is not None:
            place = f"{self._current_place}: the label of row {pending.number:,}, key {event.key!r}"
            self._learn_pending(pending, event.y, place)
        for expired in delayed.enforce_limits():
            self._process_expired(expired)
        return prediction

    def _predict_row(self, x: Any, event: PendingLabel) -> Prediction | None:
        """Predict a row with the features ``x``, and store it until its label comes; if the label came before, learn the row at
        once. ``event`` has the row's key and time. Returns the prediction; None if the loop has no sink, or if an earlier row has
        the same key.
        """
        delayed, key = self.delayed, event.key
        if delayed.has_key(key):
            delayed.count_duplicate_row()
            return None
        prepared, label, probabilities, probability = self._predict(x)
        if probability is not None and probability < self._abstain:
            self.abstained += 1
            label = None
        packed_prediction, y = pack_prediction(label, probabilities), None
        if self.timings is not None:
            self.timings.observe_prediction()
        early_label = delayed.get_early_label(key)
        if early_label is None:
            encoder = self._pipeline.table_encoder
            memory = "" if encoder is None or not (features := encoder.get_memory(x)) else pack_row(features)
            delayed.add_row(key, PendingRow(event.time, self.rows, event.packed, packed_prediction, memory))
        else:
            (y,) = early_label
            delayed.join_early_label(key, event.time)
            try:
                self._learn(x, y, prepared, label, probabilities)
            except Exception:
                delayed.count_refused()
                raise
        if not x:
            self.empty += 1
        if self.sink is None:
            return None
        return Prediction(row=self.rows, y_pred=label, y_true=y, probability=probability, key=key)

    def _learn_pending(self, pending: PendingRow, y: Any, place: str) -> None:
        """Score the stored prediction of a waiting row, and learn its stored features with the label ``y``. If the model raises
        an error, the row is counted as refused, and is skipped or written to the dead letters. ``place`` describes the message in
        errors.
        """
        x, prepare, encoder = unpack_row(pending.row), self._pipeline.prepare_row, self._pipeline.table_encoder
        try:
            if encoder is not None and pending.memory:  # not the labels since then, or the model would rely on them
                encoder.set_memory(x, unpack_row(pending.memory))
            self._learn(x, y, x if prepare is None else prepare(x), *unpack_prediction(pending.prediction))
        except (MemoryError, StreamError, CheckpointError):
            raise
        except Exception as error:  # noqa: BLE001 - any error of the learner or of a step before it
            self.delayed.count_refused()
            self._refusals.handle_row(self.rows, place, (x, y), *classify_error(error, x, self._pipeline))

    def _process_expired(self, expired: ExpiredRow) -> None:
        """Process a row whose label did not come in time. The buffer's parameter ``expired`` decides: the row is learned with the
        negative label, written to the dead letters, or only counted.
        """
        pending = expired.pending
        place = f"{self.source.name}: row {pending.number:,}, key {expired.key!r}"
        if self.delayed.expired == "negative":
            self._learn_pending(pending, self.delayed.negative, place)
        elif self.delayed.expired == "dead-letter":
            reason = f"no label came while it waited ({_EXPIRY_REASONS[expired.reason]})"
            row = {"key": expired.key, "x": unpack_row(pending.row)}
            self._refusals.write_dead_letter(pending.number, place, row, "expired", reason)

    def _warn_of_expired(self, n_expired: int, n_waiting: int, seconds: float) -> None:
        """Warn that a single message has expired ``n_expired`` of the ``n_waiting`` rows and labels at once. Its event time is
        ``seconds`` later than that of the message before it, so its clock may be wrong. Called only once per run.
        """
        self._has_warned_of_expired = True
        warn(
            f"{self._current_place}: the event time is {seconds:,.0f} s ahead of the message before, and {n_expired:,} of "
            f"{n_waiting:,} rows and labels that waited for each other have expired at once "
            f"(max_age={self.delayed.max_age:,.0f}). Is a clock wrong, or have the streams paused? Then max_age must be longer "
            "than the pause. This warning is not repeated"
        )

    def _check_end(self) -> None:
        """Check the finished run: raise StreamError if both streams were empty, and warn if no row was joined yet."""
        if not self.rows:
            raise StreamError(f"{self.source.name} have no rows: there is nothing to learn")
        counts = self.delayed.counts
        if counts["features"] and counts["labels"] and not counts["joined"]:
            rows, labels = f"{counts['features']:,} rows", f"{counts['labels']:,} labels"
            states = ", ".join(f"{counts[name]:,} {state}" for name, state in UNJOINED_STATES.items() if counts[name])
            hint = ". Is the key right? {!r} waits in the first row, {!r} in the first label".format(*self.delayed.example_keys)
            hint = hint if counts["pending"] and counts["early"] else ""
            warn(f"{self.source.name}: of {rows} and {labels}, none were joined so far: {states}{hint}")

    def _resume_delayed(self, folder: Path | str, counts: Any, state: Mapping[str, Any]) -> None:
        if counts is not None:
            self.delayed.restore(counts, state["waiting"])
        elif self.rows:
            report_change(folder, "delayed labels", f"labels come from another stream from row {self.rows:,} on", self.rows)

    def _make_checkpoint_parts(self) -> tuple[Any, dict[str, Any], dict[str, Any]]:
        model, parts, facts = super()._make_checkpoint_parts()
        return model, parts | {"waiting": self.delayed.serialise_entries()}, facts | {"delayed": self.delayed.state}


#: If one message expires at least this many rows and labels, and half of all that are waiting, a clock is probably wrong.
_MIN_EXPIRED_TO_WARN = 20
#: Descriptions of rows and labels that were not joined, by the name of their count.
UNJOINED_STATES: dict[str, str] = {
    "pending": "wait for a label",
    "early": "labels wait for a row",
    "expired_rows": "expired",
    "expired_labels": "labels without a row",
    "late_labels": "labels too late",
    "duplicate_rows": "duplicate rows",
    "duplicate_labels": "duplicate labels",
}
_EXPIRY_REASONS = {"age": "too long", "count": "too many rows are waiting", "bytes": "the waiting rows take too many bytes"}
