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

_MAX_PERIOD = 2.0**31  # seconds
MAX_KERNEL_VALUE = 1e30  # values of the polynomial kernel are clipped to this
#: Smaller kernel values of the Gaussian kernel are 0 in every format, as in the learners: the smallest normal float32.
MIN_KERNEL_VALUE = 2.0**-126


# Checks -----------------------------------------------------------------------------------------------------------------------


def check_step(step: Step, width: int) -> int:
    """Validate one step (operation) of an exported model, for an input of ``width`` columns, and return its number of output
    columns. Raises ExportError if its arrays or options are invalid. After this check, steps from untrusted files can be
    evaluated safely.

    Raises ExportError if the operation is unknown, or an array or option is missing or invalid.
    """
    if step.op not in _OPERATIONS:
        raise ExportError(f"it has the step {step.op!r:.40}, which this version does not know: upgrade streamsvm")
    try:
        return _OPERATIONS[step.op].check(step, width)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ExportError(f"a step {step.op!r} has missing or invalid arrays and options ({error!r})") from None


def _check_impute(step: Step, width: int) -> int:
    """Check an ``impute`` step of an exported model, which replaces missing numbers by 0: its option ``float32`` must be a bool.
    Returns the number of outputs per row, which is ``width``, the number of inputs. Raises ExportError if it is invalid.
    """
    if type(step.options["float32"]) is not bool:
        raise ExportError("float32 of a step 'impute' is not true or false")
    return width


def _check_fill(step: Step, width: int) -> int:
    """Check a ``fill`` step of an exported model, which replaces missing numbers by ``values``, one for each of ``width``
    columns. Returns ``width``, the number of output columns. Raises ExportError if the array is invalid.
    """
    read_array(step, "values", (width,))
    return width


def _check_cycles(step: Step, width: int) -> int:
    """Check a ``cycles`` step of an exported model, which computes the phase of times: ``periods`` in seconds, 0 or from 1 to
    2^31, and ``offsets`` of the phase, up to a turn, for each of ``width`` columns. Returns ``width``. Raises ExportError if an
    array is invalid.
    """
    periods, offsets = read_array(step, "periods", (width,)), read_array(step, "offsets", (width,))
    if not ((np.abs(offsets) <= 1.0) & ((periods == 0.0) | ((periods >= 1.0) & (periods <= _MAX_PERIOD)))).all():
        raise ExportError("periods or offsets of a step 'cycles' are out of their range")
    return width


def _check_scale(step: Step, width: int) -> int:
    """Validate a ``scale`` step of an exported model, which computes (x - location) / spread for ``width`` columns and clips to
    +- ``bound`` (None: no limit). Returns ``width``, the number of output columns. Raises ExportError if an array or the bound is
    invalid.
    """
    read_array(step, "location", (width,))
    if (read_array(step, "spread", (width,)) < 0.0).any():
        raise ExportError("spread of a step 'scale' is below 0")
    if step.options["bound"] is not None:
        read_option(step, "bound", 0.0)
    return width


def _check_select(step: Step, width: int) -> int:
    """Check a ``select`` step of an exported model, which picks columns of its input: their indices must be below ``width``, the
    number of inputs. Returns the number of picked columns. Raises ExportError if an index is invalid.
    """
    columns = read_array(step, "columns", (-1,), "i")
    if len(columns) and not (columns.min() >= 0 and columns.max() < width):
        raise ExportError("a step 'select' has a column that its input does not have")
    return len(columns)


def _check_clip(step: Step, width: int) -> int:
    """Check a ``clip`` step of an exported model, which clips numbers to +- ``bound``: the bound must be a number of at least 0.
    Returns the number of outputs per row, which is ``width``, the number of inputs. Raises ExportError if it is invalid.
    """
    read_option(step, "bound", 0.0)
    return width


def _check_log(step: Step, width: int) -> int:
    """Check a ``log`` step of an exported model, which computes logarithms of max(x, ``least``): this option must be at least
    1e-30. Returns the number of outputs per row, which is ``width``, the number of inputs. Raises ExportError if it is invalid.
    """
    read_option(step, "least", 1e-30)
    return width


def _check_hinges(step: Step, width: int) -> int:
    """Validate a ``hinges`` step of an exported model, which replaces each of ``width`` input columns by 2 or 4 piecewise linear
    functions of it. Returns the number of output columns. Raises ExportError if the number of ``functions`` or the ``knot`` (a
    position, at least 0) is invalid.
    """
    read_option(step, "knot", 0.0)
    if step.options["functions"] not in (2, 4):
        raise ExportError("functions of a step 'hinges' must be 2 or 4")
    return int(step.options["functions"]) * width


