"""The operations of programs: for each, the check of a step's arrays and options, and its evaluation with numpy.

A step ``trees`` (the kernel expansions of local SVMs) holds trees whose leaves have vectors and weights of their own. A row goes
from node i to node i + 1 if its product with the axis of the node's cut is at most the threshold, else to ``right``. A leaf has a
``right`` of -1, and ``cut`` is its leaf index; its vectors and weights are ``rows[starts[leaf] : starts[leaf + 1]]``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from streamsvm.edge import ensembles
from streamsvm.edge.step import MAX_CLASSES, ExportError, Step, check_vectors, dequantise_vectors, read_array, read_option

MAX_KERNEL_VALUE = 1e30  # values of the polynomial kernel are clipped to this
#: Smaller kernel values of the Gaussian kernel are 0 in every format, as in the learners: the smallest normal float32.
MIN_KERNEL_VALUE = 2.0**-126


# Checks -----------------------------------------------------------------------------------------------------------------------


def check_step(step: Step, width: int) -> int:
    """Check a step whose inputs have ``width`` numbers together, and return the width of its output.

    Raises ExportError if the operation is unknown, or an array or option is missing or invalid.
    """
    if step.op not in _OPERATIONS:
        raise ExportError(f"it has the step {step.op!r:.40}, which this version does not know: upgrade streamsvm")
    try:
        return _OPERATIONS[step.op].check(step, width)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ExportError(f"a step {step.op!r} has missing or invalid arrays and options ({error!r})") from None


def _check_impute(step: Step, width: int) -> int:
    """Check the option of a step ``impute``, and return the width of its output."""
    if type(step.options["float32"]) is not bool:
        raise ExportError("float32 of a step 'impute' is not true or false")
    return width


def _check_scale(step: Step, width: int) -> int:
    """Check location, spread and bound of a step ``scale``, and return the width of its output."""
    read_array(step, "location", (width,))
    if (read_array(step, "spread", (width,)) < 0.0).any():
        raise ExportError("spread of a step 'scale' is below 0")
    if step.options["bound"] is not None:
        read_option(step, "bound", 0.0)
    return width


def _check_select(step: Step, width: int) -> int:
    """Check the column indices of a step ``select``, and return the width of its output."""
    columns = read_array(step, "columns", (-1,), "i")
    if len(columns) and not (columns.min() >= 0 and columns.max() < width):
        raise ExportError("a step 'select' has a column that its input does not have")
    return len(columns)


def _check_clip(step: Step, width: int) -> int:
    """Check the bound of a step ``clip``, and return the width of its output."""
    read_option(step, "bound", 0.0)
    return width


def _check_log(step: Step, width: int) -> int:
    """Check the smallest argument of a step ``log``, and return the width of its output."""
    read_option(step, "least", 1e-30)
    return width


def _check_hinges(step: Step, width: int) -> int:
    """Check the knot and the number of functions of a step ``hinges``, and return the width of its output."""
    read_option(step, "knot", 0.0)
    if step.options["functions"] not in (2, 4):
        raise ExportError("functions of a step 'hinges' must be 2 or 4")
    return int(step.options["functions"]) * width


def _check_kernel(step: Step, width: int) -> int:
    """Check the kernel and the vectors of a step, and return the number of vectors, the width of its output."""
    kind = step.options["kind"]
    if kind not in ("rbf", "linear", "poly", "sigmoid"):
        raise ExportError(f"it has the kernel {kind!r:.40}, which this version does not know: upgrade streamsvm")
    read_option(step, "gamma", 0.0)
    read_option(step, "coef0")
    read_option(step, "degree", 1, 100, is_int=True)
    return check_vectors(step, width)


def _check_trees(step: Step, width: int) -> int:
    """Check that the walks of a step ``trees`` terminate, and that its cost is linear in its size; return its output width."""
    n_vectors = _check_kernel(step, width)
    right, cut = read_array(step, "right", (-1,), "i"), read_array(step, "cut", (-1,), "i")
    thresholds, roots = read_array(step, "thresholds", (-1,)), read_array(step, "roots", (-1,), "i")
    read_array(step, "axes", (len(thresholds), width))
    starts, rows = read_array(step, "starts", (-1,), "i"), read_array(step, "rows", (-1,), "i")
    weights = read_array(step, "weights", (-1, len(rows)))
    is_inner, n_nodes = right >= 0, len(right)
    # Overlapping trees, leaves that trees share, and vectors that repeat in a leaf would make the cost quadratic in the file
    # size.
    tree_ends = np.append(roots[1:], n_nodes)[np.searchsorted(roots, np.arange(n_nodes), "right") - 1] if len(roots) else roots
    is_valid = (
        len(cut) == n_nodes > 0
        and len(starts) > 1
        and len(roots) > 0
        and roots[0] == 0
        and roots[-1] < n_nodes
        and (roots[1:] > roots[:-1]).all()
        and ((right == -1) | ((right > np.arange(n_nodes) + 1) & (right < tree_ends))).all()  # so that each walk terminates
        and ((cut >= 0) & (cut < np.where(is_inner, len(thresholds), len(starts) - 1))).all()
        and starts[0] == 0
        and starts[-1] == len(rows)
        and ((starts[1:] >= starts[:-1]) & (starts[1:] - starts[:-1] <= n_vectors)).all()
        and len(np.unique(cut[~is_inner])) == np.count_nonzero(~is_inner)
        and ((rows >= 0) & (rows < n_vectors)).all()
    )
    if not is_valid:
        raise ExportError("the trees of a step 'trees' do not fit together")
    return len(weights)


def _check_fourier(step: Step, width: int) -> int:
    """Check the factor and the vectors of a step ``fourier``, and return the width of its output."""
    read_option(step, "factor")
    return 2 * check_vectors(step, width)


def _check_linear(step: Step, width: int) -> int:
    """Check weights and biases of a step ``linear``, and return the width of its output."""
    weights = read_array(step, "weights", (-1, width))
    read_array(step, "biases", (len(weights),))
    return len(weights)


def _check_pairs(step: Step, width: int) -> int:
    """Check that the input has a number for each pair of classes, and return the number of classes."""
    classes = read_option(step, "classes", 2, MAX_CLASSES, is_int=True)
    if width != classes * (classes - 1) // 2:
        raise ExportError(f"a step {step.op!r} has {width} pairs of {classes} classes: {classes * (classes - 1) // 2} are needed")
    return int(classes)


# Values -----------------------------------------------------------------------------------------------------------------------


def evaluate_step(step: Step, x: np.ndarray) -> np.ndarray:
    """Return the output of a step for rows x, float64 [n, output width]; x [n, width] holds its inputs side by side."""
    return _OPERATIONS[step.op].evaluate(step, x)


def _impute_missing(step: Step, x: np.ndarray) -> np.ndarray:
    """Replace missing numbers by 0, and round the others to float32 if the step asks for it."""
    filled = np.where(np.isfinite(x), x, 0.0)
    return filled.astype(np.float32).astype(np.float64) if step.options["float32"] else filled


def _scale_columns(step: Step, x: np.ndarray) -> np.ndarray:
    """Return (x - location) / spread, clipped to the bound; 0 for columns without spread, and NaN for missing numbers."""
    location, spread, bound = step.arrays["location"], step.arrays["spread"], step.options["bound"]
    varies = spread > 0.0
    if varies.all():
        scaled = (x - location) / spread
    else:
        scaled = np.where(varies | np.isnan(x), (x - location) / np.where(varies, spread, 1.0), 0.0)
    return scaled if bound is None else np.minimum(np.maximum(scaled, -bound), bound)


def _compute_hinges(step: Step, x: np.ndarray) -> np.ndarray:
    """Return the piecewise linear functions of each number, side by side, [n, functions * width]."""
    knot, functions = step.options["knot"], [x, np.abs(x) - step.options["knot"]]
    if step.options["functions"] == 4:
        functions += [np.maximum(x - knot, 0.0), np.maximum(-x - knot, 0.0)]
    return np.stack(functions, axis=2).reshape(len(x), len(functions) * x.shape[1])


def _flush_small_values(values: np.ndarray) -> np.ndarray:
    """Set kernel values below `MIN_KERNEL_VALUE` to 0, as the learners do, so that all distant rows get the same answer."""
    values[values < MIN_KERNEL_VALUE] = 0.0
    return values


def compute_kernel_values(step: Step, vectors: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return the kernel matrix of a step between rows x [n, width] and vectors [m, width], float64 [n, m]."""
    kind, gamma = step.options["kind"], step.options["gamma"]
    if kind == "rbf":
        if len(x) == 1:
            differences = vectors - x
            return _flush_small_values(np.exp(-gamma * np.einsum("ij,ij->i", differences, differences)))[None]
        mean = vectors.mean(axis=0) if len(vectors) else 0.0  # squared distances lose the fewest digits around the mean
        x, vectors = x - mean, vectors - mean
        squares = np.square(x).sum(axis=1)[:, None] + np.square(vectors).sum(axis=1) - 2.0 * (x @ vectors.T)
        return _flush_small_values(np.exp(-gamma * np.maximum(squares, 0.0)))
    products = x @ vectors.T
    if kind == "linear":
        return products
    products = gamma * products + step.options["coef0"]
    if kind == "sigmoid":
        return np.tanh(products)
    return np.minimum(np.maximum(products ** step.options["degree"], -MAX_KERNEL_VALUE), MAX_KERNEL_VALUE)


