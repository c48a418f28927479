"""An expert that remembers rows, compiled: what the nearest of them say, how much each feature counts, which rows are kept.

A distance is the sum over features of what the feature counts times the difference, which is in standard deviations and bounded:
so a feature whose numbers are names only says whether two rows have the same, and an outlier is far in one feature alone. The
nearest rows vote, each by its weight over the third power of its distance. Which rows are nearest is decided by distances that
are rounded to 1/1024. Where features are whole numbers, many rows are equally far, and without that the order of rounding errors
would choose among them: another one in each program that the model is exported as.

What a feature counts is learned as ReliefF does (Kononenko 1994, Estimating attributes: analysis and extensions of RELIEF): among
the nearest rows, a feature that is relevant differs more where the target differs. The most relevant feature counts 1, and one
that says nothing a fifth, or where numbers are predicted a twentieth, as it may yet. Where labels are predicted, a feature also
counts as much less as it is damped.

Rows that the ensemble or the memory itself missed are kept, and one in ten of the others: what is known well needs few rows. The
oldest makes room. Until half of the room is taken, all rows are kept.
"""

from __future__ import annotations

import math

import numpy as np

from streamsvm.core.compiling.functions import compiled
from streamsvm.core.kernels import FAST
from streamsvm.core.memory.ensemble import MOST_DAMPED, STATE, ensemble_views
from streamsvm.core.memory.neighbours import MAX_COLUMNS, N_NEAREST, compute_stride, neighbour_views
from streamsvm.core.steps.ensemble import NEW_FEATURES, NEW_SCALE, REVIEW_DUE, ROWS_BETWEEN_REVIEWS
from streamsvm.core.steps.iterates import EPSILON_INSENSITIVE, get_common_state
from streamsvm.core.steps.rescale import rescale_vectors
from streamsvm.core.steps.rule import get_rule_state
from streamsvm.core.steps.stack import STACK, compute_share, predict_class

#: Deviations to which a difference in a feature is bounded.
MAX_DIFFERENCE = 1.0
#: What is added to a distance before its power is taken, and the power.
DISTANCE_OFFSET, DISTANCE_POWER = 1e-3, 3
#: Distances below that count as this: a row that is there already is at 0, or wherever rounding put it.
MIN_DISTANCE = 2.0**-15
#: What is added to distances when they are compared, in float32: the sum has them to 1/1024.
ROUNDING_SHIFT = np.float32(8192.0)

#: What a feature counts at least, where targets are labels, and where they are numbers.
MIN_WEIGHT_CLASSIFICATION, MIN_WEIGHT_REGRESSION = 0.2, 0.05
#: Rows that must have said something of the features before these count unequally.
MIN_UPDATES = 50.0
_TOLD = 2000.0  # rows that relevance remembers
_KEPT = 10  # one in so many rows that were not missed is kept
_LIGHTEST = 1e-30  # a weight that float32 has
_ZERO = np.float32(0.0)
_CHUNK = 16  # rows among which one is looked for that is near enough

_TELLING = 0.01  # the relevance of the first feature from which on it is taken at its word
_DAMPED_OFF = 0.05  # by which what a feature counts may be off
_MOST_OF_NUMBERS = 0.8  # of damping, where targets are numbers
_REACHED = 0.1  # of the largest relevance: where targets are labels, damping is none from that on, and most below minus that
_RISE, _HORIZON = 0.5, 10_000.0  # the share of what it lacks by which damping rises with a row: that over the rows so far

_stride_of = compiled(compute_stride)


@compiled(inline=True)
def _stride_in_use(block: np.ndarray) -> int:
    h = neighbour_views(block).header[0]
    return _stride_of(h["cells"], h["rows"], h["row_width"])


@compiled
def compute_factors(
    relevance: np.ndarray, units: np.ndarray, laid: int, told: float, least: float, damping: np.ndarray, factors: np.ndarray
) -> None:
    """Compute ``factors`` float32 [2, laid or more]: what a difference of 1 in each feature counts, and up to which one.

    A feature counts ``least`` at least, less its ``damping``, float64 [laid or more], or [0] where none is damped.
    """
    largest = 0.0
    for j in range(laid if told > MIN_UPDATES else 0):
        largest = max(largest, relevance[j])
    for j in range(laid):
        unit = np.float64(units[j])
        counts = least + (1.0 - least) * max(relevance[j], 0.0) / largest if largest > 0.0 else 1.0
        counts *= 1.0 - damping[j] if len(damping) > 0 else 1.0
        factors[0, j], factors[1, j] = (counts / unit, MAX_DIFFERENCE * unit) if unit > 0.0 else (0.0, 0.0)


