"""The base of all loops: a run over a source that writes checkpoints, can be stopped, and continues from its newest one."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from streamsvm.core.checks import validate_count, validate_mapping
from streamsvm.files.messages import short_repr
from streamsvm.stream.batches import read_batch_table
from streamsvm.stream.checkpoint import Checkpoint, CheckpointError, Checkpoints
from streamsvm.stream.continuation import describe_place, report_change, seek_or_begin
from streamsvm.stream.endpoints import KEEP_MODEL, Position, Sink, Source, StreamError
from streamsvm.stream.prediction_fields import ComputedFields, PredictionExtension
from streamsvm.stream.progress import Progress
from streamsvm.stream.refusals import RefusedRowHandler
from streamsvm.stream.rows import ValidatingPipeline
from streamsvm.stream.tables.chunk import MIN_BATCH_ROWS, Chunk
from streamsvm.stream.tables.schema_watch import SchemaWatch
from streamsvm.stream.tables.table_parser import Names

_PROGRESS_SECONDS = 0.25  # time between two calls of `on_progress`
_MAX_CHUNK_ROWS = 1000  # a signal waits until a chunk has been processed
_CHANGE_ADVICE = "The run stops after {:,} rows: fix the producer, or continue with --on-schema warn (on_schema='warn')"
_SAVED_COUNTS = ("learned", "unlabelled", "empty", "abstained")  # in the header of a checkpoint, beside ``rows``


class RunOptions(TypedDict, total=False):
    """The arguments of `ResumableRun` that loops pass on to it, as `LearningLoop` describes them."""

    checkpoints: Checkpoints | None
    checkpoint_every: int | None
    checkpoint_seconds: float | None
    on_progress: Callable[[Progress], None] | None
    on_schema: str


class LoopOptions(RunOptions, total=False):
    """The arguments that all loops have, as `LearningLoop` describes them."""

    positive: Hashable
    window: int
    abstain: float
    on_error: str | Path | Sink
    error_limit: int | None
    error_share: float
    passthrough: Names
    computed_fields: Sequence[ComputedFields]


class ResumableRun:
    """A run that reads a source chunk by chunk, and writes checkpoints at fixed numbers of rows, or after some time.

    A subclass defines how a chunk is processed (`_process_chunk`), the contents of a checkpoint (`_make_checkpoint_parts`), how
    a run continues from one (`_resume_run`), and its `Progress` (`_make_progress`).
    """

    _pipeline: ValidatingPipeline
    _uses_batches: bool
    _saves_unlearned = True  # whether there are results to save before a row was learned

    def __init__(
        self,
        source: Source,
        sink: Sink | None,
        extension: PredictionExtension,
        refusals: RefusedRowHandler,
        checkpoints: Checkpoints | None = None,
        checkpoint_every: int | None = 10_000,
        checkpoint_seconds: float | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        on_schema: str = "warn",
    ) -> None:
        if checkpoint_every is not None and checkpoint_every < 1:
            raise ValueError(f"checkpoint_every must be at least 1, not {checkpoint_every}")
        if checkpoint_seconds is not None and not checkpoint_seconds > 0.0:
            raise ValueError(f"checkpoint_seconds must be above 0, not {checkpoint_seconds}")
        self.source: Source = source
        self.sink: Sink | None = sink
        self.rows: int = 0
        self.learned: int = 0
        self.unlabelled: int = 0
        self.empty: int = 0
        self.abstained: int = 0
        self._extension, self._refusals = extension, refusals
        self._check_no_feedback(predictions=sink, checkpoints=checkpoints, refused=refusals.sink)
        self._checkpoints, self._checkpoint_every = checkpoints, checkpoint_every or sys.maxsize
        self._checkpoint_seconds = checkpoint_seconds or math.inf
        self._max_checkpoint_seconds = (None if checkpoints is None else checkpoints.max_seconds) or math.inf
        self._saved_rows, self._save_time = -1, time.monotonic()
        #: Unix time when this run has written its newest checkpoint, in seconds; None before the first one.
        self.saved_time: float | None = None
        self._has_changed = False  # whether the run has other parameters or metrics than the checkpoint that it continues
        self._dropped_sink: Mapping[str, Any] | None = None  # the position of a sink that this run does not have
        self._on_progress = on_progress
        self._stopped = self._running = self._has_started = False
        self._unusable_reason = ""  # "has failed" or "was stopped" if no further run is possible
        #: Detects changes of the schema.
        self.schema: SchemaWatch = SchemaWatch(on_schema)
        self._chunk: Chunk | None = None  # the current chunk
        self._row_index = 0  # index of the current row in the chunk

    @property
    def refused(self) -> Mapping[str, int]:
        """Number of rows that were refused so far, by the short name of the reason."""
        return dict(self._refusals.counts)

    @property
    def state(self) -> str:
        """The state of this run: ``"new"`` before it was started, ``"running"``, ``"ended"``, ``"failed"`` after an error, or
        ``"stopped"`` after `stop`. A run that has failed or was stopped cannot run again.
        """
        if self._unusable_reason:
            return self._unusable_reason.removeprefix("has ").removeprefix("was ")
        return "running" if self._running else "ended" if self._has_started else "new"

    @property
    def saved_rows(self) -> int | None:
        """Number of rows that had been read when the newest checkpoint was written; None before the first checkpoint."""
        return None if self._saved_rows < 0 else self._saved_rows

    @property
    def progress(self) -> Progress:
        """A snapshot of the counts and scores of this run, with NaN for its rate and duration. Other threads may read it."""
        return self._make_progress(math.nan, math.nan)

    def stop(self) -> None:
        """End the run after the current row, and write a checkpoint. It may be called from a signal handler or another thread."""
        self._stopped = True
        self.source.stop()

    def run(self, max_rows: int | None = None) -> Progress:
        """Learn or predict the rows of the stream until it ends, ``max_rows`` were processed, or `stop` is called. Then write a
        checkpoint, and return the final progress.

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
        return self._run_once(max_rows, True)

    def run_step(self, max_rows: int) -> Progress:
        """Process at most ``max_rows`` rows, and return the progress; the next call continues. Unlike `run`, do not write a
        checkpoint at the end.
        """
        return self._run_once(max_rows, False)

    def write_checkpoint(self, always: bool = False, position: Position | None = None) -> None:
        """Write a checkpoint now, if this run has a checkpoint store, has read rows since the last checkpoint, and has any
        results to save. With ``always=True``, write it even without new rows, for a source whose position has changed although it
        returned no rows. ``position`` is an earlier position of the source; None: its current one.
        """
        if self._checkpoints is not None and (
            always or (self._saved_rows != self.rows and (self.learned or self._saves_unlearned))
        ):
            self._save_checkpoint(self._checkpoints, position)

    def write_checkpoint_if_due(self) -> None:
        """Write a checkpoint if the interval in rows or seconds between checkpoints is over. Call it between calls of `run_step`
        when rows are rare.
        """
        if self._checkpoints is None or self._saved_rows == self.rows or not self.rows:
            return
        seconds = time.monotonic() - self._save_time
        is_due = self.rows % self._checkpoint_every == 0 or seconds >= self._checkpoint_seconds
        if seconds >= self._max_checkpoint_seconds or (is_due and (self.learned or self._saves_unlearned)):
            self._save_checkpoint(self._checkpoints)

    def close_sinks(self) -> None:
        """Close the sinks of predictions and of dead letters."""
        for sink in filter(None, (self.sink, self._refusals.sink)):
            sink.close()

    def _run_once(self, max_rows: int | None, is_final: bool) -> Progress:
        """Run until the stream ends or ``max_rows`` were processed, and return the progress. After an error or `stop`, this loop
        cannot run again. ``is_final`` is True if a checkpoint is written at the end.
        """
        if self._unusable_reason:
            raise RuntimeError(
                f"this loop {self._unusable_reason}. Make a new source, sink and loop, which continue from the checkpoint"
            )
        if max_rows is not None and max_rows < 0:
            raise ValueError(f"max_rows must be at least 0, not {max_rows}")
        try:
            self._running = True
            self._refusals.open(self.rows)
            self._check_no_feedback(refused=self._refusals.sink)
            progress = self._run_chunks(None if max_rows is None else self.rows + max_rows, is_final)
        except BaseException:  # also Ctrl-C: the model may have learned half a row
            self._unusable_reason = "has failed"
            raise
        finally:
            self._running = False
            self._refusals.close()
        if self._stopped:
            self._unusable_reason = "was stopped"
        return progress

    def _run_chunks(self, last_row: int | None, is_final: bool) -> Progress:
        """Read and process chunks of rows until the row count is ``last_row`` (None: unlimited) or the stream ends, and return
        the progress. Write checkpoints at the set interval and, if ``is_final``, one at the end.
        """
        self._prepare_run()
        start_time = progress_time = flush_time = time.perf_counter()
        progress_rows = first_row = flushed_rows = self.rows
        if not self._has_started:
            self._has_started, self._save_time = True, time.monotonic()
        while not self._stopped and self.rows != last_row:
            position, state = (self.source.position, self.schema.state) if self.schema.stops_run else (None, None)
            # Read the first row alone, because it may wait for the compiler, unless a later one may stop the run before it.
            n = 1 if self.rows == first_row and position is None else self._choose_chunk_rows(last_row)
            if (chunk := self.source.read(n)) is None:
                if is_final and not self._stopped:
                    self._check_end()
                break
            chunks, n_read = list[Chunk](), self.rows
            while chunk:
                chunks.append(chunk)
                table = read_batch_table(chunk, self._pipeline) if self._uses_batches and len(chunk) >= MIN_BATCH_ROWS else None
                change = self.schema.add_chunk(self.source, chunk, table, n_read, self._pipeline.table_encoder)
                n, n_read = n - len(chunk), n_read + len(chunk)
                if change and state is not None:
                    self.schema.resume({**state, "stop_row": n_read})
                    self.write_checkpoint(always=n_read != state["stop_row"], position=position)
                    raise StreamError(f"{change}. {_CHANGE_ADVICE.format(self.rows)}")
                # The rows before which a run was stopped are all checked again before the first one is processed.
                chunk = self.source.read(n) if n and n_read < self.schema.stop_row else None
            for chunk in chunks:
                self._chunk = chunk
                self._process_chunk(chunk)
                self._warn_after_chunk()
            if not chunks and flushed_rows != self.rows:  # while the source is silent, others can read the outputs of all rows
                flushed_rows = self.rows
                self._refusals.flush()
                if self.sink is not None:
                    self.sink.flush()
            self.write_checkpoint_if_due()
            now = time.perf_counter()
            if now - flush_time >= _PROGRESS_SECONDS:
                self._flush_scores()
                flush_time = now
            if self._on_progress is not None:
                if progress_rows == first_row < self.rows:  # the rate leaves out the first chunk, which is slow
                    progress_time, progress_rows = now, self.rows
                elif now - progress_time >= _PROGRESS_SECONDS:
                    self._on_progress(self._make_progress((self.rows - progress_rows) / (now - progress_time), now - start_time))
                    progress_time, progress_rows = now, self.rows
        self._flush_scores()
        seconds = time.perf_counter() - start_time
        if not is_final:
            return self.progress
        if self._checkpoints is not None and not self.rows:
            self._save_start(self._checkpoints)
        elif self._checkpoints is not None and (self._saved_rows != self.rows or self._has_changed):
            self._save_checkpoint(self._checkpoints)
        elif self.sink is not None:
            self.sink.flush()
        progress = self._make_progress((self.rows - first_row) / max(seconds, 1e-9), seconds, ended=True)
        if self._on_progress is not None:
            self._on_progress(progress)
        return progress

    def _choose_chunk_rows(self, last_row: int | None) -> int:
        """Return the maximum number of rows to read next, so that no chunk extends beyond the next checkpoint or beyond the row
        count ``last_row``, where the run ends (None: unlimited).
        """
        max_rows = self._max_batch_rows()
        if last_row is not None:
            max_rows = min(max_rows, last_row - self.rows)
        if self._checkpoints is not None:
            max_rows = min(max_rows, self._checkpoint_every - self.rows % self._checkpoint_every)
        return max_rows

    def _max_batch_rows(self) -> int:
        """Return the maximum number of rows to read and process together."""
        return _MAX_CHUNK_ROWS

    def _prepare_run(self) -> None:
        """Prepare this run before a call of `run` or `run_step` reads its first row. By default, do nothing."""

    def _process_chunk(self, chunk: Chunk) -> None:
        """Learn or predict all rows of ``chunk`` (rows read together), and add their number to `rows`."""
        raise NotImplementedError

    def _warn_after_chunk(self) -> None:
        """Warn, once, if the rows seem to be of another stream: they lack labels, or the columns of the model."""

    def _check_end(self) -> None:
        """Raise a StreamError if the stream has ended and the run has no result, for example because no row had a label."""

    def _flush_scores(self) -> None:
        """Update the metrics with the predictions that are still buffered."""

    def _make_progress(self, rows_per_second: float, seconds: float, ended: bool = False) -> Progress:
        """Return a snapshot of this run's counts and scores, with the given rate and duration. ``ended`` is True at the end of
        the run.
        """
        raise NotImplementedError

    @property
    def _current_place(self) -> str:
        """The source's name, and the line, offset or number of the current row in it, for messages."""
        return self.source.name if self._chunk is None else self._chunk.place(self._row_index)

    def _check_no_feedback(self, **outputs: object) -> None:
        """Raise a StreamError if the source reads from one of the ``outputs`` (sinks or a checkpoint store, by name), because the
        run would then read its own output.
        """
        for name, output in outputs.items():
            if output is not None and self.source.reads_from(output):
                contents = "rows that were refused" if name == "refused" else name
                raise StreamError(f"{self.source.name} is where {contents} would go, and this run reads it: give another topic")

    def _resume_or_start(self, newest: Checkpoint | None, start_from: Checkpoint | None = None) -> None:
        """Continue from ``newest``, the newest checkpoint of this run's store, if it has a model. Otherwise start a new run, with
        the model and the scores of ``start_from`` if it is not None. For a source such as a Kafka topic, whose first row may
        differ next time, or with ``start_from``, which may change, save a checkpoint before the first row.
        """
        checkpoints, source = self._checkpoints, self.source
        if checkpoints is not None and newest is not None and not newest.is_start:
            self._resume_run(checkpoints.path, newest)
            self._resume_streams(checkpoints.path, newest)
            # If the run has begun at ``source.start``, the next one must not begin there again.
            if source.start is not None and source.start_can_change and source.position != newest.get_position(checkpoints.path):
                self._save_checkpoint(checkpoints)
            return
        if start_from is not None:
            self._resume_run(start_from.place, start_from, is_warm=True)
        if checkpoints is None:
            return
        checkpoints.check(*self._make_checkpoint_parts()[:2])
        if newest is not None:
            seek_or_begin(source, newest.get_position(checkpoints.path), 0)
        if start_from is not None:
            self._save_checkpoint(checkpoints)
        elif newest is None and source.start_can_change:
            self._save_start(checkpoints)

    def _resume_run(self, folder: Path | str, checkpoint: Checkpoint, is_warm: bool = False) -> None:
        """Restore this run, except its streams, from ``checkpoint``; ``folder`` is its store's path, for messages. With
        ``is_warm``, it is of another run, or only a model. Raise a CheckpointError if it was written by another kind of run, or
        contradicts this one.
        """
        raise NotImplementedError

    def _save_start(self, checkpoints: Checkpoints) -> None:
        """Write a checkpoint that has only the source's current position, so that a later run begins there, too."""
        checkpoints.save_start(_validate_position(self.source.name, "position", self.source.position))
        self.source.on_checkpoint()

    def _resume_counts(self, header: Mapping[str, Any]) -> None:
        """Restore the row counts of this run from the ``header`` of a checkpoint. Raise an exception if one is missing or
        invalid.
        """
        counts = {name: validate_count(name, header[name]) for name in ("rows", *_SAVED_COUNTS)}
        if max(counts.values()) > counts["rows"]:
            raise ValueError(f"the counts {counts} have more than all rows")
        vars(self).update(counts)

    def _resume_streams(self, folder: Path | str, checkpoint: Checkpoint) -> None:
        """Move source, sink and dead-letter sink to their positions in ``checkpoint``, and report those that are new, changed or
        dropped. ``folder`` is its store's path, for messages. Raise a CheckpointError if it is corrupt, or a StreamError if a
        stream cannot continue.
        """
        header, sink, rows = checkpoint.header, self.sink, self.rows
        try:
            self._refusals.resume(header["refused"])
            saved = None if header["sink"] is None else dict(validate_mapping("sink", header["sink"]))
        except (LookupError, TypeError, ValueError) as error:
            raise CheckpointError(f"{folder}: the checkpoint is corrupt ({error}). Give another, {KEEP_MODEL}") from None
        was_dropped, fields, saved_fields = False, self._extension.field_names, header.get("further_fields", [])
        if saved is not None and "dropped" in saved:  # by an earlier run, which has reported it
            was_dropped, saved_fields = True, saved.pop("dropped")
        is_continued = sink is not None and saved is not None and sink.owns(saved)
        if sink is not None and is_continued and fields != saved_fields:
            text = f"rows from {rows:,} on have additional fields {short_repr(fields)}, and had {short_repr(saved_fields)}"
            if sink.has_header:
                raise StreamError(f"{sink.name}: {text}: name another file for them (--to FILE), or pass the same --passthrough")
            report_change(sink.name, "fields", text, rows)
        seek_or_begin(self.source, checkpoint.get_position(folder), rows)
        if sink is not None and saved is not None and is_continued:  # last, because it drops the predictions after the checkpoint
            sink.seek(saved)
        elif sink is not None:
            sink.begin(rows)
        if sink is None:
            is_changed = saved is not None and not was_dropped
        else:
            is_changed = was_dropped or not is_continued
        if is_changed:
            name, text = (folder, "not written") if sink is None else (sink.name, "written here")
            earlier = saved and f"; {'earlier ones are in' if was_dropped else 'until then they went to'} {describe_place(saved)}"
            report_change(name, "sink", f"predictions are {text} from row {rows:,} on{earlier or ''}", rows)
            self._has_changed = True
        self._has_changed |= self._refusals.state != header["refused"]
        self._dropped_sink = saved and {**saved, "dropped": saved_fields}
        self._saved_rows = rows

    def _make_checkpoint_parts(self) -> tuple[Any, Any, dict[str, Any]]:
        """Return the model, the state of the run (such as metrics), and additional header fields, to save in a checkpoint."""
        raise NotImplementedError

    def _save_checkpoint(self, checkpoints: Checkpoints, position: Position | None = None) -> None:
        """Write a checkpoint to the store ``checkpoints``: the model, the state of the run, and the positions of source, sink and
        dead-letter sink. ``position`` is an earlier position of the source; None: its current one.
        """
        self._flush_scores()
        model, state, facts = self._make_checkpoint_parts()
        if self._extension.field_names:
            facts["further_fields"] = self._extension.field_names
        checkpoints.save(
            model,
            state,
            rows=self.rows,
            **{name: getattr(self, name) for name in _SAVED_COUNTS},
            refused=self._refusals.state,
            position=_validate_position(self.source.name, "position", self.source.position if position is None else position),
            sink=self._dropped_sink if self.sink is None else _validate_position(self.sink.name, "flush()", self.sink.flush()),
            source=self.source.name,
            **facts,
        )
        self._saved_rows, self._save_time, self.saved_time = self.rows, time.monotonic(), time.time()
        if position is None:
            self.source.on_checkpoint()


def _validate_position(name: str, method: str, position: Any) -> dict[str, Any]:
    """Return the ``position`` that ``method`` of a user's source or sink has returned, as a dict. Raise a StreamError if it is
    not a mapping; ``name`` is the source or sink, for the message.
    """
    if not isinstance(position, Mapping):
        raise StreamError(f"{name}: its {method} must return its position as a mapping, not {position!r}")
    return dict(position)
