"""The steps of a program that an ensemble is made of: the checks of their arrays and options, and their values by numpy.

An ensemble's ``experts`` say a number for each output, in the order of experts, of each one all outputs. What an expert says may
be a correction of what another one says. Stacks weigh what they all say, after 1 and the outcome of their votes: the log odds of
labels, or a number. The answer is that of the stacks, of the votes or of the expert that is best, whichever the ensemble
follows; decision values of labels are log odds, in which the answer leads. The vote of an expert, and the answer of votes and of
the best expert, is the first label whose number is the largest, or less by at most `ALIKE`.

In ``neighbours`` the ``vectors`` nearest to x vote: as many as the option ``neighbours`` says, or all where there are fewer; of
equally near ones the first. Distances are compared as float32 after adding `ROUNDING`, which rounds them to 1/1024, so that
rounding errors do not choose among vectors that are equally far. The distance is the sum over j of
relevance_j min(|x_j - vector_j|, reach), but `NEAREST_DISTANCE` at least, and a vote is weight / (distance + offset)^power. With
``labels``, the targets are their numbers, and the value is the share of the votes that each label has. Where ``labels`` is 0, it
is the mean of the targets, weighted by the votes.

In a ``forest``, x goes from the root of each tree to a leaf: from a node to the child at ``left`` if it passes, and else to the
next one. It passes if the number of the node's ``feature``, rounded to float32, is at most the threshold, or where ``equal`` is 1
if it equals that. Of a leaf, ``left`` is -1 and ``feature`` the leaf's number. Each tree has one of the ``votes``, which it gives
to the two labels of the leaf, ``targets``, in proportion to their ``counts``. The value is the share of the votes of each label.
Where ``labels`` is 0, leaves have ``means`` in place of targets and counts, and the value is their mean, weighted by the votes.
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

_LEAST, _MOST = 1e-30, 1e30  # of what distances and votes are made of, so that float32 has their sums and quotients
#: What is added to distances when they are compared, in float32; what they count as at least.
ROUNDING, NEAREST_DISTANCE = np.float32(8192.0), 2.0**-15
#: Numbers of an expert that differ by no more are equal to its vote.
ALIKE = 2.0**-16
SAID, SAID_NUMBER = 3.0, 10.0  # to which what an expert says of labels and of numbers is bounded
#: By which the answer leads others that are as probable.
LEAD = 2.0**-40
_LARGEST = 1e38  # of the numbers that a forest compares
ABOVE_HALF = 0.5 + 2.0**-52


# Checks -----------------------------------------------------------------------------------------------------------------------


def check_neighbours(step: Step, width: int) -> int:
    """Return the width of a step ``neighbours``."""
    n, labels = check_vectors(step, width), read_option(step, "labels", 0, MAX_CLASSES, whole=True)
    if not n or labels == 1:
        raise ExportError("a step 'neighbours' has no vectors, or one label")
    read_option(step, "neighbours", 1, whole=True)
    read_option(step, "power", 1, 8, whole=True)
    read_option(step, "offset", _LEAST, _MOST)
    reach = read_option(step, "max_difference", _LEAST, _MOST)
    sizes = {"feature_weights": width, "targets": n, "weights": n}
    relevance, targets, weights = (read_array(step, name, (size,)).astype(np.float64) for name, size in sizes.items())
    if (relevance < 0.0).any() or (relevance > _MOST).any() or relevance.sum() * reach > _MOST:
        raise ExportError("feature_weights of a step 'neighbours' is below 0, or its distances are too large")
    if (weights < _LEAST).any() or (weights > _MOST).any():
        raise ExportError("weights of a step 'neighbours' are not above 0, or too large")
    if labels and not ((targets >= 0.0) & (targets < labels) & (targets == np.floor(targets))).all():
        raise ExportError("targets of a step 'neighbours' are not the numbers of labels")
    return int(labels) or 1


def check_experts(step: Step, width: int) -> int:
    """Return the width of a step ``experts``."""
    inputs, outputs = len(step.arrays["votes"]), read_option(step, "outputs", 1, MAX_CLASSES, whole=True)
    if not inputs or width != inputs * outputs:
        raise ExportError(f"a step 'experts' has {width} numbers of {inputs} experts")
    stacks = len(read_array(step, "weights", (-1, inputs + 2)))
    shares, votes = read_array(step, "shares", (stacks,)), read_array(step, "votes", (inputs,))
    corrects = read_array(step, "corrects", (inputs,), "i")
    if not stacks or (shares < 0.0).any() or (votes < 0.0).any() or not (shares.sum() > 0.0 and votes.sum() > 0.0):
        raise ExportError("shares of a step 'experts' are below 0, or all 0")
    if not ((corrects >= -1) & (corrects < np.arange(inputs))).all():
        raise ExportError("a step 'experts' has one that corrects none before it")
    read_option(step, "best", 0, inputs - 1, whole=True)
    read_option(step, "follows", 0, 2, whole=True)
    if step.options["task"] not in ("classification", "regression") or (step.options["task"] == "regression" and outputs != 1):
        raise ExportError("a step 'experts' is of labels, or of one number")
    for name in ("prior", "share") if step.options["task"] == "classification" else ():
        read_option(step, name, 0.0, 1.0)
    return int(outputs)


def check_forest(step: Step, width: int) -> int:
    """Return the width of a step ``forest``."""
    labels, roots = read_option(step, "labels", 0, MAX_CLASSES, whole=True), read_array(step, "roots", (-1,), "i")
    left, n = read_array(step, "left", (-1,), "i"), len(step.arrays["left"])
    feature, equal = (read_array(step, name, (n,), "i") for name in ("feature", "equal"))
    read_array(step, "thresholds", (n,))
    if labels == 1:
        raise ExportError("labels of a step 'forest' are one: there are two or more, or 0 where numbers are predicted")
    votes, inner = read_array(step, "votes", (len(roots),)).astype(np.float64), left >= 0
    if labels:
        counts = read_array(step, "counts", (-1, 2), "i")
        known, leaves = read_array(step, "targets", (len(counts), 2), "i"), len(counts)
        possible = ((known >= 0) & (known < labels)).all() and ((counts >= 0) & (counts < 2**15)).all()
    else:
        means = read_array(step, "means", (-1,))
        possible, leaves = (np.abs(means) <= _MOST).all(), len(means)
    # Children come behind their parents, and in the same tree: so that each walk ends, and many roots do not share a long one.
    ends = np.append(roots[1:], n)[np.searchsorted(roots, np.arange(n), "right") - 1] if len(roots) and n else left
    good = (
        n > 0
        and possible
        and len(roots) > 0
        and roots[0] == 0
        and roots[-1] < n
        and (roots[1:] > roots[:-1]).all()
        and ((left == -1) | ((left > np.arange(n)) & (left < ends - 1))).all()
        and ((feature >= 0) & (feature < np.where(inner, width, leaves))).all()
        and ((equal == 0) | (equal == 1)).all()
    )
    if not good:
        raise ExportError("the trees of a step 'forest' do not fit together")
    if not ((votes >= _LEAST) & (votes <= _MOST)).all():
        raise ExportError("votes of a step 'forest' are not above 0, or too large")
    return int(labels) or 1


# Values -----------------------------------------------------------------------------------------------------------------------


def neighbours(step: Step, x: np.ndarray) -> np.ndarray:
    """Return the share of the votes that each label has, or the mean target."""
    vectors, labels = dequantise_vectors(step), step.options["labels"]
    at_once = max(MAX_NUMBERS_AT_ONCE // max(vectors.size, 1), 1)
    out = np.empty((len(x), labels or 1))
    for begin in range(0, len(x), at_once):
        part = x[begin : begin + at_once]
        targets, shares = _nearest_votes(step, vectors, part)
        if labels:
            places = np.arange(len(part))[:, None] * labels + targets.astype(np.int64)
            counted = np.bincount(places.ravel(), shares.ravel(), minlength=len(part) * labels)
            out[begin : begin + at_once] = counted.reshape(len(part), labels)
        else:
            out[begin : begin + at_once, 0] = (shares * targets).sum(axis=1)
    return out


def _nearest_votes(step: Step, vectors: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the targets of the vectors that are nearest to each row, and their shares of the votes, [n, neighbours] each."""
    ways = x[:, None] - vectors
    np.minimum(np.abs(ways, out=ways), step.options["max_difference"], out=ways)
    distances = np.einsum(
        "ijk,k->ij", ways, step.arrays["feature_weights"]
    )  # the same sum for each vector, so that ties stay ties
    rounded = distances.astype(np.float32) + ROUNDING
    nearest = np.argsort(rounded, axis=1, kind="stable")[:, : step.options["neighbours"]]
    away = np.maximum(np.take_along_axis(distances, nearest, axis=1), NEAREST_DISTANCE) + step.options["offset"]
    ratios = away.min(axis=1, keepdims=True) / away  # of any size, shares are the same
    votes = step.arrays["weights"][nearest] * ratios ** step.options["power"]
    return step.arrays["targets"][nearest], votes / votes.sum(axis=1, keepdims=True)