@compiled(fastmath=FAST)
def compute_distances(
    row: np.ndarray, factors: np.ndarray, cells: np.ndarray, laid: int, stride: int, n: int, out: np.ndarray
) -> None:
    """Compute the distances of a row, float32 [laid], to n rows into ``out`` float32 [n or more]. O(n laid)."""
    for i in range(n):
        out[i] = _ZERO
    for j in range(0, laid - 1, 2):  # two at once, so that sums are loaded and stored half as often
        x, factor, reach, column = row[j], factors[0, j], factors[1, j], cells[j * stride : j * stride + n]
        y, other, limit, beside = row[j + 1], factors[0, j + 1], factors[1, j + 1], cells[(j + 1) * stride : (j + 1) * stride + n]
        for i in range(n):
            out[i] = (out[i] + factor * min(abs(x - column[i]), reach)) + other * min(abs(y - beside[i]), limit)
    for j in range(laid - laid % 2, laid):
        x, factor, reach, column = row[j], factors[0, j], factors[1, j], cells[j * stride : j * stride + n]
        for i in range(n):
            out[i] += factor * min(abs(x - column[i]), reach)


@compiled
def find_nearest(distances: np.ndarray, n: int, nearest: np.ndarray, found: np.ndarray) -> int:
    """Find the smallest of n distances float32, as they are rounded, in their order, of equal ones the first: places into
    ``nearest`` int64 [`N_NEAREST`], distances into ``n_nearest`` float64 [`N_NEAREST`]; how many there are.
    """
    count, limit = 0, np.float32(np.inf)
    for begin in range(0, n, _CHUNK):
        some, near = distances[begin : min(begin + _CHUNK, n)], 0
        for i in range(len(some)):  # in SIMD: few have one
            near += some[i] + ROUNDING_SHIFT < limit
        for i in range(len(some) if near > 0 else 0):
            rounded = some[i] + ROUNDING_SHIFT
            if rounded >= limit:
                continue
            p = count if count < N_NEAREST else N_NEAREST - 1
            while p > 0 and np.float32(found[p - 1]) + ROUNDING_SHIFT > rounded:
                found[p], nearest[p] = found[p - 1], nearest[p - 1]
                p -= 1
            found[p], nearest[p] = some[i], begin + i
            count = min(count + 1, N_NEAREST)
            if count == N_NEAREST:
                limit = np.float32(found[N_NEAREST - 1]) + ROUNDING_SHIFT
    return count


@compiled
def find_neighbours(block: np.ndarray, least: float, damping: np.ndarray) -> float:
    """Find the rows nearest to the current row, which is in ``row``, and their votes; the sum of these.

    ``least`` and ``damping`` are those of `compute_factors`.
    """
    v = neighbour_views(block)
    h = v.header[0]
    compute_factors(v.relevance, v.units, h["row_width"], h["n_informative"], least, damping, v.factors)
    compute_distances(v.row, v.factors, v.cells, h["row_width"], _stride_in_use(block), h["n_rows"], v.distances)
    n = find_nearest(v.distances, h["n_rows"], v.nearest, v.votes[0])
    v.n_nearest[0] = n
    total = 0.0
    for p in range(n):
        far = max(v.votes[0, p], MIN_DISTANCE) + DISTANCE_OFFSET
        v.votes[1, p] = np.float64(v.weights[v.nearest[p]]) / (far * far * far)
        total += v.votes[1, p]
    return total


