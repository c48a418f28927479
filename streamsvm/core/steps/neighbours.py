"""The nearest-neighbour expert (kNN) of an ensemble, compiled: its predictions, feature weights, and which rows it stores.

The distance of two rows is a weighted sum, over features, of absolute differences in standard deviations. Each difference is
capped at `MAX_DIFFERENCE`: for a feature of integer codes, it then matters only whether the codes are equal, and an outlier is
far away in one feature alone. Each of the nearest rows votes with its weight, divided by the third power of its distance.

Neighbours are ranked by distances rounded to 1/1024. With integer features, many rows are equally far away, and rounding errors
would rank them, in another order in each form that a model is exported to.

Feature weights are learned by ReliefF (Kononenko 1994, Estimating attributes: analysis and extensions of RELIEF): among the
nearest rows, a relevant feature differs more where the target differs. The most relevant feature has weight 1; an irrelevant one
keeps 0.2 in classification and 0.05 in regression, since it may become relevant. In classification, the damping of features
reduces weights further.

The expert stores the rows that the ensemble or the expert itself has mispredicted, and one in ten of the others: regions that are
predicted well need few rows. It stores all rows until the store is half full. In a full store, a new row replaces the oldest one.
"""

from __future__ import annotations

import math

import numpy as np

from streamsvm.core.compiling.functions import compiled
from streamsvm.core.kernels import FAST
from streamsvm.core.memory.ensemble import MAX_DAMPING, STATE, ensemble_views
from streamsvm.core.memory.neighbours import MAX_COLUMNS, N_NEAREST, compute_stride, neighbour_views
from streamsvm.core.steps.ensemble import NEW_FEATURES, NEW_SCALE, REVIEW_DUE, ROWS_BETWEEN_REVIEWS
from streamsvm.core.steps.iterates import EPSILON_INSENSITIVE, get_common_state
from streamsvm.core.steps.rescale import rescale_vectors
from streamsvm.core.steps.rule import get_rule_state
from streamsvm.core.steps.stack import STACK, compute_share, predict_class

#: The largest difference in a feature, in standard deviations; larger ones are capped.
MAX_DIFFERENCE = 1.0
#: Votes are weight / (distance + offset)^power.
DISTANCE_OFFSET, DISTANCE_POWER = 1e-3, 3
#: Smaller distances count as this: an identical stored row has the distance 0, up to rounding errors.
MIN_DISTANCE = 2.0**-15
#: Adding this to a float32 distance rounds it to 1/1024.
ROUNDING_OFFSET = np.float32(8192.0)

#: The smallest weight of a feature in classification, and in regression.
MIN_WEIGHT_CLASSIFICATION, MIN_WEIGHT_REGRESSION = 0.2, 0.05
#: The number of relevance updates before which all features have equal weights.
MIN_UPDATES = 50.0
_RELEVANCE_WINDOW = 2000.0  # of the running mean of relevance, in updates
_STORE_EVERY = 10  # one in ten well predicted rows is stored
_MIN_ROW_WEIGHT = 1e-30  # the smallest stored weight of a row, a normal float32
_ZERO = np.float32(0.0)
_CHUNK_ROWS = 16  # rows that are skipped at once if none is near enough

_MIN_RELEVANCE = 0.01  # a largest relevance below this reduces the damping
_DAMPING_TOLERANCE = 0.05  # damping in use is replaced when it differs from the current one by more
_MAX_DAMPING_REGRESSION = 0.8
# In classification, damping decreases from its maximum to 0 between minus and plus this share of the largest relevance.
_DAMPING_RAMP = 0.1
# In classification, damping rises slowly: per row, by this share of the gap over the number of rows, at most the second number.
_DAMPING_RISE, _DAMPING_WINDOW = 0.5, 10_000.0

_compute_stride = compiled(compute_stride)


@compiled(inline=True)
def _get_current_stride(block: np.ndarray) -> int:
    """Return how many rows the k-nearest-neighbours model in ``block`` (its memory) has room for, with its present number of
    features. Values are stored feature by feature, so that this is also the distance in memory between two features of a row.
    """
    h = neighbour_views(block).header[0]
    return _compute_stride(h["cells"], h["rows"], h["row_width"])


