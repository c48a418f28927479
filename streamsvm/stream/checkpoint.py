"""Checkpoints: one file, written atomically, with the model, the state of the run and the position of the stream.

The format is that of `streamsvm.files`. A file holds nothing of the run itself (no time, no host), so runs that learned the
same rows write the same bytes.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, overload

from streamsvm.core.checks import validate_count, validate_mapping
from streamsvm.core.warning import warn
from streamsvm.files.container import CorruptFileError, ModelFileError, read_file, unpack_container
from streamsvm.files.locks import try_lock
from streamsvm.files.model_file import is_model, read_metadata, read_parts, serialize_parts, sync_folder, write_file
from streamsvm.stream.endpoints import Closeable, Sink
from streamsvm.stream.logs import log_checkpoint

logger: logging.Logger = logging.getLogger(__name__)
Model = TypeVar("Model")
_SUFFIX = ".ckpt"
_LOCK = ".lock"
_NAME = re.compile(rf"checkpoint-(\d{{12,}}){re.escape(_SUFFIX)}")
_BEGINNING = "beginning"  # the kind of a checkpoint that has no model
_GO_BACK = "Remove it to continue from the checkpoint before it, if the folder has one"


class CheckpointError(ModelFileError):
    """A checkpoint cannot be read or written, or belongs to another run.

    The message names the file, and says what to do.
    """


class FolderLockedError(CheckpointError):
    """Another process is writing to a folder."""


class TakenOverError(CheckpointError):
    """Another process has taken the place of the checkpoints over: nothing is written to it any more."""


class Checkpoint(NamedTuple):
    """The contents of a checkpoint file."""

    model: Any
    state: Any
    """The state of the run, beside the model: ``scores``, ``detector`` of drift, ``columns``, ``waiting`` rows."""
    header: dict[str, Any]
    """Facts about the run. In a file of a loop: rows, learned, unlabelled, empty, abstained, refused, position, sink, source,
    versions, digest; of the learning loop also labels, parameters, metrics, scores, curve, weight and drift; with labels from
    another stream, also delayed.
    """

    @property
    def is_start(self) -> bool:
        """Whether it says where a run begins, and no more: the run had not read a row."""
        return self.header.get("kind") == _BEGINNING

    def get_position(self, place: Path | str) -> dict[str, Any]:
        """Return where the next row is; CheckpointError, with the place of the checkpoint, where it does not say so."""
        try:
            return dict(validate_mapping("position", self.header.get("position")))
        except ValueError as error:
            raise CheckpointError(f"{place}: the checkpoint is corrupt ({error}): give another folder") from None


class CorruptCheckpointError(CheckpointError):
    """A checkpoint is not as it was written."""


class Checkpoints(Closeable):
    """The place of a run's checkpoints, into which one process at a time writes: the base of a folder, and of a topic."""

    path: Path | str
    """The place, in messages."""
    group: str | None = None
    """The group whose offsets are committed with checkpoints; None if no offsets are."""
    _trusted: bool
    _trusting: str  # how classes of the user's own are trusted, in messages

    @property
    def max_seconds(self) -> float | None:
        """Within which time after a checkpoint the next one must be written; None if it may be any."""
        return None

    def try_open_sink(self, url: str, options: Mapping[str, Any] | None = None) -> Sink | None:  # noqa: ARG002
        """Open a sink whose records count from the next checkpoint on; None if that of a URL is none of these."""
        return None

    def save(self, model: Any, state: Any, *, rows: int, position: Mapping[str, Any], **facts: Any) -> Any:
        """Write a checkpoint wholly or not at all; CheckpointError if it cannot be written."""
        raise NotImplementedError

    def save_start(self, position: Mapping[str, Any]) -> None:
        """Save where a run begins, before it has read a row. A run that is started again begins there, with any model."""
        self.save(None, None, rows=0, position=position, kind=_BEGINNING)

    def newest(self) -> Checkpoint | None:
        """Read the newest good checkpoint; None if there is none."""
        raise NotImplementedError

    def check(self, model: Any, state: Any) -> None:
        """Raise a CheckpointError if no checkpoint can hold this model and state. Nothing is written."""
        try:
            self._checkpoint_bytes(model, state, {}, 0, {})
        except ModelFileError as error:
            raise CheckpointError(f"{self.path}: no checkpoint can hold this model: {error}") from error

    def _checkpoint_bytes(
        self, model: Any, state: Any, facts: Mapping[str, Any], rows: int, position: Mapping[str, Any]
    ) -> bytes:
        """Return the bytes of a checkpoint; ModelFileError where none can hold the model."""
        facts = {"kind": "checkpoint", **facts, "rows": rows, "position": dict(position)}
        try:
            return serialize_parts({"model": model, "state": state}, facts, self._trusted)
        except ModelFileError as error:
            if str(error).endswith("trusted=True"):
                raise ModelFileError(f"{error}: {self._trusting}, or --trusted") from error
            raise


