"""A folder that holds checkpoints of a run, and that one process at a time writes to."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Unpack

from streamsvm.files.container import ModelFileError
from streamsvm.files.locks import try_lock
from streamsvm.files.model_file import sync_folder, write_file
from streamsvm.stream.checkpoint import (
    ASIDE_SUFFIX,
    SUFFIX,
    Checkpoint,
    CheckpointError,
    Checkpoints,
    CorruptCheckpointError,
    FolderLockedError,
    Retention,
    SavedCheckpoint,
    TakenOverError,
    list_checkpoints,
    list_history,
    read_checkpoint,
    read_file_state,
    read_newest_in_folder,
)
from streamsvm.stream.key_store import KeyStore
from streamsvm.stream.logs import log_checkpoint

logger: logging.Logger = logging.getLogger(__name__)
_LOCK_NAME = ".lock"


class CheckpointFolder(Checkpoints):
    """A folder with the newest undamaged checkpoints of a run: two of them, unless you choose otherwise.

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
    keep
        Number of newest checkpoints to keep, at least 1. With 1, a run cannot continue if the only file is damaged. Checkpoints
        save it: None keeps as many as before, at first 2.
    keep_every
        Period in seconds, such as 86400.0 for days (UTC): the newest checkpoint of each period is kept, too, without a limit of
        their number. None is as before, at first ``math.inf``, which keeps none beside the newest ones.

    Raises
    ------
    CheckpointError
        The folder cannot be created, or another process is writing to it.
    ValueError
        ``keep`` or ``keep_every`` is out of its range.

    Examples
    --------
    >>> import tempfile
    >>> with CheckpointFolder(tempfile.mkdtemp()) as folder:
    ...     path = folder.save({"a": "model"}, None, rows=3, position={"rows": 3})
    ...     print(path.name, folder.newest().model)
    checkpoint-000000000003.ckpt {'a': 'model'}
    """

    path: Path
    _trust_advice = "CheckpointFolder(path, trusted=True)"

    def __init__(self, path: str | Path, trusted: bool = False, take_over: bool = False, **retention: Unpack[Retention]) -> None:
        self._set_retention(**retention)
        self.path, self._trusted = Path(path), trusted
        self._keys = KeyStore(self.path, lambda: self._check_owned(self.path))
        self._valid_files: dict[Path, tuple[int, ...] | None] = {}  # file states of undamaged checkpoints
        try:
            missing = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
            self.path.mkdir(parents=True, exist_ok=True)
            for folder in missing:
                sync_folder(folder.parent)
            if take_over:  # the lock of the other process is on the removed file
                (self.path / _LOCK_NAME).unlink(missing_ok=True)
            self._lock = (self.path / _LOCK_NAME).open("ab")  # locked until it is closed
            if not (try_lock(self._lock) and self._is_owned):
                self._lock.close()
                text = "another process is using this checkpoint folder. Stop it, or give another folder"
                raise FolderLockedError(f"{path}: {text}")
            for part in self.path.glob(f"*{SUFFIX}*.part"):  # left by a run that was killed
                part.unlink()
            for newest in list_checkpoints(self.path)[:1]:  # a rollback may have been killed
                self._restore_set_aside(newest.rows)
            for saved in sorted(list_history(self.path), key=lambda saved: saved.time, reverse=True):
                with contextlib.suppress(CheckpointError):  # a damaged one
                    self._adopt_retention(read_checkpoint(saved.name, None))
                    break
        except OSError as error:
            self.close()
            reason = error.strerror if not self.path.exists() or self.path.is_dir() else "it is a file: checkpoints need a folder"
            raise CheckpointError(f"{path}: {reason}") from error

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
        path = self.path / f"checkpoint-{rows:012d}{SUFFIX}"
        if self._lock.closed:
            raise CheckpointError(f"{path}: the checkpoint was not written: the folder was closed before")
        self._check_owned(path)
        start_time = time.perf_counter()
        try:
            data = self._serialize(model, state, facts, rows, position)
            if self._keys.oldest:  # a model of keys was saved
                self._keys.commit(data[-32:].hex())
            write_file(path, data)
            self._valid_files[path] = read_file_state(path)
            if self._is_owned:  # else another process may have written checkpoints of more rows meanwhile
                self._set_aside(rows)
                self._prune_folder(rows)
        except (ModelFileError, OSError) as error:
            self._check_owned(path)  # a process that takes over may have removed the partial file
            text = error if isinstance(error, ModelFileError) else error.strerror
            raise CheckpointError(f"{path}: the checkpoint was not written: {text}") from error
        log_checkpoint(logger, str(path), rows, len(data), time.perf_counter() - start_time)
        return path

    def _serialize(self, *arguments: Any) -> bytes:
        with self._keys.use():
            return super()._serialize(*arguments)

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
        with contextlib.suppress(FileNotFoundError):
            return os.path.samestat((self.path / _LOCK_NAME).stat(), os.fstat(self._lock.fileno()))
        return False

    def _prune_folder(self, rows: int) -> None:
        """Delete old checkpoints of this folder: all except the undamaged ones to keep. The newest one has ``rows`` rows; also
        delete files with at most as many rows that were set aside.
        """
        history = list_history(self.path)
        active = [saved for saved in history if not saved.is_aside]
        valid = [saved for saved in active if self._valid_files.get(saved.name) == saved.state or not _is_corrupt(saved.name)]
        self._valid_files = {saved.name: saved.state for saved in self._select_kept(valid)}
        for saved in history:
            if saved.name not in self._valid_files and (not saved.is_aside or saved.rows <= rows):
                saved.name.unlink(missing_ok=True)

    def roll_back(self, target: SavedCheckpoint) -> None:
        """Make ``target``, from `FollowedFolder.history`, the newest checkpoint of this folder, from which the next run
        continues. If the process is killed meanwhile, the newest checkpoint is either the previous one or ``target``. If the
        folder is empty, ``target`` may be of another store, and is copied.

        Later checkpoints get the suffix ``.aside``. They are deleted when a new checkpoint has as many rows. To undo it, roll
        back to one of them. If the model has small models of keys, that is possible until the next run writes to the folder.

        Raises
        ------
        CheckpointError
            ``target`` is damaged, or another process has taken over the folder.
        OSError
            A file cannot be renamed.
        """
        # Opening this folder may have renamed it.
        target = next((saved for saved in list_history(self.path) if saved.rows == target.rows), target)
        target.load()
        self._check_owned(self.path)
        self._set_aside(target.rows)
        self._restore_set_aside(target.rows)
        if not list_checkpoints(self.path):  # it is of another store
            write_file(self.path / f"checkpoint-{target.rows:012d}{SUFFIX}", target.read())

    def _set_aside(self, rows: int) -> None:
        """Set checkpoints of more than ``rows`` rows aside, the newest one last: until then, a run continues from it."""
        for saved in reversed(list_checkpoints(self.path)):
            if saved.rows > rows:
                saved.name.replace(saved.name.with_suffix(ASIDE_SUFFIX))
                sync_folder(self.path)

    def _restore_set_aside(self, rows: int) -> None:
        """Restore checkpoints of at most ``rows`` rows that were set aside, the newest first. Delete those for which there is
        another one with as many rows.
        """
        for saved in list_history(self.path):
            if saved.is_aside and saved.rows <= rows:
                file = saved.name.with_suffix("")
                if file.exists():
                    saved.name.unlink()
                else:
                    saved.name.replace(file)
                sync_folder(self.path)

    def newest(self) -> Checkpoint | None:
        """Read the newest undamaged checkpoint of this folder; None if the folder is empty. Warn of newer checkpoints that are
        corrupt.
        """
        with self._keys.use():
            return read_newest_in_folder(self.path, self._trusted)

    def close(self) -> None:
        """Unlock the folder, so that other processes can write to it."""
        self._keys.close()
        with contextlib.suppress(OSError, AttributeError):  # it may not have been opened
            self._lock.close()


def _is_corrupt(file: Path) -> bool:
    """Return whether a checkpoint file is damaged. A file that cannot be loaded for other reasons, such as a newer version, is
    not.
    """
    try:
        read_checkpoint(file, None)
    except CheckpointError as error:  # other errors do not mean damage: it may be of a newer version
        return isinstance(error, CorruptCheckpointError)
    return False