@compiled
def compute_factors(
    relevance: np.ndarray,
    units: np.ndarray,
    n: int,
    n_updates: float,
    min_weight: float,
    damping: np.ndarray,
    factors: np.ndarray,
) -> None:
    """Compute how features count in nearest-neighbour distances, into ``factors`` float32 [2, n or more]: row 0 has their
    weights, row 1 the caps of their differences. Weights grow with ``relevance``, are at least ``min_weight``, and are
    multiplied by 1 - ``damping``. ``units`` are the standard deviations of features.
    """
    largest = 0.0
    for j in range(n if n_updates > MIN_UPDATES else 0):
        largest = max(largest, relevance[j])
    for j in range(n):
        unit = np.float64(units[j])
        weight = min_weight + (1.0 - min_weight) * max(relevance[j], 0.0) / largest if largest > 0.0 else 1.0
        weight *= 1.0 - damping[j] if len(damping) > 0 else 1.0
        factors[0, j], factors[1, j] = (weight / unit, MAX_DIFFERENCE * unit) if unit > 0.0 else (0.0, 0.0)


@compiled(fastmath=FAST)
def compute_distances(
    row: np.ndarray, factors: np.ndarray, cells: np.ndarray, n_features: int, stride: int, n: int, out: np.ndarray
) -> None:
    """Compute the distances from ``row`` to the first n stored rows into ``out`` float32 [n or more]: weighted sums of capped
    absolute differences. ``cells`` stores the rows feature by feature, ``stride`` values each; ``factors`` float32 [2, features]
    has the weights and the caps of the features.
    """
    for i in range(n):
        out[i] = _ZERO
    for j in range(0, n_features - 1, 2):  # two features at a time, so that sums are loaded and stored half as often
        x, factor, cap, column = row[j], factors[0, j], factors[1, j], cells[j * stride : j * stride + n]
        x2, factor2, cap2 = row[j + 1], factors[0, j + 1], factors[1, j + 1]
        column2 = cells[(j + 1) * stride : (j + 1) * stride + n]
        for i in range(n):
            out[i] = (out[i] + factor * min(abs(x - column[i]), cap)) + factor2 * min(abs(x2 - column2[i]), cap2)
    for j in range(n_features - n_features % 2, n_features):
        x, factor, cap, column = row[j], factors[0, j], factors[1, j], cells[j * stride : j * stride + n]
        for i in range(n):
            out[i] += factor * min(abs(x - column[i]), cap)


@compiled
def find_nearest(distances: np.ndarray, n: int, positions: np.ndarray, nearest_distances: np.ndarray) -> int:
    """Find the k (`N_NEAREST`) smallest of the first ``n`` ``distances``, float32: write their indices into ``positions`` and
    their values into ``nearest_distances``, in ascending order, and return their number. Distances are rounded to 1/1024; of
    equal ones, that with the lower index comes first.

    ``positions`` is int64 [N_NEAREST], and ``nearest_distances`` float64 [N_NEAREST], not rounded.
    """
    count, cutoff = 0, np.float32(np.inf)
    for start in range(0, n, _CHUNK_ROWS):
        chunk, n_below = distances[start : min(start + _CHUNK_ROWS, n)], 0
        for i in range(len(chunk)):  # a SIMD loop that skips most chunks
            n_below += chunk[i] + ROUNDING_OFFSET < cutoff
        for i in range(len(chunk) if n_below > 0 else 0):
            rounded = chunk[i] + ROUNDING_OFFSET
            if rounded >= cutoff:
                continue
            rank = count if count < N_NEAREST else N_NEAREST - 1
            while rank > 0 and np.float32(nearest_distances[rank - 1]) + ROUNDING_OFFSET > rounded:
                nearest_distances[rank], positions[rank] = nearest_distances[rank - 1], positions[rank - 1]
                rank -= 1
            nearest_distances[rank], positions[rank] = chunk[i], start + i
            count = min(count + 1, N_NEAREST)
            if count == N_NEAREST:
                cutoff = np.float32(nearest_distances[N_NEAREST - 1]) + ROUNDING_OFFSET
    return count


