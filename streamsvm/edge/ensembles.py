"""The operations that an exported ensemble consists of, for `streamsvm.edge.operations`: nearest neighbours, forest, and experts.

**experts** combines the outputs of an ensemble's members (its experts). The input holds, for each expert in turn, one number per
output. ``corrects`` names, for a residual expert, the expert whose residual it predicts; the two numbers are added. Each expert
votes for the first label whose number is the largest, up to `TIE_TOLERANCE`. The votes are weighted by ``votes``. Linear stacking
models (``weights``) combine 1, the outcome of the vote and the numbers of all experts; their mean is weighted by ``shares``.
``follows`` says whose prediction is returned: 0 the stacking models', 1 the vote's, 2 the best expert's. A classifier
returns log odds; those of the predicted label are the largest.

**neighbours** is weighted k nearest neighbours, with the option ``neighbours`` as k. The distance is the sum over the features j
of feature_weights_j min(|x_j - vector_j|, max_difference), but at least `MIN_DISTANCE`. A neighbour votes with weight / (distance
+ offset)^power. Among equally distant vectors, the first ones count: distances are compared as float32 after adding
`ROUNDING_OFFSET`, which rounds them to 1/1024, so that rounding errors do not choose. With ``labels`` > 0, targets are class
indices, and the output is each label's share of the votes. With ``labels`` 0, the output is the weighted mean of the targets.

**forest** is a forest of decision trees. A row starts at the ``roots``. It goes from an inner node to the node ``left`` if it
passes the test of the node, else to the node ``left`` + 1. It passes if its number of the ``feature``, rounded to float32, is at
most the threshold, or, where ``equal`` is 1, equals it. A leaf has a ``left`` of -1, and ``feature`` is its leaf index. Each tree
distributes its ``votes`` over the two labels of the leaf (``targets``) in proportion to their ``counts``. The output is each
label's share of the votes. With ``labels`` 0, leaves have ``means`` instead, and the output is their mean, weighted by the votes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from streamsvm.edge.step import (
    MAX_CLASSES,
    MAX_NUMBERS_AT_ONCE,
    ExportError,
    Step,
    check_vectors,
    dequantise_vectors,
    read_array,
    read_option,
)

_MIN_SIZE, _MAX_SIZE = 1e-30, 1e30  # of weights, votes and distances, so that float32 can hold their sums and quotients
#: Added to distances in float32 before they are compared, which rounds them to 1/1024.
ROUNDING_OFFSET = np.float32(8192.0)
#: Smaller distances to neighbours count as this.
MIN_DISTANCE = 2.0**-15
#: Numbers of an expert that differ by at most this are equal when it votes.
TIE_TOLERANCE = 2.0**-16
MAX_EXPERT_LOG_ODDS = 3.0  # the numbers of a classifier's experts are clipped to this
MAX_EXPERT_TARGET = 10.0  # the predictions of a regressor's experts are clipped to this many standard deviations
#: The lead of the predicted label over equally probable ones: a difference of log odds, or a relative one of probabilities.
WINNER_LEAD = 2.0**-40
_MAX_FOREST_INPUT = 1e38  # the features of a forest are clipped to this, because they are compared as float32
ABOVE_HALF = 0.5 + 2.0**-52


# Checks -----------------------------------------------------------------------------------------------------------------------


def check_neighbours(step: Step, width: int) -> int:
    """Check the arrays and options of a ``neighbours`` step (weighted k nearest neighbours in an exported model) for rows of
    ``width`` features. Returns its output width: the number of labels, or 1 for regression. Raises ExportError if they are
    invalid.
    """
    n, labels = check_vectors(step, width), read_option(step, "labels", 0, MAX_CLASSES, is_int=True)
    if not n or labels == 1:
        raise ExportError("a step 'neighbours' has no vectors, or one label")
    read_option(step, "neighbours", 1, is_int=True)
    read_option(step, "power", 1, 8, is_int=True)
    read_option(step, "offset", _MIN_SIZE, _MAX_SIZE)
    max_difference = read_option(step, "max_difference", _MIN_SIZE, _MAX_SIZE)
    sizes = {"feature_weights": width, "targets": n, "weights": n}
    feature_weights, targets, weights = (read_array(step, name, (size,)).astype(np.float64) for name, size in sizes.items())
    if ((feature_weights < 0.0) | (feature_weights > _MAX_SIZE)).any() or feature_weights.sum() * max_difference > _MAX_SIZE:
        raise ExportError("feature_weights of a step 'neighbours' is below 0, or its distances are too large")
    if (weights < _MIN_SIZE).any() or (weights > _MAX_SIZE).any():
        raise ExportError("weights of a step 'neighbours' are not above 0, or too large")
    if labels and not ((targets >= 0.0) & (targets < labels) & (targets == np.floor(targets))).all():
        raise ExportError("targets of a step 'neighbours' are not class indices")
    return int(labels) or 1


def check_experts(step: Step, width: int) -> int:
    """Validate an ``experts`` step (operation) of an exported ensemble, which combines the predictions of the ensemble's members.
    Its input has ``width`` columns, the same number for each member. Returns its number of output columns. Raises ExportError if
    an array or option is invalid.
    """
    n_experts, outputs = len(step.arrays["votes"]), read_option(step, "outputs", 1, MAX_CLASSES, is_int=True)
    if not n_experts or width != n_experts * outputs:
        raise ExportError(f"a step 'experts' has {width} numbers of {n_experts} experts")
    n_stacks = len(read_array(step, "weights", (-1, n_experts + 2)))
    shares, votes = read_array(step, "shares", (n_stacks,)), read_array(step, "votes", (n_experts,))
    corrects = read_array(step, "corrects", (n_experts,), "i")
    if not n_stacks or (shares < 0.0).any() or (votes < 0.0).any() or not (shares.sum() > 0.0 and votes.sum() > 0.0):
        raise ExportError("shares of a step 'experts' are below 0, or all 0")
    if not ((corrects >= -1) & (corrects < np.arange(n_experts))).all():
        raise ExportError("an expert of a step 'experts' corrects an expert that is not before it")
    read_option(step, "best", 0, n_experts - 1, is_int=True)
    read_option(step, "follows", 0, 2, is_int=True)
    if step.options["task"] not in ("classification", "regression") or (step.options["task"] == "regression" and outputs != 1):
        raise ExportError("a step 'experts' has an unknown task, or a regression with several outputs")
    for name in ("prior", "share") if step.options["task"] == "classification" else ():
        read_option(step, name, 0.0, 1.0)
    return int(outputs)


def check_forest(step: Step, width: int) -> int:
    """Check the arrays and options of a ``forest`` step (decision trees in an exported model) for rows of ``width`` features.
    Returns the width of its output: the number of labels, or 1 for regression. Raises ExportError if they are invalid, or a walk
    from a root could be endless.
    """
    labels, roots = read_option(step, "labels", 0, MAX_CLASSES, is_int=True), read_array(step, "roots", (-1,), "i")
    left, n = read_array(step, "left", (-1,), "i"), len(step.arrays["left"])
    feature, equal = (read_array(step, name, (n,), "i") for name in ("feature", "equal"))
    read_array(step, "thresholds", (n,))
    if labels == 1:
        raise ExportError("labels of a step 'forest' must be 0 for regression, or at least 2")
    votes, is_inner = read_array(step, "votes", (len(roots),)).astype(np.float64), left >= 0
    if labels:
        counts = read_array(step, "counts", (-1, 2), "i")
        targets, n_leaves = read_array(step, "targets", (len(counts), 2), "i"), len(counts)
        leaves_are_valid = ((targets >= 0) & (targets < labels)).all() and ((counts >= 0) & (counts < 2**15)).all()
    else:
        means = read_array(step, "means", (-1,))
        leaves_are_valid, n_leaves = (np.abs(means) <= _MAX_SIZE).all(), len(means)
    # Children come after their parents and within the same tree. So each walk terminates, and trees cannot share a long path.
    tree_ends = np.append(roots[1:], n)[np.searchsorted(roots, np.arange(n), "right") - 1] if len(roots) and n else left
    is_valid = (
        n > 0
        and leaves_are_valid
        and len(roots) > 0
        and roots[0] == 0
        and roots[-1] < n
        and (roots[1:] > roots[:-1]).all()
        and ((left == -1) | ((left > np.arange(n)) & (left < tree_ends - 1))).all()
        and ((feature >= 0) & (feature < np.where(is_inner, width, n_leaves))).all()
        and ((equal == 0) | (equal == 1)).all()
    )
    if not is_valid:
        raise ExportError("the trees of a step 'forest' do not fit together")
    if not ((votes >= _MIN_SIZE) & (votes <= _MAX_SIZE)).all():
        raise ExportError("votes of a step 'forest' are not above 0, or too large")
    return int(labels) or 1


# Values -----------------------------------------------------------------------------------------------------------------------


def evaluate_neighbours(step: Step, x: np.ndarray) -> np.ndarray:
    """Predict rows x, float64 [n, features], by the weighted k nearest neighbours that a ``neighbours`` step of an exported model
    stores. Returns each label's share of the votes, float64 [n, labels], or for regression the mean target, float64 [n, 1].
    """
    vectors, labels = dequantise_vectors(step), step.options["labels"]
    chunk_rows = max(MAX_NUMBERS_AT_ONCE // max(vectors.size, 1), 1)
    out = np.empty((len(x), labels or 1))
    for start in range(0, len(x), chunk_rows):
        chunk = x[start : start + chunk_rows]
        targets, shares = _find_nearest_votes(step, vectors, chunk)
        if labels:
            bins = np.arange(len(chunk))[:, None] * labels + targets.astype(np.int64)
            sums = np.bincount(bins.ravel(), shares.ravel(), minlength=len(chunk) * labels)
            out[start : start + chunk_rows] = sums.reshape(len(chunk), labels)
        else:
            out[start : start + chunk_rows, 0] = (shares * targets).sum(axis=1)
    return out


def _find_nearest_votes(step: Step, vectors: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find the k nearest neighbours of each row of x [n, features] among the stored ``vectors`` [m, features]. Returns their
    targets (class indices, or numbers for regression) and their weights in the vote, which sum to 1 for each row, both [n, k].
    The number k, the distance and the weighting come from ``step``, a part of an exported model.
    """
    differences = x[:, None] - vectors
    np.minimum(np.abs(differences, out=differences), step.options["max_difference"], out=differences)
    # einsum sums in the same order for each vector, so that equal distances stay equal.
    distances = np.einsum("ijk,k->ij", differences, step.arrays["feature_weights"])
    rounded = distances.astype(np.float32) + ROUNDING_OFFSET
    nearest = np.argsort(rounded, axis=1, kind="stable")[:, : step.options["neighbours"]]
    divisors = np.maximum(np.take_along_axis(distances, nearest, axis=1), MIN_DISTANCE) + step.options["offset"]
    ratios = divisors.min(axis=1, keepdims=True) / divisors  # at most 1, so that powers do not overflow; shares are the same
    votes = step.arrays["weights"][nearest] * ratios ** step.options["power"]
    return step.arrays["targets"][nearest], votes / votes.sum(axis=1, keepdims=True)


