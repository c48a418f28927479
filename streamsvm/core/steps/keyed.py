"""The loop over rows of many keys, compiled: each row is predicted and then learned by the small models of its own key.

A key has one block in an array of equal blocks, the arena, float64 [slots, words]. It contains the number of its rows, the number
of its last row among those of all keys, the numbers of columns and outputs; the weights [outputs, width] and the covariances
[width, width] of a linear model (recursive least squares); and of a Gaussian model of each label (naive Bayes) the weight of its
rows [labels], the means and the sums of squared deviations [labels, columns]. The statistics that standardise rows are shared by
all keys.
"""

from __future__ import annotations

import math

import numpy as np

from streamsvm.core.compiling.functions import compiled
from streamsvm.core.kernels import dot
from streamsvm.core.memory.moments import N_MOMENTS, learn_value, standardise_value

#: Positions in a block.
N_ROWS, LAST_ROW, N_COLUMNS, N_OUTPUTS, WEIGHTS = range(5)

_FORGETTING_FACTOR, _BAYES_FORGETTING_FACTOR = 0.995, 0.99  # of the linear model, and of the Gaussian model of a label
_MAX_DEVIATIONS = 8.0  # of features and targets from their means
_MAX_SCORE, _MAX_LOG_RATIO = 8.0, 6.0  # of linear outputs, and of logarithms of likelihood ratios
#: Weights of the prior variance (1) and mean (0) of the Gaussian models, in rows: those of the rows of all keys.
_PRIOR_ROWS, _PRIOR_MEAN_ROWS = 1.0, 0.5
_MAX_ROW_WEIGHT = 100.0


@compiled
def _learn_least_squares(
    W: np.ndarray, P: np.ndarray, limits: np.ndarray, z: np.ndarray, errors: np.ndarray, weight: float
) -> None:
    """Update the weights W [outputs, width] and the covariance matrix P [width, width] of a linear model by a step of recursive
    least squares with forgetting. ``z`` [n] are the regressors of the row, and ``errors`` [outputs] its targets minus its
    predictions. The variances do not exceed those in ``limits`` [width, width].

    Without the limits, variances would grow exponentially in directions that rows no longer have.
    """
    direction = np.empty(len(z))
    for a in range(len(z)):
        direction[a] = dot(z, P[a])
    gain = weight / (_FORGETTING_FACTOR + weight * dot(z, direction))
    for a in range(len(z)):
        for k in range(len(errors)):
            W[k, a] += gain * errors[k] * direction[a]
        for b in range(len(z)):
            P[a, b] = (P[a, b] - gain * (direction[a] * direction[b])) / _FORGETTING_FACTOR
    for a in range(len(z)):
        if P[a, a] > limits[a, a]:
            factor = math.sqrt(limits[a, a] / P[a, a])
            for b in range(len(z)):
                P[a, b] *= factor
                P[b, a] *= factor


@compiled
def _compute_likelihood(z: np.ndarray, n: int, count: float, means: np.ndarray, squares: np.ndarray) -> float:
    """Return the logarithm of the density of the first ``n`` features ``z`` of a row in the Gaussian model of a label, divided by
    the root of n, because features are not independent. The model is that of ``count`` rows with these ``means`` and ``squares``
    (sums of squared deviations).

    The mean and the variance of each feature are uncertain, so that its density is that of a t distribution. Its factor that
    depends on the count only is left out.
    """
    total, freedom, share = 0.0, count + _PRIOR_ROWS, count / (count + _PRIOR_MEAN_ROWS)
    for j in range(n):
        size = _PRIOR_ROWS + squares[j] + _PRIOR_MEAN_ROWS * share * means[j] * means[j]
        size *= 1.0 + 1.0 / (count + _PRIOR_MEAN_ROWS)
        deviation = z[j] - share * means[j]
        total -= 0.5 * (math.log(size / freedom) + (freedom + 1.0) * math.log(1.0 + deviation * deviation / size))
    return total / math.sqrt(max(n, 1))


