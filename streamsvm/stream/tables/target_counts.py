"""Compiled functions on the hash table of a target encoding: label counts, or weights and target sums, of each category.

A hash table consists of the keys, uint32 [size], 0 in free slots; the index of the row that updated each category last, int64
[size]; and the counts, float64 [size, labels], or weights and target sums, float64 [size, 2]. A key hashes to a set of 16 slots,
which is filled from its first slot on. Totals are the weight of each label, or weight, mean and sum of squared deviations of all
targets.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from streamsvm.core.compiling.functions import compiled

#: Slots of a set. Their keys fill a cache line of the processor.
WAYS = 16
#: Weight of the prior, which is the label's overall share, or the mean of all targets, in rows.
_PRIOR = 5.0
#: Counts are halved when a category, or all rows, exceed these weights, so that a changed meaning is learned again.
_MAX_CATEGORY_WEIGHT, _MAX_TOTAL_WEIGHT = 1000.0, 10_000.0


@compiled
def find_slot(keys: Any, key: Any) -> Any:
    """Return the index of ``key`` in the hash table with the array ``keys``, uint32 [size]; -1 if it is absent."""
    first = (np.int64(key) & (keys.shape[0] // WAYS - 1)) * WAYS
    for slot in range(first, first + WAYS):
        if keys[slot] == key:
            return slot
    return -1


@compiled
def _choose_slot(keys: Any, last_rows: Any, key: Any) -> Any:
    """Return the index of ``key`` in the hash table, or the index where it can be inserted. A key has 16 possible slots: if
    all are taken by other keys, the one that was updated longest ago is returned.
    """
    first = (np.int64(key) & (keys.shape[0] // WAYS - 1)) * WAYS
    oldest = first
    for slot in range(first, first + WAYS):
        if keys[slot] == key or keys[slot] == 0:
            return slot
        if last_rows[slot] < last_rows[oldest]:
            oldest = slot
    return oldest


@compiled
def _update_category(
    keys: Any, last_rows: Any, counts: Any, slot: Any, row: Any, key: Any, y: Any, w: Any, is_regression: Any
) -> Any:
    """Add the label ``y`` of a row (class index or target) with weight ``w`` to the counts of a category in a hash table.
    ``slot`` is the category's index there, and ``row`` the number of the row. If another category has the slot, it is replaced.
    Returns whether the slot was free.
    """
    was_free = keys[slot] == 0
    if keys[slot] != key:
        keys[slot] = key
        counts[slot] = 0.0
    last_rows[slot] = row
    if is_regression:
        counts[slot, 0] += w
        counts[slot, 1] += w * y
        weight = counts[slot, 0]
    else:
        counts[slot, int(y)] += w
        weight = counts[slot].sum()
    if weight > _MAX_CATEGORY_WEIGHT:
        counts[slot] *= 0.5
    return was_free


@compiled
def _update_totals(totals: Any, y: Any, w: Any, is_regression: Any) -> Any:
    """Add the label ``y`` of a row (class index or target) with weight ``w`` to ``totals``, the statistics of all rows. For
    classification these are the weights of each label; for regression the weight, the mean and the sum of squared deviations.
    """
    if not is_regression:
        totals[int(y)] += w
        if totals.sum() > _MAX_TOTAL_WEIGHT:
            totals *= 0.5
        return
    totals[0] += w
    deviation = y - totals[1]
    totals[1] += deviation * (w / totals[0])
    totals[2] += w * deviation * (y - totals[1])
    if totals[0] > _MAX_TOTAL_WEIGHT:
        totals[0] *= 0.5
        totals[2] *= 0.5


@compiled
def encode_key(keys: Any, counts: Any, totals: Any, key: Any, positive: Any, is_regression: Any, out: Any) -> Any:
    """Write the target encoding of the category with this ``key`` to ``out``, float64 [features]; zeros if the category is
    unknown. ``keys``, ``counts`` and ``totals`` are the arrays of the hash table. Of two labels, only that with the class index
    ``positive`` is encoded.

    For regression, it is the category's mean minus the mean of all targets, in standard deviations of all targets. For
    classification, it is the log odds of each label minus those of all rows; of two labels, only that with index ``positive``.
    """
    out[:] = 0.0
    slot = -1 if key == 0 else find_slot(keys, key)
    if slot < 0:
        return
    if is_regression:
        weight = counts[slot, 0]
        deviation = math.sqrt(totals[2] / totals[0])
        if deviation > 0.0:
            out[0] = (counts[slot, 1] - weight * totals[1]) / (weight + _PRIOR) / deviation
        return
    weight, total, n_labels = counts[slot].sum(), totals.sum(), totals.shape[0]
    for k in range(out.shape[0]):
        label = positive if n_labels == 2 else k
        share = (totals[label] + 1.0) / (total + n_labels)
        weight_of_label = counts[slot, label] + _PRIOR * share
        weight_of_others = weight - counts[slot, label] + _PRIOR * (1.0 - share)
        out[k] = math.log(weight_of_label / weight_of_others) - math.log(share / (1.0 - share))


@compiled
def encode_keys(keys: Any, counts: Any, totals: Any, requested_keys: Any, positive: Any, is_regression: Any, out: Any) -> Any:
    """Write the target encodings of many categories to ``out``, float64 [rows, columns, features]. ``requested_keys``, uint32
    [rows, columns], has the keys of the categories (0: missing). The other arguments are those of `encode_key`.
    """
    for i in range(requested_keys.shape[0]):
        for k in range(requested_keys.shape[1]):
            encode_key(keys, counts, totals, requested_keys[i, k], positive, is_regression, out[i, k])


@compiled
def process_rows(
    keys: Any,
    last_rows: Any,
    counts: Any,
    totals: Any,
    row: Any,
    n_free: Any,
    start: Any,
    row_keys: Any,
    requested_keys: Any,
    y: Any,
    w: Any,
    positive: Any,
    is_regression: Any,
    out: Any,
) -> Any:
    """Encode rows in order, from row ``start`` on, and learn each one after that, in the hash table of a target encoding (the
    first four arrays). ``row`` is the number of rows that were learned before, and ``row_keys``, uint32 [rows, columns], has the
    keys of the categories to learn (0: missing). ``y``, float64 [rows], has class indices or targets (NaN: the row is not
    learned), and ``w`` the weights. ``requested_keys`` and ``out`` are as in `encode_keys`, and ``positive`` as in `encode_key`.

    In a regression, replaces each learned target in ``y`` by its deviation from the mean of all targets up to and with it, in
    their standard deviations. Stops after the row with which more than ``n_free`` new categories are in the
    table. Returns where the next call must start, and the numbers of learned rows and of slots that were free.
    """
    n_learned, n_new = 0, 0
    for i in range(start, row_keys.shape[0]):
        for k in range(requested_keys.shape[1]):
            encode_key(keys, counts, totals, requested_keys[i, k], positive, is_regression, out[i, k])
        if np.isnan(y[i]):
            continue
        for key in row_keys[i]:
            if key != 0:
                slot = _choose_slot(keys, last_rows, key)
                n_new += _update_category(keys, last_rows, counts, slot, row + n_learned, key, y[i], w[i], is_regression)
        _update_totals(totals, y[i], w[i], is_regression)
        if is_regression:
            deviation = math.sqrt(totals[2] / totals[0])
            y[i] = (y[i] - totals[1]) / deviation if deviation > 0.0 else 0.0
        n_learned += 1
        if n_new > n_free:
            return i + 1, n_learned, n_new
    return row_keys.shape[0], n_learned, n_new


@compiled
def merge_categories(
    keys: Any, last_rows: Any, counts: Any, n_free: Any, other_keys: Any, other_last_rows: Any, other_counts: Any, start: Any
) -> Any:
    """Add the categories of another hash table to this one (``keys``, ``last_rows``, ``counts``), beginning with the other's slot
    ``start``. Stops when more than ``n_free`` new slots are used. Returns the slot of the other table where the next call must
    begin, and the number of new slots used.
    """
    n_new = 0
    for i in range(start, other_keys.shape[0]):
        if other_keys[i] == 0:
            continue
        if n_new > n_free:
            return i, n_new
        slot = _choose_slot(keys, last_rows, other_keys[i])
        n_new += keys[slot] == 0
        if keys[slot] != other_keys[i]:
            keys[slot] = other_keys[i]
            counts[slot] = 0.0
            last_rows[slot] = 0
        last_rows[slot] = max(last_rows[slot], other_last_rows[i])
        counts[slot] += other_counts[i]
    return other_keys.shape[0], n_new