def evaluate_experts(step: Step, x: np.ndarray) -> np.ndarray:
    """Predict rows by combining the predictions of an exported ensemble's members, the columns of x, float64 [n, members *
    outputs], as ``step`` defines it. Returns log odds of the labels, float64 [n, outputs], or for regression the predicted number
    in standard deviations of the target, float64 [n, 1].
    """
    outputs, votes = step.options["outputs"], step.arrays["votes"]
    predictions = x.reshape(len(x), len(votes), outputs).transpose(0, 2, 1).copy()  # [n, outputs, experts]
    if step.options["task"] == "regression":
        return _combine_regressors(step, predictions[:, 0])
    return _combine_classifiers(step, predictions)


def _combine_regressors(step: Step, predictions: np.ndarray) -> np.ndarray:
    """Combine the numbers that the members of an exported ensemble predict, float64 [n, members], to one prediction for each row,
    [n, 1]. The option ``follows`` of ``step`` selects the method: 0 for stacking models, 1 for the weighted mean, 2 for the best
    member alone. ``predictions`` is changed in place.
    """
    for m, corrected in enumerate(step.arrays["corrects"].tolist()):
        if corrected >= 0:
            predictions[:, m] += np.clip(predictions[:, corrected], -MAX_EXPERT_TARGET, MAX_EXPERT_TARGET)
    predictions = np.clip(predictions, -MAX_EXPERT_TARGET, MAX_EXPERT_TARGET)
    votes, shares = step.arrays["votes"], step.arrays["shares"]
    voted = predictions @ votes / votes.sum()
    inputs = np.concatenate([np.ones((len(predictions), 1)), voted[:, None], predictions], axis=1)
    stacked = np.clip(inputs @ step.arrays["weights"].T, -MAX_EXPERT_TARGET, MAX_EXPERT_TARGET) @ shares / shares.sum()
    return (stacked, voted, predictions[:, step.options["best"]])[step.options["follows"]][:, None]


