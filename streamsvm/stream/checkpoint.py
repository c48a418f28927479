"""Checkpoints: one file, written atomically, with the model, the state of the run and the position of the stream.

The format is that of `streamsvm.files`. A file contains neither time nor host, so that runs which have learned the same rows
write the same bytes.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, TypeVar, overload

from streamsvm.core.checks import check_number, to_python_scalar, validate_count, validate_mapping
from streamsvm.core.saved import BLOCK_STORE
from streamsvm.core.warning import warn
from streamsvm.files.container import CorruptFileError, ModelFileError, read_file, unpack_container
from streamsvm.files.model_file import is_model, read_metadata, read_parts, serialize_parts
from streamsvm.stream.endpoints import KEEP_MODEL, Closeable, Sink
from streamsvm.stream.key_store import FILE_NAME, KeyStore

Model = TypeVar("Model")
#: The end of the names of checkpoint files.
SUFFIX = ".ckpt"
#: The end of the names of checkpoint files that a rollback has set aside; other versions of streamsvm ignore them.
ASIDE_SUFFIX = f"{SUFFIX}.aside"
_FILE_NAME = re.compile(rf"checkpoint-(\d{{12,}})(?:{re.escape(SUFFIX)}|{re.escape(ASIDE_SUFFIX)})")
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
    place: Path | str = "start_from"
    """Name of its file or topic in messages."""

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
        """Return the position in the stream where a run continues after this checkpoint, as a dict. Raise a CheckpointError if
        the checkpoint contains no valid position. ``store`` is the path or name of the checkpoint store, for the message.
        """
        try:
            return dict(validate_mapping("position", self.header.get("position")))
        except ValueError as error:
            raise CheckpointError(f"{store}: the checkpoint is corrupt ({error}). Give another, {KEEP_MODEL}") from None

    def check_row_count(self, path: Path | str) -> None:
        """Raise a CheckpointError unless this checkpoint has a model and, in its header, the number of rows read. A plain model
        file has no such number. ``path`` is the file or store, for the message.
        """
        check_has_model(path, self)
        try:
            validate_count("rows", self.header.get("rows"))
        except ValueError as error:
            text = f"{path} holds a model that is not a checkpoint: its number of rows is missing ({error})"
            raise CheckpointError(text) from None


class CorruptCheckpointError(CheckpointError):
    """A checkpoint file is damaged."""


class SavedCheckpoint(NamedTuple):
    """A checkpoint in a store, which is not loaded yet."""

    name: Any
    """The path of the file; or the topic and the name of the model, for messages."""
    rows: int
    """Number of rows that the run had read."""
    time: float
    """When it was written, in seconds since 1970: the file's modification time, or the message's timestamp."""
    nbytes: int
    """Size in bytes."""
    is_aside: bool
    """Whether a rollback has set it aside: the run continues from an earlier one."""
    read: Callable[[], bytes]
    """Reads the bytes of the checkpoint file."""
    state: tuple[int, ...] = ()
    """For a file, its state from `read_file_state`."""

    def load(self, trusted: bool | None = None) -> Checkpoint:
        """Load this checkpoint; with ``trusted=None``, only its header. Raise a CheckpointError if that fails."""
        return read_checkpoint(self.name, trusted, None if self.state else self.read())


def find_saved(place: Path | str, history: Sequence[SavedCheckpoint], at: float | None = None) -> SavedCheckpoint:
    """Return the newest checkpoint of at most ``at`` rows (an int), or that was written at the time ``at`` or before (a float,
    seconds since 1970); for None, the one from which a run would continue. ``history`` are the checkpoints of the store
    ``place``, newest first. Raise a CheckpointError if all are later, or the store is empty.
    """
    for saved in history:
        if not saved.is_aside if at is None else (saved.rows if isinstance(at, int) else saved.time) <= at:
            return saved
    lacks = "so early: streamsvm checkpoints lists them" if history else "to choose: name a folder or topic of checkpoints"
    raise CheckpointError(f"{place} holds no checkpoint {lacks}")


class Retention(TypedDict, total=False):
    """The arguments of stores about the checkpoints to keep, as `CheckpointFolder` describes them."""

    keep: int | None
    keep_every: float | None


class Checkpoints(Closeable):
    """A store for the checkpoints of a run, to which one process at a time can write: the base of folders and topics."""

    path: Path | str
    """Name of the store in messages."""
    group: str | None = None
    """The consumer group whose offsets are committed with checkpoints; None without a group."""
    max_seconds: float | None = None
    """Maximum number of seconds between two checkpoints in this store; None for unlimited."""
    _trusted: bool = False
    _trust_advice: str = ""  # how to trust classes of the user, in messages
    _default_keep = 2
    _retention: Mapping[str, float] = {}  # the values of ``keep`` and ``keep_every`` that are set; checkpoints save them

    def _set_retention(self, keep: int | None = None, keep_every: float | None = None) -> None:
        """Set the number of newest checkpoints to keep, and the length in seconds of periods whose newest one is kept, too.
        Infinite means no periods, and None leaves a value to `_adopt_retention`. Raise a ValueError if one is invalid.
        """
        check_number("keep", 1 if keep is None else keep, 0.0, integer=True)
        check_number("keep_every", 1.0 if keep_every in (None, math.inf) else keep_every, 0.0)
        self._retention = {name: to_python_scalar(n) for name, n in (("keep", keep), ("keep_every", keep_every)) if n is not None}

    def _adopt_retention(self, last: Checkpoint) -> Checkpoint:
        """Keep as many checkpoints as the run that has written ``last``, where this run has set nothing. Return ``last``."""
        saved = {**last.get_facts("retention"), **self._retention}
        with contextlib.suppress(ValueError):  # the file may be of somebody else
            self._set_retention(saved.get("keep"), saved.get("keep_every"))
        return last

    def _select_kept(self, saved: Sequence[SavedCheckpoint]) -> list[SavedCheckpoint]:
        """Select the checkpoints to keep among ``saved``, the newest first: the first ones, and the newest of each period."""
        keep, seconds = self._retention.get("keep", self._default_keep), self._retention.get("keep_every", math.inf)
        newest = {*{one.time // seconds: one.rows for one in reversed(saved)}.values()}
        return [one for number, one in enumerate(saved) if number < keep or one.rows in newest]

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

    def roll_back(self, target: SavedCheckpoint) -> None:
        """Make ``target``, from the ``history`` of a follower, the newest checkpoint, from which the next run continues. Later
        ones are set aside until a new checkpoint has as many rows; to undo it, roll back to one of them.
        """
        raise NotImplementedError

    def check(self, model: Any, state: Any) -> None:
        """Raise a CheckpointError if the model or the run's ``state`` contains objects that cannot be saved in a checkpoint. No
        checkpoint is written; but from now on, a model stores its keys where checkpoints are.
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
        if retention := {name: value for name, value in self._retention.items() if value < math.inf}:
            facts["retention"] = retention
        try:
            return serialize_parts({"model": model, "state": state}, facts, self._trusted)
        except ModelFileError as error:
            if str(error).endswith("trusted=True"):
                raise ModelFileError(f"{error}: {self._trust_advice}, or --trusted") from error
            raise


