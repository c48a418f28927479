"""Data sets for tests of linear machines, and the objective values of their solutions."""

import warnings

import numpy as np
import pytest
from numba import config
from scipy import sparse
from sklearn.svm import LinearSVC, LinearSVR

from streamsvm.linear import BlockFile, OutOfCoreLinearSVR

SLOW = config.DISABLE_JIT
N = 180 if SLOW else 2000
SMALL_MEMORY = 2**18


def make_classes(n=N, d=20, seed=0, dense=False):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) * (rng.random((n, d)) < (1.0 if dense else 0.3))
    y = np.where(X @ rng.normal(size=d) + 0.7 * rng.normal(size=n) > 0.4, 1, -1)
    return X if dense else sparse.csr_array(X), y


def make_regression(n=N, d=10, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, X @ rng.normal(size=d) + 0.5 * rng.standard_t(2, size=n) + 2.0


def draw_weights(n, seed=0):
    rng = np.random.default_rng(seed)
    return rng.exponential(size=n) * (rng.random(n) < 0.8)


def read_blocks(path):
    """Return a block file's rows as a dense array, its labels, its blocks, and the closed `BlockFile`."""
    with BlockFile(path) as file:
        blocks, width = [file.read_block(number) for number in range(len(file))], file.shape[1]
    if file.dense:
        parts = [block.values.reshape(-1, width) for block in blocks]
    else:
        parts = [
            sparse.csr_array((b.values, b.indices.astype(int), b.starts.astype(int)), (len(b.labels), width)).toarray()
            for b in blocks
        ]
    return np.concatenate(parts), np.concatenate([block.labels for block in blocks]), blocks, file


def compute_objective(model, X, y, weights=None):
    """Return the primal objective of a fitted model, computed in float64 from dense rows that were rounded to float32."""
    X = np.asarray(X.toarray() if sparse.issparse(X) else X, np.float32).astype(float)
    weights = np.ones(len(y)) if weights is None else weights
    w, bias = model.coef_.reshape(-1), np.atleast_1d(model.intercept_)[0]
    f, C = X @ w + bias, model.C * weights
    if isinstance(model, OutOfCoreLinearSVR | LinearSVR):
        losses = np.maximum(np.abs(y - f) - model.epsilon, 0.0)
    else:
        t = np.where(y == model.classes_[1], 1.0, -1.0)
        factors = model.class_weight or {}
        if factors == "balanced":
            factors = {label: weights.sum() / (2.0 * weights[y == label].sum()) for label in model.classes_}
        losses, C = np.maximum(1.0 - t * f, 0.0), C * np.array([factors.get(label, 1.0) for label in y])
    losses = losses**2 if "squared" in model.loss else losses
    return 0.5 * (w @ w + (bias / model.intercept_scaling) ** 2) + np.sum(C * losses)


def check_optimum(model, X, y, weights=None):
    """Check that a model is within its tolerance of the optimum. Return scikit-learn's model with the same parameters."""
    kind = LinearSVR if hasattr(model, "epsilon") else LinearSVC
    names = kind().get_params().keys() & model.get_params().keys() - {"tol", "max_iter", "random_state", "verbose"}
    settings = {name: getattr(model, name) for name in names}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exact = kind(dual=True, random_state=0, tol=1e-3 * model.tol, max_iter=200_000, **settings).fit(X, y, weights)
    best = compute_objective(exact, X, y, weights)
    assert model.objective_ == pytest.approx(compute_objective(model, X, y, weights), rel=1e-6)
    assert model.objective_ - model.duality_gap_ <= best * (1.0 + 1e-6)
    assert model.objective_ <= best * (1.0 + 1.01 * model.tol)
    assert model.duality_gap_ <= model.tol * model.objective_
    return exact
