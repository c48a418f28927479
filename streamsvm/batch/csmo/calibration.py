"""Probabilities of classes from the decision values of pairs: a sigmoid for each pair, and their coupling for several classes."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
from scipy.special import expit
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.utils.metaestimators import _safe_split

from streamsvm.batch.kernel_machine import Training

_FOLDS = 5
_LEAST = 1e-7  # the least probability of a class of a pair, as in LIBSVM
_VALUES = 1_000_000  # of the systems of equations that are solved at a time


def fitted_sigmoids(machine: Any, training: Training, weights: np.ndarray, random_state: Any) -> np.ndarray:
    """Return the slope and the intercept of each pair's sigmoid, float64 [pairs, 2], fitted to rows that were held out.

    ``machine`` is not fitted; it learns all folds but one, with the weights of ``training``. Sigmoids take the ``weights`` of the
    rows alone. The folds have equal parts of each class, in a random order.
    """
    counted, labels = training.counted, training.labels[training.counted]  # type: ignore[index]
    sizes = np.bincount(labels)
    if sizes.min() < 2:
        raise ValueError("probability=True needs two or more rows of each class, whose sample_weight is above 0")
    f = np.empty((len(labels), len(sizes) * (len(sizes) - 1) // 2))
    folds = StratifiedKFold(min(_FOLDS, int(sizes.min())), shuffle=True, random_state=random_state)
    for train, held in folds.split(labels, labels):
        rows, _ = _safe_split(machine, training.X, None, counted[train])
        others, _ = _safe_split(machine, training.X, None, counted[held], counted[train])
        f[held] = clone(machine).fit(rows, labels[train], training.weights[counted[train]])._decide(others)
    found = []
    for values, (first, second) in zip(f.T, combinations(range(len(sizes)), 2), strict=True):
        either = np.flatnonzero((labels == first) | (labels == second))
        found.append(_platt_sigmoid(values[either], labels[either] == second, weights[counted[either]]))
    return np.array(found)


def _platt_sigmoid(f: np.ndarray, positive: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
    """Return Platt's sigmoid of decision values float64 [n]: a logistic regression whose labels are not quite 0 and 1."""
    ones, zeros = weights[positive].sum(), weights[~positive].sum()
    share = np.where(positive, (ones + 1.0) / (ones + 2.0), 1.0 / (zeros + 2.0))
    scale = np.abs(f).max() or 1.0
    fit = LogisticRegression(C=np.inf, tol=1e-8, max_iter=1000).fit(
        np.tile(f / scale, 2)[:, np.newaxis],
        np.repeat([1, 0], len(f)),
        np.concatenate([weights * share, weights * (1.0 - share)]),
    )
    return float(fit.coef_[0, 0]) / scale, float(fit.intercept_[0])


def class_probabilities(f: np.ndarray, sigmoids: np.ndarray, classes: int) -> np.ndarray:
    """Return the probability of each class, float64 [n, classes], from the decision values of the pairs, float64 [n, pairs]."""
    second = np.clip(expit(f * sigmoids[:, 0] + sigmoids[:, 1]), _LEAST, 1.0 - _LEAST)
    if classes == 2:
        return np.hstack([1.0 - second, second])
    size = max(_VALUES // (classes + 1) ** 2, 1)
    return np.concatenate([_coupled_probabilities(second[begin : begin + size], classes) for begin in range(0, len(f), size)])


def _coupled_probabilities(second: np.ndarray, classes: int) -> np.ndarray:
    """Return the probabilities p, float64 [n, classes], that fit those of the pairs' second classes best.

    They minimise sum_ij (r_ji p_i - r_ij p_j)^2 subject to sum_i p_i = 1, where r_ij is the probability of class i among i and j:
    the second method of Wu, Lin and Weng (2004).
    """
    r = np.zeros((len(second), classes, classes))
    i, j = np.triu_indices(classes, 1)
    r[:, j, i], r[:, i, j] = second, 1.0 - second
    system = np.ones((len(second), classes + 1, classes + 1))  # with a multiplier for the sum
    system[:, -1, -1] = 0.0
    system[:, :-1, :-1] = -r * r.swapaxes(1, 2)
    system[:, range(classes), range(classes)] = np.square(r).sum(axis=1)
    p = np.maximum(np.linalg.solve(system, np.eye(classes + 1)[-1])[:, :-1], 0.0)
    return p / p.sum(axis=1, keepdims=True)
