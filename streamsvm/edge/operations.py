"""The steps of a program: the checks of their arrays and options, and their values by numpy.

``trees`` walk from a root to a leaf: from node i to i + 1 if the product of x with the axis of its cut is at most the threshold,
else to ``right``; of a leaf that is -1, and ``cut`` the leaf's number. The ``rows`` of the vectors from one of the ``starts`` to
the next have weights there.

"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from streamsvm.edge import ensembles
from streamsvm.edge.step import MAX_CLASSES, ExportError, Step, check_vectors, dequantise_vectors, read_array, read_option

MAX_KERNEL_VALUE = 1e30
#: Kernel values of distances below this are 0 in every form, as in the models: the least normal number of float32.
MIN_KERNEL_VALUE = 2.0**-126


# Checks -----------------------------------------------------------------------------------------------------------------------


def check_step(step: Step, width: int) -> int:
    """Return the width of a step's value, where the values that it takes have ``width`` numbers together.

    It is an ExportError if there is no such step, or its arrays and options are not those that it needs.
    """
    if step.op not in _OPERATIONS:
        raise ExportError(f"it has the step {step.op!r:.40}, which this version does not know: upgrade streamsvm")
    try:
        return _OPERATIONS[step.op].width(step, width)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ExportError(f"a step {step.op!r} has not the arrays and options that it needs ({error!r})") from None


def _check_fill(step: Step, width: int) -> int:
    if type(step.options["float32"]) is not bool:
        raise ExportError("a step 'impute' has no true or false")
    return width


def _check_scale(step: Step, width: int) -> int:
    read_array(step, "location", (width,))
    if (read_array(step, "spread", (width,)) < 0.0).any():
        raise ExportError("a spread is below 0")
    if step.options["bound"] is not None:
        read_option(step, "bound", 0.0)
    return width


def _check_select(step: Step, width: int) -> int:
    columns = read_array(step, "columns", (-1,), "i")
    if len(columns) and not (columns.min() >= 0 and columns.max() < width):
        raise ExportError("a step 'select' takes columns that are not there")
    return len(columns)


def _check_clip(step: Step, width: int) -> int:
    read_option(step, "bound", 0.0)
    return width


def _check_log(step: Step, width: int) -> int:
    read_option(step, "least", 1e-30)
    return width


def _check_bend(step: Step, width: int) -> int:
    read_option(step, "knot", 0.0)
    if step.options["functions"] not in (2, 4):
        raise ExportError("a step 'hinges' has 2 or 4 functions")
    return int(step.options["functions"]) * width


def _check_kernel(step: Step, width: int) -> int:
    kind = step.options["kind"]
    if kind not in ("rbf", "linear", "poly", "sigmoid"):
        raise ExportError(f"it has a kernel of the kind {kind!r}, which this version does not know: upgrade streamsvm")
    read_option(step, "gamma", 0.0)
    read_option(step, "coef0")
    read_option(step, "degree", 1, 100, whole=True)
    return check_vectors(step, width)


def _check_trees(step: Step, width: int) -> int:
    vectors = _check_kernel(step, width)
    right, cut = read_array(step, "right", (-1,), "i"), read_array(step, "cut", (-1,), "i")
    thresholds, roots = read_array(step, "thresholds", (-1,)), read_array(step, "roots", (-1,), "i")
    read_array(step, "axes", (len(thresholds), width))
    starts, rows = read_array(step, "starts", (-1,), "i"), read_array(step, "rows", (-1,), "i")
    weights = read_array(step, "weights", (-1, len(rows)))
    inner, nodes = right >= 0, len(right)
    # Trees that overlap, leaves of several trees, and leaves with one vector many times would take the square of their size.
    ends = np.append(roots[1:], nodes)[np.searchsorted(roots, np.arange(nodes), "right") - 1] if len(roots) else roots
    good = (
        len(cut) == nodes > 0
        and len(starts) > 1
        and len(roots) > 0
        and roots[0] == 0
        and roots[-1] < nodes
        and (roots[1:] > roots[:-1]).all()
        and ((right == -1) | ((right > np.arange(nodes) + 1) & (right < ends))).all()  # so that each walk goes on and ends
        and ((cut >= 0) & (cut < np.where(inner, len(thresholds), len(starts) - 1))).all()
        and starts[0] == 0
        and starts[-1] == len(rows)
        and ((starts[1:] >= starts[:-1]) & (starts[1:] - starts[:-1] <= vectors)).all()
        and len(np.unique(cut[~inner])) == np.count_nonzero(~inner)
        and ((rows >= 0) & (rows < vectors)).all()
    )
    if not good:
        raise ExportError("the trees of a step 'trees' do not fit together")
    return len(weights)


def _check_fourier(step: Step, width: int) -> int:
    read_option(step, "factor")
    return 2 * check_vectors(step, width)


def _check_linear(step: Step, width: int) -> int:
    weights = read_array(step, "weights", (-1, width))
    read_array(step, "biases", (len(weights),))
    return len(weights)


def _check_pairs(step: Step, width: int) -> int:
    classes = read_option(step, "classes", 2, MAX_CLASSES, whole=True)
    if width != classes * (classes - 1) // 2:
        raise ExportError(f"a step {step.op!r} has {width} pairs of {classes} classes")
    return int(classes)


# Values -----------------------------------------------------------------------------------------------------------------------


def evaluate_step(step: Step, x: np.ndarray) -> np.ndarray:
    """Return the value of a step for rows, float64 [n, width], from those that it takes, side by side."""
    return _OPERATIONS[step.op].value(step, x)


def _fill_step(step: Step, x: np.ndarray) -> np.ndarray:
    filled = np.where(np.isfinite(x), x, 0.0)
    return filled.astype(np.float32).astype(np.float64) if step.options["float32"] else filled


def _scale_step(step: Step, x: np.ndarray) -> np.ndarray:
    location, spread, bound = step.arrays["location"], step.arrays["spread"], step.options["bound"]
    some = spread > 0.0
    if some.all():
        scaled = (x - location) / spread
    else:
        scaled = np.where(some | np.isnan(x), (x - location) / np.where(some, spread, 1.0), 0.0)
    return scaled if bound is None else np.minimum(np.maximum(scaled, -bound), bound)


def _bend_step(step: Step, x: np.ndarray) -> np.ndarray:
    knot, functions = step.options["knot"], [x, np.abs(x) - step.options["knot"]]
    if step.options["functions"] == 4:
        functions += [np.maximum(x - knot, 0.0), np.maximum(-x - knot, 0.0)]
    return np.stack(functions, axis=2).reshape(len(x), len(functions) * x.shape[1])


def _flushed_values(values: np.ndarray) -> np.ndarray:
    """Set kernel values below `MIN_KERNEL_VALUE` to 0, as the learners do, so that all distant rows get the same answer."""
    values[values < MIN_KERNEL_VALUE] = 0.0
    return values


def compute_kernel_values(step: Step, vectors: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return the values of a step's kernel between rows x [n, width] and vectors [m, width], float64 [n, m]."""
    kind, gamma = step.options["kind"], step.options["gamma"]
    if kind == "rbf":
        if len(x) == 1:
            ways = vectors - x
            return _flushed_values(np.exp(-gamma * np.einsum("ij,ij->i", ways, ways)))[None]
        middle = vectors.mean(axis=0) if len(vectors) else 0.0  # distances are most exact from there
        x, vectors = x - middle, vectors - middle
        squares = np.square(x).sum(axis=1)[:, None] + np.square(vectors).sum(axis=1) - 2.0 * (x @ vectors.T)
        return _flushed_values(np.exp(-gamma * np.maximum(squares, 0.0)))
    products = x @ vectors.T
    if kind == "linear":
        return products
    products = gamma * products + step.options["coef0"]
    if kind == "sigmoid":
        return np.tanh(products)
    return np.minimum(np.maximum(products ** step.options["degree"], -MAX_KERNEL_VALUE), MAX_KERNEL_VALUE)


