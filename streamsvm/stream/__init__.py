"""Loops that learn or predict a stream, with their sources, sinks and checkpoints.

It knows files and iterables. Other systems, such as Kafka, are in packages of their own.
"""

from streamsvm.stream.arrow import ArrowSource
from streamsvm.stream.checkpoint import Checkpoint, CheckpointError, FolderLockedError, TakenOverError, load
from streamsvm.stream.checkpoint_folder import CheckpointFolder
from streamsvm.stream.csv_source import CSVSource
from streamsvm.stream.delayed import ArrivedLabel, DelayedLabels, DelayedLearningLoop, JoinedSource, PendingLabel
from streamsvm.stream.drift import DriftWatch
from streamsvm.stream.endpoints import DeadLetter, Position, Prediction, Sink, Source, StreamError
from streamsvm.stream.json_objects import JSONLinesSource
from streamsvm.stream.libsvm_source import LIBSVMSource
from streamsvm.stream.loop import LearningLoop
from streamsvm.stream.merging import CheckpointMerger, merge_models
from streamsvm.stream.open import open_sink, open_source
from streamsvm.stream.prediction import FollowedFolder, PredictionLoop
from streamsvm.stream.progress import CurvePoint, LearningCurve, Progress
from streamsvm.stream.scores.base import ScoreReport
from streamsvm.stream.sinks import FileSink
from streamsvm.stream.sources import IterableSource
from streamsvm.stream.tables.chunk import BadRow, Chunk, Message, Row, Table, WeightedLabel
from streamsvm.stream.tables.column_monitor import ColumnMonitor
from streamsvm.stream.weights import WeightedSource

__all__ = [
    "ArrivedLabel",
    "ArrowSource",
    "BadRow",
    "CSVSource",
    "Checkpoint",
    "CheckpointError",
    "CheckpointFolder",
    "CheckpointMerger",
    "Chunk",
    "ColumnMonitor",
    "CurvePoint",
    "DeadLetter",
    "DelayedLabels",
    "DelayedLearningLoop",
    "DriftWatch",
    "FileSink",
    "FolderLockedError",
    "FollowedFolder",
    "IterableSource",
    "JSONLinesSource",
    "JoinedSource",
    "LIBSVMSource",
    "LearningCurve",
    "LearningLoop",
    "Message",
    "PendingLabel",
    "Position",
    "Prediction",
    "PredictionLoop",
    "Progress",
    "Row",
    "ScoreReport",
    "Sink",
    "Source",
    "StreamError",
    "Table",
    "TakenOverError",
    "WeightedLabel",
    "WeightedSource",
    "load",
    "merge_models",
    "open_sink",
    "open_source",
]
