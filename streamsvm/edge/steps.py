"""The steps of a program: the checks of their arrays and options, and their values by numpy.

A committee's ``experts`` say a number for each output, in the order of experts, of each one all outputs. What an expert says may
be a correction of what another one says. Stacks weigh what they all say, after 1 and the outcome of their votes: the log odds of
labels, or a number. The answer is that of the stacks, of the votes or of the expert that is best, whichever the committee
follows; decision values of labels are log odds, in which the answer leads. The vote of an expert, and the answer of votes and of
the best expert, is the first label whose number is the largest, or less by at most `ALIKE`.

``trees`` walk from a root to a leaf: from node i to i + 1 if the product of x with the axis of its cut is at most the threshold,
else to ``right``; of a leaf that is -1, and ``cut`` the leaf's number. The ``rows`` of the vectors from one of the ``starts`` to
the next have weights there.

In ``neighbours`` the ``vectors`` nearest to x vote: as many as the option ``neighbours`` says, or all where there are fewer; of
equally near ones the first. Distances are compared as float32 after adding `ROUNDING`, which rounds them to 1/1024, so that
rounding errors do not choose among vectors that are equally far. The distance is the sum over j of
relevance_j min(|x_j - vector_j|, reach), but `NEAREST_DISTANCE` at least, and a vote is weight / (distance + offset)^power. With
``labels``, the targets are their numbers, and the value is the share of the votes that each label has. Where ``labels`` is 0, it
is the mean of the targets, weighted by the votes.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

#: Numbers of a value that are computed at once, in about so many bytes times 8.
MOST_AT_ONCE = 2**21

LARGEST_KERNEL = 1e30
#: Kernel values of distances below this are 0 in every form, as in the models: the least normal number of float32.
LEAST_KERNEL = 2.0**-126
_LEAST, _MOST = 1e-30, 1e30  # of what distances and votes are made of, so that float32 has their sums and quotients
#: What is added to distances when they are compared, in float32; what they count as at least.
ROUNDING, NEAREST_DISTANCE = np.float32(8192.0), 2.0**-15
#: Numbers of an expert that differ by no more are equal to its vote.
ALIKE = 2.0**-16
SAID, SAID_NUMBER = 3.0, 10.0  # to which what an expert says of labels and of numbers is bounded
_LEAD = 2.0**-40  # of the answer before others that are as probable
_ABOVE_HALF = 0.5 + 2.0**-52

MOST_CLASSES = 2**12
_LARGEST_FLOAT = sys.float_info.max


class ProgramError(ValueError):
    """A program cannot be made of a model, read from a file, or written in a form.

    The message says why, and what to do.
    """


@dataclass(frozen=True, eq=False)
class Step:
    """A step of a program.

    Parameters
    ----------
    do
        Name of the step.
    of
        Numbers of the values that it uses.
    arrays, options
        Its arrays and its numbers, by name.
    """

    do: str
    of: tuple[int, ...]
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


def is_number(value: Any, low: float = -math.inf, high: float = math.inf) -> bool:
    """Return whether a value of a file is a finite number in a range."""
    # Comparisons, since an int that no float holds cannot be asked whether it is finite.
    return type(value) in (int, float) and -_LARGEST_FLOAT <= value <= _LARGEST_FLOAT and low <= value <= high


# Checks -----------------------------------------------------------------------------------------------------------------------


def width_of(step: Step, width: int) -> int:
    """Return the width of a step's value, where the values that it takes have ``width`` numbers together.

    It is a ProgramError if there is no such step, or its arrays and options are not those that it needs.
    """
    if step.do not in _KINDS:
        raise ProgramError(f"it has the step {step.do!r:.40}, which this version does not know: upgrade streamsvm")
    try:
        return _KINDS[step.do].width(step, width)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ProgramError(f"a step {step.do!r} has not the arrays and options that it needs ({error!r})") from None


def _numbers(step: Step, name: str, shape: tuple[int, ...], kinds: str = "f") -> np.ndarray:
    """Return an array of a step; -1 in the shape is any length."""
    array = step.arrays[name]
    if array.dtype.kind not in kinds or array.ndim != len(shape):
        raise ProgramError(f"{name} of a step {step.do!r} is {array.dtype} with {array.ndim} dimensions")
    if any(wanted not in (-1, length) for wanted, length in zip(shape, array.shape, strict=True)):
        raise ProgramError(f"{name} of a step {step.do!r} has the shape {array.shape}, which does not fit")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ProgramError(f"{name} of a step {step.do!r} are not finite")
    return array


def _option(step: Step, name: str, low: float = -math.inf, high: float = math.inf, whole: bool = False) -> Any:
    value = step.options[name]
    if not is_number(value, low, high) or (whole and type(value) is not int):
        raise ProgramError(f"{name} of a step {step.do!r} is out of its range")
    return value


def _check_fill(step: Step, width: int) -> int:
    if type(step.options["single"]) is not bool:
        raise ProgramError("a step 'fill' has no true or false")
    return width


def _check_scale(step: Step, width: int) -> int:
    _numbers(step, "location", (width,))
    if (_numbers(step, "spread", (width,)) < 0.0).any():
        raise ProgramError("a spread is below 0")
    if step.options["bound"] is not None:
        _option(step, "bound", 0.0)
    return width


def _check_select(step: Step, width: int) -> int:
    columns = _numbers(step, "columns", (-1,), "i")
    if len(columns) and not (columns.min() >= 0 and columns.max() < width):
        raise ProgramError("a step 'select' takes columns that are not there")
    return len(columns)


def _check_clip(step: Step, width: int) -> int:
    _option(step, "bound", 0.0)
    return width


def _check_bend(step: Step, width: int) -> int:
    _option(step, "knot", 0.0)
    if step.options["functions"] not in (2, 4):
        raise ProgramError("a step 'bend' has 2 or 4 functions")
    return int(step.options["functions"]) * width


def _check_vectors(step: Step, width: int) -> int:
    vectors = _numbers(step, "vectors", (-1, width), "fi")
    if vectors.dtype.kind == "i":
        _numbers(step, "unit", (width,))
    if "middle" in step.arrays:
        _numbers(step, "middle", (width,))
        if step.do != "kernel" or step.options["kind"] != "rbf" or "unit" not in step.arrays:
            raise ProgramError(f"a step {step.do!r} has a middle, which only whole numbers in a Gaussian kernel have")
    return len(vectors)


def _check_kernel(step: Step, width: int) -> int:
    kind = step.options["kind"]
    if kind not in ("rbf", "linear", "poly", "sigmoid"):
        raise ProgramError(f"it has a kernel of the kind {kind!r}, which this version does not know: upgrade streamsvm")
    _option(step, "gamma", 0.0)
    _option(step, "coef0")
    _option(step, "degree", 1, 100, whole=True)
    return _check_vectors(step, width)


def _check_trees(step: Step, width: int) -> int:
    vectors = _check_kernel(step, width)
    right, cut = _numbers(step, "right", (-1,), "i"), _numbers(step, "cut", (-1,), "i")
    thresholds, roots = _numbers(step, "thresholds", (-1,)), _numbers(step, "roots", (-1,), "i")
    _numbers(step, "axes", (len(thresholds), width))
    starts, rows = _numbers(step, "starts", (-1,), "i"), _numbers(step, "rows", (-1,), "i")
    weights = _numbers(step, "weights", (-1, len(rows)))
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
        raise ProgramError("the trees of a step 'trees' do not fit together")
    return len(weights)


def _check_neighbours(step: Step, width: int) -> int:
    n, labels = _check_vectors(step, width), _option(step, "labels", 0, MOST_CLASSES, whole=True)
    if not n or labels == 1:
        raise ProgramError("a step 'neighbours' has no vectors, or one label")
    _option(step, "neighbours", 1, whole=True)
    _option(step, "power", 1, 8, whole=True)
    _option(step, "offset", _LEAST, _MOST)
    reach = _option(step, "reach", _LEAST, _MOST)
    sizes = {"relevance": width, "targets": n, "weights": n}
    relevance, targets, weights = (_numbers(step, name, (size,)).astype(np.float64) for name, size in sizes.items())
    if (relevance < 0.0).any() or (relevance > _MOST).any() or relevance.sum() * reach > _MOST:
        raise ProgramError("relevance of a step 'neighbours' is below 0, or its distances are too large")
    if (weights < _LEAST).any() or (weights > _MOST).any():
        raise ProgramError("weights of a step 'neighbours' are not above 0, or too large")
    if labels and not ((targets >= 0.0) & (targets < labels) & (targets == np.floor(targets))).all():
        raise ProgramError("targets of a step 'neighbours' are not the numbers of labels")
    return int(labels) or 1


def _check_fourier(step: Step, width: int) -> int:
    _option(step, "factor")
    return 2 * _check_vectors(step, width)


def _check_linear(step: Step, width: int) -> int:
    weights = _numbers(step, "weights", (-1, width))
    _numbers(step, "biases", (len(weights),))
    return len(weights)


def _check_pairs(step: Step, width: int) -> int:
    classes = _option(step, "classes", 2, MOST_CLASSES, whole=True)
    if width != classes * (classes - 1) // 2:
        raise ProgramError(f"a step {step.do!r} has {width} pairs of {classes} classes")
    return int(classes)


def _check_experts(step: Step, width: int) -> int:
    inputs, outputs = len(step.arrays["votes"]), _option(step, "outputs", 1, MOST_CLASSES, whole=True)
    if not inputs or width != inputs * outputs:
        raise ProgramError(f"a step 'experts' has {width} numbers of {inputs} experts")
    stacks = len(_numbers(step, "weights", (-1, inputs + 2)))
    shares, votes = _numbers(step, "shares", (stacks,)), _numbers(step, "votes", (inputs,))
    corrects = _numbers(step, "corrects", (inputs,), "i")
    if not stacks or (shares < 0.0).any() or (votes < 0.0).any() or not (shares.sum() > 0.0 and votes.sum() > 0.0):
        raise ProgramError("shares of a step 'experts' are below 0, or all 0")
    if not ((corrects >= -1) & (corrects < np.arange(inputs))).all():
        raise ProgramError("a step 'experts' has one that corrects none before it")
    _option(step, "best", 0, inputs - 1, whole=True)
    _option(step, "follows", 0, 2, whole=True)
    if step.options["of"] not in ("labels", "numbers") or (step.options["of"] == "numbers" and outputs != 1):
        raise ProgramError("a step 'experts' is of labels, or of one number")
    for name in ("prior", "share") if step.options["of"] == "labels" else ():
        _option(step, name, 0.0, 1.0)
    return int(outputs)


# Values -----------------------------------------------------------------------------------------------------------------------


def value_of(step: Step, x: np.ndarray) -> np.ndarray:
    """Return the value of a step for rows, float64 [n, width], from those that it takes, side by side."""
    return _KINDS[step.do].value(step, x)


def _fill(step: Step, x: np.ndarray) -> np.ndarray:
    filled = np.where(np.isfinite(x), x, 0.0)
    return filled.astype(np.float32).astype(np.float64) if step.options["single"] else filled


def _scale(step: Step, x: np.ndarray) -> np.ndarray:
    location, spread, bound = step.arrays["location"], step.arrays["spread"], step.options["bound"]
    some = spread > 0.0
    if some.all():
        scaled = (x - location) / spread
    else:
        scaled = np.where(some | np.isnan(x), (x - location) / np.where(some, spread, 1.0), 0.0)
    return scaled if bound is None else np.minimum(np.maximum(scaled, -bound), bound)


def _bend(step: Step, x: np.ndarray) -> np.ndarray:
    knot, functions = step.options["knot"], [x, np.abs(x) - step.options["knot"]]
    if step.options["functions"] == 4:
        functions += [np.maximum(x - knot, 0.0), np.maximum(-x - knot, 0.0)]
    return np.stack(functions, axis=2).reshape(len(x), len(functions) * x.shape[1])


def vectors_of(step: Step) -> np.ndarray:
    """Return the vectors of a step in their units, float64 [m, width]."""
    vectors = step.arrays["vectors"].astype(np.float64)
    if "unit" in step.arrays:
        vectors *= step.arrays["unit"]
    return vectors + step.arrays["middle"] if "middle" in step.arrays else vectors


def _flushed(values: np.ndarray) -> np.ndarray:
    """Return kernel values of which those below `LEAST_KERNEL` are 0, as they are to a learner: rows far away get one answer."""
    values[values < LEAST_KERNEL] = 0.0
    return values


def kernel_values(step: Step, vectors: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return the values of a step's kernel between rows x [n, width] and vectors [m, width], float64 [n, m]."""
    kind, gamma = step.options["kind"], step.options["gamma"]
    if kind == "rbf":
        if len(x) == 1:
            ways = vectors - x
            return _flushed(np.exp(-gamma * np.einsum("ij,ij->i", ways, ways)))[None]
        middle = vectors.mean(axis=0) if len(vectors) else 0.0  # distances are most exact from there
        x, vectors = x - middle, vectors - middle
        squares = np.square(x).sum(axis=1)[:, None] + np.square(vectors).sum(axis=1) - 2.0 * (x @ vectors.T)
        return _flushed(np.exp(-gamma * np.maximum(squares, 0.0)))
    products = x @ vectors.T
    if kind == "linear":
        return products
    products = gamma * products + step.options["coef0"]
    if kind == "sigmoid":
        return np.tanh(products)
    return np.minimum(np.maximum(products ** step.options["degree"], -LARGEST_KERNEL), LARGEST_KERNEL)


