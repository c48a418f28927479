"""Labels that come later than their rows, from another stream: the joined source, the buffer of what waits, and the loop."""

from streamsvm.runtime.delayed.buffer import DelayedLabels
from streamsvm.runtime.delayed.events import Awaited, Labelled
from streamsvm.runtime.delayed.joined import JoinedSource
from streamsvm.runtime.delayed.loop import DelayedLearningLoop

__all__ = ["Awaited", "DelayedLabels", "DelayedLearningLoop", "JoinedSource", "Labelled"]