@compiled
def find_neighbours(block: np.ndarray, min_weight: float, damping: np.ndarray) -> float:
    """Find the stored rows nearest to the current row of the k-nearest-neighbours model in ``block``, and store their votes,
    which are row weight / distance^3. Returns the sum of votes. A feature's weight in distances is at least ``min_weight``
    before it is multiplied by 1 - ``damping``.

    ``min_weight`` and ``damping`` are those of `compute_factors`.
    """
    v = neighbour_views(block)
    h = v.header[0]
    compute_factors(v.relevance, v.units, h["row_width"], h["n_informative"], min_weight, damping, v.factors)
    compute_distances(v.row, v.factors, v.cells, h["row_width"], _get_current_stride(block), h["n_rows"], v.distances)
    n = find_nearest(v.distances, h["n_rows"], v.nearest, v.votes[0])
    v.n_nearest[0] = n
    total = 0.0
    for p in range(n):
        distance = max(v.votes[0, p], MIN_DISTANCE) + DISTANCE_OFFSET
        v.votes[1, p] = np.float64(v.weights[v.nearest[p]]) / (distance * distance * distance)
        total += v.votes[1, p]
    return total


@compiled
def _learn_row(block: np.ndarray, target: float, weight: float, mispredicted: bool, regression: bool) -> None:
    """Train a k-nearest-neighbours model on the current row, after `find_neighbours`: update the relevance of features; then
    store the row, if it was ``mispredicted``, if the memory is less than half full, or once for every ten rows predicted well.
    ``block`` is the model's memory.
    """
    _update_relevance(block, target, weight, regression)
    v = neighbour_views(block)
    h = v.header[0]
    capacity = _get_current_stride(block)
    h["n_correct"] += 0 if mispredicted else 1
    if weight <= 0.0 or capacity == 0 or not (mispredicted or h["n_correct"] >= _STORE_EVERY or 2 * h["n_rows"] < capacity):
        return
    position = h["n_rows"]
    if position < capacity:
        h["n_rows"] += 1
    else:
        position = h["next_slot"]
        h["next_slot"] = (position + 1) % capacity
    h["n_correct"] %= _STORE_EVERY
    for j in range(h["row_width"]):
        v.cells[j * capacity + position] = v.row[j]
    v.targets[position], v.weights[position] = target, max(weight, _MIN_ROW_WEIGHT)


@compiled
def _update_relevance(block: np.ndarray, target: float, weight: float, regression: bool) -> None:
    """Update the running relevance of each feature with the current row (ReliefF): a feature is relevant if it differs more from
    nearest neighbours with another target than from those with the same one. ``block`` is the memory of the k-nearest-neighbours
    model.

    The relevance is the covariance, among the nearest rows, of the capped difference in the feature and the difference in the
    target, divided by the standard deviations of the feature and of the latter difference.
    """
    v = neighbour_views(block)
    h = v.header[0]
    n = v.n_nearest[0]
    mean = total_squares = 0.0
    deviations = v.votes[1]  # the votes are no longer needed
    for p in range(n):
        stored_target = v.targets[v.nearest[p]]
        deviations[p] = difference = abs(stored_target - target) if regression else (1.0 if stored_target != target else 0.0)
        mean += difference
        total_squares += difference * difference
    if n == 0 or weight <= 0.0:
        return
    mean /= n
    variance = total_squares / n - mean * mean
    if variance <= 1e-12 * total_squares:
        return
    h["n_informative"] += 1.0
    rate, stride = compute_share(weight, 1.0 / min(h["n_informative"], _RELEVANCE_WINDOW)), _get_current_stride(block)
    factor = 1.0 / (n * math.sqrt(variance))
    for p in range(n):
        deviations[p] -= mean
    for j in range(h["row_width"]):
        x, cap, column, covariance = v.row[j], v.factors[1, j], v.cells[j * stride : (j + 1) * stride], 0.0
        for p in range(n):
            covariance += deviations[p] * np.float64(min(abs(x - column[v.nearest[p]]), cap))
        deviation = np.float64(v.units[j])
        v.relevance[j] += rate * ((factor * covariance / deviation if deviation > 0.0 else 0.0) - v.relevance[j])


