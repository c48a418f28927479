"""Learns some rows when it is imported: processes forked from one that imported it have the compiled code of a learner loaded."""

from river import datasets, preprocessing

import streamsvm_kafka  # noqa: F401 - imported for the processes to come
from streamsvm import BSGDClassifier
from streamsvm.runtime import CheckpointFolder, FileSink, IterableSource, LearningLoop, open_source

__all__ = ["BSGDClassifier", "CheckpointFolder", "FileSink", "LearningLoop", "open_source", "preprocessing"]


def make_model(**parameters):
    return preprocessing.StandardScaler() | BSGDClassifier(**{"budget": 30, "seed": 1, **parameters})


LearningLoop(IterableSource(datasets.Bananas().take(200)), make_model()).run()
