"""Delayed labels from a second stream: the source that joins both streams, the buffer of pending rows, and the loop."""

from streamsvm.stream.delayed.buffer import DelayedLabels
from streamsvm.stream.delayed.events import ArrivedLabel, PendingLabel
from streamsvm.stream.delayed.joined import JoinedSource
from streamsvm.stream.delayed.loop import DelayedLearningLoop

__all__ = ["ArrivedLabel", "DelayedLabels", "DelayedLearningLoop", "JoinedSource", "PendingLabel"]