def _check_kernel(step: Step, width: int) -> int:
    """Check a ``kernel`` step of an exported model: the name and parameters of the kernel, and its vectors of ``width`` features.
    Returns the number of outputs per row, one kernel value for each vector. Raises ExportError if they are invalid.
    """
    kind = step.options["kind"]
    if kind not in ("rbf", "linear", "poly", "sigmoid"):
        raise ExportError(f"it has the kernel {kind!r:.40}, which this version does not know: upgrade streamsvm")
    read_option(step, "gamma", 0.0)
    read_option(step, "coef0")
    read_option(step, "degree", 1, 100, is_int=True)
    return check_vectors(step, width)


def _check_trees(step: Step, width: int) -> int:
    """Validate a ``trees`` step of an exported model: decision trees with a kernel model in each leaf, for rows of ``width``
    features. Returns the number of output columns. Raises ExportError if the trees are malformed, so that an evaluation might
    never end or take excessively long.
    """
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
    """Check a ``fourier`` step of an exported model, which computes random Fourier features of rows with ``width`` features.
    Returns the number of outputs per row, two for each vector of frequencies. Raises ExportError if it is invalid.
    """
    read_option(step, "factor")
    return 2 * check_vectors(step, width)


def _check_linear(step: Step, width: int) -> int:
    """Check a ``linear`` step of an exported model, which computes ``weights`` x + ``biases`` for rows of ``width`` numbers.
    Returns the number of outputs per row, the number of biases. Raises ExportError if the shapes do not fit.
    """
    weights = read_array(step, "weights", (-1, width))
    read_array(step, "biases", (len(weights),))
    return len(weights)


def _check_pairs(step: Step, width: int) -> int:
    """Validate a ``votes`` or ``pair_scores`` step of an exported one-vs-one classifier, which converts decision values of class
    pairs to a score for each class. Returns the number of classes. Raises ExportError unless ``width``, the number of input
    columns, is the number of class pairs.
    """
    classes = read_option(step, "classes", 2, MAX_CLASSES, is_int=True)
    if width != classes * (classes - 1) // 2:
        raise ExportError(f"a step {step.op!r} has {width} pairs of {classes} classes: {classes * (classes - 1) // 2} are needed")
    return int(classes)


# Values -----------------------------------------------------------------------------------------------------------------------


def evaluate_step(step: Step, x: np.ndarray) -> np.ndarray:
    """Compute the output of one step (operation) of an exported model for n rows. ``x`` is its input, float64 [n, width]; if it
    reads the outputs of several earlier steps, these are side by side. Returns float64 [n, output columns].
    """
    return _OPERATIONS[step.op].evaluate(step, x)


def _impute_missing(step: Step, x: np.ndarray) -> np.ndarray:
    """Return x with NaN and infinite numbers replaced by 0, as an ``impute`` step of an exported model does. If the step's option
    ``float32`` is set, the other numbers are rounded to float32. The result is float64 [n, width].
    """
    filled = np.where(np.isfinite(x), x, 0.0)
    return filled.astype(np.float32).astype(np.float64) if step.options["float32"] else filled


def _compute_cycles(step: Step, x: np.ndarray) -> np.ndarray:
    """Replace the times in the columns of x [n, width] by the sine of their phase plus an offset, as a ``cycles`` step of an
    exported model does. Columns with a period of 0 stay unchanged, and missing times stay NaN.
    """
    periods = step.arrays["periods"]
    turns = np.fmod(x, np.where(periods > 0.0, periods, 1.0)) / np.where(periods > 0.0, periods, 1.0) + step.arrays["offsets"]
    return np.where(periods > 0.0, np.sin(2.0 * np.pi * turns), x)


def _scale_columns(step: Step, x: np.ndarray) -> np.ndarray:
    """Standardise the columns of x [n, width] as a ``scale`` step of an exported model: (x - location) / spread, clipped to +-
    ``bound`` if it has one. These parameters are part of ``step``. Columns with a spread of 0 become 0, and NaN stays NaN.
    """
    location, spread, bound = step.arrays["location"], step.arrays["spread"], step.options["bound"]
    varies = spread > 0.0
    if varies.all():
        scaled = (x - location) / spread
    else:
        scaled = np.where(varies | np.isnan(x), (x - location) / np.where(varies, spread, 1.0), 0.0)
    return scaled if bound is None else np.minimum(np.maximum(scaled, -bound), bound)