def _trees_step(step: Step, x: np.ndarray) -> np.ndarray:
    a, vectors = step.arrays, dequantise_vectors(step)
    out = np.zeros((len(x), len(a["weights"])))
    for root in a["roots"].tolist():
        leaves = _leaf_numbers(a, x, root)
        for leaf in np.unique(leaves).tolist():
            rows, entries = np.flatnonzero(leaves == leaf), slice(a["starts"][leaf], a["starts"][leaf + 1])
            values = compute_kernel_values(step, vectors[a["rows"][entries]], x[rows])
            out[rows] += values @ a["weights"][:, entries].T
    return out


def _leaf_numbers(a: Mapping[str, np.ndarray], x: np.ndarray, root: int) -> np.ndarray:
    """Return the number of the leaf to which each row goes."""
    nodes = np.full(len(x), root)
    while (walking := np.flatnonzero(a["right"][nodes] >= 0)).size:
        at = nodes[walking]
        cuts = a["cut"][at]
        left = np.einsum("ij,ij->i", x[walking], a["axes"][cuts]) <= a["thresholds"][cuts]
        nodes[walking] = np.where(left, at + 1, a["right"][at])
    return a["cut"][nodes]


def _fourier_step(step: Step, x: np.ndarray) -> np.ndarray:
    angles = step.options["factor"] * (x @ dequantise_vectors(step).T)
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1)