def _trees(step: Step, x: np.ndarray) -> np.ndarray:
    a, vectors = step.arrays, vectors_of(step)
    out = np.zeros((len(x), len(a["weights"])))
    for root in a["roots"].tolist():
        leaves = _leaves(a, x, root)
        for leaf in np.unique(leaves).tolist():
            rows, entries = np.flatnonzero(leaves == leaf), slice(a["starts"][leaf], a["starts"][leaf + 1])
            values = kernel_values(step, vectors[a["rows"][entries]], x[rows])
            out[rows] += values @ a["weights"][:, entries].T
    return out


def _leaves(a: Mapping[str, np.ndarray], x: np.ndarray, root: int) -> np.ndarray:
    """Return the number of the leaf to which each row goes."""
    nodes = np.full(len(x), root)
    while (walking := np.flatnonzero(a["right"][nodes] >= 0)).size:
        at = nodes[walking]
        cuts = a["cut"][at]
        left = np.einsum("ij,ij->i", x[walking], a["axes"][cuts]) <= a["thresholds"][cuts]
        nodes[walking] = np.where(left, at + 1, a["right"][at])
    return a["cut"][nodes]


def _neighbours(step: Step, x: np.ndarray) -> np.ndarray:
    vectors, labels = vectors_of(step), step.options["labels"]
    at_once = max(MOST_AT_ONCE // max(vectors.size, 1), 1)
    out = np.empty((len(x), labels or 1))
    for begin in range(0, len(x), at_once):
        part = x[begin : begin + at_once]
        targets, shares = _nearest(step, vectors, part)
        if labels:
            places = np.arange(len(part))[:, None] * labels + targets.astype(np.int64)
            counted = np.bincount(places.ravel(), shares.ravel(), minlength=len(part) * labels)
            out[begin : begin + at_once] = counted.reshape(len(part), labels)
        else:
            out[begin : begin + at_once, 0] = (shares * targets).sum(axis=1)
    return out


def _nearest(step: Step, vectors: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the targets of the vectors that are nearest to each row, and their shares of the votes, [n, neighbours] each."""
    ways = x[:, None] - vectors
    np.minimum(np.abs(ways, out=ways), step.options["reach"], out=ways)
    distances = np.einsum("ijk,k->ij", ways, step.arrays["relevance"])  # the same sum for each vector, so that ties stay ties
    rounded = distances.astype(np.float32) + ROUNDING
    nearest = np.argsort(rounded, axis=1, kind="stable")[:, : step.options["neighbours"]]
    away = np.maximum(np.take_along_axis(distances, nearest, axis=1), NEAREST_DISTANCE) + step.options["offset"]
    ratios = away.min(axis=1, keepdims=True) / away  # of any size, shares are the same
    votes = step.arrays["weights"][nearest] * ratios ** step.options["power"]
    return step.arrays["targets"][nearest], votes / votes.sum(axis=1, keepdims=True)


def _fourier(step: Step, x: np.ndarray) -> np.ndarray:
    angles = step.options["factor"] * (x @ vectors_of(step).T)
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1)


def _sums(x: np.ndarray, classes: int) -> np.ndarray:
    sums = np.zeros((len(x), classes))
    begin = 0
    for first in range(classes - 1):
        end = begin + classes - 1 - first
        sums[:, first + 1 :] += x[:, begin:end]
        sums[:, first] -= x[:, begin:end].sum(axis=1)
        begin = end
    return sums


def _votes(step: Step, x: np.ndarray) -> np.ndarray:
    classes = step.options["classes"]
    return 0.5 * (_sums(np.where(x >= 0.0, 1.0, -1.0), classes) + classes - 1)


def _pair_scores(step: Step, x: np.ndarray) -> np.ndarray:
    classes = step.options["classes"]
    sums = _sums(x, classes)
    votes = 0.5 * (_sums(np.where(x > 0.0, 1.0, -1.0), classes) + classes - 1)
    return votes + sums / (3.0 * (np.abs(sums) + 1.0))


def _experts(step: Step, x: np.ndarray) -> np.ndarray:
    outputs, votes = step.options["outputs"], step.arrays["votes"]
    said = x.reshape(len(x), len(votes), outputs).transpose(0, 2, 1).copy()  # [n, outputs, experts]
    if step.options["of"] == "numbers":
        return _number(step, said[:, 0])
    return _odds(step, said)


def _number(step: Step, said: np.ndarray) -> np.ndarray:
    for m, corrected in enumerate(step.arrays["corrects"].tolist()):
        if corrected >= 0:
            said[:, m] += np.clip(said[:, corrected], -SAID_NUMBER, SAID_NUMBER)
    said = np.clip(said, -SAID_NUMBER, SAID_NUMBER)
    votes, shares = step.arrays["votes"], step.arrays["shares"]
    voted = said @ votes / votes.sum()
    inputs = np.concatenate([np.ones((len(said), 1)), voted[:, None], said], axis=1)
    stacked = np.clip(inputs @ step.arrays["weights"].T, -SAID_NUMBER, SAID_NUMBER) @ shares / shares.sum()
    return (stacked, voted, said[:, step.options["best"]])[step.options["follows"]][:, None]


def _odds(step: Step, said: np.ndarray) -> np.ndarray:
    n, outputs, _ = said.shape
    votes, shares, prior = step.arrays["votes"], step.arrays["shares"], step.options["prior"]
    if outputs == 1:
        voted = (np.where(said > ALIKE, 1.0, -1.0) @ votes / votes.sum())[:, :, None]
    else:
        voted = (_first(said, ALIKE)[:, None] == np.arange(outputs)[:, None]) @ votes[:, None] / votes.sum()
    constant = np.full((n, outputs, 1), 1.0 if outputs == 1 else 0.0)
    inputs = np.clip(np.concatenate([constant, voted, said], axis=2), -SAID, SAID)
    stacked = inputs @ (shares @ step.arrays["weights"] / shares.sum())  # [n, outputs]
    sources = stacked, voted[:, :, 0], said[:, :, step.options["best"]]
    followed, alike = sources[step.options["follows"]], ALIKE if step.options["follows"] else 0.0
    if outputs == 1:
        positive = followed > alike
        p = np.where(positive == (stacked > 0.0), 1.0 / (1.0 + np.exp(-np.clip(stacked, -30.0, 30.0))), 0.5)
        p += prior * (step.options["share"] - p)
        p = np.where(positive, np.maximum(p, _ABOVE_HALF), np.minimum(p, 0.5))
        return np.log(p / (1.0 - p))
    rows, chosen = np.arange(n), _first(followed, alike)
    stacked[rows, chosen] = stacked.max(axis=1) + _LEAD
    return stacked


def _first(values: np.ndarray, alike: float) -> np.ndarray:
    """Return the first place along axis 1 whose number is the largest, or less by at most ``alike``."""
    return (values >= values.max(axis=1, keepdims=True) - alike).argmax(axis=1)


class _Kind(NamedTuple):
    """The width of a step's value, once it is checked, and the value."""

    width: Callable[[Step, int], int]
    value: Callable[[Step, np.ndarray], np.ndarray]


_KINDS: Mapping[str, _Kind] = {
    "fill": _Kind(_check_fill, _fill),
    "scale": _Kind(_check_scale, _scale),
    "select": _Kind(_check_select, lambda step, x: x[:, step.arrays["columns"]]),
    "clip": _Kind(_check_clip, lambda step, x: np.minimum(np.maximum(x, -step.options["bound"]), step.options["bound"])),
    "bend": _Kind(_check_bend, _bend),
    "kernel": _Kind(_check_kernel, lambda step, x: kernel_values(step, vectors_of(step), x)),
    "fourier": _Kind(_check_fourier, _fourier),
    "trees": _Kind(_check_trees, _trees),
    "neighbours": _Kind(_check_neighbours, _neighbours),
    "linear": _Kind(_check_linear, lambda step, x: x @ step.arrays["weights"].T + step.arrays["biases"]),
    "join": _Kind(lambda _, width: width, lambda _, x: x),
    "votes": _Kind(_check_pairs, _votes),
    "pair_scores": _Kind(_check_pairs, _pair_scores),
    "experts": _Kind(_check_experts, _experts),
}


def probabilities(odds: Mapping[str, Any], f: np.ndarray) -> np.ndarray:
    """Return the probabilities of labels, float64 [n, labels], from decision values float64 [n, 1 or labels]."""
    prior = odds["prior"]
    factor = odds["factor"] if odds["kind"] == "margin" else 1.0
    if f.shape[1] == 1:
        p = 1.0 / (1.0 + np.exp(-np.clip(factor * f, -30.0, 30.0)))
        if odds["kind"] == "margin":
            p += prior * (0.5 - p)
            p = np.where(f > 0.0, np.maximum(p, _ABOVE_HALF), p)
        return np.concatenate([1.0 - p, p], axis=1)
    rows, best = np.arange(len(f)), f.argmax(axis=1)
    p = np.exp(np.maximum(factor * (f - f.max(axis=1, keepdims=True)), -30.0))
    if odds["kind"] == "margin":
        p = np.minimum(p, 1.0 - 2.0**-48)
        p[rows, best] = 1.0
        return p / p.sum(axis=1, keepdims=True) * (1.0 - prior) + prior / f.shape[1]
    p /= p.sum(axis=1, keepdims=True)
    p += prior * (np.array(odds["shares"]) - p)
    others = p.copy()
    others[rows, best] = -math.inf
    missing = np.maximum(others.max(axis=1) * (1.0 + _LEAD) - p[rows, best], 0.0)
    p[rows, best] += missing
    return p / (1.0 + missing)[:, None]