def _compute_hinges(step: Step, x: np.ndarray) -> np.ndarray:
    """Compute piecewise linear features of each number v in x [n, width]: v and |v| - knot, and optionally max(v - knot, 0) and
    max(-v - knot, 0). The options ``knot`` and ``functions`` (2 or 4) of ``step`` control them. Returns [n, width * functions],
    with the features of a number side by side.
    """
    knot, functions = step.options["knot"], [x, np.abs(x) - step.options["knot"]]
    if step.options["functions"] == 4:
        functions += [np.maximum(x - knot, 0.0), np.maximum(-x - knot, 0.0)]
    return np.stack(functions, axis=2).reshape(len(x), len(functions) * x.shape[1])


def _flush_small_values(values: np.ndarray) -> np.ndarray:
    """Set Gaussian kernel values below 2^-126, the smallest normal float32, to 0 in place, and return them. The learners do the
    same, so that an exported model predicts the same for rows far from all support vectors.
    """
    values[values < MIN_KERNEL_VALUE] = 0.0
    return values


def compute_kernel_values(step: Step, vectors: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return the kernel matrix between rows x [n, features] and ``vectors`` [m, features], float64 [n, m]. The kernel (Gaussian,
    linear, polynomial or sigmoid) and its parameters are options of ``step``, part of an exported model.
    """
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
    """Evaluate a ``trees`` step of an exported model: each row of x [n, features] walks down each tree to a leaf, which has a
    kernel expansion of its own. Returns the sum over the trees of the expansions' values, float64 [n, outputs].
    """
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
    """Return the index of the leaf that each row of x [n, features] reaches in one tree, int [n]. ``arrays`` are the nodes of all
    trees, as a ``trees`` step (an operation of an exported model) stores them; ``root`` is the index of the tree's first node.
    """
    nodes = np.full(len(x), root)
    while (active := np.flatnonzero(arrays["right"][nodes] >= 0)).size:
        current = nodes[active]
        cuts = arrays["cut"][current]
        goes_left = np.einsum("ij,ij->i", x[active], arrays["axes"][cuts]) <= arrays["thresholds"][cuts]
        nodes[active] = np.where(goes_left, current + 1, arrays["right"][current])
    return arrays["cut"][nodes]


def _compute_fourier_features(step: Step, x: np.ndarray) -> np.ndarray:
    """Return random Fourier features of rows x [n, features]: the cosines, then the sines, of products with m frequency vectors,
    float64 [n, 2 m]. The vectors are stored in ``step``, an operation of an exported model.
    """
    angles = step.options["factor"] * (x @ dequantise_vectors(step).T)
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1)


def _sum_by_class(x: np.ndarray, classes: int) -> np.ndarray:
    """Sum up the decision values of class pairs, x [n, pairs], for each of ``classes`` classes of a one-vs-one classifier. The
    value of a pair counts for its second class and against its first. Pairs are in the order (0, 1), (0, 2) ... Returns [n,
    classes].
    """
    sums = np.zeros((len(x), classes))
    start = 0
    for first in range(classes - 1):
        stop = start + classes - 1 - first
        sums[:, first + 1 :] += x[:, start:stop]
        sums[:, first] -= x[:, start:stop].sum(axis=1)
        start = stop
    return sums


def _count_votes(step: Step, x: np.ndarray) -> np.ndarray:
    """Count the votes of a one-vs-one classifier from x, the decision values of its class pairs, [n, pairs]. A pair votes for its
    second class if its value is at least 0, else for its first. Returns float64 [n, classes].
    """
    classes = step.options["classes"]
    return 0.5 * (_sum_by_class(np.where(x >= 0.0, 1.0, -1.0), classes) + classes - 1)


def _score_pairs(step: Step, x: np.ndarray) -> np.ndarray:
    """Return the scores of the classes of a one-vs-one classifier, float64 [n, classes], from the decision values x [n, pairs] of
    its class pairs. A score is the number of pairs that vote for the class. To break ties, it also grows with the sum of the
    class's decision values, by less than half a vote.
    """
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
    "fill": _Operation(_check_fill, lambda step, x: np.where(np.isnan(x), step.arrays["values"], x)),
    "cycles": _Operation(_check_cycles, _compute_cycles),
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