@compiled
def _learn_row(block: np.ndarray, target: float, weight: float, missed: bool, numbers: bool) -> None:
    # Learn the current row, of which `find_neighbours` has found the nearest rows: what features count, and the row itself.
    # ``missed``: whether its target was predicted badly. ``numbers``: whether targets are numbers, rather than classes.
    _learn_relevance(block, target, weight, numbers)
    v = neighbour_views(block)
    h = v.header[0]
    stride = _stride_in_use(block)
    h["n_correct"] += 0 if missed else 1
    if weight <= 0.0 or stride == 0 or not (missed or h["n_correct"] >= _KEPT or 2 * h["n_rows"] < stride):
        return
    place = h["n_rows"]
    if place < stride:
        h["n_rows"] += 1
    else:
        place = h["next_slot"]
        h["next_slot"] = (place + 1) % stride
    h["n_correct"] %= _KEPT
    for j in range(h["row_width"]):
        v.cells[j * stride + place] = v.row[j]
    v.targets[place], v.weights[place] = target, max(weight, _LIGHTEST)


@compiled
def _learn_relevance(block: np.ndarray, target: float, weight: float, numbers: bool) -> None:
    # ReliefF's step: the covariance, among the nearest rows, of the difference in a feature with that of the target.
    v = neighbour_views(block)
    h = v.header[0]
    n = v.n_nearest[0]
    mean = square = 0.0
    deviations = v.votes[1]  # the votes have been counted
    for p in range(n):
        other = v.targets[v.nearest[p]]
        deviations[p] = error = abs(other - target) if numbers else (1.0 if other != target else 0.0)
        mean += error
        square += error * error
    if n == 0 or weight <= 0.0:
        return
    mean /= n
    variance = square / n - mean * mean
    if variance <= 1e-12 * square:
        return
    h["n_informative"] += 1.0
    rate, stride = compute_share(weight, 1.0 / min(h["n_informative"], _TOLD)), _stride_in_use(block)
    size = 1.0 / (n * math.sqrt(variance))
    for p in range(n):
        deviations[p] -= mean
    for j in range(h["row_width"]):
        x, reach, column, covariance = v.row[j], v.factors[1, j], v.cells[j * stride : (j + 1) * stride], 0.0
        for p in range(n):
            covariance += deviations[p] * np.float64(min(abs(x - column[v.nearest[p]]), reach))
        unit = np.float64(v.units[j])
        v.relevance[j] += rate * ((size * covariance / unit if unit > 0.0 else 0.0) - v.relevance[j])


@compiled
def _unrolled_values(values: np.ndarray, first: int, dropped: int, spare: np.ndarray, out: np.ndarray) -> None:
    # The values of rows from the oldest on, which is at ``first``, without so many of the oldest.
    n = len(values)
    for i in range(n - dropped):
        spare[i] = values[(first + dropped + i) % n]
    for i in range(n - dropped):
        out[i] = spare[i]


@compiled
def _lay_out(block: np.ndarray) -> None:
    # Lay out the rows for all features that there are, the new ones 0; where there is room for fewer rows, the newest stay.
    v = neighbour_views(block)
    h = v.header[0]
    before, held, old = h["row_width"], h["n_rows"], _stride_in_use(block)
    h["row_width"] = min(h["used"], MAX_COLUMNS)
    new = _stride_in_use(block)
    first, kept = h["next_slot"] if held == old else 0, min(held, new)
    for j in range(before):
        _unrolled_values(v.cells[j * old : j * old + held], first, held - kept, v.distances, v.cells[j * new : j * new + kept])
        v.cells[j * new + kept : (j + 1) * new] = _ZERO
    v.cells[before * new :] = _ZERO
    for values in (v.weights, v.targets):
        _unrolled_values(values[:held], first, held - kept, v.distances, values[:kept])
        values[kept:] = _ZERO
    h["n_rows"], h["next_slot"] = kept, 0


