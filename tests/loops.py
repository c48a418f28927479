"""The model of tests of the learning loop, and the loop of a stream whose labels come later."""

from functools import partial

from river import preprocessing

from streamsvm import BSGDClassifier
from streamsvm.stream import DelayedLabels, DelayedLearningLoop, JoinedSource


def make_model(**parameters):
    return preprocessing.StandardScaler() | BSGDClassifier(**{"budget": 30, "seed": 1, **parameters})


def delayed_loop(rows, labels, join, delayed):
    """A source of rows with labels from another stream, and what makes a loop of it."""
    join = {"max_age": delayed.get("max_age", 86_400.0), **join}
    return JoinedSource(rows, labels, **join), partial(DelayedLearningLoop, delayed=DelayedLabels(**delayed))


def prediction(row, y_pred, y_true, probability):
    """The fields of a prediction."""
    return {"row": row, "y_pred": y_pred, "y_true": y_true, "probability": probability}
