"""Checkpoints: one file, written atomically, with the model, the state of the run and the position of the stream.

The format is that of `streamsvm.files`. A file contains neither time nor host, so that runs which have learned the same rows
write the same bytes.
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
_LOCK_NAME = ".lock"
_FILE_NAME = re.compile(rf"checkpoint-(\d{{12,}}){re.escape(_SUFFIX)}")
_START_KIND = "beginning"  # the kind of a checkpoint with only the start of a run
_REMOVE_ADVICE = "Remove it to continue from the checkpoint before it, if the folder has one"


class CheckpointError(ModelFileError):
    """A checkpoint cannot be read or written, or belongs to another run.

    The message names the file, and says what to do.
    """


class FolderLockedError(CheckpointError):
    """Another process is writing to the checkpoint folder."""


class TakenOverError(CheckpointError):
    """Another process has taken over the checkpoint store, so that this one can no longer write to it."""


class Checkpoint(NamedTuple):
    """The contents of a checkpoint file."""

    model: Any
    state: Any
    """The state of the run beside the model: ``scores``, ``detector`` of drift, ``columns``, ``waiting`` rows."""
    header: dict[str, Any]
    """Facts about the run. In a file of a loop: rows, learned, unlabelled, empty, abstained, refused, position, sink, source,
    versions, digest; of the learning loop also labels, parameters, metrics, scores, curve, weight and drift; with labels from
    another stream, also delayed.
    """

    @property
    def is_start(self) -> bool:
        """Whether this checkpoint was written before the first row was read. It then holds only the stream's start position,
        without a model.
        """
        return self.header.get("kind") == _START_KIND

    def get_facts(self, *keys: str) -> Mapping[str, Any]:
        """Return the mapping that nested ``keys`` lead to in the header, such as ``header["refused"]["counts"]``; an empty one if
        it does not exist or is not a mapping.
        """
        facts: Any = self.header
        for key in keys:
            facts = facts.get(key) if isinstance(facts, Mapping) else None
        return facts if isinstance(facts, Mapping) else {}

    def get_position(self, store: Path | str) -> dict[str, Any]:
        """Return the position in the stream at which a run continues after this checkpoint, as a dict. Raise a CheckpointError if
        the checkpoint contains no valid position. ``store`` is the path or name of the checkpoint store, for the message.
        """
        try:
            return dict(validate_mapping("position", self.header.get("position")))
        except ValueError as error:
            raise CheckpointError(f"{store}: the checkpoint is corrupt ({error}): give another folder") from None


class CorruptCheckpointError(CheckpointError):
    """A checkpoint file is damaged."""


class Checkpoints(Closeable):
    """A store for the checkpoints of a run, to which one process at a time can write: the base of folders and topics."""

    path: Path | str
    """Name of the store in messages."""
    group: str | None = None
    """The consumer group whose offsets are committed with checkpoints; None without a group."""
    _trusted: bool
    _trust_advice: str  # how to trust classes of the user, in messages

    @property
    def max_seconds(self) -> float | None:
        """Maximum number of seconds between two checkpoints in this store; None for unlimited."""
        return None

    def try_open_sink(self, url: str, options: Mapping[str, Any] | None = None) -> Sink | None:  # noqa: ARG002
        """Open the sink at ``url`` so that its records become visible only with the next checkpoint (as in a Kafka transaction),
        and return it. None if this checkpoint store cannot do that. ``options`` are those of the connection.
        """
        return None

    def save(self, model: Any, state: Any, *, rows: int, position: Mapping[str, Any], **facts: Any) -> Any:
        """Write a checkpoint with the model, the run's ``state``, the number of ``rows`` read, the source's ``position`` and
        further header fields ``facts``: all of it or nothing. Raise a CheckpointError if it cannot be written.
        """
        raise NotImplementedError

    def save_start(self, position: Mapping[str, Any]) -> None:
        """Save a checkpoint without a model that holds only the source's ``position`` before its first row. A later run then
        starts at this position.
        """
        self.save(None, None, rows=0, position=position, kind=_START_KIND)

    def newest(self) -> Checkpoint | None:
        """Read the newest undamaged checkpoint of this store; None if the store is empty."""
        raise NotImplementedError

    def check(self, model: Any, state: Any) -> None:
        """Raise a CheckpointError if the model or the run's ``state`` contains objects that cannot be saved in a checkpoint.
        Nothing is written.
        """
        try:
            self._serialize(model, state, {}, 0, {})
        except ModelFileError as error:
            raise CheckpointError(f"{self.path}: no checkpoint can hold this model: {error}") from error

    def _serialize(self, model: Any, state: Any, facts: Mapping[str, Any], rows: int, position: Mapping[str, Any]) -> bytes:
        """Serialise a checkpoint: the model, the run's ``state`` and, in the header, the ``facts``, the number of ``rows`` and
        the source's ``position``. Raise a ModelFileError if an object cannot be saved.
        """
        facts = {"kind": "checkpoint", **facts, "rows": rows, "position": dict(position)}
        try:
            return serialize_parts({"model": model, "state": state}, facts, self._trusted)
        except ModelFileError as error:
            if str(error).endswith("trusted=True"):
                raise ModelFileError(f"{error}: {self._trust_advice}, or --trusted") from error
            raise


def parse_checkpoint(data: bytes, name: str, trusted: bool = False) -> Checkpoint:
    """Parse the bytes of a checkpoint file. ``name`` is the checkpoint store, for messages. Raise a CheckpointError if the data
    cannot be loaded, or contains objects of other packages (which could run code) without ``trusted=True``.
    """
    return _load_checkpoint(name, trusted, data)


def _load_checkpoint(path: Path | str, trusted: bool | None = None, data: bytes | None = None) -> Checkpoint:
    """Parse a checkpoint from ``data``, or without ``data`` from the file ``path``. With ``trusted=None``, read only its header.
    Raise a CheckpointError if it cannot be loaded, or contains objects of other packages (which could run code) without
    ``trusted=True``.
    """
    try:
        container = unpack_container(read_file(Path(path)) if data is None else data)
        header, parts = read_metadata(container), {} if trusted is None else read_parts(container, trusted)
        return Checkpoint(parts.get("model"), parts.get("state"), header)
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}") from error
    except CorruptFileError as error:
        go_back = f". {_REMOVE_ADVICE}" if isinstance(path, Path) and _FILE_NAME.fullmatch(path.name) else ""
        raise CorruptCheckpointError(f"{path} is corrupt: {error}{go_back}") from error
    except ModelFileError as error:
        raise CheckpointError(f"{path} cannot be loaded: {error}") from error


def read_header(path: str | Path) -> dict[str, Any]:
    """Read only the header of a checkpoint file (numbers of rows, position, metrics and other JSON fields), without loading its
    model. Raise a CheckpointError if the file is unreadable.
    """
    return _load_checkpoint(Path(path)).header


def read_checkpoint(path: str | Path, trusted: bool = False) -> Checkpoint:
    """Read the model, the run's state and the header of a checkpoint file, or of a saved model. Raise a CheckpointError if the
    file is corrupt or of a newer version, or contains objects of packages other than streamsvm and river (which could run code)
    without ``trusted=True``.
    """
    return _load_checkpoint(Path(path), trusted)


@overload
def load(path: str | Path, trusted: bool = False, *, kind: type[Model]) -> Model: ...
@overload
def load(path: str | Path, trusted: bool = False) -> Any: ...
def load(path: str | Path, trusted: bool = False, *, kind: type[Model] | None = None) -> Any:
    """Load a model from a file that ``model.save`` has written, from a checkpoint file, or from the newest checkpoint of a
    folder. Raise a CheckpointError if the model is not of the class ``kind``, or if the file contains objects of other packages
    (which could run code) without ``trusted=True``.

    Parameters
    ----------
    path
        A file, or a folder of checkpoints: then its newest undamaged one is read.
    trusted
        Whether the file may hold classes and functions of your own. A file from somebody else can then run any code, so set it
        only for your own files. Otherwise, no file can run code.
    kind
        Class that the model must have, such as `BSGDClassifier` or river's ``compose.Pipeline``, so that type checkers know it
        too. None accepts any class.

    Returns
    -------
    The model.

    Raises
    ------
    CheckpointError
        The file does not exist, is unreadable, or has no model, or its model is not a ``kind``.

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
    """Read a checkpoint file, or the newest undamaged checkpoint of a folder. Raise a CheckpointError if it has no model, or
    contains objects of other packages (which could run code) without ``trusted=True``.
    """
    checkpoint = read_newest(path, trusted)
    check_has_model(path, checkpoint)
    return checkpoint