def parse_checkpoint(data: bytes, place: str, trusted: bool = False) -> Checkpoint:
    """Read the bytes of a checkpoint that are not in a file, but in a ``place``; as `read`."""
    return _read_checkpoint(place, trusted, data)


def _read_checkpoint(path: Path | str, trusted: bool | None = None, data: bytes | None = None) -> Checkpoint:
    # Without model and state where it is not said whether they are trusted.
    try:
        container = unpack_container(read_file(Path(path)) if data is None else data)
        header, parts = read_metadata(container), {} if trusted is None else read_parts(container, trusted)
        return Checkpoint(parts.get("model"), parts.get("state"), header)
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}") from error
    except CorruptFileError as error:
        go_back = f". {_GO_BACK}" if isinstance(path, Path) and _NAME.fullmatch(path.name) else ""
        raise CorruptCheckpointError(f"{path} is corrupt: {error}{go_back}") from error
    except ModelFileError as error:
        raise CheckpointError(f"{path} cannot be loaded: {error}") from error


def read_header(path: str | Path) -> dict[str, Any]:
    """Read the header of a file without making its model."""
    return _read_checkpoint(Path(path)).header


def read(path: str | Path, trusted: bool = False) -> Checkpoint:
    """Read a file: a checkpoint, or a model that was saved.

    A CheckpointError says that it is corrupt, of a newer version, or names classes that are not of streamsvm or river and is not
    ``trusted``.
    """
    return _read_checkpoint(Path(path), trusted)


@overload
def load(path: str | Path, trusted: bool = False, *, kind: type[Model]) -> Model: ...
@overload
def load(path: str | Path, trusted: bool = False) -> Any: ...
def load(path: str | Path, trusted: bool = False, *, kind: type[Model] | None = None) -> Any:
    """Load a saved model, or the model of a checkpoint.

    Parameters
    ----------
    path
        A file, or a folder of checkpoints, whose newest good one is read.
    trusted
        Whether the file may hold classes and functions of your own. A file from somebody else can then run any code, so set it
        only for your own files. Without it, no file can run anything, whoever wrote it.
    kind
        Class that the model must have, such as `BSGDClassifier` or river's ``compose.Pipeline``, so that type checkers know it
        too. None accepts any class.

    Returns
    -------
    The model.

    Raises
    ------
    CheckpointError
        There is no file, none that can be read, or its model is not a ``kind``, or no model at all.

    Examples
    --------
    >>> import tempfile, pathlib, streamsvm
    >>> model = streamsvm.BSGDClassifier(budget=10)
    >>> model.learn_one({"a": 1.0}, "yes")
    >>> path = pathlib.Path(tempfile.mkdtemp(), "model.safetensors")
    >>> model.save(path)
    >>> streamsvm.load(path, kind=streamsvm.BSGDClassifier).predict_one({"a": 1.0})
    'yes'
    """
    if kind is not None and not isinstance(kind, type):
        raise ValueError(f"kind must be a class, such as BSGDClassifier, not {kind!r}")
    model = read_model(path, trusted).model
    if kind is not None and not isinstance(model, kind):
        raise CheckpointError(f"{path} holds a {type(model).__name__}, not a {kind.__name__}")
    return model


def read_model(path: str | Path, trusted: bool = False) -> Checkpoint:
    """Read as `read_newest` does; CheckpointError if there is no model in it."""
    checkpoint = read_newest(path, trusted)
    check_has_model(path, checkpoint)
    return checkpoint