@compiled
def predict_then_learn_keys(
    arena: np.ndarray,
    slots: np.ndarray,
    shared: np.ndarray,
    X: np.ndarray,
    targets: np.ndarray,
    options: np.ndarray,
    out: np.ndarray,
) -> None:
    """Predict each row of X with the small models of its key, then train them on it. Predictions are written into ``out`` float64
    [n, outputs + labels + 1]: the outputs of the linear model, the log likelihood of each label minus the mean of the others, and
    the logarithm of 1 + the rows of the key.

    ``slots`` int64 [n] has the index of each row's key in ``arena``. The first block is that of a new key; rows of unknown keys
    are only predicted, by this block. X is float64 [n, columns], with finite numbers. ``targets`` float64 [n, 2] are
    targets or indices of labels, and weights; a row with the target NaN is only predicted. ``shared`` float64 [columns + 1, ...]
    are the moments and first values of each feature, and of a numeric target. ``options`` int64 [5] are the width of the linear
    model, the number of features in use, the number of labels (0 in a regression), the number of rows that were learned before,
    and the number of rows after which a key without rows starts again (0: never).
    """
    width, used, labels, n_learned, idle, start = options[0], options[1], options[2], options[3], options[4], arena[0]
    outputs, columns, target_moments = out.shape[1] - labels - 1, X.shape[1], shared[X.shape[1]]
    z, errors, n = np.ones(columns + 1), np.empty(outputs), min(used + 1, width)
    a = WEIGHTS + outputs * width  # where the covariance matrix begins, then the weights of rows, the means and the squares
    b, c, d = a + width * width, a + width * width + labels, a + width * width + labels + labels * columns
    for i in range(len(X)):
        is_learned, block = not np.isnan(targets[i, 0]), arena[slots[i]]
        if 0 < idle < n_learned - block[LAST_ROW] and block[N_ROWS] > 0.0:
            if is_learned:
                block[:] = start
            else:
                block = start
        for j in range(used):
            z[j + 1] = standardise_value(X[i, j], shared[j], _MAX_DEVIATIONS)
        W, counts = block[WEIGHTS:a].reshape((outputs, width)), block[b:c]
        means, squares = block[c:d].reshape((labels, columns)), block[d : d + labels * columns].reshape((labels, columns))
        total = 0.0
        for k in range(outputs):
            errors[k] = -dot(z[:n], W[k])
            out[i, k] = min(max(-errors[k], -_MAX_SCORE), _MAX_SCORE)
        for k in range(labels):
            out[i, outputs + k] = _compute_likelihood(z[1:], used, counts[k], means[k], squares[k])
            total += out[i, outputs + k]
        for k in range(labels):
            ratio = (labels * out[i, outputs + k] - total) / max(labels - 1, 1)
            out[i, outputs + k] = min(max(ratio, -_MAX_LOG_RATIO), _MAX_LOG_RATIO)
        out[i, outputs + labels] = math.log(1.0 + block[N_ROWS])
        if not is_learned:
            continue
        index, weight = targets[i, 0], min(targets[i, 1], _MAX_ROW_WEIGHT)
        if labels == 0:
            errors[0] += standardise_value(index, target_moments, _MAX_DEVIATIONS)
            learn_value(target_moments[:N_MOMENTS], target_moments[N_MOMENTS:], index, _MAX_DEVIATIONS)
        for k in range(labels):
            errors[k] += 1.0 if k == index else -1.0
            if k == index:
                counts[k] = _BAYES_FORGETTING_FACTOR * counts[k] + weight
                share = weight / counts[k]
                for j in range(used):
                    difference = z[j + 1] - means[k, j]
                    means[k, j] += share * difference
                    squares[k, j] = _BAYES_FORGETTING_FACTOR * squares[k, j] + weight * (1.0 - share) * difference * difference
        limits = start[a:b].reshape((width, width))
        _learn_least_squares(W, block[a:b].reshape((width, width)), limits, z[:n], errors, weight)
        n_learned += 1
        block[N_ROWS], block[LAST_ROW] = block[N_ROWS] + 1.0, n_learned
        for j in range(used):
            learn_value(shared[j, :N_MOMENTS], shared[j, N_MOMENTS:], X[i, j], _MAX_DEVIATIONS)