def check_has_model(path: Path | str, checkpoint: Checkpoint) -> None:
    """Raise a CheckpointError if ``checkpoint`` contains no model, for example because a prediction loop has written it. ``path``
    is its file or store, for the message.
    """
    if checkpoint.header.get("kind") == "predictions":
        raise CheckpointError(f"{path} belongs to a run of predictions and holds no model: name the file or folder of the model")
    if checkpoint.is_start:
        raise CheckpointError(f"{path} holds no model yet: its learner has not had a row")
    if not is_model(checkpoint.model):
        raise CheckpointError(f"{path} holds a {type(checkpoint.model).__name__}, which is not a model: name the file of a model")


def check_row_count(path: Path | str, checkpoint: Checkpoint) -> None:
    """Raise a CheckpointError unless ``checkpoint`` has a model and, in its header, the number of rows read. A plain model file
    has no such number. ``path`` is the file or store, for the message.
    """
    check_has_model(path, checkpoint)
    try:
        validate_count("rows", checkpoint.header.get("rows"))
    except ValueError as error:
        raise CheckpointError(f"{path} holds a model that is not a checkpoint: its number of rows is missing ({error})") from None


def read_newest(path: str | Path, trusted: bool = False) -> Checkpoint:
    """Read a checkpoint file or, if ``path`` is a folder, its newest undamaged checkpoint. Raise a CheckpointError if the folder
    is empty, or if the checkpoint contains objects of other packages (which could run code) without ``trusted=True``.
    """
    path = Path(path)
    checkpoint = CheckpointFolder.read_newest_in(path, trusted) if path.is_dir() else read_checkpoint(path, trusted)
    if checkpoint is None:
        raise CheckpointError(f"{path} holds no checkpoint")
    return checkpoint


