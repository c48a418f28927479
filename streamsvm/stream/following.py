"""The model of a process that keeps learning, taken anew whenever it writes a checkpoint."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from streamsvm.core.checks import checked_count
from streamsvm.core.warning import warn
from streamsvm.stream.checkpoint import Checkpoint, CheckpointError, CheckpointFolder, read_model


class FollowedModel(NamedTuple):
    """A model, and which one of the run that makes it."""

    model: Any
    version: int
    """Rows of the stream that it had seen."""


class Followed(Protocol):
    """The newest model of a place into which another process may write: a `FollowedFolder`, or a topic."""

    def newer(self) -> FollowedModel | None:
        """Return the newest model if it was not returned before, else None. It does not wait."""


class FollowedFolder:
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
        self.path: Path = Path(path)
        self._trusted, self._seconds = trusted, seconds
        self._seen: tuple[Any, ...] = ()
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
        found = self._look()
        return None if found is None else FollowedModel(found.model, found.header["rows"])

    def wait(self) -> Checkpoint | None:
        """Wait for a checkpoint, and return the newest one; None after `stop`."""
        while (found := self._look()) is None and not self._stopping.wait(self._seconds):
            pass
        return found

    def stop(self) -> None:
        """End a wait. You can call it from a signal handler or another thread."""
        self._stopping.set()

    def _look(self) -> Checkpoint | None:
        seen = CheckpointFolder.signature(self.path)
        if not seen or seen == self._seen:
            return None
        self._seen = seen
        try:
            found = read_model(self.path, self._trusted)
            check_says_rows(self.path, found)
            return found
        except CheckpointError as error:
            warn(f"{error}: the model before it stays")
        return None


def check_says_rows(path: Path | str, checkpoint: Checkpoint) -> None:
    """Raise a CheckpointError where a checkpoint does not say how many rows its model has seen: it is a model that was saved."""
    try:
        checked_count("rows", checkpoint.header.get("rows"))
    except ValueError as error:
        raise CheckpointError(
            f"{path} holds a model that is no checkpoint: it does not say how many rows it has seen ({error})"
        ) from None
