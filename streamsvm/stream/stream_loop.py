"""The loop over the rows of a stream that learning and predicting share: refused rows, checkpoints, progress, the end."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypedDict, TypeVar

from river import base

from streamsvm.core.checks import check_number, checked_mapping
from streamsvm.files.messages import shown
from streamsvm.stream.answers import ExtraFields, FurtherFields, check_kept, probabilities_of, without_unsure
from streamsvm.stream.checkpoint import Checkpoint, CheckpointError, Checkpoints
from streamsvm.stream.endpoints import START_AFRESH, Prediction, Sink, Source, StreamError
from streamsvm.stream.refusals import Refusals
from streamsvm.stream.rows import GuardedModel, RowError, columns_of, reason_of
from streamsvm.stream.scores.base import Columns
from streamsvm.stream.tables.chunk import MIN_ROWS_TOGETHER, BadRow, Chunk, take_rows
from streamsvm.stream.tables.reading import Names
from streamsvm.stream.timings import Timings
from streamsvm.stream.together import Together, takes_many, together
from streamsvm.stream.unfamiliar import Unfamiliar

P = TypeVar("P")


class LoopOptions(TypedDict, Generic[P], total=False):
    """The arguments that all loops have, as `LearningLoop` describes them."""

    checkpoints: Checkpoints | None
    checkpoint_every: int | None
    checkpoint_seconds: float | None
    on_progress: Callable[[P], None] | None
    on_error: str | Path | Sink
    error_limit: int | None
    error_share: float
    keep: Names
    answers: Sequence[ExtraFields]


_PROGRESS_SECONDS = 0.25  # between two calls of `on_progress`
_ROWS_AT_ONCE = 1000  # the most that are taken together: a signal waits for them


class StreamLoop(Generic[P]):
    """A run over a source, row by row, that can be stopped and continues from its newest checkpoint.

    `LearningLoop` and `PredictionLoop` are such. They say what becomes of a row (`_row_taker`), what a checkpoint holds
    (`_checkpoint_contents`), and what progress is (`_progress_now`).
    """

    _fields: tuple[str, ...] = ("row", "y_pred", "y_true", "probability")  # of predictions, without those of `FurtherFields`

    def __init__(
        self,
        source: Source,
        model: Any,
        *,
        learns: bool,
        sink: Sink | None,
        abstain: float,
        checkpoints: Checkpoints | None = None,
        checkpoint_every: int | None = 10_000,
        checkpoint_seconds: float | None = None,
        on_progress: Callable[[P], None] | None = None,
        on_error: str | Path | Sink = "stop",
        error_limit: int | None = None,
        error_share: float = 0.5,
        keep: Names = (),
        answers: Sequence[ExtraFields] = (),
    ) -> None:
        if checkpoint_every is not None and checkpoint_every < 1:
            raise ValueError(f"checkpoint_every must be at least 1, not {checkpoint_every}")
        if checkpoint_seconds is not None and not checkpoint_seconds > 0.0:
            raise ValueError(f"checkpoint_seconds must be above 0, not {checkpoint_seconds}")
        check_number("abstain", abstain, 0.0, inclusive=True, high=1.0)
        self._guarded, self._learns, self._abstain = GuardedModel(model, learns), learns, abstain
        self.source: Source = source
        self.sink: Sink | None = sink
        self._further = FurtherFields(source, sink, keep, self._fields, answers)
        #: What rows have that a model which does not learn has not met.
        self.unfamiliar: Unfamiliar = Unfamiliar(() if learns else columns_of(model), self._guarded.encoder, self._further.names)
        self.rows: int = 0
        self.abstained: int = 0
        self._refusals = Refusals(on_error, error_limit, error_share)
        self._refuse_circles(predictions=sink, checkpoints=checkpoints, refused=self._refusals.sink)
        self._checkpoints, self._every, self._on_progress = checkpoints, checkpoint_every or sys.maxsize, on_progress
        self._saved_rows = -1
        self._seconds, self._saved_at = checkpoint_seconds or math.inf, time.monotonic()
        #: The time after which a checkpoint must be written.
        self._longest = (None if checkpoints is None else checkpoints.longest_seconds) or math.inf
        self._at_once = not (sink is not None and answers) and takes_many(self._guarded, learns)
        self._regression = isinstance(self._guarded.last, base.Regressor)
        self._stopped = False
        #: Where the times of rows are counted; None: nowhere.
        self.timings: Timings | None = None
        self._unusable = ""  # the reason why no further run is possible
        self._chunk: Chunk | None = None  # that was read last; None before the first
        self._index = 0  # of the row in the chunk
        self._has_read = False
        self._x: Any = {}  # the features of the row that was taken last by itself
        self._take: Callable[[Any, Any], Prediction | None] = lambda x, y: None  # noqa: ARG005 - until the run begins
        self._running = False

    @property
    def model(self) -> Any:
        """The model in its present state: another object once a checkpoint or a newer model has taken its place."""
        return self._guarded.model

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
    def progress(self) -> P:
        """The progress now, without rates and times. You can read it from another thread."""
        return self._progress_now(math.nan, math.nan)

    def _row_predictor(self, asks: bool) -> Callable[[Any], tuple[Any, Any, Any, float | None]]:
        """Return the function that predicts a row: as the last step sees it, label; if it ``asks``, all probabilities and its."""
        prepare, predictor = self._guarded.prepare, self._guarded.last
        unfamiliar = None if self._learns else self.unfamiliar

        def predict(x: Any) -> tuple[Any, Any, Any, float | None]:
            if unfamiliar is not None:
                unfamiliar.add_row(x)
            seen = x if prepare is None else prepare(x)
            if not asks:
                return seen, predictor.predict_one(seen), None, None
            probabilities = predictor.predict_proba_one(seen)
            label = predictor.predict_one(seen)
            probability = probabilities.get(label, max(probabilities.values(), default=None))
            return seen, label, probabilities, probability

        return predict

    def _label_if_sure(self, label: Any, probability: float | None) -> Any:
        """Return a label, or None where the loop abstains, which is counted: for rows that count as predicted."""
        if probability is not None and probability < self._abstain:
            self.abstained += 1
            return None
        return label

    def _answers_together(
        self, rows: Together, wants: bool, wants_all: bool
    ) -> tuple[list[Any], list[float | None] | None, Columns | None] | None:
        """Predict rows at once, and learn those with a label, if the loop does; None where rows must be taken one by one.

        Returned are the labels, and as they are wanted their probabilities, and those of all labels.
        """
        ys, weights = (rows.y, rows.weights) if self._learns else ([None] * len(rows.y), None)
        answers = self._guarded.last.predict_then_learn(rows.X, rows.names, ys, "each" if wants_all else wants, weights)
        if answers is None:
            return None
        labels, found = answers
        probabilities = found if not wants_all else probabilities_of(found, labels) if wants and found else None
        if self._abstain:
            labels, unsure = without_unsure(labels, probabilities, self._abstain)
            self.abstained += unsure
        self.unfamiliar.add_table(rows.table, rows.first, rows.first + len(labels))
        return labels, probabilities, found if wants_all else None

    def _row_taker(self) -> Callable[[Any, Any], Prediction | None]:
        """Return the function that takes a row: its features and label; what it returns goes into the sink."""
        raise NotImplementedError

    def _take_together(self, rows: Together) -> dict[str, Sequence[Any]] | None:  # noqa: ARG002
        """Take rows at once, as `_row_taker` takes each. Return their predictions as columns, without the numbers of the rows.

        None, and nothing has happened, where rows must be taken one by one.
        """
        return None

    def _knows_label(self, y: Any) -> bool:  # noqa: ARG002
        """Whether a label is one that was learned before."""
        return True

    def _checkpoint_contents(self) -> tuple[Any, Any, dict[str, Any]]:
        """Return what a checkpoint holds: the model, the metric, and facts."""
        raise NotImplementedError

    def _progress_now(self, rows_per_second: float, seconds: float, ended: bool = False) -> P:
        raise NotImplementedError

    @property
    def _worth_saving(self) -> bool:
        return True

    def _check_end(self) -> None:
        """Raise a StreamError where the stream has ended and the run was in vain."""

    def _refuse_circles(self, **places: object) -> None:
        """Raise a StreamError where the source would read what the run writes."""
        for what, place in places.items():
            if place is not None and self.source.reads(place):
                kind = "rows that were refused" if what == "refused" else what
                raise StreamError(
                    f"{self.source.name} is where {kind} would go, and this run would read them there: give another topic"
                )

    def _begin_run(self) -> None:
        """Go on from the newest checkpoint; without one, save where the source begins, if it would be elsewhere later."""
        if (checkpoints := self._checkpoints) is None:
            return
        found = checkpoints.newest()
        if found is not None and not found.is_beginning:
            self._resume_run(checkpoints.path, found)
            return
        checkpoints.check(*self._checkpoint_contents()[:2])
        if found is not None:
            self.source.seek(found.position(checkpoints.path))
        elif self.source.begins_when_opened:
            self._save_beginning(checkpoints)

    def _resume_run(self, folder: Path | str, found: Checkpoint) -> None:
        raise NotImplementedError

    def _save_beginning(self, checkpoints: Checkpoints) -> None:
        checkpoints.begin(_checked_position(self.source.name, "position", self.source.position))
        self.source.saved()

    def _go_on(self, folder: Path | str, found: Checkpoint) -> None:
        """Continue source, sink and refusals where a checkpoint says; CheckpointError where it says nothing of them."""
        header, saved = found.header, found.header.get("sink")
        if self.sink is not None and saved is None:
            raise CheckpointError(f"{folder} was written without a sink: leave it out, {START_AFRESH}")
        if self.sink is None and saved is not None:
            name = saved.get("name", "of another kind") if isinstance(saved, dict) else shown(saved)
            raise CheckpointError(f"{folder} was written with a sink of predictions, {name}: give it too, {START_AFRESH}")
        check_kept(folder, header, self._further.names)
        try:
            self._refusals.resume(header["refused"])
            sink = None if saved is None else checked_mapping("sink", saved)
        except (LookupError, TypeError, ValueError) as error:
            raise CheckpointError(f"{folder}: the checkpoint is corrupt ({error}): give another folder") from None
        self.source.seek(found.position(folder))
        if self.sink is not None and sink is not None:  # last, for it drops the predictions after the checkpoint
            self.sink.seek(sink)
        self.rows = self._saved_rows = header["rows"]

    def stop(self) -> None:
        """End the run after the current row, with a checkpoint. You can call it from a signal handler or another thread."""
        self._stopped = True
        self.source.stop()

    def run(self, max_rows: int | None = None) -> P:
        """Learn or predict until the stream ends or `stop` is called, and write a checkpoint at the end.

        Parameters
        ----------
        max_rows
            Number of rows after which to end; you can call `run` again to continue. None sets no limit.

        Returns
        -------
        Progress or Predicted

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

    def take(self, rows: int) -> P:
        """Process up to so many rows, or those that are ready, without a checkpoint at the end; the next call continues."""
        return self._run_guarded(rows, False)

    def checkpoint(self, always: bool = False) -> None:
        """Write a checkpoint, if there is a place for it and rows have come since the last one.

        With ``always=True``, write it even if no row has come, because a source may have moved without giving a row.
        """
        if self._checkpoints is not None and (always or (self._saved_rows != self.rows and self._worth_saving)):
            self._save_checkpoint(self._checkpoints)

    def checkpoint_if_due(self) -> None:
        """Write a checkpoint if it is time for one: between two calls of `take`, while no rows come."""
        if self._checkpoints is None or self._saved_rows == self.rows or not self.rows:
            return
        late = time.monotonic() - self._saved_at
        if late >= self._longest or ((self.rows % self._every == 0 or late >= self._seconds) and self._worth_saving):
            self._save_checkpoint(self._checkpoints)

    def _run_guarded(self, max_rows: int | None, ends: bool) -> P:
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

    def _run_chunks(self, last: int | None, ends: bool) -> P:
        self._take = self._row_taker()
        began = last_shown = time.perf_counter()
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
                self._take_all(chunk)
            self.checkpoint_if_due()
            if self._on_progress is not None:
                now = time.perf_counter()
                if rows_shown == first_row < self.rows:  # the first ones are slow
                    last_shown, rows_shown = now, self.rows
                elif now - last_shown >= _PROGRESS_SECONDS:
                    self._on_progress(self._progress_now((self.rows - rows_shown) / (now - last_shown), now - began))
                    last_shown, rows_shown = now, self.rows
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
        return most if self._checkpoints is None else min(most, self._every - self.rows % self._every)

    def _take_all(self, chunk: Chunk) -> None:
        begin, n = 0, len(chunk)
        if self.timings is not None:  # which are those of single rows
            self._take_one(chunk, 0)
            begin = 1
        take_rows(begin, n, n, lambda first, end: self._take_part(chunk, first, end), lambda i: self._take_one(chunk, i))

    def _take_part(self, chunk: Chunk, first: int, end: int) -> int:
        """Take rows at once, as many as can be from the first on; return how many, or -1 where a later one has to be left out."""
        if not self._at_once:
            return 0
        rows = together(chunk, first, end, self._guarded, self._learns, self._knows_label, self._regression)
        n = 0 if rows is None else len(rows.X)
        if rows is None or n < MIN_ROWS_TOGETHER:
            for i in range(first, first + n):
                self._take_one(chunk, i)
            return n
        try:
            further = self._further.columns(chunk, first, first + n)
            messages = self._further.messages(chunk, first, first + n)
        except RowError:
            return -1
        if (predictions := self._take_together(rows)) is None:
            return -1
        rows.learn()
        if self.sink is not None:
            self.sink.write_many({"row": range(self.rows, self.rows + n), **predictions, **further}, messages)
        self.rows += n
        return n

    def _take_one(self, chunk: Chunk, i: int) -> None:
        row, self._index = chunk.row(i), i
        if type(row) is BadRow:
            self._refusals.add(self.rows, row[0], row[1], "malformed", row[2])
        else:
            x, y = row
            self._x = x
            if self.timings is not None:
                self.timings.began()
            try:
                further = self._further.of_row(chunk, i, self.model, x)
                messages = self._further.messages(chunk, i, i + 1)
                prediction = self._take(x, y)
            except (MemoryError, StreamError):
                raise
            except Exception as error:  # noqa: BLE001 - of the learner, or of any step before it
                kind, reason = reason_of(error, x, self._guarded)
                raw = chunk.raw(i)
                self._refusals.add(self.rows, self._row_place, (x, y) if raw is None else raw, kind, reason)
            else:
                if self.sink is not None and prediction is not None:
                    record = {**prediction, **further}
                    if messages is None:
                        self.sink.write(record)
                    else:
                        self.sink.write_many({name: [value] for name, value in record.items()}, messages)
        self.rows += 1

    @property
    def _row_place(self) -> str:
        return self.source.name if self._chunk is None else self._chunk.place(self._index)

    def _save_checkpoint(self, checkpoints: Checkpoints) -> None:
        model, metric, facts = self._checkpoint_contents()
        if self._further.names:
            facts["kept"] = self._further.names
        checkpoints.save(
            model,
            metric,
            rows=self.rows,
            refused=self._refusals.state,
            position=_checked_position(self.source.name, "position", self.source.position),
            sink=None if self.sink is None else _checked_position(self.sink.name, "flush()", self.sink.flush()),
            source=self.source.name,
            **facts,
        )
        self._saved_rows, self._saved_at = self.rows, time.monotonic()
        self.source.saved()


def _checked_position(name: str, method: str, position: Any) -> dict[str, Any]:
    if not isinstance(position, Mapping):
        raise StreamError(f"{name}: its {method} must return its position as a mapping, not {position!r}")
    return dict(position)