@compiled
def predict_neighbours(block: np.ndarray, store: np.ndarray, expert: int) -> int:
    """Predict by the nearest rows: twice the share of the votes that each label has, less 1; or the mean of targets, which is
    weighted by the votes.
    """
    v, s = ensemble_views(block), neighbour_views(store)
    scaling, n_outputs = get_rule_state(block, STATE)["scaling"] != 0, v.header[0]["n_outputs"]
    for j in range(s.header[0]["row_width"]):
        s.row[j] = v.scaled[j]
        s.units[j] = (1.0 if v.spread[j] > 0.0 else 0.0) if scaling else v.spread[j]
    numbers, first = get_common_state(block)["loss"] == EPSILON_INSENSITIVE, v.experts[expert]["first_input"]
    total = (
        find_neighbours(store, MIN_WEIGHT_REGRESSION, v.damping[0, :0])
        if numbers
        else find_neighbours(store, MIN_WEIGHT_CLASSIFICATION, v.damping[0])
    )
    for k in range(n_outputs):
        v.inputs[k, first] = 0.0
    if total <= 0.0:
        return 0
    for p in range(s.n_nearest[0]):
        target, share = np.float64(s.targets[s.nearest[p]]), s.votes[1, p] / total
        if n_outputs > 1:
            v.inputs[int(target), first] += share
        else:
            v.inputs[0, first] += share * target
    if not numbers:
        for k in range(n_outputs):
            v.inputs[k, first] = 2.0 * v.inputs[k, first] - 1.0
    return 0


@compiled
def update_neighbours(block: np.ndarray, store: np.ndarray, expert: int, target: float, label: int, weight: float) -> int:
    """Learn the current row.

    It is missed where the stacks or the nearest rows miss its label, or the stacks its target by more than they do on average.
    """
    v = ensemble_views(block)
    if get_common_state(block)["loss"] == EPSILON_INSENSITIVE:
        _learn_row(store, target, weight, abs(target - v.numbers[STACK]) > v.choice_errors[STACK], True)
    else:
        said = predict_class(v.inputs, v.header[0]["n_outputs"], v.experts[expert]["first_input"])
        _learn_row(store, float(label), weight, v.answers[STACK] != label or said != label, False)
    return 0


@compiled
def rescale_neighbours(block: np.ndarray, store: np.ndarray, expert: int, event: int) -> int:  # noqa: ARG001
    """Lay out the rows for new features, or bring them to the scale in use; or review by how much features count."""
    v, s = ensemble_views(block), neighbour_views(store)
    h, scaling = s.header[0], get_rule_state(block, STATE)["scaling"] != 0
    if event == NEW_FEATURES and h["row_width"] < min(h["used"], MAX_COLUMNS):
        _lay_out(store)
    elif event == NEW_SCALE and scaling:
        laid, stride = h["row_width"], _stride_in_use(store)
        rescale_vectors(s.cells[: laid * stride].reshape(laid, stride), s.distances, h["n_rows"], laid, v.ratio, v.shift)
    elif event == REVIEW_DUE and h["n_informative"] > MIN_UPDATES:
        return 1 if _review_features(block, store) else 0
    return 0


@compiled(inline=True)
def _damping_of(relevance: float, largest: float, numbers: bool) -> float:
    # Where targets are numbers, by how far the relevance is below the largest one. Where they are labels, what is not relevant to
    # them is below 0: a row that is near though it differs there is nearer in what is relevant.
    below = largest - relevance if numbers else (_REACHED * largest - relevance) / (2.0 * _REACHED)
    return (_MOST_OF_NUMBERS if numbers else MOST_DAMPED) * (min(max(below, 0.0), largest) / max(largest, _TELLING))


@compiled
def _review_features(block: np.ndarray, memory: np.ndarray) -> bool:
    # Let features count by their relevance; whether that has changed. Where targets are labels, one that was relevant continues
    # to count for a while: concepts come back. Where there are more features than the memory takes, all count in full.
    v, s = ensemble_views(block), neighbour_views(memory)
    used, largest, moved = v.header[0]["used"], 0.0, False
    numbers, t = get_common_state(block)["loss"] == EPSILON_INSENSITIVE, np.float64(get_common_state(block)["t"])
    for j in range(used if used <= MAX_COLUMNS else 0):
        largest = max(largest, s.relevance[j])
    rate = min(_RISE * ROWS_BETWEEN_REVIEWS / min(t, _HORIZON), 1.0)
    for j in range(used):
        sought, before = _damping_of(s.relevance[j], largest, numbers), v.damping[1, j]
        v.damping[1, j] = before + rate * (sought - before) if sought > before and not numbers else sought
        moved = moved or abs(v.damping[1, j] - v.damping[0, j]) > _DAMPED_OFF
    if moved:
        for j in range(used):
            damping = v.damping[1, j]
            v.ratio[j], v.shift[j] = (1.0 - damping) / (1.0 - v.damping[0, j]), 0.0
            v.damping[0, j] = damping
    return moved
