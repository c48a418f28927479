"""Checkpoints: one file, written atomically, with the model, the metric and the position of the stream.

A file is ``MAGIC``, the header's length (8 bytes, little-endian), the header (JSON), and the payload: the model and the metric,
pickled. It holds nothing of the run itself (no time, no host), so runs that learned the same rows write the same bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, Self

from streamsvm._locks import locks
from streamsvm._warnings import warn
from streamsvm.runtime.pickling import UntrustedError, dumps, loads

__all__ = ["Checkpoint", "CheckpointError", "CheckpointFolder", "load", "read", "read_header", "read_newest", "sync_folder"]

MAGIC = b"SSVMCKPT"
_FORMAT = 1
_LONGEST_HEADER = 2**24
_SUFFIX = ".ckpt"
_NAME = re.compile(rf"checkpoint-(\d{{12,}}){re.escape(_SUFFIX)}")


class CheckpointError(Exception):
    """A checkpoint cannot be read or written, or is not of this run. The message names the file and the remedy."""


class Checkpoint(NamedTuple):
    """The contents of a checkpoint file."""

    model: Any
    metric: Any
    header: dict[str, Any]
    """Of a file of the learning loop: rows, learned, position, sink, source, parameters, scored, score, versions, payload."""


class _CorruptError(CheckpointError):
    """The file is not as it was written."""


def _encode(model: Any, metric: Any, header: Mapping[str, Any], trusted: bool) -> bytes:
    try:
        body = dumps((model, metric))
    except Exception as error:  # a class of the user's own can raise anything
        raise CheckpointError(
            f"the model cannot be pickled ({type(error).__name__}: {error}). Classes and functions of your own must be defined "
            "at the top of a module: no lambda, none inside a function"
        ) from error
    try:  # a checkpoint that cannot be read back would otherwise be noticed only when it is needed
        loads(body, trusted)
    except UntrustedError as error:
        raise CheckpointError(
            f"it could not be resumed: {error}. If that is your own class or function, trust the folder: "
            "CheckpointFolder(path, trusted=True)"
        ) from error
    except Exception as error:
        raise CheckpointError(f"it could not be resumed: {type(error).__name__}: {error}") from error
    full = {
        **header,
        "format": _FORMAT,
        "versions": {name: version(name) for name in ("numpy", "river", "streamsvm")},
        "payload": {"bytes": len(body), "sha256": hashlib.sha256(body).hexdigest()},
    }
    try:
        text = json.dumps(full, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"the position of the source or the sink is not plain JSON: {error}") from error
    return MAGIC + len(text).to_bytes(8, "little") + text + body


def _read_parts(path: Path) -> tuple[dict[str, Any], bytes]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}") from error
    start = len(MAGIC) + 8
    if data[: len(MAGIC)] != MAGIC:
        raise _CorruptError(f"{path} is not a checkpoint of streamsvm")
    size = int.from_bytes(data[len(MAGIC) : start], "little")
    try:
        if size > min(_LONGEST_HEADER, len(data) - start):
            raise ValueError("its header is cut off")
        header = json.loads(data[start : start + size])
        if header["format"] > _FORMAT:
            raise CheckpointError(
                f"{path} was written by streamsvm {header['versions']['streamsvm']}, newer than this one: upgrade streamsvm"
            )
        body = data[start + size :]
        if len(body) != header["payload"]["bytes"]:
            raise ValueError(f"it has {len(body):,} bytes of {header['payload']['bytes']:,}")
        if hashlib.sha256(body).hexdigest() != header["payload"]["sha256"]:
            raise ValueError("its checksum is wrong")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _CorruptError(
            f"{path} is corrupt: {error}. Remove it to go on from the checkpoint before it, if the folder has one"
        ) from error
    return header, body


def read_header(path: str | Path) -> dict[str, Any]:
    """Read the header of a checkpoint file without loading its model (so nothing in the file is run)."""
    return _read_parts(Path(path))[0]


def read(path: str | Path, trusted: bool = False) -> Checkpoint:
    """Read a checkpoint file.

    Raises
    ------
    CheckpointError
        It is corrupt, of a newer version, or names classes that are not of streamsvm or river and is not ``trusted``.
    """
    path = Path(path)
    header, body = _read_parts(path)
    try:
        model, metric = loads(body, trusted)
    except UntrustedError as error:
        raise CheckpointError(
            f"{path} was not loaded: {error}. If you know who wrote it, and that is your own class or function, load it with "
            "trusted=True"
        ) from None
    except Exception as error:  # a pickle that was tampered with can raise anything
        raise CheckpointError(f"{path} cannot be loaded by this version: {type(error).__name__}: {error}") from error
    return Checkpoint(model, metric, header)


def load(path: str | Path, trusted: bool = False) -> Any:
    """Load the model of a checkpoint file, or of the newest good checkpoint of a folder.

    Parameters
    ----------
    path
        A checkpoint file or folder.
    trusted
        Whether classes of your own may be loaded. A checkpoint is a pickle: one that is not from you can run anything then.

    Returns
    -------
    The model.

    Raises
    ------
    CheckpointError
        There is no checkpoint, or none that can be read.
    """
    return read_newest(path, trusted).model


def read_newest(path: str | Path, trusted: bool = False) -> Checkpoint:
    """Read a checkpoint file, or the newest good checkpoint of a folder; see `load`."""
    path = Path(path)
    checkpoint = CheckpointFolder.newest_in(path, trusted) if path.is_dir() else read(path, trusted)
    if checkpoint is None:
        raise CheckpointError(f"{path} holds no checkpoint")
    return checkpoint


class CheckpointFolder:
    """A folder that holds the newest two good checkpoints of a run. One process at a time may write to it.

    Parameters
    ----------
    path
        The folder; made if it does not exist.
    trusted
        Whether models may hold classes and functions of your own. To resume them, the checkpoints must be yours too: a
        checkpoint is a pickle, and one that is not from you can run anything then.

    Raises
    ------
    CheckpointError
        The folder cannot be made, or another process is writing to it.

    Examples
    --------
    >>> import tempfile
    >>> with CheckpointFolder(tempfile.mkdtemp()) as folder:
    ...     path = folder.save({"a": "model"}, None, rows=3, position={"rows": 3})
    ...     print(path.name, folder.newest().model)
    checkpoint-000000000003.ckpt {'a': 'model'}
    """

    _N_GOOD = 2

    def __init__(self, path: str | Path, trusted: bool = False) -> None:
        self.path = Path(path)
        self._trusted = trusted
        try:
            _make_folder(self.path)
            self._lock = (self.path / ".lock").open("ab")  # open, and therefore locked, until `close`
        except OSError as error:
            raise CheckpointError(f"{path}: {error.strerror}") from error
        if not locks(self._lock):
            self._lock.close()
            raise CheckpointError(f"{path}: another process is learning with this checkpoint folder. Stop it, or give another")
        try:
            for part in self.path.glob(f"*{_SUFFIX}.part"):  # of a run that was killed while it wrote
                part.unlink()
            self._prune()
        except OSError as error:
            self._lock.close()
            raise CheckpointError(f"{path}: {error.strerror}") from error

    def save(self, model: Any, metric: Any, *, rows: int, position: Mapping[str, Any], **facts: Any) -> Path:
        """Write a checkpoint atomically: wholly or not at all, even if the process or the machine stops in the middle.

        Parameters
        ----------
        model, metric
            The objects to pickle.
        rows
            Rows that were read of the stream; the file's name.
        position
            Where the next row is in the source.
        **facts
            Further fields of the header, as JSON.

        Returns
        -------
        Path
            The file.

        Raises
        ------
        CheckpointError
            It cannot be written, or could not be read back; the previous checkpoint is as it was.
        """
        path = self.path / f"checkpoint-{rows:012d}{_SUFFIX}"
        if self._lock.closed:
            raise CheckpointError(f"{path}: the checkpoint was not written: the folder was closed before")
        part = path.with_name(path.name + ".part")
        try:
            data = _encode(model, metric, {"rows": rows, "position": dict(position), **facts}, self._trusted)
            with part.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
            sync_folder(self.path)
            self._prune(path)
        except CheckpointError as error:
            raise CheckpointError(f"{path}: the checkpoint was not written: {error}") from error
        except OSError as error:
            with contextlib.suppress(OSError):  # a full disk has better use for its bytes
                part.unlink()
            raise CheckpointError(f"{path}: the checkpoint was not written: {error.strerror}") from error
        return path

    def _prune(self, written: Path | None = None) -> None:
        # The newest two good ones stay, and the one just written. Corrupt ones stay until one is written after them, so that
        # `newest` can warn of them.
        n_good = 0
        for file in _checkpoints(self.path):
            good = file == written or not _is_corrupt(file)
            if file == written or (good and n_good < self._N_GOOD):
                n_good += 1
            elif good or n_good or written is not None:
                file.unlink(missing_ok=True)

    def newest(self) -> Checkpoint | None:
        """Read the newest good checkpoint; None in an empty folder. See `newest_in`."""
        return self.newest_in(self.path, self._trusted)

    @staticmethod
    def newest_in(path: str | Path, trusted: bool = False) -> Checkpoint | None:
        """Read the newest good checkpoint of a folder, with a warning about newer ones that are corrupt.

        Parameters
        ----------
        path, trusted
            As for `CheckpointFolder`; the folder is not locked.

        Returns
        -------
        Checkpoint or None
            None in an empty folder.

        Raises
        ------
        CheckpointError
            All are corrupt (starting afresh would lose the model), or the newest good one cannot be loaded.
        """
        errors = []
        for file in _checkpoints(Path(path)):
            try:
                checkpoint = read(file, trusted)
            except _CorruptError as corrupt:
                errors.append(corrupt)
                continue
            except CheckpointError:
                if file.exists():
                    raise
                return CheckpointFolder.newest_in(path, trusted)  # a learning process has replaced it by newer ones
            for error in errors:
                warn(f"{error}. Going on from {file.name}")
            return checkpoint
        if errors:
            raise errors[0]
        return None

    def close(self) -> None:
        """Unlock the folder, for other processes to write to."""
        with contextlib.suppress(OSError):
            self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _checkpoints(path: Path) -> list[Path]:
    # Newest first; files with other names are the user's.
    found = [(int(match[1]), file) for file in path.glob(f"*{_SUFFIX}") if (match := _NAME.fullmatch(file.name))]
    return [file for _, file in sorted(found, reverse=True)]


def _is_corrupt(file: Path) -> bool:
    try:
        _read_parts(file)
    except CheckpointError as error:  # of another kind, it may be good: of a newer version, or unreadable for now
        return isinstance(error, _CorruptError)
    return False


def _make_folder(path: Path) -> None:
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync_folder(folder.parent)


def sync_folder(path: Path) -> None:
    """Make durable what was created, renamed or removed in a folder; OSError if that fails."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