@compiled
def _copy_from_oldest(ring: np.ndarray, oldest: int, n_evicted: int, scratch: np.ndarray, out: np.ndarray) -> None:
    """Copy the ring buffer ``ring`` to ``out`` in order of age, the oldest value first, but without the ``n_evicted`` oldest
    ones. ``oldest`` is the index of the oldest value. ``out`` may overlap ``ring``, because values pass through the buffer
    ``scratch``.
    """
    n = len(ring)
    for i in range(n - n_evicted):
        scratch[i] = ring[(oldest + n_evicted + i) % n]
    for i in range(n - n_evicted):
        out[i] = scratch[i]


@compiled
def _add_features(block: np.ndarray) -> None:
    """Rearrange the rows stored in a k-nearest-neighbours model's memory ``block``, so that each has room for new features,
    whose values are 0. If fewer rows fit then, the oldest are evicted.
    """
    v = neighbour_views(block)
    h = v.header[0]
    old_n_features, old_n_rows, old_capacity = h["row_width"], h["n_rows"], _get_current_stride(block)
    h["row_width"] = min(h["used"], MAX_COLUMNS)
    capacity = _get_current_stride(block)
    oldest, n_rows = h["next_slot"] if old_n_rows == old_capacity else 0, min(old_n_rows, capacity)
    for j in range(old_n_features):
        ring, out = v.cells[j * old_capacity : j * old_capacity + old_n_rows], v.cells[j * capacity : j * capacity + n_rows]
        _copy_from_oldest(ring, oldest, old_n_rows - n_rows, v.distances, out)
        v.cells[j * capacity + n_rows : (j + 1) * capacity] = _ZERO
    v.cells[old_n_features * capacity :] = _ZERO
    for values in (v.weights, v.targets):
        _copy_from_oldest(values[:old_n_rows], oldest, old_n_rows - n_rows, v.distances, values[:n_rows])
        values[n_rows:] = _ZERO
    h["n_rows"], h["next_slot"] = n_rows, 0


@compiled
def predict_neighbours(block: np.ndarray, store: np.ndarray, expert: int) -> int:
    """Predict the current row by its nearest stored rows, in a member of an ensemble: the share of votes per class, scaled to
    [-1, 1], or the weighted mean target. The prediction is stored in the ensemble's memory ``block``; ``store`` is the member's
    own memory, ``expert`` its index. Always returns 0.
    """
    v, s = ensemble_views(block), neighbour_views(store)
    scaling, n_outputs = get_rule_state(block, STATE)["scaling"] != 0, v.header[0]["n_outputs"]
    for j in range(s.header[0]["row_width"]):
        s.row[j] = v.scaled[j]
        s.units[j] = (1.0 if v.spread[j] > 0.0 else 0.0) if scaling else v.spread[j]
    regression, first = get_common_state(block)["loss"] == EPSILON_INSENSITIVE, v.experts[expert]["first_input"]
    if regression:
        total = find_neighbours(store, MIN_WEIGHT_REGRESSION, v.damping[0, :0])
    else:
        total = find_neighbours(store, MIN_WEIGHT_CLASSIFICATION, v.damping[0])
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
    if not regression:
        for k in range(n_outputs):
            v.inputs[k, first] = 2.0 * v.inputs[k, first] - 1.0
    return 0