def _combine_classifiers(step: Step, predictions: np.ndarray) -> np.ndarray:
    """Combine the decision values of an exported ensemble's members, ``predictions`` float64 [n, outputs, members], to log odds
    of the labels, [n, outputs]. The option ``follows`` of ``step`` selects the method that chooses the label: 0 for stacking
    models, 1 for the weighted vote, 2 for the best member alone.
    """
    n, outputs, _ = predictions.shape
    votes, shares, prior = step.arrays["votes"], step.arrays["shares"], step.options["prior"]
    if outputs == 1:
        voted = (np.where(predictions > TIE_TOLERANCE, 1.0, -1.0) @ votes / votes.sum())[:, :, None]
    else:
        is_winner = _find_first_largest(predictions, TIE_TOLERANCE)[:, None] == np.arange(outputs)[:, None]
        voted = is_winner @ votes[:, None] / votes.sum()
    constant = np.full((n, outputs, 1), 1.0 if outputs == 1 else 0.0)
    inputs = np.clip(np.concatenate([constant, voted, predictions], axis=2), -MAX_EXPERT_LOG_ODDS, MAX_EXPERT_LOG_ODDS)
    stacked = inputs @ (shares @ step.arrays["weights"] / shares.sum())  # [n, outputs]
    sources = stacked, voted[:, :, 0], predictions[:, :, step.options["best"]]
    followed, tolerance = sources[step.options["follows"]], TIE_TOLERANCE if step.options["follows"] else 0.0
    if outputs == 1:
        is_positive = followed > tolerance
        p = np.where(is_positive == (stacked > 0.0), 1.0 / (1.0 + np.exp(-np.clip(stacked, -30.0, 30.0))), 0.5)
        p += prior * (step.options["share"] - p)
        p = np.where(is_positive, np.maximum(p, ABOVE_HALF), np.minimum(p, 0.5))
        return np.log(p / (1.0 - p))
    rows, winners = np.arange(n), _find_first_largest(followed, tolerance)
    stacked[rows, winners] = stacked.max(axis=1) + WINNER_LEAD
    return stacked