def read_checkpoint(path: str | Path, trusted: bool | None = False, data: bytes | None = None) -> Checkpoint:
    """Read the model, the run's state and the header of a checkpoint file, or of a saved model, from ``data`` (of the checkpoint
    store ``path``, for messages), or else from the file ``path``. With ``trusted=None``, read only the header. Raise a
    CheckpointError if it is unreadable, corrupt or of a newer version, or contains objects of packages other than streamsvm and
    river (which could run code) without ``trusted=True``.
    """
    try:
        contents = read_file(Path(path)) if data is None else data
        container = unpack_container(contents)
        keys = BLOCK_STORE.get() or KeyStore(Path(path).parent)
        with keys.use(contents[-32:].hex()) if data is None else contextlib.nullcontext():
            header, parts = read_metadata(container), {} if trusted is None else read_parts(container, trusted)
        return Checkpoint(parts.get("model"), parts.get("state"), header, path)
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}") from error
    except CorruptFileError as error:
        go_back = f". {_REMOVE_ADVICE}" if _FILE_NAME.fullmatch(Path(path).name) else ""
        raise CorruptCheckpointError(f"{path} is corrupt: {error}{go_back}") from error
    except ModelFileError as error:
        raise CheckpointError(f"{path} cannot be loaded: {error}") from error


