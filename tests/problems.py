"""Small problems, and what several files of tests ask of models."""

import numpy as np
from numba import config

import naive_batch

ROWS = 50 if config.DISABLE_JIT else 150
EPOCHS = 60 if config.DISABLE_JIT else 400
EXACT = {"relaxation": 1.0, "averaging": 0, "gamma": 0.8, "seed": 0}


def blobs(classes=2, rows=ROWS, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(classes, size=rows)
    X = rng.normal(size=(rows, 2)) + 1.2 * np.column_stack([np.cos(2 * np.pi * y / classes), np.sin(2 * np.pi * y / classes)])
    return X.astype(np.float32), y


def gram(X, gamma=0.8):
    return naive_batch.kernel_matrix(X, X, gamma=gamma)


def snapshot(model):
    """Return all that a model knows, to be compared with another: the bytes of its memory, names of features, labels."""
    return model._store.snapshot(), repr(model.feature_names), repr(getattr(model, "labels", None))
