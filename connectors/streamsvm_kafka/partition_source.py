"""The rows of one partition, which a worker of a group hands to the loop of that partition."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from streamsvm.core.checks import checked_count
from streamsvm.stream.endpoints import START_AFRESH, Position, StreamError
from streamsvm_kafka.clients.messages import Backlog, Messages
from streamsvm_kafka.codecs import Codec
from streamsvm_kafka.decoding import MessageSource

logger: logging.Logger = logging.getLogger(__name__)


class PartitionSource(MessageSource):
    """The rows of one partition, as a worker hands them over. Its `position` is that after the row that was given last.

    The partition holds offsets from ``beginning`` to ``end``. Without a checkpoint, it begins at ``start``; if it no longer holds
    what follows the checkpoint, it goes on at ``lost_start``, and None makes that an error. ``commit`` is called with the
    partition and its offset when a checkpoint holds it.
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
        super().__init__(name, topic, codec)
        self.offset: int = start
        self._partition = partition
        self._identity: dict[str, Any] = {"topic": topic, "topic_id": topic_id, "label": codec.label, "partition": partition}
        self._beginning, self._end, self._lost_start, self._commit = beginning, end, lost_start, commit
        self._waiting = Backlog()

    @property
    def position(self) -> Position:
        """``{"topic": ..., "topic_id": ..., "label": "y", "partition": 3, "offset": 17}``, of the next message.

        Within a message of many rows, also how many of them were given: ``"within": 250``.
        """
        if self._part is not None:
            return {**self._identity, "offset": self._part.where(0)[1], "within": self._part.end}
        return {**self._identity, "offset": self.offset}

    def seek(self, position: Position) -> None:
        """Continue at ``position``, as `Source.seek`; another topic, label or partition is an error, too."""
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
            raise self._corrupt(f", its offset is {offset!r}")
        reason, held = "", f"partition {self._partition} holds offsets {self._beginning} to {self._end}"
        if found["topic_id"] != self._identity["topic_id"]:
            reason = "it was deleted and created again since the checkpoint"
        elif not self._beginning <= offset <= self._end:
            reason = f"{held}, the checkpoint continues at {offset}"
            if offset < self._beginning:
                reason += f": retention has removed {self._beginning - offset} unread messages"
        if reason:
            if self._lost_start is None:
                raise StreamError(
                    f"{self.name}: {reason}. To continue with the model of the checkpoint, say where: --from earliest, latest, a "
                    "time or PARTITION:OFFSET"
                )
            logger.warning("%s: %s. The model is kept, and reading continues at %s", self.name, reason, self._lost_start)
            offset = self._lost_start
        elif "within" in position:
            try:
                rows = checked_count("within", position["within"])
            except ValueError as error:
                raise self._corrupt(f" ({error})") from None
            if not self._many:
                raise StreamError(f"{self.name}: the checkpoint is of messages with many rows: give that codec, {START_AFRESH}")
            self._skip[self._partition] = offset, rows
        self.offset = offset

    def _corrupt(self, how: str) -> StreamError:
        return StreamError(f"{self.name}: the checkpoint is corrupt{how}: {START_AFRESH.removeprefix('or ')}")

    @property
    def next_offset(self) -> int:
        """The offset of the message that is to be handed over next."""
        return self._waiting.last_offset + 1 if len(self._waiting) else self.offset

    def feed(self, messages: Messages) -> None:
        """Hand over messages of the partition. Those that were handed over before are left out, as those without a value."""
        is_wanted = (messages.sizes >= 0) & (messages.offsets >= self.next_offset)
        self._waiting.extend(messages if is_wanted.all() else messages.pick(is_wanted))

    def skip_to(self, offset: int) -> None:
        """Pass over messages that are gone, behind those that were handed over."""
        if not self.holds_rows:
            self.offset = offset

    @property
    def holds_rows(self) -> bool:
        """Whether there are rows that were handed over and not given yet."""
        return self._part is not None or len(self._waiting) > 0

    def _take(self, most: int) -> Messages | None:
        if not len(self._waiting):
            return None
        messages = self._waiting.take(most)
        self.offset = int(messages.offsets[-1]) + 1
        return messages

    def saved(self) -> None:
        """Commit the position for the group."""
        self._commit(self._partition, self.position["offset"])

    def stop(self) -> None:
        """Drop the messages that were handed over and not read yet."""
        self._waiting.clear()
