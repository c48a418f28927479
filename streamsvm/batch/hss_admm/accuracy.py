"""How far expansions over a compressed kernel matrix are from exact ones, with which predictions are made."""

from __future__ import annotations

import numpy as np

from streamsvm.batch.problem import Bounds
from streamsvm.hss import HSSMatrix

__all__ = ["compared"]

_ROWS = 256  # of either kind
_LEAST_ROWS = 64  # at the margin, of each of many problems
_FAR = 2.0  # margins from 0: what is beyond is told apart as well
_CLEARLY = 0.9  # of what rows cost: an intercept that makes it less than that is taken


def compared(
    K: HSSMatrix, targets: np.ndarray, b: np.ndarray, bias: np.ndarray, bounds: Bounds, epsilon: float, *, regression: bool
) -> tuple[np.ndarray, np.ndarray]:
    """For each problem, with coefficients float64 [n, problems]: what to add to its bias, which was found for values over K~, and
    by how much (root mean square) values are off then, of rows at the margin or of random ones, whichever is more.

    Of a regression, rows at the margin say what the bias has to be. Of a classification there may be few, and where most rows of
    a class are close to the margin, a small shift takes many across: the bias is what random rows of both classes cost least at,
    if that is clearly less. Values beyond twice the margin count as there. O(rows (d + problems)) for each coefficient.
    """
    n, problems = b.shape
    order = np.random.default_rng(0).permutation(n)
    strata, weights = _strata(order, bounds)
    # Problems take rows in the same order, as rows at the margin of one are often at that of another: exact products cost more
    # by the row than by the column.
    at_margin = (b > bounds.lower) & (b < bounds.upper) & (b != bounds.kink)
    margins = [order[of[order]][: max(_ROWS // problems, _LEAST_ROWS)] for of in at_margin.T]
    rows = np.unique(np.concatenate([strata, *margins]))
    found, exact = (K @ b)[rows], K.exact_product(rows, b)
    any_rows = np.searchsorted(rows, strata)
    shift, off = np.zeros(problems), np.empty(problems)
    for k, margin in enumerate(margins):
        at = np.searchsorted(rows, margin) if len(margin) else any_rows
        difference, far = found[:, k] - exact[:, k], np.inf
        if regression:
            shift[k] = difference[at].mean()
        else:
            far = _FAR
            sides = Bounds(*(side[strata, k] for side in bounds))
            shift[k] = _cheapest(exact[any_rows, k] + bias[k], targets[strata], sides, weights, epsilon)
        apart = np.clip(found[:, k] + bias[k], -far, far) - np.clip(exact[:, k] + bias[k] + shift[k], -far, far)
        at_margin_off = np.sqrt(np.mean((difference[at] - shift[k]) ** 2)) if len(margin) else 0.0
        off[k] = max(at_margin_off, np.sqrt(np.mean(apart[any_rows] ** 2)))
    return shift, off


def _strata(order: np.ndarray, bounds: Bounds) -> tuple[np.ndarray, np.ndarray]:
    # Random rows, as many of each class, and how many rows each stands for.
    sides = np.sign(bounds.lower[:, 0] + bounds.upper[:, 0])[order]
    kinds = np.unique(sides)
    taken = [order[sides == kind][: _ROWS // len(kinds)] for kind in kinds]
    weights = [np.full(len(of), (sides == kind).sum() / len(of)) for of, kind in zip(taken, kinds, strict=True)]
    return np.concatenate(taken), np.concatenate(weights)


def _cheapest(f: np.ndarray, targets: np.ndarray, bounds: Bounds, weights: np.ndarray, epsilon: float) -> float:
    # What to add to values f [m] to make rows cost least, if that is clearly less than they do: their cost is piecewise linear.
    places = (targets - f + np.array([[-epsilon], [0.0], [epsilon]])).ravel()
    slopes = targets - f - np.concatenate([[0.0], places])[:, np.newaxis]
    losses = [end * slopes - epsilon * np.abs(end - bounds.kink) + epsilon * np.abs(bounds.kink) for end in bounds]
    costs = np.max(losses, axis=0) @ weights
    best = int(costs.argmin())
    return float(places[best - 1]) if costs[best] < _CLEARLY * costs[0] else 0.0