def _find_first_largest(values: np.ndarray, tolerance: float) -> np.ndarray:
    """Return the index of the largest value along axis 1, as argmax does, but with ties: values that differ from the largest by
    at most ``tolerance`` count as equal, and the first of them wins.
    """
    return (values >= values.max(axis=1, keepdims=True) - tolerance).argmax(axis=1)


def evaluate_forest(step: Step, x: np.ndarray) -> np.ndarray:
    """Predict rows x, float64 [n, features], by the decision trees that a ``forest`` step of an exported model stores. Returns
    each label's share of the votes, float64 [n, labels], or for regression the mean of the reached leaves, float64 [n, 1].
    """
    arrays, labels, n_trees = step.arrays, step.options["labels"], len(step.arrays["roots"])
    chunk_rows = max(MAX_NUMBERS_AT_ONCE // (4 * n_trees), 1)
    out = np.empty((len(x), labels or 1))
    for start in range(0, len(x), chunk_rows):
        chunk = np.clip(x[start : start + chunk_rows], -_MAX_FOREST_INPUT, _MAX_FOREST_INPUT).astype(np.float32)
        leaves = _find_leaves(arrays, chunk)
        if not labels:
            votes = arrays["votes"].astype(np.float64)
            out[start : start + chunk_rows, 0] = arrays["means"][leaves].astype(np.float64) @ votes / votes.sum()
            continue
        counts = arrays["counts"][leaves].astype(np.float64)
        shares = arrays["votes"][:, None] * counts / np.maximum(counts.sum(axis=2, keepdims=True), 1.0)
        bins = np.arange(len(chunk))[:, None, None] * labels + arrays["targets"][leaves]
        sums = np.bincount(bins.ravel(), shares.ravel(), minlength=len(chunk) * labels)
        out[start : start + chunk_rows] = sums.reshape(len(chunk), labels) / arrays["votes"].sum(dtype=np.float64)
    return out


def _find_leaves(arrays: Mapping[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    """Return the index of the leaf that each row of x, float32 [n, features], reaches in each decision tree, int [n, trees].
    ``arrays`` are the nodes of all trees, as a ``forest`` step (an operation of an exported model) stores them.
    """
    left, n_trees = arrays["left"], len(arrays["roots"])
    nodes = np.tile(arrays["roots"].astype(np.int64), len(x))
    active = np.flatnonzero(left[nodes] >= 0)
    while active.size:
        current = nodes[active]
        numbers, thresholds = x[active // n_trees, arrays["feature"][current]], arrays["thresholds"][current]
        passes = np.where(arrays["equal"][current], numbers == thresholds, numbers <= thresholds)
        nodes[active] = left[current] + 1 - passes
        active = active[left[nodes[active]] >= 0]
    return arrays["feature"][nodes].reshape(len(x), n_trees)
