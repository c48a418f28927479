"""The rows of one partition, which a worker of a group hands to the loop of that partition."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from streamsvm.runtime.endpoints import START_AFRESH, BadRow, Position, Row, StreamError
from streamsvm_kafka.codecs import Codec

__all__ = ["PartitionSource"]

logger = logging.getLogger(__name__)


class PartitionSource:
    """The rows of one partition, as a worker hands them over. Its `position` is that after the row that was given last.

    Parameters
    ----------
    name
        The stream in messages.
    topic, topic_id, label
        As in the position of `KafkaSource`.
    partition
        The partition.
    beginning, end
        The offsets that it holds.
    start
        Where it begins without a checkpoint.
    lost_start
        Where it goes on if it no longer holds what follows the checkpoint; None: that is an error.
    commit
        Called with the partition and its offset when a checkpoint holds it.
    """

    def __init__(
        self,
        name: str,
        topic: str,
        topic_id: str | None,
        label: str | None,
        partition: int,
        *,
        beginning: int,
        end: int,
        start: int,
        lost_start: int | None,
        commit: Callable[[int, int], None],
    ) -> None:
        self.name, self.offset = name, start
        self._partition = partition
        self._identity: dict[str, Any] = {"topic": topic, "topic_id": topic_id, "label": label, "partition": partition}
        self._beginning, self._end, self._lost_start, self._commit = beginning, end, lost_start, commit
        self._last = -1
        self._rows: deque[tuple[Row | BadRow, int, bytes]] = deque()
        self.raw = b""

    @property
    def place(self) -> str:
        """The partition, and the offset of the message that was given last."""
        return f"{self.name}: message at partition {self._partition}, offset {self._last}"

    @property
    def position(self) -> Position:
        """``{"topic": ..., "topic_id": ..., "label": "y", "partition": 3, "offset": 17}``, of the next message."""
        return {**self._identity, "offset": self.offset}

    def seek(self, position: Position) -> None:
        """Continue at ``position``.

        Raises
        ------
        StreamError
            It is of another topic, label or partition; or of messages that the partition no longer holds, where it is not said
            where to go on.
        """
        found = {name: position.get(name) for name in self._identity}
        offset = position.get("offset")
        if None in (found["topic_id"], self._identity["topic_id"]):
            found["topic_id"] = self._identity["topic_id"]
        for name, ours in self._identity.items():
            if name != "topic_id" and found[name] != ours:
                raise StreamError(
                    f"{self.name}: the checkpoint is of {name} {found[name]!r}, not {ours!r}. Give that, {START_AFRESH}"
                )
        if type(offset) is not int:
            raise StreamError(
                f"{self.name}: the checkpoint is corrupt, its offset is {offset!r}: {START_AFRESH.removeprefix('or ')}"
            )
        reason, held = "", f"partition {self._partition} holds offsets {self._beginning} to {self._end}"
        if found["topic_id"] != self._identity["topic_id"]:
            reason = "it was deleted and created again since the checkpoint"
        elif not self._beginning <= offset <= self._end:
            reason = f"{held}, the checkpoint goes on at {offset}"
        if reason and self._lost_start is None:
            raise StreamError(
                f"{self.name}: {reason}. To go on with the model of the checkpoint, say where: --from earliest, latest, a time "
                "or PARTITION:OFFSET"
            )
        if reason and self._lost_start is not None:
            logger.warning("%s: %s. The model is kept, and reading goes on at %s", self.name, reason, self._lost_start)
            offset = self._lost_start
        self.offset = offset

    def feed(self, records: Iterable[Any], codec: Codec) -> None:
        """Hand over messages of the partition. Those before the position are left out, as those without a value."""
        for record in records:
            if record.value is None or record.offset < self.offset:
                continue
            row: Row | BadRow
            try:
                row = codec.decode(record.value)
            except ValueError as error:
                self._last = record.offset
                row = BadRow(self.place, record.value, str(error))
            self._rows.append((row, record.offset, record.value))

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Row | BadRow]:
        return self

    def __next__(self) -> Row | BadRow:
        if not self._rows:
            raise StopIteration
        row, self._last, self.raw = self._rows.popleft()
        self.offset = self._last + 1
        return row

    def saved(self) -> None:
        """Commit the position for the group."""
        self._commit(self._partition, self.offset)

    def stop(self) -> None:
        """Drop the rows that were handed over and not given yet."""
        self._rows.clear()

    def close(self) -> None:
        """Do nothing: the connection is the worker's."""
