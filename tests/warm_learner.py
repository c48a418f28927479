"""Learns some rows when it is imported: processes forked from one that imported it have the compiled code of a learner loaded."""

from functools import partial

from river import datasets, preprocessing

import streamsvm_kafka  # noqa: F401 - imported for the processes to come
from streamsvm import BSGDClassifier
from streamsvm.runtime import (
    CheckpointFolder,
    DelayedLabels,
    DelayedLearningLoop,
    FileSink,
    IterableSource,
    JoinedSource,
    LearningLoop,
    open_source,
)
from streamsvm.runtime.batches import batches_of

__all__ = ["BSGDClassifier", "CheckpointFolder", "FileSink", "LearningLoop", "batches_of", "open_source", "preprocessing"]


def make_model(**parameters):
    return preprocessing.StandardScaler() | BSGDClassifier(**{"budget": 30, "seed": 1, **parameters})


def delayed_loop(rows, labels, join, delayed):
    """A source of rows with labels from another stream, and what makes a loop of it."""
    return JoinedSource(rows, labels, **join), partial(DelayedLearningLoop, delayed=DelayedLabels(**delayed))


LearningLoop(IterableSource(datasets.Bananas().take(200)), make_model()).run()