def check_has_model(path: Path | str, checkpoint: Checkpoint) -> None:
    """Raise a CheckpointError where a checkpoint is that of a run of predictions, or holds something else in a model's place."""
    if checkpoint.header.get("kind") == "predictions":
        raise CheckpointError(f"{path} belongs to a run of predictions and holds no model: name the file or folder of the model")
    if checkpoint.is_start:
        raise CheckpointError(f"{path} holds no model yet: its learner has not had a row")
    if not is_model(checkpoint.model):
        raise CheckpointError(f"{path} holds a {type(checkpoint.model).__name__}, which is no model: name the file of a model")


def check_row_count(path: Path | str, checkpoint: Checkpoint) -> None:
    """Raise a CheckpointError where a checkpoint has no model, or does not say how many rows it has seen: it was saved."""
    check_has_model(path, checkpoint)
    try:
        validate_count("rows", checkpoint.header.get("rows"))
    except ValueError as error:
        raise CheckpointError(
            f"{path} holds a model that is no checkpoint: it does not say how many rows it has seen ({error})"
        ) from None


def read_newest(path: str | Path, trusted: bool = False) -> Checkpoint:
    """Read a checkpoint file, or the newest good checkpoint of a folder; see `load`."""
    path = Path(path)
    checkpoint = CheckpointFolder.read_newest_in(path, trusted) if path.is_dir() else read(path, trusted)
    if checkpoint is None:
        raise CheckpointError(f"{path} holds no checkpoint")
    return checkpoint