@compiled
def update_neighbours(block: np.ndarray, store: np.ndarray, expert: int, target: float, label: int, weight: float) -> int:
    """Train a k-nearest-neighbours model, a member of an ensemble, on the current row: update the weights of features, and store
    the row if it was mispredicted, and one in ten other rows. ``block`` is the ensemble's memory, ``store`` the model's own,
    ``label`` the class index. Always returns 0.

    A row was mispredicted if the stacks or the nearest rows predict another label, or if the error of the stacks exceeds their
    mean error in regression.
    """
    v = ensemble_views(block)
    if get_common_state(block)["loss"] == EPSILON_INSENSITIVE:
        _learn_row(store, target, weight, abs(target - v.numbers[STACK]) > v.choice_errors[STACK], True)
    else:
        predicted_class = predict_class(v.inputs, v.header[0]["n_outputs"], v.experts[expert]["first_input"])
        _learn_row(store, float(label), weight, v.answers[STACK] != label or predicted_class != label, False)
    return 0


@compiled
def rescale_neighbours(block: np.ndarray, store: np.ndarray, expert: int, event: int) -> int:  # noqa: ARG001
    """Adapt a k-nearest-neighbours model, a member of an ensemble, to the constant ``event``: add new features to its stored
    rows, convert these to a new scale, or review which irrelevant features are weakened ("damped"). Returns 1 if damping has
    changed, otherwise 0.
    """
    v, s = ensemble_views(block), neighbour_views(store)
    h, scaling = s.header[0], get_rule_state(block, STATE)["scaling"] != 0
    if event == NEW_FEATURES and h["row_width"] < min(h["used"], MAX_COLUMNS):
        _add_features(store)
    elif event == NEW_SCALE and scaling:
        n_features, stride = h["row_width"], _get_current_stride(store)
        rows = s.cells[: n_features * stride].reshape(n_features, stride)
        rescale_vectors(rows, s.distances, h["n_rows"], n_features, v.ratio, v.shift)
    elif event == REVIEW_DUE and h["n_informative"] > MIN_UPDATES:
        return 1 if _review_damping(block, store) else 0
    return 0


@compiled(inline=True)
def _compute_damping(relevance: float, largest: float, regression: bool) -> float:
    """Return how much to weaken a feature (0: full weight, near 1: almost ignored), given its ReliefF ``relevance`` and the
    ``largest`` relevance of any feature. The result is 0 for relevant features.

    In regression, it grows with the distance to the largest relevance. In classification, irrelevant features have a relevance
    below 0: a row that is near although it differs in one of them is nearer in the relevant features.
    """
    deficit = largest - relevance if regression else (_DAMPING_RAMP * largest - relevance) / (2.0 * _DAMPING_RAMP)
    max_damping = _MAX_DAMPING_REGRESSION if regression else MAX_DAMPING
    return max_damping * (min(max(deficit, 0.0), largest) / max(largest, _MIN_RELEVANCE))


@compiled
def _review_damping(block: np.ndarray, memory: np.ndarray) -> bool:
    """Update the factors that weaken irrelevant features in all members of an ensemble, by the relevance that its
    k-nearest-neighbours model has measured. Returns True if they were replaced, which happens if one is off by more than 0.05.
    ``block`` is the ensemble's memory, ``memory`` that model's.

    In classification, damping rises slowly, because concepts recur. With more features than the store holds, no feature is
    damped.
    """
    v, s = ensemble_views(block), neighbour_views(memory)
    used, largest, has_changed = v.header[0]["used"], 0.0, False
    regression, t = get_common_state(block)["loss"] == EPSILON_INSENSITIVE, np.float64(get_common_state(block)["t"])
    for j in range(used if used <= MAX_COLUMNS else 0):
        largest = max(largest, s.relevance[j])
    rate = min(_DAMPING_RISE * ROWS_BETWEEN_REVIEWS / min(t, _DAMPING_WINDOW), 1.0)
    for j in range(used):
        damping, old_damping = _compute_damping(s.relevance[j], largest, regression), v.damping[1, j]
        v.damping[1, j] = old_damping + rate * (damping - old_damping) if damping > old_damping and not regression else damping
        has_changed = has_changed or abs(v.damping[1, j] - v.damping[0, j]) > _DAMPING_TOLERANCE
    if has_changed:
        for j in range(used):
            damping = v.damping[1, j]
            v.ratio[j], v.shift[j] = (1.0 - damping) / (1.0 - v.damping[0, j]), 0.0
            v.damping[0, j] = damping
    return has_changed