def _evaluate_trees(step: Step, x: np.ndarray) -> np.ndarray:
    """Return the sum of the kernel expansions in the leaves that each row reaches, [n, outputs]."""
    arrays, vectors = step.arrays, dequantise_vectors(step)
    out = np.zeros((len(x), len(arrays["weights"])))
    for root in arrays["roots"].tolist():
        leaves = _find_leaves(arrays, x, root)
        for leaf in np.unique(leaves).tolist():
            rows, entries = np.flatnonzero(leaves == leaf), slice(arrays["starts"][leaf], arrays["starts"][leaf + 1])
            values = compute_kernel_values(step, vectors[arrays["rows"][entries]], x[rows])
            out[rows] += values @ arrays["weights"][:, entries].T
    return out


def _find_leaves(arrays: Mapping[str, np.ndarray], x: np.ndarray, root: int) -> np.ndarray:
    """Return the index of the leaf that each row reaches from a root, [n]."""
    nodes = np.full(len(x), root)
    while (active := np.flatnonzero(arrays["right"][nodes] >= 0)).size:
        current = nodes[active]
        cuts = arrays["cut"][current]
        goes_left = np.einsum("ij,ij->i", x[active], arrays["axes"][cuts]) <= arrays["thresholds"][cuts]
        nodes[active] = np.where(goes_left, current + 1, arrays["right"][current])
    return arrays["cut"][nodes]


