"""Loops that learn or predict a stream, and what they read and write: sources, sinks and checkpoints.

It knows files and iterables. Other systems, such as Kafka, are in packages of their own.
"""

from streamsvm.runtime.arrow import ArrowSource
from streamsvm.runtime.checkpoint import Checkpoint, CheckpointError, CheckpointFolder, load
from streamsvm.runtime.csv_source import CSVSource
from streamsvm.runtime.curve import CurvePoint, LearningCurve
from streamsvm.runtime.delayed import Awaited, DelayedLabels, DelayedLearningLoop, JoinedSource, Labelled
from streamsvm.runtime.drift import DriftWatch
from streamsvm.runtime.endpoints import (
    BadRow,
    BatchSource,
    DeadLetter,
    JoinedPrediction,
    Position,
    Prediction,
    Row,
    Rows,
    Sink,
    Source,
    StreamError,
    VersionedPrediction,
)
from streamsvm.runtime.following import FollowedFolder
from streamsvm.runtime.loop import LearningLoop
from streamsvm.runtime.merging import PartMerger, merged
from streamsvm.runtime.open import open_sink, open_source
from streamsvm.runtime.prediction import Predicted, PredictionLoop
from streamsvm.runtime.progress import Progress
from streamsvm.runtime.sinks import FileSink
from streamsvm.runtime.sources import IterableSource, JSONLinesSource, LIBSVMSource

__all__ = [
    "ArrowSource",
    "Awaited",
    "BadRow",
    "BatchSource",
    "CSVSource",
    "Checkpoint",
    "CheckpointError",
    "CheckpointFolder",
    "CurvePoint",
    "DeadLetter",
    "DelayedLabels",
    "DelayedLearningLoop",
    "DriftWatch",
    "FileSink",
    "FollowedFolder",
    "IterableSource",
    "JSONLinesSource",
    "JoinedPrediction",
    "JoinedSource",
    "LIBSVMSource",
    "Labelled",
    "LearningCurve",
    "LearningLoop",
    "PartMerger",
    "Position",
    "Predicted",
    "Prediction",
    "PredictionLoop",
    "Progress",
    "Row",
    "Rows",
    "Sink",
    "Source",
    "StreamError",
    "VersionedPrediction",
    "load",
    "merged",
    "open_sink",
    "open_source",
]