def experts(step: Step, x: np.ndarray) -> np.ndarray:
    """Return the log odds of labels, or a number."""
    outputs, votes = step.options["outputs"], step.arrays["votes"]
    said = x.reshape(len(x), len(votes), outputs).transpose(0, 2, 1).copy()  # [n, outputs, experts]
    if step.options["task"] == "regression":
        return _number_of_experts(step, said[:, 0])
    return _odds_of_experts(step, said)


def _number_of_experts(step: Step, said: np.ndarray) -> np.ndarray:
    for m, corrected in enumerate(step.arrays["corrects"].tolist()):
        if corrected >= 0:
            said[:, m] += np.clip(said[:, corrected], -SAID_NUMBER, SAID_NUMBER)
    said = np.clip(said, -SAID_NUMBER, SAID_NUMBER)
    votes, shares = step.arrays["votes"], step.arrays["shares"]
    voted = said @ votes / votes.sum()
    inputs = np.concatenate([np.ones((len(said), 1)), voted[:, None], said], axis=1)
    stacked = np.clip(inputs @ step.arrays["weights"].T, -SAID_NUMBER, SAID_NUMBER) @ shares / shares.sum()
    return (stacked, voted, said[:, step.options["best"]])[step.options["follows"]][:, None]


def _odds_of_experts(step: Step, said: np.ndarray) -> np.ndarray:
    n, outputs, _ = said.shape
    votes, shares, prior = step.arrays["votes"], step.arrays["shares"], step.options["prior"]
    if outputs == 1:
        voted = (np.where(said > ALIKE, 1.0, -1.0) @ votes / votes.sum())[:, :, None]
    else:
        voted = (_first_alike(said, ALIKE)[:, None] == np.arange(outputs)[:, None]) @ votes[:, None] / votes.sum()
    constant = np.full((n, outputs, 1), 1.0 if outputs == 1 else 0.0)
    inputs = np.clip(np.concatenate([constant, voted, said], axis=2), -SAID, SAID)
    stacked = inputs @ (shares @ step.arrays["weights"] / shares.sum())  # [n, outputs]
    sources = stacked, voted[:, :, 0], said[:, :, step.options["best"]]
    followed, alike = sources[step.options["follows"]], ALIKE if step.options["follows"] else 0.0
    if outputs == 1:
        positive = followed > alike
        p = np.where(positive == (stacked > 0.0), 1.0 / (1.0 + np.exp(-np.clip(stacked, -30.0, 30.0))), 0.5)
        p += prior * (step.options["share"] - p)
        p = np.where(positive, np.maximum(p, ABOVE_HALF), np.minimum(p, 0.5))
        return np.log(p / (1.0 - p))
    rows, chosen = np.arange(n), _first_alike(followed, alike)
    stacked[rows, chosen] = stacked.max(axis=1) + LEAD
    return stacked


