"""The prediction loop: source, predict, sink, checkpoint; and the model of a process that keeps learning, which it may follow."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Unpack

from river import base, compose

from streamsvm.core.checks import checked_count
from streamsvm.core.warning import warn
from streamsvm.files.messages import shown
from streamsvm.stream.checkpoint import Checkpoint, CheckpointError, CheckpointFolder, check_says_rows, read_newest
from streamsvm.stream.endpoints import Prediction, Sink, Source, StreamError
from streamsvm.stream.logs import event
from streamsvm.stream.rows import (
    GuardedModel,
    LabelRules,
    RowError,
    checked_number,
    columns_of,
    gives_probabilities,
    learner_of,
    listed,
)
from streamsvm.stream.scores.base import ScoreReport
from streamsvm.stream.scores.several import Scores
from streamsvm.stream.stream_loop import LoopOptions, StreamLoop
from streamsvm.stream.tables.chunk import Chunk, Weighted
from streamsvm.stream.together import Together, takes_many
from streamsvm.stream.unfamiliar import Unfamiliar

logger: logging.Logger = logging.getLogger(__name__)


class FollowedModel(NamedTuple):
    """A model, and which one of the run that makes it."""

    model: Any
    version: int  # rows of the stream that it had seen


class Followed(Protocol):
    """The newest model of a place into which another process may write: a `FollowedFolder`, or a topic."""

    def newer(self) -> FollowedModel | None:
        """Return the newest model if it was not returned before, else None. It does not wait."""


class Follower:
    """Looks for newer models, with a pause after each look."""

    def __init__(self, trusted: bool, seconds: float) -> None:
        self._trusted, self._seconds = trusted, seconds
        self._due = 0.0
        self._stopping = threading.Event()

    def newer(self) -> FollowedModel | None:
        """Return the newest model if it was not returned before, else None. It does not wait.

        A checkpoint that cannot be read gives a warning, once, and the model before it stays in use.
        """
        now = time.monotonic()
        if now < self._due:
            return None
        self._due = now + self._seconds
        found = self._look_for_newest()
        return None if found is None else FollowedModel(found.model, found.header["rows"])

    def stop(self) -> None:
        """End a wait. You can call it from a signal handler or another thread."""
        self._stopping.set()

    def _look_for_newest(self) -> Checkpoint | None:
        """Return the newest checkpoint if it was not returned before and can be read."""
        raise NotImplementedError


class FollowedFolder(Follower):
    """The newest model of a folder of checkpoints, while another process writes to it.

    Pass it to a `PredictionLoop` as ``follow``, to predict with a model that is still learning.

    Parameters
    ----------
    path
        Path of the folder.
    trusted
        Whether models may hold classes and functions of your own, as in `streamsvm.load`.
    seconds
        Number of seconds between two looks into the folder.

    Examples
    --------
    >>> import tempfile
    >>> from streamsvm import BSGDClassifier
    >>> with CheckpointFolder(tempfile.mkdtemp()) as folder:
    ...     models = FollowedFolder(folder.path, seconds=0.0)
    ...     _ = folder.save(BSGDClassifier(), None, rows=10, position={})
    ...     print(models.newer().version, models.newer())
    ...     _ = folder.save(BSGDClassifier(), None, rows=20, position={})
    ...     print(models.newer().version)
    10 None
    20
    """

    def __init__(self, path: str | Path, trusted: bool = False, seconds: float = 1.0) -> None:
        super().__init__(trusted, seconds)
        self.path: Path = Path(path)
        self._seen: tuple[Any, ...] = ()

    def wait(self) -> Checkpoint | None:
        """Wait for a checkpoint, and return the newest one; None after `stop`."""
        if (found := self._look_for_newest()) is None:
            logger.warning("waiting for the first checkpoint in %s", self.path, extra=event("waiting"))
        while found is None and not self._stopping.wait(self._seconds):
            found = self._look_for_newest()
        return None if self._stopping.is_set() else found

    def changed(self) -> Checkpoint | None:
        """Return the newest checkpoint if it was not returned before; CheckpointError if it cannot be read, or has no model."""
        seen = CheckpointFolder.signature(self.path)
        if not seen or seen == self._seen:
            return None
        self._seen = seen
        found = read_newest(self.path, self._trusted)
        if found.is_beginning:
            return None
        check_says_rows(self.path, found)
        return found

    def _look_for_newest(self) -> Checkpoint | None:
        try:
            return self.changed()
        except CheckpointError as error:
            warn(f"{error}: the model before it stays")
            return None


@dataclass(frozen=True)
class Predicted:
    """The progress of a loop that predicts.

    Parameters
    ----------
    rows, predicted
        Number of rows read and predicted so far, including earlier runs.
    rows_per_second
        Rows per second since the last progress.
    seconds
        Seconds since this run began.
    ended, interrupted
        Whether this is the end of the run, and whether `PredictionLoop.stop` ended it.
    refused
        Number of refused rows, by kind of reason.
    unfamiliar
        What the rows of this run have that the model has not met: columns and names, as ``facts`` and ``sentences``.
    abstained
        Number of rows, including earlier runs, whose probability was too small for a prediction.
    scored, scores
        Number of rows of this run that had a label, and what each metric says of their predictions.
    """

    rows: int
    predicted: int
    rows_per_second: float
    seconds: float
    ended: bool = False
    interrupted: bool = False
    refused: Mapping[str, int] = field(default_factory=dict)
    unfamiliar: Unfamiliar = field(default_factory=lambda: Unfamiliar((), None))
    abstained: int = 0
    scored: int = 0
    scores: tuple[ScoreReport, ...] = ()


class PredictionLoop(StreamLoop[Predicted]):
    """Predicts a stream row by row, without learning.

    If the source cannot read a row, or the model cannot predict it, the row is refused, and ``on_error`` decides what happens
    next.

    A checkpoint holds the positions of source and sink, but no model. A run that finds one continues from there, with whatever
    model you give it.

    Parameters
    ----------
    source
        Source of the rows.
    model
        River classifier, regressor or pipeline.
    sink
        Sink for the predictions, such as a `FileSink`.
    follow
        Newer models, such as a `FollowedFolder`. Between two rows, the loop switches to the newest model, and every prediction
        has its version as ``model``. None keeps the model.
    version
        Version of ``model``, if there may be newer ones.
    abstain
        Probability from 0 to 1 below which a label is not predicted: ``y_pred`` is None then. 0, the default, predicts all.
    scores
        Metrics of the rows that have a label, which are in the progress; None does not look at labels.
    checkpoints
        Place for checkpoints; not the folder of the learning loop that made the model. None writes none.
    checkpoint_every, checkpoint_seconds, on_progress, on_error, error_limit, error_share, keep, answers
        As in `LearningLoop`; ``on_progress`` is called with a `Predicted`.

    Attributes
    ----------
    rows, predicted : int
        Number of rows read and predicted so far, as in `Predicted`.
    version : int
        Version of the present model.

    Raises
    ------
    CheckpointError
        The checkpoint is of a learning loop.
    StreamError
        The source or the sink cannot continue from the position in the checkpoint.
    ValueError
        A parameter is out of its range.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from streamsvm import BSGDClassifier
    >>> from streamsvm.stream import FileSink, IterableSource, PredictionLoop
    >>> model = BSGDClassifier(budget=10)
    >>> model.learn_one({"a": 1.0}, "yes")
    >>> path = pathlib.Path(tempfile.mkdtemp(), "predictions.csv")
    >>> with FileSink(path) as sink:
    ...     end = PredictionLoop(IterableSource([({"a": 2.0}, None)]), model, sink).run()
    >>> end.predicted, path.read_text().splitlines()[1].split(",")[:2]
    (1, ['0', 'yes'])
    """

    def __init__(
        self,
        source: Source,
        model: base.Classifier | base.Regressor | compose.Pipeline,
        sink: Sink,
        *,
        follow: Followed | None = None,
        version: int = 0,
        abstain: float = 0.0,
        scores: Scores | None = None,
        **options: Unpack[LoopOptions[Predicted]],
    ) -> None:
        self._follow = follow
        if follow is not None:
            self._fields = (*self._fields, "model")
        super().__init__(source, model, learns=False, sink=sink, abstain=abstain, **options)
        self.version: int = version
        self._use_model()
        if abstain and not self._asks:
            raise ValueError(f"abstain is a probability, and {type(self._guarded.last).__name__} gives none: leave it out")
        self._scores, self._labels = scores, LabelRules()
        self.predicted: int = 0
        self._scored = 0
        self._mismatch = ""
        self._looked = False
        self._begin_run()

    def _use_model(self) -> None:
        """Predict by the present model from now on."""
        last = self._guarded.last
        self._asks, self._known = gives_probabilities(last), getattr(learner_of(last), "feature_names", [])
        self._predict = self._row_predictor(self._asks)

    def _resume_run(self, folder: Path | str, found: Checkpoint) -> None:
        try:
            rows, predicted = (checked_count(key, found.header[key]) for key in ("rows", "predicted"))
            mismatch, abstained = found.header["mismatch"], checked_count("abstained", found.header.get("abstained", 0))
            if not rows >= predicted >= abstained or type(mismatch) is not str:
                raise ValueError(f"of {rows:,} rows {predicted:,} were predicted, with the mismatch {shown(mismatch)}")
        except (KeyError, ValueError) as error:
            raise CheckpointError(
                f"{folder}: its checkpoint was not written by a prediction loop ({error}): give another folder"
            ) from None
        self._go_on(folder, found)
        self.predicted, self._mismatch = predicted, mismatch
        self.abstained = abstained

    def _row_taker(self) -> Callable[[Any, Any], Prediction]:
        timings, following, scores, regression = self.timings, self._follow is not None, self._scores, self._regression

        def take(x: Any, y: Any) -> Prediction:
            self._follow_on()
            if not self._looked:
                self._warn_of_columns()
            seen, label, probabilities, probability = self._predict(x)
            if timings is not None:
                timings.predicted()
            if self._mismatch or not self.predicted:
                self._compare_features(seen)
            self.predicted += 1
            if self._abstain:
                label = self._label_if_sure(label, probability)
            y = y.y if type(y) is Weighted else y
            if scores is not None and (due := self._label_of(y)) is not None:
                self._scored += 1
                y = due if regression else y
                scores.update(due, scores.scored_of(label, probabilities))
            prediction = Prediction(row=self.rows, y_pred=label, y_true=y, probability=probability)
            if following:
                prediction["model"] = self.version
            return prediction

        return take

    def _take_all(self, chunk: Chunk) -> None:
        self._follow_on()
        super()._take_all(chunk)

    def _take_part(self, chunk: Chunk, first: int, end: int) -> int:
        return 0 if self._mismatch or not self.predicted else super()._take_part(chunk, first, end)

    def _take_together(self, rows: Together) -> dict[str, Sequence[Any]] | None:
        ys, n = rows.y, len(rows.y)
        scores = self._scores if any(y is not None for y in ys) else None
        wants_all = self._asks and scores is not None and bool(scores.wants_probabilities)
        if (answers := self._answers_together(rows, self._asks, wants_all)) is None:
            return None
        labels, probabilities, each = answers
        if scores is not None:
            due = [self._label_of(y) for y in ys]
            ys = [y if read is None else read for y, read in zip(ys, due, strict=True)] if self._regression else ys
            self._scored += n - due.count(None)
            scores.update_many(due, labels, each)
        self.predicted += n
        columns: dict[str, Sequence[Any]] = {"y_pred": labels, "y_true": ys, "probability": probabilities or [None] * n}
        return columns if self._follow is None else {**columns, "model": [self.version] * n}

    def _label_of(self, y: Any) -> Any:
        try:
            if y is None or self._regression:
                return None if y is None else checked_number(y)
            if self._labels.check(y):
                self._labels.add(y)
        except RowError:
            return None
        return y

    def _follow_on(self) -> None:
        if self._follow is not None and (newer := self._follow.newer()) is not None:
            try:
                guarded = GuardedModel(newer.model, learns=False)
            except ValueError as error:  # the place of the models is at fault, and not the row
                warn(
                    f"{self._row_place}: what came after {newer.version:,} rows cannot be used: {error}: "
                    "the model before it stays"
                )
                return
            self._guarded = guarded
            self.version = newer.version
            logger.info("predicting by the model after %d rows", newer.version, extra=event("model", version=newer.version))
            self._use_model()
            self._at_once = self._at_once and takes_many(guarded, learns=False)

    def _warn_of_columns(self) -> None:
        """Warn of columns that the model has learned and the table of the source does not have, as one with another name."""
        self._looked = True
        columns = self.source.columns
        learned = columns_of(self.model)
        missing = [name for name in learned if name not in columns] if columns else []
        if missing and len(missing) < len(learned):  # where all are missing, `_compare_features` says so
            label = self.source.position.get("label")
            others = [name for name in columns if name not in learned and name != label]
            more = f". The model does not know {listed(others, 5)}" if others else ""
            warn(
                f"{self.source.name} has no column {listed(missing, 5)}, which the model has learned: it counts as missing{more}"
            )

    def _compare_features(self, seen: Any) -> None:
        """Warn where the first row has none of the features that the model has learned."""
        known = self._known
        if not known or not seen or not set(known).isdisjoint(seen):
            self._mismatch = ""
            return
        self._mismatch = (
            f"the row has none of the features that the model knows (it has {listed(seen, 5)}; known are {listed(known, 5)})"
        )
        if not self.predicted:
            warn(f"{self._row_place}: {self._mismatch}")

    def _check_end(self) -> None:
        if self._mismatch:
            raise StreamError(
                f"{self._row_place}: to the end, {self._mismatch}: the predictions say nothing. Is it a model of these rows?"
            )

    def _checkpoint_contents(self) -> tuple[Any, Any, dict[str, Any]]:
        return (
            None,
            None,
            {
                "kind": "predictions",
                "predicted": self.predicted,
                "mismatch": self._mismatch,
                **({"abstained": self.abstained} if self._abstain else {}),
            },
        )

    def _progress_now(self, rows_per_second: float, seconds: float, ended: bool = False) -> Predicted:
        interrupted = ended and self._stopped
        scores = () if self._scores is None else self._scores.reports()
        facts = self.refused, self.unfamiliar, self.abstained, self._scored, scores
        return Predicted(self.rows, self.predicted, rows_per_second, seconds, ended, interrupted, *facts)
