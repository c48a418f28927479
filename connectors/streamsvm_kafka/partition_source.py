"""The rows of one partition, which a worker of a group hands to the loop of that partition."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from streamsvm.core.checks import checked_count
from streamsvm.stream.endpoints import START_AFRESH, BadRow, Position, Row, Rows, StreamError
from streamsvm_kafka.codecs import Codec
from streamsvm_kafka.decoding import Decoder

logger: logging.Logger = logging.getLogger(__name__)


class PartitionSource:
    """The rows of one partition, as a worker hands them over. Its `position` is that after the row that was given last.

    Parameters
    ----------
    name
        The stream in messages.
    codec
        Decodes a message.
    topic, topic_id
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
        codec: Codec,
        topic: str,
        topic_id: str | None,
        partition: int,
        *,
        beginning: int,
        end: int,
        start: int,
        lost_start: int | None,
        commit: Callable[[int, int], None],
    ) -> None:
        self.name: str = name
        self.offset: int = start
        self._partition = partition
        label = getattr(codec, "label", None)
        self._identity: dict[str, Any] = {"topic": topic, "topic_id": topic_id, "label": label, "partition": partition}
        self._beginning, self._end, self._lost_start, self._commit = beginning, end, lost_start, commit
        self._decoder = Decoder(name, codec)
        self._records: deque[Any] = deque()
        self._skip = (-1, 0)  # the offset of a message, and rows of it that were learned

    @property
    def place(self) -> str:
        """The partition, and the offset of the message that was given last."""
        return self.place_of(-1)

    @property
    def raw(self) -> bytes | None:
        """The bytes of the message that was given last; None of one with many rows."""
        return self.raw_of(-1)

    @property
    def position(self) -> Position:
        """``{"topic": ..., "topic_id": ..., "label": "y", "partition": 3, "offset": 17}``, of the next message.

        Within a message of many rows, also how many of them were given: ``"within": 250``.
        """
        if within := self._decoder.open_rows:
            return {**self._identity, "offset": self._decoder.record.offset, "within": within}
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
            reason = f"{held}, the checkpoint continues at {offset}"
        if reason and self._lost_start is None:
            raise StreamError(
                f"{self.name}: {reason}. To continue with the model of the checkpoint, say where: --from earliest, latest, a "
                "time or PARTITION:OFFSET"
            )
        if reason and self._lost_start is not None:
            logger.warning("%s: %s. The model is kept, and reading continues at %s", self.name, reason, self._lost_start)
            offset = self._lost_start
        elif "within" in position:
            self._skip = offset, self._rows_within(position["within"])
        self.offset = offset

    def _rows_within(self, found: Any) -> int:
        try:
            rows = checked_count("within", found)
        except ValueError as error:
            raise StreamError(f"{self.name}: the checkpoint is corrupt ({error}): {START_AFRESH.removeprefix('or ')}") from None
        if not self._decoder.many:
            raise StreamError(f"{self.name}: the checkpoint is of messages with many rows: give that codec, {START_AFRESH}")
        return rows

    @property
    def next_offset(self) -> int:
        """The offset of the message that is to be handed over next."""
        return self._records[-1].offset + 1 if self._records else self.offset

    def feed(self, records: Iterable[Any]) -> None:
        """Hand over messages of the partition. Those that were handed over before are left out, as those without a value."""
        first = self.next_offset
        self._records.extend(record for record in records if record.value is not None and record.offset >= first)

    @property
    def waits(self) -> bool:
        """Whether there are rows that were handed over and not given yet."""
        return bool(self._records or self._decoder.open_rows)

    def take(self, most: int) -> Sequence[Row | BadRow] | Rows | None:
        """Return the next rows of those that were handed over, as `BatchSource.take`; None where there are none left."""
        if self._decoder.open_rows:
            return self._decoder.more(most)
        if not self._records:
            return None
        n = 1 if self._decoder.many else min(most, len(self._records))
        records = [self._records.popleft() for _ in range(n)]
        self.offset = records[-1].offset + 1
        if not self._decoder.many:
            return self._decoder.decode(records)
        # The message may be gone (compaction, a tombstone): the one that comes in its place is new.
        (at, rows), self._skip = self._skip, (-1, 0)
        return self._decoder.open(records[0], rows if at == records[0].offset else 0, most)

    def place_of(self, i: int) -> str:
        """The partition, and the offset of the message of a row of those that were taken last."""
        return self._decoder.place_of(i)

    def raw_of(self, i: int) -> bytes | None:
        """The bytes of the message of a row of those that were taken last; None of one with many rows."""
        return self._decoder.raw_of(i)

    def __iter__(self) -> Iterator[Row | BadRow]:
        while (rows := self.take(1)) is not None:
            yield from [rows.row(i) for i in range(len(rows))] if isinstance(rows, Rows) else rows

    def saved(self) -> None:
        """Commit the position for the group."""
        self._commit(self._partition, self.position["offset"])

    def stop(self) -> None:
        """Drop the messages that were handed over and not read yet."""
        self._records.clear()

    def close(self) -> None:
        """Do nothing: the connection is the worker's."""