def _first_alike(values: np.ndarray, alike: float) -> np.ndarray:
    """Return the first place along axis 1 whose number is the largest, or less by at most ``alike``."""
    return (values >= values.max(axis=1, keepdims=True) - alike).argmax(axis=1)


def forest(step: Step, x: np.ndarray) -> np.ndarray:
    """Return the share of the votes that each label has, or the mean of leaves."""
    a, labels, trees = step.arrays, step.options["labels"], len(step.arrays["roots"])
    at_once = max(MAX_NUMBERS_AT_ONCE // (4 * trees), 1)
    out = np.empty((len(x), labels or 1))
    for begin in range(0, len(x), at_once):
        part = np.clip(x[begin : begin + at_once], -_LARGEST, _LARGEST).astype(np.float32)
        leaves = _leaf_numbers(a, part)
        if not labels:
            votes = a["votes"].astype(np.float64)
            out[begin : begin + at_once, 0] = a["means"][leaves].astype(np.float64) @ votes / votes.sum()
            continue
        counts = a["counts"][leaves].astype(np.float64)
        shares = a["votes"][:, None] * counts / np.maximum(counts.sum(axis=2, keepdims=True), 1.0)
        places = np.arange(len(part))[:, None, None] * labels + a["targets"][leaves]
        sums = np.bincount(places.ravel(), shares.ravel(), minlength=len(part) * labels)
        out[begin : begin + at_once] = sums.reshape(len(part), labels) / a["votes"].sum(dtype=np.float64)
    return out


def _leaf_numbers(a: Mapping[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    """Return the number of the leaf of each tree to which each row goes, [n, trees]."""
    left, trees = a["left"], len(a["roots"])
    nodes = np.tile(a["roots"].astype(np.int64), len(x))
    walking = np.flatnonzero(left[nodes] >= 0)
    while walking.size:
        at = nodes[walking]
        numbers_there, thresholds = x[walking // trees, a["feature"][at]], a["thresholds"][at]
        passes = np.where(a["equal"][at], numbers_there == thresholds, numbers_there <= thresholds)
        nodes[walking] = left[at] + 1 - passes
        walking = walking[left[nodes[walking]] >= 0]
    return a["feature"][nodes].reshape(len(x), trees)
