"""Problems for linear machines, and what their solutions cost."""

import numpy as np
from numba import config
from scipy import sparse
from sklearn.svm import LinearSVR

from streamsvm.linear import OutOfCoreLinearSVR

SLOW = config.DISABLE_JIT
N = 180 if SLOW else 2000
LITTLE = 2**18


def two_classes(n=N, d=20, seed=0, dense=False):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) * (rng.random((n, d)) < (1.0 if dense else 0.3))
    y = np.where(X @ rng.normal(size=d) + 0.7 * rng.normal(size=n) > 0.4, 1, -1)
    return X if dense else sparse.csr_array(X), y


def curve(n=N, d=10, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, X @ rng.normal(size=d) + 0.5 * rng.standard_t(2, size=n) + 2.0


def objective(model, X, y):
    """Of a fitted model, by dense arithmetic in float64, of the rows as they are written."""
    X = np.asarray(X.toarray() if sparse.issparse(X) else X, np.float32).astype(float)
    w, bias = model.coef_.reshape(-1), np.atleast_1d(model.intercept_)[0]
    f = X @ w + bias
    if isinstance(model, OutOfCoreLinearSVR | LinearSVR):
        losses, C = np.maximum(np.abs(y - f) - model.epsilon, 0.0), model.C
    else:
        t = np.where(y == model.classes_[1], 1.0, -1.0)
        weights = model.class_weight or {}
        if weights == "balanced":
            weights = {label: len(y) / (2.0 * (y == label).sum()) for label in model.classes_}
        losses, C = np.maximum(1.0 - t * f, 0.0), model.C * np.array([weights.get(label, 1.0) for label in y])
    losses = losses**2 if "squared" in model.loss else losses
    return 0.5 * (w @ w + (bias / model.intercept_scaling) ** 2) + np.sum(C * losses)