class CheckpointFolder(Checkpoints):
    """A folder with the newest two undamaged checkpoints of a run.

    Pass it to a `LearningLoop`, and use it in a ``with`` statement. Only one process at a time can write to a folder.

    Parameters
    ----------
    path
        Path of the folder, which is created if it does not exist.
    trusted
        Whether models may hold classes and functions of your own. Checkpoints from somebody else can then run any code when you
        resume them, so set it only for your own checkpoints.
    take_over
        Whether to take the folder over from another process that has locked it and hangs. If that process wakes up, its next
        `save` raises a TakenOverError, and writes nothing.

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
    _N_KEPT = 2
    _trust_advice = "CheckpointFolder(path, trusted=True)"

    def __init__(self, path: str | Path, trusted: bool = False, take_over: bool = False) -> None:
        self.path = Path(path)
        self._trusted = trusted
        try:
            missing = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
            self.path.mkdir(parents=True, exist_ok=True)
            for folder in missing:
                sync_folder(folder.parent)
            if take_over:  # the lock of the other process is on the removed file
                (self.path / _LOCK_NAME).unlink(missing_ok=True)
            self._lock = (self.path / _LOCK_NAME).open("ab")  # locked until it is closed
            is_alone = try_lock(self._lock) and self._is_owned
        except OSError as error:
            reason = error.strerror if not self.path.exists() or self.path.is_dir() else "it is a file: checkpoints need a folder"
            raise CheckpointError(f"{path}: {reason}") from error
        if not is_alone:
            self._lock.close()
            raise FolderLockedError(f"{path}: another process is using this checkpoint folder. Stop it, or give another folder")
        self._valid_files: dict[str, tuple[int, ...]] = {}  # file states of undamaged checkpoints by name
        try:
            for part in self.path.glob(f"*{_SUFFIX}*.part"):  # left by a run that was killed
                part.unlink()
            self._prune_folder()
        except OSError as error:
            self._lock.close()
            raise CheckpointError(f"{path}: {error.strerror}") from error

    def save(self, model: Any, state: Any, *, rows: int, position: Mapping[str, Any], **facts: Any) -> Path:
        """Write a checkpoint into this folder and return the path of its file. The write is atomic: if the process or the machine
        stops meanwhile, the file is either complete or absent.

        Parameters
        ----------
        model, state
            The objects to save: the model, and the rest of the state of the run.
        rows
            Number of rows of the stream that were read; it is part of the file's name.
        position
            Position of the next row in the source.
        **facts
            Further fields of the header, as JSON.

        Raises
        ------
        CheckpointError
            The checkpoint cannot be written, or could not be read back; the previous one does not change.
        """
        path = self.path / f"checkpoint-{rows:012d}{_SUFFIX}"
        if self._lock.closed:
            raise CheckpointError(f"{path}: the checkpoint was not written: the folder was closed before")
        self._check_owned(path)
        start_time = time.perf_counter()
        try:
            data = self._serialize(model, state, facts, rows, position)
            write_file(path, data)
            self._prune_folder(path)
        except (ModelFileError, OSError) as error:
            self._check_owned(path)  # a process that takes over may have removed the partial file
            text = error if isinstance(error, ModelFileError) else error.strerror
            raise CheckpointError(f"{path}: the checkpoint was not written: {text}") from error
        log_checkpoint(logger, str(path), rows, len(data), time.perf_counter() - start_time)
        return path

    def _check_owned(self, path: Path) -> None:
        """Raise a TakenOverError if another process has taken over this checkpoint folder, so that the file ``path`` must not be
        written.
        """
        if not self._is_owned:
            raise TakenOverError(f"{path}: the checkpoint was not written: another process has taken over the folder")

    @property
    def _is_owned(self) -> bool:
        """Whether this process still holds the lock of the folder, because no other process has taken it over."""
        # Another process that takes over replaces the lock file.
        try:
            present, locked = (self.path / _LOCK_NAME).stat(), os.fstat(self._lock.fileno())
        except FileNotFoundError:
            return False
        return os.path.samestat(present, locked)

    def _prune_folder(self, written: Path | None = None) -> None:
        """Delete old checkpoints of this folder: all except the newest two undamaged ones, and the file that was just
        ``written``, if any.

        Corrupt ones stay until a newer checkpoint is written, so that `newest` can warn of them.
        """
        n_valid, valid_files = 0, {}
        for file in _list_checkpoints(self.path):
            state = _read_file_state(file)
            is_unchanged = state is not None and self._valid_files.get(file.name) == state  # need not be read again
            is_valid = file == written or is_unchanged or not _is_corrupt(file)
            if file == written or (is_valid and n_valid < self._N_KEPT):
                n_valid += 1
                if state is not None:
                    valid_files[file.name] = state
            elif is_valid or n_valid or written is not None:
                file.unlink(missing_ok=True)
        self._valid_files = valid_files

    def newest(self) -> Checkpoint | None:
        """Read the newest undamaged checkpoint of this folder; None if the folder is empty. Warn of newer checkpoints that are
        corrupt.
        """
        return self.read_newest_in(self.path, self._trusted)

    @staticmethod
    def read_newest_in(path: str | Path, trusted: bool = False) -> Checkpoint | None:
        """Read the newest undamaged checkpoint of the folder ``path``, without locking it, and warn of newer ones that are
        corrupt. Return None if the folder is empty. Objects of other packages (which could run code) need ``trusted=True``.

        Raises a CheckpointError if all checkpoints are corrupt (to start from scratch would lose the model), or if the newest
        undamaged one cannot be loaded.
        """
        errors = []
        for file in _list_checkpoints(Path(path)):
            try:
                checkpoint = read_checkpoint(file, trusted)
            except CorruptCheckpointError as corrupt:
                errors.append(corrupt)
                continue
            except CheckpointError:
                if file.exists():
                    raise
                return CheckpointFolder.read_newest_in(path, trusted)  # another process has replaced it by newer ones
            for error in errors:
                warn(f"{error}. Continuing from {file.name}")
            return checkpoint
        if errors:
            raise errors[0]
        return None

    @staticmethod
    def read_signature(path: str | Path) -> tuple[Any, ...]:
        """Return the name and the state of the newest checkpoint file of a folder, to detect a newer one later; ``()`` for an
        empty folder.
        """
        for file in _list_checkpoints(Path(path)):
            if (state := _read_file_state(file)) is not None:  # else another process has replaced it by newer ones
                return file.name, *state
        return ()

    def close(self) -> None:
        """Unlock the folder, so that other processes can write to it."""
        with contextlib.suppress(OSError):
            self._lock.close()


def _list_checkpoints(path: Path) -> list[Path]:
    """Return the checkpoint files of the folder ``path``, newest first (by the row number in their names). Files with other names
    are ignored.
    """
    numbered = [(int(match[1]), file) for file in path.glob(f"*{_SUFFIX}") if (match := _FILE_NAME.fullmatch(file.name))]
    return [file for _, file in sorted(numbered, reverse=True)]


def _read_file_state(file: Path) -> tuple[int, ...] | None:
    """Return modification and change times, size and inode of ``file``, to detect later that it was changed; None if it does not
    exist.
    """
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino


def _is_corrupt(file: Path) -> bool:
    """Return whether a checkpoint file is damaged. A file that cannot be loaded for other reasons, such as a newer version, is
    not.
    """
    try:
        _load_checkpoint(file)
    except CheckpointError as error:  # other errors do not mean damage: it may be of a newer version
        return isinstance(error, CorruptCheckpointError)
    return False