def read_header(path: str | Path) -> dict[str, Any]:
    """Read only the header of a checkpoint file (numbers of rows, position, metrics and other JSON fields), without loading its
    model. Raise a CheckpointError if the file is unreadable.
    """
    return read_checkpoint(path, None).header


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


def read_newest(path: str | Path, trusted: bool = False) -> Checkpoint:
    """Read a checkpoint file or, if ``path`` is a folder, its newest undamaged checkpoint. Raise a CheckpointError if the folder
    is empty, or if the checkpoint contains objects of other packages (which could run code) without ``trusted=True``.
    """
    path = Path(path)
    checkpoint = read_newest_in_folder(path, trusted) if path.is_dir() else read_checkpoint(path, trusted)
    if checkpoint is None:
        partition = next((f": name that of a partition, such as {part}" for part in sorted(path.glob("partition-*"))), "")
        raise CheckpointError(f"{path} holds no checkpoint{partition}")
    return checkpoint


def read_newest_in_folder(path: str | Path, trusted: bool = False) -> Checkpoint | None:
    """Read the newest undamaged checkpoint of the folder ``path``, without locking it, and warn of newer ones that are
    corrupt. Return None if the folder is empty. Objects of other packages (which could run code) need ``trusted=True``.

    Raises a CheckpointError if all checkpoints are corrupt (to start from scratch would lose the model), or if the newest
    undamaged one cannot be loaded.
    """
    errors = []
    for file, *_ in list_checkpoints(Path(path)):
        try:
            checkpoint = read_checkpoint(file, trusted)
        except CorruptCheckpointError as corrupt:
            errors.append(corrupt)
            continue
        except CheckpointError:
            if file.exists():
                raise
            return read_newest_in_folder(path, trusted)  # another process has replaced it by newer ones
        for error in errors:
            warn(f"{error}. Continuing from {file.name}")
        return checkpoint
    if errors:
        raise errors[0]
    return None


def list_checkpoints(path: Path) -> list[SavedCheckpoint]:
    """List the checkpoint files of the folder ``path``, newest first (by the row number in their names), without those that a
    rollback has set aside. Files with other names are ignored.
    """
    return [saved for saved in list_history(path) if not saved.is_aside]


def list_history(path: Path) -> list[SavedCheckpoint]:
    """List the checkpoint files of a folder, newest first; before them those that a rollback has set aside. ``path`` may also be
    that of one checkpoint file.
    """
    history = []
    for file in [path] if path.is_file() else filter(Path.is_file, path.glob(f"*{SUFFIX}*")):
        match, state = _FILE_NAME.fullmatch(file.name), read_file_state(file)
        rows = int(match[1]) if match else None
        if rows is None and file == path:
            rows = read_header(file).get("rows")
        if isinstance(rows, int) and state is not None:  # else another process has just removed it, or it is only a model
            is_aside, read = file != path and file.name.endswith(ASIDE_SUFFIX), partial(_read_whole, file)
            history.append(SavedCheckpoint(file, rows, state[0] / 1e9, state[2], is_aside, read, state))
    return sorted(history, key=lambda saved: (saved.is_aside, saved.rows), reverse=True)


def _read_whole(file: Path) -> bytes:
    """Read the bytes of a checkpoint file. If models of keys are in a file beside it, the latest ones are included."""
    if not file.with_name(FILE_NAME).is_file():
        return read_file(file)
    model, state, header, _ = read_checkpoint(file)
    return serialize_parts({"model": model, "state": state}, header)


def read_file_state(file: Path) -> tuple[int, ...] | None:
    """Return modification and change times, size and inode of ``file``, to detect later that it was changed; None if it does not
    exist.
    """
    with contextlib.suppress(OSError):
        status = file.stat()
        return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino
    return None
