"""Learns some rows when it is imported: processes forked from one that imported it have the compiled code of a learner loaded."""

from river import datasets, preprocessing

import streamsvm_kafka  # noqa: F401 - imported for the processes to come
from loops import delayed_loop, make_model
from streamsvm import BSGDClassifier
from streamsvm.cli import learn, predict  # noqa: F401 - what commands import
from streamsvm.cli.main import main
from streamsvm.stream import CheckpointFolder, FileSink, IterableSource, LearningLoop, open_source

__all__ = [
    "BSGDClassifier",
    "CheckpointFolder",
    "FileSink",
    "LearningLoop",
    "delayed_loop",
    "main",
    "make_model",
    "open_source",
    "preprocessing",
]

LearningLoop(IterableSource(datasets.Bananas().take(200)), make_model()).run()
