"""Checkpoints: one atomic file that holds the model, the metric and where the stream stands.

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

__all__ = ["Checkpoint", "CheckpointError", "CheckpointFolder", "load", "read", "read_header", "sync_folder"]

MAGIC = b"SSVMCKPT"
_FORMAT = 1
_LONGEST_HEADER = 2**24
_SUFFIX = ".ckpt"
_NAME = re.compile(rf"checkpoint-(\d{{12,}}){re.escape(_SUFFIX)}")


class CheckpointError(Exception):
    """A checkpoint cannot be read, or is not of this run. The message names the file and the way out."""


class Checkpoint(NamedTuple):
    """What a checkpoint file holds."""

    model: Any
    metric: Any
    header: dict[str, Any]


class _DamagedError(CheckpointError):
    """The file is not as it was written."""


def _encode(model: Any, metric: Any, header: Mapping[str, Any], trusted: bool) -> bytes:
    try:
        body = dumps((model, metric))
    except Exception as error:  # a class of the user's own can raise anything
        raise CheckpointError(
            f"the model cannot be pickled ({type(error).__name__}: {error}). Classes and functions of your own must be defined "
            "at the top of a module: no lambda, none inside a function"
        ) from error
    try:  # what is written and cannot be read back would be noticed when it is needed
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
        raise _DamagedError(f"{path} is not a checkpoint of streamsvm")
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
        raise _DamagedError(
            f"{path} is damaged: {error}. Remove it to go on from the checkpoint before it, if the folder has one"
        ) from error
    return header, body


def read_header(path: str | Path) -> dict[str, Any]:
    """The header of a checkpoint file, without loading its model (so nothing in the file is run)."""
    return _read_parts(Path(path))[0]


def read(path: str | Path, trusted: bool = False) -> Checkpoint:
    """Read a checkpoint file.

    Raises
    ------
    CheckpointError
        It is damaged, of a newer version, or names classes that are not of streamsvm or river and is not ``trusted``.
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
    """The model of a checkpoint file, or of the newest good checkpoint of a folder.

    Parameters
    ----------
    path
        A checkpoint file or folder.
    trusted
        Whether classes of your own may be loaded. A checkpoint is a pickle: one that is not from you can run anything then.

    Raises
    ------
    CheckpointError
        There is none, or none that can be read.
    """
    path = Path(path)
    if not path.is_dir():
        return read(path, trusted).model
    newest = CheckpointFolder.newest_in(path, trusted)
    if newest is None:
        raise CheckpointError(f"{path} holds no checkpoint")
    return newest.model


class CheckpointFolder:
    """A folder of checkpoints, of which the newest two good ones are kept. One process at a time may write to it.

    Parameters
    ----------
    path
        The folder; it is made where it is not there.
    trusted
        Whether models may hold classes and functions of your own. To resume them, the checkpoints must be yours too: a
        checkpoint is a pickle, and one that is not from you can run anything then.

    Raises
    ------
    CheckpointError
        It cannot be made, or another process is writing to it.

    Examples
    --------
    >>> import tempfile
    >>> with CheckpointFolder(tempfile.mkdtemp()) as folder:
    ...     path = folder.save({"a": "model"}, None, rows=3, position={"rows": 3})
    ...     print(path.name, folder.newest().model)
    checkpoint-000000000003.ckpt {'a': 'model'}
    """

    _KEPT = 2

    def __init__(self, path: str | Path, trusted: bool = False) -> None:
        self.path = Path(path)
        self._trusted = trusted
        try:
            _make_folder(self.path)
            self._lock = (self.path / ".lock").open("ab")  # held, and with it the lock, until close
        except OSError as error:
            raise CheckpointError(f"{path}: {error.strerror}") from error
        if not locks(self._lock):
            self._lock.close()
            raise CheckpointError(f"{path}: another process is learning with this checkpoint folder. Stop it, or give another")
        try:
            for left in self.path.glob(f"*{_SUFFIX}.part"):  # of a run that was killed while it wrote
                left.unlink()
            self._prune()
        except OSError as error:
            self._lock.close()
            raise CheckpointError(f"{path}: {error.strerror}") from error

    def save(self, model: Any, metric: Any, *, rows: int, position: Mapping[str, Any], **facts: Any) -> Path:
        """Write a checkpoint: wholly there, or not at all, also if the process or the machine stops in the middle.

        Parameters
        ----------
        model, metric
            What to pickle.
        rows
            Rows that the stream had given; the file is called by it.
        position
            Where the source stands.
        **facts
            More for the header, as JSON.

        Raises
        ------
        CheckpointError
            It cannot be written, or what was written could not be read back; the previous one is as it was.
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
        # The newest two good ones stay, and the one just written. Damaged ones stay until there is one after them, so that
        # `newest` can tell of them.
        kept = 0
        for file in _checkpoints(self.path):
            good = file == written or not _is_damaged(file)
            if file == written or (good and kept < self._KEPT):
                kept += 1
            elif good or kept or written is not None:
                file.unlink(missing_ok=True)

    def newest(self) -> Checkpoint | None:
        """The newest good checkpoint; None in an empty folder. See `newest_in`."""
        return self.newest_in(self.path, self._trusted)

    @staticmethod
    def newest_in(path: str | Path, trusted: bool = False) -> Checkpoint | None:
        """The newest checkpoint of a folder that is not damaged, with a warning about newer ones that are.

        Raises
        ------
        CheckpointError
            All are damaged (starting afresh would forget all that was learned), or the newest good one cannot be loaded.
        """
        errors = []
        for file in _checkpoints(Path(path)):
            try:
                found = read(file, trusted)
            except _DamagedError as error:
                errors.append(error)
                continue
            except CheckpointError:
                if file.exists():
                    raise
                return CheckpointFolder.newest_in(path, trusted)  # a process that learns has put newer ones in its place
            for damage in errors:
                warn(f"{damage}. Going on from {file.name}")
            return found
        if errors:
            raise errors[0]
        return None

    def close(self) -> None:
        """Let other processes write."""
        with contextlib.suppress(OSError):
            self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _checkpoints(path: Path) -> list[Path]:
    # Newest first. What has another name is not ours.
    found = [(int(match[1]), file) for file in path.glob(f"*{_SUFFIX}") if (match := _NAME.fullmatch(file.name))]
    return [file for _, file in sorted(found, reverse=True)]


def _is_damaged(file: Path) -> bool:
    try:
        _read_parts(file)
    except _DamagedError:
        return True
    except CheckpointError:  # of a newer version, or not to be read now: not ours to judge
        return False
    return False


def _make_folder(path: Path) -> None:
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for made in missing:
        sync_folder(made.parent)


def sync_folder(path: Path) -> None:
    """Make what was created, renamed or removed in a folder durable; OSError where that fails."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