def _compute_fourier_features(step: Step, x: np.ndarray) -> np.ndarray:
    """Return random Fourier features: cosines, then sines, [n, 2 * vectors]."""
    angles = step.options["factor"] * (x @ dequantise_vectors(step).T)
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1)


def _sum_by_class(x: np.ndarray, classes: int) -> np.ndarray:
    """Add the numbers of class pairs to their second class, subtract them from their first; [n, pairs] to [n, classes]."""
    sums = np.zeros((len(x), classes))
    start = 0
    for first in range(classes - 1):
        stop = start + classes - 1 - first
        sums[:, first + 1 :] += x[:, start:stop]
        sums[:, first] -= x[:, start:stop].sum(axis=1)
        start = stop
    return sums


def _count_votes(step: Step, x: np.ndarray) -> np.ndarray:
    """Return the number of pairs that vote for each class, [n, classes]; 0 is a vote for the second class."""
    classes = step.options["classes"]
    return 0.5 * (_sum_by_class(np.where(x >= 0.0, 1.0, -1.0), classes) + classes - 1)


def _score_pairs(step: Step, x: np.ndarray) -> np.ndarray:
    """Return the number of votes for each class, plus less than half a vote by the sum of its numbers, [n, classes]."""
    classes = step.options["classes"]
    sums = _sum_by_class(x, classes)
    votes = 0.5 * (_sum_by_class(np.where(x > 0.0, 1.0, -1.0), classes) + classes - 1)
    return votes + sums / (3.0 * (np.abs(sums) + 1.0))


class _Operation(NamedTuple):
    """The two functions of an operation."""

    check: Callable[[Step, int], int]
    """Takes a step and the width of its inputs, checks them, and returns the width of its output."""
    evaluate: Callable[[Step, np.ndarray], np.ndarray]
    """Takes a step and its inputs, float64 [n, width], and returns its output."""


_OPERATIONS: Mapping[str, _Operation] = {
    "impute": _Operation(_check_impute, _impute_missing),
    "scale": _Operation(_check_scale, _scale_columns),
    "select": _Operation(_check_select, lambda step, x: x[:, step.arrays["columns"]]),
    "clip": _Operation(_check_clip, lambda step, x: np.minimum(np.maximum(x, -step.options["bound"]), step.options["bound"])),
    "hinges": _Operation(_check_hinges, _compute_hinges),
    "kernel": _Operation(_check_kernel, lambda step, x: compute_kernel_values(step, dequantise_vectors(step), x)),
    "fourier": _Operation(_check_fourier, _compute_fourier_features),
    "trees": _Operation(_check_trees, _evaluate_trees),
    "neighbours": _Operation(ensembles.check_neighbours, ensembles.evaluate_neighbours),
    "forest": _Operation(ensembles.check_forest, ensembles.evaluate_forest),
    "log": _Operation(_check_log, lambda step, x: np.log(np.maximum(x, step.options["least"]))),
    "linear": _Operation(_check_linear, lambda step, x: x @ step.arrays["weights"].T + step.arrays["biases"]),
    "concat": _Operation(lambda _, width: width, lambda _, x: x),
    "votes": _Operation(_check_pairs, _count_votes),
    "pair_scores": _Operation(_check_pairs, _score_pairs),
    "experts": _Operation(ensembles.check_experts, ensembles.evaluate_experts),
}
