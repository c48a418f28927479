"""The values of expansions over a compressed kernel matrix, compared with the exact ones that predictions have."""

from __future__ import annotations

import numpy as np

from streamsvm.batch.hss import HSSMatrix
from streamsvm.batch.problem import Bounds

__all__ = ["compare_values"]

_ROWS = 256  # random rows, and rows at the margin of all problems together
_LEAST_ROWS = 64  # rows at the margin of each problem, if it has so many
_FAR = 2.0  # margins; rows whose values are farther from 0 are classified alike
_CLEARLY = 0.9  # an intercept is changed if the cost of the rows sinks at least to this part


def compare_values(
    K: HSSMatrix, targets: np.ndarray, b: np.ndarray, bias: np.ndarray, bounds: Bounds, epsilon: float, *, regression: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return for each problem what to add to its bias, which fits the compressed matrix, and how far values are off then.

    The error, float64 [problems], is the root mean square over rows at the margin, or over random rows if that is more; values
    beyond twice the margin count as there. For regression, rows at the margin determine the bias. For classification these may be
    few, and where many rows of a class are close to the margin, a small shift takes many across: the bias is the one at which
    random rows of both classes cost least, if they cost clearly less. O(rows (d + problems)) for each of the n rows of ``b``
    float64 [n, problems].
    """
    n, problems = b.shape
    order = np.random.default_rng(0).permutation(n)
    strata, weights = _strata(order, bounds)
    # Problems take rows in one order, since rows at the margin of one are often at that of another: the time of exact products
    # depends on rows more than on columns.
    at_margin = (b > bounds.lower) & (b < bounds.upper) & (b != bounds.kink)
    margins = [order[of[order]][: max(_ROWS // problems, _LEAST_ROWS)] for of in at_margin.T]
    rows = np.unique(np.concatenate([strata, *margins]))
    compressed, exact = (K @ b)[rows], K.exact_product(rows, b)
    random_rows = np.searchsorted(rows, strata)
    shift, error = np.zeros(problems), np.empty(problems)
    for k, margin in enumerate(margins):
        at = np.searchsorted(rows, margin) if len(margin) else random_rows
        difference, far = compressed[:, k] - exact[:, k], np.inf
        if regression:
            shift[k] = difference[at].mean()
        else:
            far = _FAR
            sides = Bounds(*(side[strata, k] for side in bounds))
            shift[k] = _cheapest(exact[random_rows, k] + bias[k], targets[strata], sides, weights, epsilon)
        apart = np.clip(compressed[:, k] + bias[k], -far, far) - np.clip(exact[:, k] + bias[k] + shift[k], -far, far)
        margin_error = np.sqrt(np.mean((difference[at] - shift[k]) ** 2)) if len(margin) else 0.0
        error[k] = max(margin_error, np.sqrt(np.mean(apart[random_rows] ** 2)))
    return shift, error


def _strata(order: np.ndarray, bounds: Bounds) -> tuple[np.ndarray, np.ndarray]:
    """Return random rows, equally many of each class, and how many rows each of them stands for."""
    sides = np.sign(bounds.lower[:, 0] + bounds.upper[:, 0])[order]
    kinds = np.unique(sides)
    taken = [order[sides == kind][: _ROWS // len(kinds)] for kind in kinds]
    weights = [np.full(len(of), (sides == kind).sum() / len(of)) for of, kind in zip(taken, kinds, strict=True)]
    return np.concatenate(taken), np.concatenate(weights)


def _cheapest(f: np.ndarray, targets: np.ndarray, bounds: Bounds, weights: np.ndarray, epsilon: float) -> float:
    """Return what to add to values f [m] so that the rows cost least, or 0 if they do not cost clearly less then."""
    # The cost is piecewise linear: its minimum is where one of the pieces ends.
    places = (targets - f + np.array([[-epsilon], [0.0], [epsilon]])).ravel()
    slopes = targets - f - np.concatenate([[0.0], places])[:, np.newaxis]
    losses = [end * slopes - epsilon * np.abs(end - bounds.kink) + epsilon * np.abs(bounds.kink) for end in bounds]
    costs = np.max(losses, axis=0) @ weights
    best = int(costs.argmin())
    return float(places[best - 1]) if costs[best] < _CLEARLY * costs[0] else 0.0
