"""Checkpoints: one atomic file that holds the model, the metric and where the stream stands.

A file is ``MAGIC``, the header's length (8 bytes, little-endian), the header (JSON), and the payload: the model and the metric,
pickled. It holds nothing of the run itself (no time, no host), so runs that learned the same rows write the same bytes.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import json
import os
import pickle
import sys
import warnings
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any, NamedTuple, Self

__all__ = ["Checkpoint", "CheckpointError", "CheckpointFolder", "load", "read", "read_header"]

MAGIC = b"SSVMCKPT"
_FORMAT = 1
_LONGEST_HEADER = 2**24
_SUFFIX = ".ckpt"

# Beyond the classes of streamsvm and river, what their models pickle to. A pickle can name any function: all else is refused.
_ALLOWED = {
    ("builtins", name)
    for name in ("bool", "bytearray", "complex", "dict", "float", "frozenset", "int", "list", "set", "str", "tuple")
} | {
    ("collections", "Counter"),
    ("collections", "OrderedDict"),
    ("collections", "defaultdict"),
    ("collections", "deque"),
    ("copyreg", "_reconstructor"),
    ("builtins", "object"),
    ("datetime", "datetime"),
    ("datetime", "timedelta"),
    ("functools", "partial"),
    ("numpy", "dtype"),
    ("numpy", "ndarray"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "scalar"),
    ("numpy._core.numeric", "_frombuffer"),
    ("random", "Random"),
}
_ALLOWED_PACKAGES = ("streamsvm", "river")


class CheckpointError(Exception):
    """A checkpoint cannot be read, or is not of this run. The message names the file and the way out."""


class Checkpoint(NamedTuple):
    """What a checkpoint file holds."""

    model: Any
    metric: Any
    header: dict[str, Any]


class _Pickler(pickle.Pickler):
    # Equal strings are written as one, whether or not they are one object: a run that was resumed has other objects.
    def persistent_id(self, obj: Any) -> str | None:
        return sys.intern(obj) if type(obj) is str else None


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: IO[bytes], trusted: bool) -> None:
        super().__init__(file)
        self._trusted = trusted

    def persistent_load(self, pid: Any) -> Any:
        return pid

    def find_class(self, module: str, name: str) -> Any:
        if not self._trusted and (module, name) not in _ALLOWED:
            if module.partition(".")[0] not in _ALLOWED_PACKAGES:
                raise CheckpointError(
                    f"it names {module}.{name}, which is neither of streamsvm nor of river. If you know who wrote it, and that "
                    "class is your own, load it with trusted=True"
                )
            found = super().find_class(module, name)
            if not isinstance(found, type) or found.__module__.partition(".")[0] not in _ALLOWED_PACKAGES:
                raise CheckpointError(f"it names {module}.{name}, which is not a class of streamsvm or river")
            return found
        return super().find_class(module, name)


def _encode(model: Any, metric: Any, header: Mapping[str, Any]) -> bytes:
    payload = io.BytesIO()
    _Pickler(payload, protocol=5).dump((model, metric))
    body = payload.getvalue()
    full = {
        **header,
        "format": _FORMAT,
        "versions": {name: version(name) for name in ("numpy", "river", "streamsvm")},
        "payload": {"bytes": len(body), "sha256": hashlib.sha256(body).hexdigest()},
    }
    text = json.dumps(full, sort_keys=True, separators=(",", ":")).encode()
    return MAGIC + len(text).to_bytes(8, "little") + text + body


def _read_parts(path: Path) -> tuple[dict[str, Any], bytes]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}") from error
    start = len(MAGIC) + 8
    if data[: len(MAGIC)] != MAGIC:
        raise CheckpointError(f"{path} is not a checkpoint of streamsvm")
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
        raise CheckpointError(
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
        model, metric = _Unpickler(io.BytesIO(body), trusted).load()
    except CheckpointError as error:
        raise CheckpointError(f"{path} was not loaded: {error}") from None
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
    """A folder of checkpoints, of which the newest two are kept. One process at a time may write to it.

    Parameters
    ----------
    path
        The folder; it is made where it is not there.

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

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = (self.path / ".lock").open("ab")  # held, and with it the lock, until close
        except OSError as error:
            raise CheckpointError(f"{path}: {error.strerror}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise CheckpointError(
                f"{path}: another process is learning with this checkpoint folder. Stop it, or give another"
            ) from None
        for left in self.path.glob(f"*{_SUFFIX}.part"):  # of a run that was killed while it wrote
            left.unlink()

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
            It cannot be written; the previous one is as it was.
        """
        path = self.path / f"checkpoint-{rows:012d}{_SUFFIX}"
        part = path.with_name(path.name + ".part")
        try:
            with part.open("wb") as file:
                file.write(_encode(model, metric, {"rows": rows, "position": dict(position), **facts}))
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
            folder = os.open(self.path, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise CheckpointError(f"{path}: the checkpoint was not written: {error.strerror}") from error
        for old in _checkpoints(self.path)[self._KEPT :]:
            old.unlink()
        return path

    def newest(self, trusted: bool = False) -> Checkpoint | None:
        """The newest good checkpoint; None in an empty folder. See `newest_in`."""
        return self.newest_in(self.path, trusted)

    @staticmethod
    def newest_in(path: Path, trusted: bool = False) -> Checkpoint | None:
        """The newest checkpoint of a folder that can be read, with a warning about newer ones that cannot.

        Raises
        ------
        CheckpointError
            There are checkpoints, but none can be read: starting afresh would forget all that was learned.
        """
        errors = []
        for file in _checkpoints(path):
            try:
                found = read(file, trusted)
            except CheckpointError as error:
                errors.append(error)
                continue
            for damage in errors:
                warnings.warn(f"{damage}. Going on from {file.name}", stacklevel=2)
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
    # Newest first; the numbers in the names are of equal width.
    return sorted(path.glob(f"checkpoint-*{_SUFFIX}"), reverse=True)