def _class_sums(x: np.ndarray, classes: int) -> np.ndarray:
    sums = np.zeros((len(x), classes))
    begin = 0
    for first in range(classes - 1):
        end = begin + classes - 1 - first
        sums[:, first + 1 :] += x[:, begin:end]
        sums[:, first] -= x[:, begin:end].sum(axis=1)
        begin = end
    return sums


def _votes_step(step: Step, x: np.ndarray) -> np.ndarray:
    classes = step.options["classes"]
    return 0.5 * (_class_sums(np.where(x >= 0.0, 1.0, -1.0), classes) + classes - 1)


def _pair_scores(step: Step, x: np.ndarray) -> np.ndarray:
    classes = step.options["classes"]
    sums = _class_sums(x, classes)
    votes = 0.5 * (_class_sums(np.where(x > 0.0, 1.0, -1.0), classes) + classes - 1)
    return votes + sums / (3.0 * (np.abs(sums) + 1.0))


class _Operation(NamedTuple):
    """The width of a step's value, once it is checked, and the value."""

    width: Callable[[Step, int], int]
    value: Callable[[Step, np.ndarray], np.ndarray]


_OPERATIONS: Mapping[str, _Operation] = {
    "impute": _Operation(_check_fill, _fill_step),
    "scale": _Operation(_check_scale, _scale_step),
    "select": _Operation(_check_select, lambda step, x: x[:, step.arrays["columns"]]),
    "clip": _Operation(_check_clip, lambda step, x: np.minimum(np.maximum(x, -step.options["bound"]), step.options["bound"])),
    "hinges": _Operation(_check_bend, _bend_step),
    "kernel": _Operation(_check_kernel, lambda step, x: compute_kernel_values(step, dequantise_vectors(step), x)),
    "fourier": _Operation(_check_fourier, _fourier_step),
    "trees": _Operation(_check_trees, _trees_step),
    "neighbours": _Operation(ensembles.check_neighbours, ensembles.neighbours),
    "forest": _Operation(ensembles.check_forest, ensembles.forest),
    "log": _Operation(_check_log, lambda step, x: np.log(np.maximum(x, step.options["least"]))),
    "linear": _Operation(_check_linear, lambda step, x: x @ step.arrays["weights"].T + step.arrays["biases"]),
    "concat": _Operation(lambda _, width: width, lambda _, x: x),
    "votes": _Operation(_check_pairs, _votes_step),
    "pair_scores": _Operation(_check_pairs, _pair_scores),
    "experts": _Operation(ensembles.check_experts, ensembles.experts),
}
