"""Adapters, and rows for them."""

import numpy as np
from numba import config
from sklearn.base import BaseEstimator, ClassifierMixin

from streamsvm.batch import CSMOClassifier, batch_adapter

N = 40 if config.DISABLE_JIT else 120


def stream(n, kind=bool, seed=0, noise=0.3):
    rng = np.random.default_rng(seed)
    for a, b in rng.normal(size=(n, 2)).astype(np.float32).tolist():
        yield {"a": a, "b": b}, kind(np.sin(2.0 * a) + b + noise * rng.normal() > 0.0)


ROWS = list(stream(N))


def adapter(**parameters):
    return batch_adapter(CSMOClassifier(), **{"window": 60, "refit_every": 20, "calibration_folds": 2, **parameters})


def fitted(model, rows, y=None):
    """Learn pairs, or rows X and their labels y, and fit the adapter to its window."""
    if y is None:
        for x, label in rows:
            model.learn_one(x, label)
    else:
        model.learn_many(rows, y)
    return model.fit()


class Majority(ClassifierMixin, BaseEstimator):
    """A classifier that costs nothing, remembers its rows, and fails in the fits that ``failures`` lists."""

    failures = ()
    n_calls = 0

    def fit(self, X, y):
        type(self).n_calls += 1
        for when, error in self.failures:
            if when == self.n_calls:
                raise error
        self.classes_, counts = np.unique(y, return_counts=True)
        self.X_, self.y_, self.best_ = X, y, counts.argmax()
        return self

    def predict_proba(self, X):
        return np.tile(np.eye(len(self.classes_))[self.best_], (len(X), 1))

    def predict(self, X):
        return self.classes_[np.full(len(X), self.best_)]