class CheckpointFolder(Checkpoints):
    """A folder that holds the newest two good checkpoints of a run.

    Pass it to a `LearningLoop`, and use it in a ``with`` statement. Only one process at a time can write to a folder.

    Parameters
    ----------
    path
        Path of the folder, which is created if it does not exist.
    trusted
        Whether models may hold classes and functions of your own. Checkpoints from somebody else can then run any code when you
        resume them, so set it only for your own checkpoints.
    take_over
        Whether to take the folder from another process that holds it, because that process is stopped or hangs. If it wakes up,
        its next `save` raises a TakenOverError, and writes nothing.

    Raises
    ------
    CheckpointError
        The folder cannot be created, or another process is writing to it.

    Examples
    --------
    >>> import tempfile
    >>> with CheckpointFolder(tempfile.mkdtemp()) as folder:
    ...     path = folder.save({"a": "model"}, None, rows=3, position={"rows": 3})
    ...     print(path.name, folder.newest().model)
    checkpoint-000000000003.ckpt {'a': 'model'}
    """

    path: Path
    _N_GOOD = 2
    _trusting = "CheckpointFolder(path, trusted=True)"

    def __init__(self, path: str | Path, trusted: bool = False, take_over: bool = False) -> None:
        self.path = Path(path)
        self._trusted = trusted
        try:
            missing = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
            self.path.mkdir(parents=True, exist_ok=True)
            for folder in missing:
                sync_folder(folder.parent)
            if take_over:  # the other process has locked a file that is no longer there
                (self.path / _LOCK).unlink(missing_ok=True)
            self._lock = (self.path / _LOCK).open("ab")  # open, and therefore locked, until `close`
            is_alone = try_lock(self._lock) and self._is_owned
        except OSError as error:
            raise CheckpointError(f"{path}: {error.strerror}") from error
        if not is_alone:
            self._lock.close()
            raise FolderLockedError(f"{path}: another process is using this checkpoint folder. Stop it, or give another folder")
        self._known: dict[str, tuple[int, ...]] = {}  # good files by name, and how they were found last
        try:
            for part in self.path.glob(f"*{_SUFFIX}*.part"):  # of a run that was killed while it wrote
                part.unlink()
            self._prune_folder()
        except OSError as error:
            self._lock.close()
            raise CheckpointError(f"{path}: {error.strerror}") from error

    def save(self, model: Any, state: Any, *, rows: int, position: Mapping[str, Any], **facts: Any) -> Path:
        """Write a checkpoint atomically: all of it or none, even if the process or the machine stops. Return the file.

        Parameters
        ----------
        model, state
            The objects to save: the model, and what else the run needs to continue.
        rows
            Number of rows of the stream that were read; it is part of the file's name.
        position
            Where the next row is in the source.
        **facts
            Further fields of the header, as JSON.

        Raises
        ------
        CheckpointError
            The checkpoint cannot be written, or could not be read back; the previous one stays as it was.
        """
        path = self.path / f"checkpoint-{rows:012d}{_SUFFIX}"
        if self._lock.closed:
            raise CheckpointError(f"{path}: the checkpoint was not written: the folder was closed before")
        self._check_owned(path)
        began = time.perf_counter()
        try:
            data = self._checkpoint_bytes(model, state, facts, rows, position)
            write_file(path, data)
            self._prune_folder(path)
        except (ModelFileError, OSError) as error:
            self._check_owned(path)  # who takes over removes a file that is half written
            text = error if isinstance(error, ModelFileError) else error.strerror
            raise CheckpointError(f"{path}: the checkpoint was not written: {text}") from error
        log_checkpoint(logger, str(path), rows, len(data), time.perf_counter() - began)
        return path

    def _check_owned(self, path: Path) -> None:
        if not self._is_owned:
            raise TakenOverError(f"{path}: the checkpoint was not written: another process has taken over the folder")

    @property
    def _is_owned(self) -> bool:
        # Whether the file that is locked is still the one in the folder.
        try:
            present, locked = (self.path / _LOCK).stat(), os.fstat(self._lock.fileno())
        except FileNotFoundError:
            return False
        return os.path.samestat(present, locked)

    def _prune_folder(self, written: Path | None = None) -> None:
        # The newest two that were good when they were read stay, and the one just written. Corrupt ones stay until one is written
        # after them, so that `newest` can warn of them. One that is as it was found last is not read again.
        n_good, good_files = 0, {}
        for file in _checkpoint_paths(self.path):
            facts = _state_of(file)
            good = file == written or (facts is not None and self._known.get(file.name) == facts) or not _is_corrupt(file)
            if file == written or (good and n_good < self._N_GOOD):
                n_good += 1
                if facts is not None:
                    good_files[file.name] = facts
            elif good or n_good or written is not None:
                file.unlink(missing_ok=True)
        self._known = good_files

    def newest(self) -> Checkpoint | None:
        """Read the newest good checkpoint; None if the folder is empty. See `read_newest_in`."""
        return self.read_newest_in(self.path, self._trusted)

    @staticmethod
    def read_newest_in(path: str | Path, trusted: bool = False) -> Checkpoint | None:
        """Read the newest good checkpoint of a folder, which is not locked, and warn about newer ones that are corrupt.

        The result is None if the folder is empty. A CheckpointError says that all checkpoints are corrupt (starting afresh would
        lose the model), or that the newest good one cannot be loaded.
        """
        errors = []
        for file in _checkpoint_paths(Path(path)):
            try:
                checkpoint = read(file, trusted)
            except CorruptCheckpointError as corrupt:
                errors.append(corrupt)
                continue
            except CheckpointError:
                if file.exists():
                    raise
                return CheckpointFolder.read_newest_in(path, trusted)  # a learning process has replaced it by newer ones
            for error in errors:
                warn(f"{error}. Continuing from {file.name}")
            return checkpoint
        if errors:
            raise errors[0]
        return None

    @staticmethod
    def signature(path: str | Path) -> tuple[Any, ...]:
        """Return facts that distinguish the newest file of a folder from others, without reading it; () if there is no file."""
        for file in _checkpoint_paths(Path(path)):
            with contextlib.suppress(OSError):  # it was replaced by newer ones
                facts = file.stat()
                return file.name, facts.st_mtime_ns, facts.st_size, facts.st_ino
        return ()

    def close(self) -> None:
        """Unlock the folder, so that other processes can write to it."""
        with contextlib.suppress(OSError):
            self._lock.close()


def _checkpoint_paths(path: Path) -> list[Path]:
    # Newest first; files with other names are the user's.
    numbered = [(int(match[1]), file) for file in path.glob(f"*{_SUFFIX}") if (match := _NAME.fullmatch(file.name))]
    return [file for _, file in sorted(numbered, reverse=True)]


def _state_of(file: Path) -> tuple[int, ...] | None:
    """Return facts of a file that a change to it changes; None if it is not there."""
    try:
        facts = file.stat()
    except OSError:
        return None
    return facts.st_mtime_ns, facts.st_ctime_ns, facts.st_size, facts.st_ino


def _is_corrupt(file: Path) -> bool:
    try:
        _read_checkpoint(file)
    except CheckpointError as error:  # of another kind, it may be good: of a newer version, or unreadable for now
        return isinstance(error, CorruptCheckpointError)
    return False
