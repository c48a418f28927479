"""The prediction loop, and how it follows the newest model of another process that keeps learning."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Unpack

from river import base, compose

from streamsvm.core.warning import warn
from streamsvm.files.messages import short_repr
from streamsvm.stream.batches import Batch, supports_batches
from streamsvm.stream.checkpoint import Checkpoint, CheckpointError, SavedCheckpoint, list_history, read_model, read_newest
from streamsvm.stream.endpoints import Prediction, Sink, Source, StreamError
from streamsvm.stream.logs import event
from streamsvm.stream.open import open_models
from streamsvm.stream.resumable_run import LoopOptions
from streamsvm.stream.rows import ValidatingPipeline, get_learned_columns, get_learned_labels, has_probabilities
from streamsvm.stream.stream_loop import Metric, StreamLoop
from streamsvm.stream.tables.chunk import Chunk

logger: logging.Logger = logging.getLogger(__name__)
_KIND = "predictions"  # the kind of its checkpoints


class FollowedModel(NamedTuple):
    """A model of a run that keeps learning, with its version."""

    model: Any
    version: int  # number of rows that the run had read


class Followed(Protocol):
    """A checkpoint store that is watched for newer models of another process: a `FollowedFolder`, or a topic."""

    def read_newer(self) -> FollowedModel | None:
        """Return the newest model that another process has saved, and its version, without waiting; None if it was returned
        before. (It may be returned again; loops ignore it then.)
        """


class Follower:
    """The base of followed stores: it looks for newer models, with a pause of ``seconds`` after each look."""

    path: Path | str
    """The folder; or the topic and the name, in messages."""

    def __init__(self, trusted: bool, seconds: float) -> None:
        self._trusted, self._seconds = trusted, seconds
        self._next_look = 0.0
        self._stopping = threading.Event()

    def read_newer(self) -> FollowedModel | None:
        """Return the newest model of the followed checkpoint store and its version, without waiting. None if it was returned
        before, or if the previous check was too recent, because there is a minimum pause between two checks.

        If the newest checkpoint cannot be read, warn once, and return None: the previous model stays in use.
        """
        now = time.monotonic()
        if now < self._next_look:
            return None
        self._next_look = now + self._seconds
        checkpoint = self._read_if_changed()
        return None if checkpoint is None else FollowedModel(checkpoint.model, checkpoint.header["rows"])

    def close(self) -> None:
        """Close the connection to the followed store, if it has one."""

    def stop(self) -> None:
        """End a wait for the first checkpoint; it may be called from a signal handler or another thread."""
        self._stopping.set()

    def read_changed(self) -> Checkpoint | None:
        """Return the newest checkpoint of the followed store. None if an earlier call has returned it, or if the store has no
        checkpoint with a model yet. Raise a CheckpointError if the model cannot be loaded.
        """
        checkpoint = self._load_changed()
        if checkpoint is None or checkpoint.is_start:
            return None
        checkpoint.check_row_count(self.path)
        return checkpoint

    def _load_changed(self) -> Checkpoint | None:
        """Load the newest checkpoint of the followed store; None without one, or if an earlier call has returned it."""
        raise NotImplementedError

    def wait_for_first(self) -> Checkpoint | None:
        """Wait until the followed store has a checkpoint with a model, and return the newest one. None if `stop` was called
        meanwhile.
        """
        if (checkpoint := self._read_if_changed()) is None:
            logger.warning("waiting for the first checkpoint in %s", self.path, extra=event("waiting"))
        while checkpoint is None and not self._stopping.wait(self._seconds):
            checkpoint = self._read_if_changed()
        return None if self._stopping.is_set() else checkpoint

    def _read_if_changed(self) -> Checkpoint | None:
        """Return the newest checkpoint of the followed store; None if it was returned before or, with a warning, if it cannot be
        read.
        """
        try:
            return self.read_changed()
        except CheckpointError as error:
            warn(f"{error}: the earlier model stays")
            return None


class FollowedFolder(Follower):
    """Returns the newest model of a folder of checkpoints, while another process writes to the folder.

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
    >>> from streamsvm.stream import CheckpointFolder
    >>> with CheckpointFolder(tempfile.mkdtemp()) as folder:
    ...     models = FollowedFolder(folder.path, seconds=0.0)
    ...     _ = folder.save(BSGDClassifier(), None, rows=10, position={})
    ...     print(models.read_newer().version, models.read_newer())
    ...     _ = folder.save(BSGDClassifier(), None, rows=20, position={})
    ...     print(models.read_newer().version)
    10 None
    20
    """

    def __init__(self, path: str | Path, trusted: bool = False, seconds: float = 1.0) -> None:
        super().__init__(trusted, seconds)
        self.path: Path = Path(path)
        self._last_signature: tuple[Any, ...] = ()

    def read(self) -> Checkpoint:
        """Return the newest checkpoint of the followed folder, with the loaded model. The path may also be that of a file."""
        return read_model(self.path, self._trusted)

    def history(self) -> list[SavedCheckpoint]:
        """List the checkpoints in the followed folder, newest first; before them those that a rollback has set aside. The path
        may also be that of a checkpoint file.
        """
        return list_history(self.path)

    def _load_changed(self) -> Checkpoint | None:
        signature = next(((saved.name.name, *saved.state) for saved in self.history() if not saved.is_aside), ())
        if signature == self._last_signature:
            return None
        self._last_signature = signature
        return read_newest(self.path, self._trusted)


def open_followed(place: Path | str, trusted: bool = False) -> Any:
    """Open a reader of the newest model, and of earlier ones, in a checkpoint store: a `FollowedFolder` for a path (also of a
    model's file), or what `open_models` returns for a URL. Close it at the end.
    """
    return open_models(str(place), trusted=trusted) if "://" in str(place) else FollowedFolder(place, trusted)


class PredictionLoop(StreamLoop):
    """Predicts a stream row by row, without learning, and scores the predictions of rows that have a label.

    If the source cannot read a row, or the model cannot predict it, the row is refused, and ``on_error`` decides what happens
    next.

    A checkpoint holds the positions of source and sink, and the counts of columns, but no model. A run that finds one continues
    from there, with the model that you pass. It may have another sink, other fields or dead letters, as a `LearningLoop`.

    Parameters
    ----------
    source
        Source of the rows.
    model
        River classifier, regressor or pipeline.
    sink
        Sink for the predictions, such as a `FileSink`; None writes no predictions.
    metric
        Metric of the rows that have a label, or several, as in `LearningLoop`.
    follow
        Newer models, such as a `FollowedFolder`. Between two rows, the loop switches to the newest model, and every prediction
        has its version as ``model``. None keeps the model.
    version
        Version of ``model``, if there may be newer ones.
    needs_labels
        Whether a row is refused if its label cannot be scored, and a stream without labels is an error. By default, labels that
        cannot be scored count as missing.
    checkpoints
        Store for checkpoints; not the folder of the learning loop that has made the model. None writes no checkpoints.
    positive, window, abstain, passthrough, computed_fields
        As in `LearningLoop`.
    checkpoint_every, checkpoint_seconds, on_progress, on_error, error_limit, error_share
        As in `LearningLoop`.

    Attributes
    ----------
    rows, scored : int
        Number of rows read so far, and number of rows of this run that were scored, as in `Progress`.
    columns : ColumnMonitor
        The columns and names of rows, compared with those that the model has learned.
    version : int
        Version of the present model.

    Raises
    ------
    CheckpointError
        The checkpoint is of a learning loop.
    StreamError
        The source or the sink cannot continue from the position in the checkpoint.
    ValueError
        The metric is not a single number, or a parameter is out of its range.

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
        sink: Sink | None = None,
        metric: Metric | Sequence[Metric] | None = None,
        *,
        follow: Followed | None = None,
        version: int = 0,
        needs_labels: bool = False,
        **options: Unpack[LoopOptions],
    ) -> None:
        self._follow, self._needs_labels = follow, needs_labels
        if follow is not None:
            self._field_names = (*self._field_names, "model")
        super().__init__(source, model, metric, sink=sink, **options)
        self.version: int = version
        #: Unix time when this loop began to use its present model, in seconds.
        self.model_time: float = time.time()
        self._resume_or_start(None if (checkpoints := options.get("checkpoints")) is None else checkpoints.newest())

    def _resume_run(self, folder: Path | str, checkpoint: Checkpoint, is_warm: bool = False) -> None:  # noqa: ARG002
        try:
            if checkpoint.header["kind"] != _KIND:
                raise ValueError(f"its kind is {short_repr(checkpoint.header['kind'])}")
            self._resume_counts(checkpoint.header)
            self.columns.resume(checkpoint.state["columns"])
            self.schema.resume(checkpoint.state.get("schema", self.schema.state))
        except (LookupError, TypeError, ValueError) as error:
            text = f"{folder}: its checkpoint was not written by a prediction loop ({error}): give another folder"
            raise CheckpointError(text) from None

    def _make_row_processor(self) -> Callable[[Any, Any], Prediction | None]:
        process_row = super()._make_row_processor()

        def process(x: Any, y: Any) -> Prediction | None:
            prediction = process_row(x, y)
            if prediction is not None and self._follow is not None:
                prediction["model"] = self.version
            return prediction

        return process

    def _process_chunk(self, chunk: Chunk) -> None:
        self._switch_to_newer()
        super()._process_chunk(chunk)
        if not self._has_compared_columns and (mismatch := self.columns.mismatch):
            self._has_compared_columns = True
            warn(f"{self.source.name}: {mismatch}")

    def _process_row(self, chunk: Chunk, i: int) -> None:
        self._switch_to_newer()
        super()._process_row(chunk, i)

    def _predict_batch(self, batch: Batch) -> dict[str, Sequence[Any]] | None:
        columns = super()._predict_batch(batch)
        return columns if columns is None or self._follow is None else {**columns, "model": [self.version] * len(batch.y)}

    def _switch_to_newer(self) -> None:
        """Replace this loop's model by a newer one of the followed checkpoint store, if there is one. Warn and keep the model if
        the newer one cannot predict.
        """
        newer = None if self._follow is None else self._follow.read_newer()
        if newer is not None and newer.model is not self.model:
            try:
                pipeline = ValidatingPipeline(newer.model, learns=False)
            except ValueError as error:  # do not refuse the row because of an unusable model
                warn(f"{self._current_place}: unusable model after {newer.version:,} rows: {error}: the earlier model stays")
                return
            self._pipeline = pipeline
            self._has_probabilities = not self._regression and has_probabilities(pipeline.last_step)
            self.columns.compare_with(get_learned_columns(newer.model), pipeline.table_encoder, get_learned_labels(newer.model))
            self.version, self.model_time = newer.version, time.time()
            logger.info("predicting by the model after %d rows", newer.version, extra=event("model", version=newer.version))
            self._process = self._make_row_processor()
            self._uses_batches = self._uses_batches and supports_batches(pipeline, learns=False)

    def _check_end(self) -> None:
        super()._check_end()
        if mismatch := self.columns.mismatch:
            raise StreamError(f"{self.source.name}: to the end, {mismatch}: the predictions mean nothing. Is the model right?")

    def _make_checkpoint_parts(self) -> tuple[Any, Any, dict[str, Any]]:
        return None, {"columns": self.columns.state, "schema": self.schema.state}, {"kind": _KIND}
