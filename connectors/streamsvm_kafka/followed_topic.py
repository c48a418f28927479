"""Follows the newest model of a learner that writes its checkpoints to a model topic."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from typing import Any

from streamsvm.core.warning import warn
from streamsvm.stream.checkpoint import Checkpoint, CheckpointError, check_row_count, parse_checkpoint
from streamsvm.stream.logs import event
from streamsvm.stream.prediction import Follower
from streamsvm_kafka.connection import Connection, MissingTopicError
from streamsvm_kafka.model_topic import ModelReader, NoCheckpointError, check_model_name, check_single_partition
from streamsvm_kafka.topics import TopicEndpoint, describe_topic

logger: logging.Logger = logging.getLogger(__name__)


class FollowedTopic(Follower):
    """Follows the newest model in a model topic to which a learner writes, instead of a `FollowedFolder`.

    Parameters
    ----------
    bootstrap, client
        Broker and options of the connection, as in `KafkaSource`.
    topic
        Name of the model topic. `wait` also waits until the topic exists.
    name
        Name of the model in the topic, as in `TopicCheckpoints`.
    trusted
        Whether models may hold classes and functions of your own, as in `streamsvm.load`.
    seconds
        Number of seconds between two checks for a newer model.

    Attributes
    ----------
    path : str
        The topic and the name, in messages.

    Raises
    ------
    BrokerUnreachableError, StreamError
        Methods raise it as `KafkaSource` does, and if the topic cannot be read.
    CheckpointError
        The name is invalid. Methods also raise it if the topic has several partitions.

    Examples
    --------
    >>> FollowedTopic("127.0.0.1:1", "models", "rows").read()
    Traceback (most recent call last):
        ...
    streamsvm_kafka.connection.BrokerUnreachableError: no Kafka broker at 127.0.0.1:1 (...). Start the broker...
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        name: str,
        *,
        trusted: bool = False,
        seconds: float = 1.0,
        client: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(trusted, seconds)
        self._place = f"kafka://{bootstrap}/{topic}"
        self.path: str = f"{self._place}?name={name}"
        check_model_name(name, self._place)
        self._connection, self._topic, self._name = Connection(bootstrap, client), topic, name
        self._reader: ModelReader | None = None

    def read(self) -> Checkpoint:
        """Return the newest checkpoint of the model in this topic, with the loaded model.

        Raise a CheckpointError if the topic contains no checkpoint of the model, or it cannot be loaded or contains no model, and
        a StreamError if the topic does not exist.
        """
        data = self._open_reader().read_newest()
        if data is None:
            raise CheckpointError(f"{self.path} holds no checkpoint")
        return self._check_has_rows(parse_checkpoint(data, self.path, self._trusted))

    def _read_if_changed(self) -> Checkpoint | None:
        return None if self._reader is None else self._load_usable(self._reader.read_newer())

    def wait_for_first(self) -> Checkpoint | None:
        """Wait until the topic exists and contains a checkpoint of the model that can be loaded. Return the newest one, or None
        if `stop` is called while waiting.
        """
        reader, checkpoint, has_warned = None, None, False
        while reader is None:
            with contextlib.suppress(MissingTopicError):  # the learner will create it
                reader = self._open_reader()
                checkpoint = self._read_usable(reader)
            if checkpoint is None and not has_warned:
                has_warned = True
                logger.warning("waiting for the first checkpoint in %s", self.path, extra=event("waiting"))
            if reader is None and self._stopping.wait(self._seconds):
                return None
        while checkpoint is None and not self._stopping.wait(self._seconds):
            checkpoint = self._load_usable(reader.read_newer())
        return None if self._stopping.is_set() else checkpoint

    def _open_reader(self) -> ModelReader:
        """Return the reader of the model topic, opened by the first call. Raise a CheckpointError if the topic has several
        partitions.
        """
        if self._reader is None:
            check_single_partition(describe_topic(self._connection, self._topic), self._place)
            self._reader = ModelReader(self._connection, self._topic, self._name, self._place)
        return self._reader

    def _read_usable(self, reader: ModelReader) -> Checkpoint | None:
        """Read the newest checkpoint of the model through ``reader``. Return None if the topic has none yet, or, with a warning,
        if it is damaged or its model cannot be loaded.
        """
        try:
            return self._load_usable(reader.read_newest())
        except NoCheckpointError as error:
            warn(str(error))
            return None

    def _load_usable(self, data: bytes | None) -> Checkpoint | None:
        """Load a checkpoint from ``data``, the bytes of a Kafka message. Return None without ``data``, if the checkpoint was
        written before any row was learned, or, with a warning, if it cannot be loaded.
        """
        try:
            checkpoint = None if data is None else parse_checkpoint(data, self.path, self._trusted)
            return None if checkpoint is None or checkpoint.is_start else self._check_has_rows(checkpoint)
        except CheckpointError as error:
            warn(f"{error}: the earlier model stays")
            return None

    def _check_has_rows(self, checkpoint: Checkpoint) -> Checkpoint:
        check_row_count(self.path, checkpoint)
        return checkpoint

    def reads_from(self, output: object) -> bool:
        """Return whether ``output``, a sink or checkpoint store, writes to the model topic that this object reads."""
        return isinstance(output, TopicEndpoint) and output.is_same_topic(self._connection, self._topic)

    def close(self) -> None:
        """Close the connection to the broker if it was opened."""
        if self._reader is not None:
            self._reader.close()
