"""The steps of a program, by numpy.

A committee's ``experts`` say a number for each output, in the order of experts, of each one all outputs. What an expert says may
be a correction of what another one says. Stacks weigh what they all say, after 1 and the outcome of their votes: the log odds of
labels, or a number. The answer is that of the stacks, of the votes or of the expert that is best, whichever the committee
follows; decision values of labels are log odds, in which the answer leads.

``trees`` walk from a root to a leaf: from node i to i + 1 if the product of x with the axis of its cut is at most the threshold,
else to ``right``; of a leaf that is -1, and ``cut`` the leaf's number. The ``rows`` of the vectors from one of the ``starts`` to
the next have weights there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from streamsvm.edge.program import Program, Step

#: Numbers of a value that are computed at once, in about so many bytes times 8.
MOST_AT_ONCE = 2**21

_LARGEST_KERNEL = 1e30
_SAID, _SAID_NUMBER = 3.0, 10.0  # to which what an expert says of labels and of numbers is bounded
_LEAD = 2.0**-40  # of the answer before others that are as probable
_ABOVE_HALF = 0.5 + 2.0**-52


def run(program: Program, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the decision values and the choices of rows float64 [n, columns]: float64 [n, width] each.

    O(n m width) for each step with m vectors; memory O(n width).
    """
    values = [np.where(np.isfinite(rows), rows, math.nan)]
    with np.errstate(over="ignore", invalid="ignore"):
        for step in program.steps:
            taken = [values[number] for number in step.of]
            values.append(_STEPS[step.do](step, taken[0] if len(taken) == 1 else np.concatenate(taken, axis=1)))
    return values[program.answer.decision], values[program.answer.choice]


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


def _select(step: Step, x: np.ndarray) -> np.ndarray:
    return x[:, step.arrays["columns"]]


def _clip(step: Step, x: np.ndarray) -> np.ndarray:
    return np.minimum(np.maximum(x, -step.options["bound"]), step.options["bound"])


def _bend(step: Step, x: np.ndarray) -> np.ndarray:
    knot, functions = step.options["knot"], [x, np.abs(x) - step.options["knot"]]
    if step.options["functions"] == 4:
        functions += [np.maximum(x - knot, 0.0), np.maximum(-x - knot, 0.0)]
    return np.stack(functions, axis=2).reshape(len(x), len(functions) * x.shape[1])


def vectors_of(step: Step) -> np.ndarray:
    """Return the vectors of a step in their units, float64 [m, width]."""
    vectors = step.arrays["vectors"].astype(np.float64)
    return vectors * step.arrays["unit"] if "unit" in step.arrays else vectors


def _kernel(step: Step, x: np.ndarray) -> np.ndarray:
    return kernel_values(step, vectors_of(step), x)


def kernel_values(step: Step, vectors: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return the values of a step's kernel between rows x [n, width] and vectors [m, width], float64 [n, m]."""
    kind, gamma = step.options["kind"], step.options["gamma"]
    if kind == "rbf":
        if len(x) == 1:
            ways = vectors - x
            return np.exp(-gamma * np.einsum("ij,ij->i", ways, ways))[None]
        middle = vectors.mean(axis=0) if len(vectors) else 0.0  # distances are most exact from there
        x, vectors = x - middle, vectors - middle
        squares = np.square(x).sum(axis=1)[:, None] + np.square(vectors).sum(axis=1) - 2.0 * (x @ vectors.T)
        return np.exp(-gamma * np.maximum(squares, 0.0))
    products = x @ vectors.T
    if kind == "linear":
        return products
    products = gamma * products + step.options["coef0"]
    if kind == "sigmoid":
        return np.tanh(products)
    return np.minimum(np.maximum(products ** step.options["degree"], -_LARGEST_KERNEL), _LARGEST_KERNEL)


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


def _fourier(step: Step, x: np.ndarray) -> np.ndarray:
    angles = step.options["factor"] * (x @ vectors_of(step).T)
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1)


def _linear(step: Step, x: np.ndarray) -> np.ndarray:
    return x @ step.arrays["weights"].T + step.arrays["biases"]


def _join(step: Step, x: np.ndarray) -> np.ndarray:  # noqa: ARG001
    return x


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
            said[:, m] += np.clip(said[:, corrected], -_SAID_NUMBER, _SAID_NUMBER)
    said = np.clip(said, -_SAID_NUMBER, _SAID_NUMBER)
    votes, shares = step.arrays["votes"], step.arrays["shares"]
    voted = said @ votes / votes.sum()
    inputs = np.concatenate([np.ones((len(said), 1)), voted[:, None], said], axis=1)
    stacked = np.clip(inputs @ step.arrays["weights"].T, -_SAID_NUMBER, _SAID_NUMBER) @ shares / shares.sum()
    return (stacked, voted, said[:, step.options["best"]])[step.options["follows"]][:, None]


def _odds(step: Step, said: np.ndarray) -> np.ndarray:
    n, outputs, _ = said.shape
    votes, shares, prior = step.arrays["votes"], step.arrays["shares"], step.options["prior"]
    if outputs == 1:
        voted = (np.where(said > 0.0, 1.0, -1.0) @ votes / votes.sum())[:, :, None]
    else:
        voted = (said.argmax(axis=1)[:, None] == np.arange(outputs)[:, None]) @ votes[:, None] / votes.sum()
    constant = np.full((n, outputs, 1), 1.0 if outputs == 1 else 0.0)
    inputs = np.clip(np.concatenate([constant, voted, said], axis=2), -_SAID, _SAID)
    stacked = inputs @ (shares @ step.arrays["weights"] / shares.sum())  # [n, outputs]
    sources = stacked, voted[:, :, 0], said[:, :, step.options["best"]]
    followed = sources[step.options["follows"]]
    if outputs == 1:
        positive = followed > 0.0
        p = np.where(positive == (stacked > 0.0), 1.0 / (1.0 + np.exp(-np.clip(stacked, -30.0, 30.0))), 0.5)
        p += prior * (step.options["share"] - p)
        p = np.where(positive, np.maximum(p, _ABOVE_HALF), np.minimum(p, 0.5))
        return np.log(p / (1.0 - p))
    rows, chosen = np.arange(n), followed.argmax(axis=1)
    stacked[rows, chosen] = stacked.max(axis=1) + _LEAD
    return stacked


_STEPS: Mapping[str, Callable[[Step, np.ndarray], np.ndarray]] = {
    "fill": _fill,
    "scale": _scale,
    "select": _select,
    "clip": _clip,
    "bend": _bend,
    "kernel": _kernel,
    "fourier": _fourier,
    "trees": _trees,
    "linear": _linear,
    "join": _join,
    "votes": _votes,
    "pair_scores": _pair_scores,
    "experts": _experts,
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
