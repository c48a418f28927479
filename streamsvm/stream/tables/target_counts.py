"""Compiled functions on the hash table of a target encoding: label counts, or weights and target sums, of each category.

A key hashes to a set of 16 slots, which is filled from its first slot on. Totals are the weight of each label, or weight, mean
and sum of squared deviations of all targets.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from streamsvm.core.compiling.functions import compiled

#: Slots of a set. Their keys fill a cache line of the processor.
WAYS = 16
#: Weight of the prior, which is the label's overall share, or the mean of all targets, in rows.
_PRIOR = 5.0
#: Counts are halved when a category, or all rows, exceed these weights, so that a changed meaning is learned again.
_MAX_CATEGORY_WEIGHT, _MAX_TOTAL_WEIGHT = 1000.0, 10_000.0
#: Share of a new row in the exponential means of a memory.
_RATE = 0.1
#: Maximum number of rows of a key in its feature. Without a maximum, new rows would always differ from those learned before.
MAX_MEMORY_ROWS = 100.0


class HashTable(NamedTuple):
    """The arrays of a hash table of categories."""

    keys: np.ndarray
    """Hash of each category, uint32 [size]; 0 in free slots."""
    last_rows: np.ndarray
    """Index of the row that updated each category last, int64 [size]."""
    counts: np.ndarray
    """Weight of each label, float64 [size, labels], or weights and target sums, float64 [size, 2]."""
    memories: np.ndarray
    """Number of rows, last class index or target, and exponential mean of each label's indicator, or of the targets (then the
    last one is unused), float32 [size, 2 + columns of the counts]; float32 [size, 0] without columns that are keys.
    """


@compiled
def find_slot(keys: Any, key: Any) -> Any:
    """Return the index of ``key`` in the hash table with the array ``keys``, uint32 [size]; -1 if it is absent."""
    first = (np.int64(key) & (keys.shape[0] // WAYS - 1)) * WAYS
    for slot in range(first, first + WAYS):
        if keys[slot] == key:
            return slot
    return -1


@compiled
def _choose_slot(table: Any, key: Any) -> Any:
    """Return the index of ``key`` in the hash table, or the index where it can be inserted. A key has 16 possible slots: if
    all are taken by other keys, the one that was updated longest ago is returned.
    """
    keys, last_rows = table.keys, table.last_rows
    oldest = first = (np.int64(key) & (keys.shape[0] // WAYS - 1)) * WAYS
    for slot in range(first, first + WAYS):
        if keys[slot] == key or keys[slot] == 0:
            return slot
        if last_rows[slot] < last_rows[oldest]:
            oldest = slot
    return oldest


@compiled
def _compute_mean(totals: Any, label: Any, is_regression: Any) -> Any:
    """Return the smoothed share of the label with an index in all rows; in a regression the mean of all targets."""
    return totals[1] if is_regression else (totals[label] + 1.0) / (totals.sum() + totals.shape[0])


@compiled
def _update_memory(memory: Any, totals: Any, y: Any, is_regression: Any) -> Any:
    """Add the label ``y`` of a row (class index or target) to the ``memory`` of its key, float32 [2 + labels]. The means of a
    new key begin with those of all rows, by their ``totals``.
    """
    for label in range(1 if is_regression else totals.shape[0]):
        mean = np.float64(memory[2 + label]) if memory[0] > 0.0 else _compute_mean(totals, label, is_regression)
        target = y if is_regression else np.float64(y == label)
        memory[2 + label] = mean + _RATE * (target - mean)
    memory[0] += np.float32(1.0)
    memory[1] = y


@compiled
def _update_category(table: Any, totals: Any, row: Any, key: Any, y: Any, w: Any, is_regression: Any) -> Any:
    """Add the label ``y`` of a row (class index or target) with weight ``w`` to the counts of a category in a hash table, and to
    its memory. ``row`` is the number of the row, and ``totals`` are those of all rows. If its slots are full, the category
    replaces another one. Returns whether its slot was free.
    """
    slot, counts = _choose_slot(table, key), table.counts
    was_free = table.keys[slot] == 0
    if table.keys[slot] != key:
        table.keys[slot] = key
        counts[slot] = 0.0
        table.memories[slot] = 0.0
    table.last_rows[slot] = row
    if table.memories.shape[1] > 0:
        _update_memory(table.memories[slot], totals, y, is_regression)
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
def _encode_key(table: Any, totals: Any, key: Any, positive: Any, is_regression: Any, out: Any) -> Any:
    """Write the target encoding of the category with this ``key`` to ``out``, float64 [features]; zeros if the category is
    unknown. Of two labels, only that with the class index ``positive`` is encoded.

    For regression, it is the category's mean minus the mean of all targets, in standard deviations of all targets. For
    classification, it is the log odds of each label minus those of all rows; of two labels, only that with index ``positive``.
    """
    out[:] = 0.0
    slot, counts = -1 if key == 0 else find_slot(table.keys, key), table.counts
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
def _recall_key(table: Any, totals: Any, key: Any, positive: Any, is_regression: Any, out: Any) -> Any:
    """Write the memory of a ``key`` to ``out``, float64 [2 * labels + 1]: whether each label was its last one, the exponential
    means, and log(1 + rows), for at most 100 rows. An unknown key has the means of all rows, and a missing one (0) zeros. Of two
    labels, only that with the class index ``positive`` is written; in a regression, the last target and the mean.
    """
    out[:] = 0.0
    if key == 0:
        return
    slot, memories, n = find_slot(table.keys, key), table.memories, out.shape[0] // 2
    for k in range(n):
        label = positive if totals.shape[0] == 2 else k
        if slot < 0:
            out[k] = out[n + k] = _compute_mean(totals, label, is_regression)
        else:
            out[k] = memories[slot, 1] if is_regression else np.float64(memories[slot, 1] == label)
            out[n + k] = memories[slot, 2 + label]
    if slot >= 0:
        out[2 * n] = math.log(1.0 + min(np.float64(memories[slot, 0]), MAX_MEMORY_ROWS))


@compiled
def process_rows(
    keys: Any,
    last_rows: Any,
    counts: Any,
    memories: Any,
    totals: Any,
    row: Any,
    n_free: Any,
    start: Any,
    row_keys: Any,
    encoded_keys: Any,
    recalled_keys: Any,
    y: Any,
    w: Any,
    positive: Any,
    is_regression: Any,
    out: Any,
) -> Any:
    """Encode rows in order, from row ``start`` on, and learn each one after that, in the hash table of a target encoding (the
    first four arrays). ``row`` is the number of rows that were learned before, and ``row_keys``, uint32 [rows, columns], has the
    keys of the categories to learn (0: missing). ``y``, float64 [rows], has class indices or targets (NaN: the row is not
    learned), and ``w`` the weights. The features of a row in ``out``, float64 [rows, features], are the target encodings of its
    ``encoded_keys`` and the memories of its ``recalled_keys``, both uint32 [rows, columns] (0: missing); ``positive`` is as in
    `_encode_key`.

    In a regression, replaces each learned target in ``y`` by its deviation from the mean of all targets up to and with it, in
    their standard deviations. Stops after the row with which more than ``n_free`` new categories are in the
    table. Returns where the next call must start, and the numbers of learned rows and of slots that were free.
    """
    table = HashTable(keys, last_rows, counts, memories)
    n_learned, n_new, n_encoded, n_recalled = 0, 0, encoded_keys.shape[1], recalled_keys.shape[1]
    n = (out.shape[1] - n_recalled) // max(n_encoded + 2 * n_recalled, 1)  # features of a target encoding
    for i in range(start, row_keys.shape[0]):
        for k in range(n_encoded):
            _encode_key(table, totals, encoded_keys[i, k], positive, is_regression, out[i, k * n : (k + 1) * n])
        for k in range(n_recalled):
            first = n_encoded * n + k * (2 * n + 1)
            recalled = out[i, first : first + 2 * n + 1]
            _recall_key(table, totals, recalled_keys[i, k], positive, is_regression, recalled)
        if np.isnan(y[i]):
            continue
        _update_totals(totals, y[i], w[i], is_regression)
        for key in row_keys[i]:
            if key != 0:
                n_new += _update_category(table, totals, row + n_learned, key, y[i], w[i], is_regression)
        if is_regression:
            deviation = math.sqrt(totals[2] / totals[0])
            y[i] = (y[i] - totals[1]) / deviation if deviation > 0.0 else 0.0
        n_learned += 1
        if n_new > n_free:
            return i + 1, n_learned, n_new
    return row_keys.shape[0], n_learned, n_new


@compiled
def merge_categories(table: Any, n_free: Any, other: Any, start: Any) -> Any:
    """Add the categories of the hash table ``other`` to ``table``, beginning with its slot ``start``. Of two memories of a key,
    the later one is kept, with the rows of both. Stops when more than ``n_free`` new slots are used. Returns the slot of the
    other table where the next call must begin, and the number of new slots used.
    """
    n_new = 0
    for i in range(start, other.keys.shape[0]):
        if other.keys[i] == 0:
            continue
        if n_new > n_free:
            return i, n_new
        slot = _choose_slot(table, other.keys[i])
        n_new += table.keys[slot] == 0
        if table.keys[slot] != other.keys[i]:
            table.keys[slot] = other.keys[i]
            table.counts[slot] = 0.0
            table.memories[slot] = 0.0
            table.last_rows[slot] = 0
        if other.last_rows[i] >= table.last_rows[slot]:
            table.memories[slot, 1:] = other.memories[i, 1:]
            table.last_rows[slot] = other.last_rows[i]
        table.memories[slot, :1] += other.memories[i, :1]
        table.counts[slot] += other.counts[i]
    return other.keys.shape[0], n_new
