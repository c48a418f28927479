"""Follows the newest model of a learner that writes its checkpoints to a model topic."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import Any

from streamsvm.stream.checkpoint import Checkpoint, CheckpointError, SavedCheckpoint, read_checkpoint
from streamsvm.stream.prediction import Follower
from streamsvm_kafka.connection import Connection, MissingTopicError
from streamsvm_kafka.model_topic import ModelReader, check_model_name, check_single_partition
from streamsvm_kafka.reader import REFRESH_SECONDS
from streamsvm_kafka.topics import TopicEndpoint, describe_topic, is_missing


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
        self._next_check = time.monotonic() + REFRESH_SECONDS

    def read(self) -> Checkpoint:
        """Return the newest checkpoint of the model in this topic, with the loaded model.

        Raise a CheckpointError if the topic contains no checkpoint of the model, or it cannot be loaded or contains no model, and
        a StreamError if the topic does not exist.
        """
        data = self._open_reader().read_newest()
        if data is None:
            raise CheckpointError(f"{self.path} holds no checkpoint")
        checkpoint = read_checkpoint(self.path, self._trusted, data)
        checkpoint.check_row_count(self.path)
        return checkpoint

    def _load_changed(self) -> Checkpoint | None:
        data = self._open_reader().read_newer()
        if data is None and time.monotonic() >= self._next_check:
            self._next_check = time.monotonic() + REFRESH_SECONDS
            if is_missing(self._connection, self._topic):
                raise CheckpointError(f"{self._place} was deleted")
        return None if data is None else read_checkpoint(self.path, self._trusted, data)

    def _read_if_changed(self) -> Checkpoint | None:
        with contextlib.suppress(MissingTopicError):  # the learner will create it
            self._open_reader()  # an error about the topic ends the run
            return super()._read_if_changed()
        return None

    def history(self) -> list[SavedCheckpoint]:
        """List the checkpoints of the model in this topic, newest first, also those that a rollback has set aside. Read them
        before `close`. Raise a StreamError if the topic does not exist.
        """
        return self._open_reader().read_history()

    def _open_reader(self) -> ModelReader:
        """Return the reader of the model topic, opened by the first call. Raise a CheckpointError if the topic has several
        partitions.
        """
        if self._reader is None:
            check_single_partition(describe_topic(self._connection, self._topic), self._place)
            self._reader = ModelReader(self._connection, self._topic, self._name, self._place)
        return self._reader

    def reads_from(self, output: object) -> bool:
        """Return whether ``output``, a sink or checkpoint store, writes to the model topic that this object reads."""
        return isinstance(output, TopicEndpoint) and output.is_same_topic(self._connection, self._topic)

    def close(self) -> None:
        """Close the connection to the broker if it was opened."""
        if self._reader is not None:
            self._reader.close()
