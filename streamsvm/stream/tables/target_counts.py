"""Counts of the labels that come with names, in a hash table, and the statistics that they make; compiled.

A table is the keys uint32 [size], 0 where a place is free; the number of the row in which each was learned last, int64 [size];
and counts float64 [size, labels], or weights and sums of targets [size, 2]. It has sets of 16 places, which fill from the first
on. Totals are the weight of each label, or weight, mean and sum of squared deviations of all targets.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from streamsvm.core.compiling.functions import compiled

#: Names that a set of the table holds. Their keys fill a line of a processor's cache.
WAYS = 16
#: Rows that the share of a label, or the mean of all targets, counts as much as.
_PRIOR = 5.0
#: Rows of a name, and of all names, at which their counts are halved: a name whose meaning changes is learned anew.
_LASTING, _LASTING_OVERALL = 1000.0, 10_000.0


@compiled
def find_slot(keys: Any, key: Any) -> Any:
    """Return the place of a key, -1 if it has none."""
    first = (np.int64(key) & (keys.shape[0] // WAYS - 1)) * WAYS
    for place in range(first, first + WAYS):
        if keys[place] == key:
            return place
    return -1


@compiled
def _choose_slot(keys: Any, last: Any, key: Any) -> Any:
    """Return the place of a key, or else the one that it may take: a free one, or that of the name learned least recently."""
    first = (np.int64(key) & (keys.shape[0] // WAYS - 1)) * WAYS
    oldest = first
    for place in range(first, first + WAYS):
        if keys[place] == key or keys[place] == 0:
            return place
        if last[place] < last[oldest]:
            oldest = place
    return oldest


@compiled
def _update_category(
    keys: Any, last: Any, counts: Any, place: Any, row: Any, key: Any, y: Any, w: Any, is_regression: Any
) -> Any:
    """Count a label, or a target, for the name that has a place or takes it; whether that was free."""
    was_free = keys[place] == 0
    if keys[place] != key:
        keys[place] = key
        counts[place] = 0.0
    last[place] = row
    if is_regression:
        counts[place, 0] += w
        counts[place, 1] += w * y
        weight = counts[place, 0]
    else:
        counts[place, int(y)] += w
        weight = counts[place].sum()
    if weight > _LASTING:
        counts[place] *= 0.5
    return was_free


@compiled
def _update_totals(totals: Any, y: Any, w: Any, is_regression: Any) -> Any:
    """Count a label, or a target, of all rows."""
    if not is_regression:
        totals[int(y)] += w
        if totals.sum() > _LASTING_OVERALL:
            totals *= 0.5
        return
    totals[0] += w
    deviation = y - totals[1]
    totals[1] += deviation * (w / totals[0])
    totals[2] += w * deviation * (y - totals[1])
    if totals[0] > _LASTING_OVERALL:
        totals[0] *= 0.5
        totals[2] *= 0.5


@compiled
def update_rows(keys: Any, last: Any, counts: Any, totals: Any, row: Any, named: Any, y: Any, w: Any, is_regression: Any) -> Any:
    """Count labels, or targets, float64 [rows], NaN for none, for the names of rows, uint32 [rows, names], 0 for none.

    Returns the number of rows and of new names in the table.
    """
    rows, new = 0, 0
    for i in range(named.shape[0]):
        if np.isnan(y[i]):
            continue
        for key in named[i]:
            if key != 0:
                place = _choose_slot(keys, last, key)
                new += _update_category(keys, last, counts, place, row + rows, key, y[i], w[i], is_regression)
        _update_totals(totals, y[i], w[i], is_regression)
        rows += 1
    return rows, new


@compiled
def encode_key(keys: Any, counts: Any, totals: Any, key: Any, which: Any, is_regression: Any, out: Any) -> Any:
    """Write what is known of a name into ``out``, float64 [statistics]: 0 where nothing is.

    Of targets it is how far their mean is from the mean of all, in standard deviations of all. Of labels it is by how much the
    log odds of each are above those of all rows; of two labels, those of the one with the number ``which``.
    """
    out[:] = 0.0
    place = -1 if key == 0 else find_slot(keys, key)
    if place < 0:
        return
    if is_regression:
        weight = counts[place, 0]
        spread = math.sqrt(totals[2] / totals[0])
        if spread > 0.0:
            out[0] = (counts[place, 1] - weight * totals[1]) / (weight + _PRIOR) / spread
        return
    weight, overall, n = counts[place].sum(), totals.sum(), totals.shape[0]
    for k in range(out.shape[0]):
        label = which if n == 2 else k
        share = (totals[label] + 1.0) / (overall + n)
        of_label = counts[place, label] + _PRIOR * share
        of_others = weight - counts[place, label] + _PRIOR * (1.0 - share)
        out[k] = math.log(of_label / of_others) - math.log(share / (1.0 - share))


@compiled
def encode_keys(keys: Any, counts: Any, totals: Any, asked: Any, which: Any, is_regression: Any, out: Any) -> Any:
    """Write the statistics of the keys ``asked`` for, uint32 [rows, names], into ``out``, float64 [rows, names, statistics]."""
    for i in range(asked.shape[0]):
        for k in range(asked.shape[1]):
            encode_key(keys, counts, totals, asked[i, k], which, is_regression, out[i, k])


@compiled
def encode_rows_in_order(
    keys: Any,
    last: Any,
    counts: Any,
    totals: Any,
    row: Any,
    room: Any,
    named: Any,
    asked: Any,
    y: Any,
    w: Any,
    which: Any,
    is_regression: Any,
    out: Any,
) -> Any:
    """Write the statistics of rows, each as it is before its label is counted; afterwards nothing is counted.

    Returns how many rows can be taken together: up to the one with which more than ``room`` new names are in the table, which
    grows then. The other parameters are those of `update_rows` and `encode_keys`.
    """
    size = named.shape[0] * named.shape[1]
    places, old_keys, old_last = np.empty(size, np.int64), np.empty(size, np.uint32), np.empty(size, np.int64)
    old_counts, old_totals = np.empty((size, counts.shape[1])), totals.copy()
    written, rows, new, done = 0, 0, 0, named.shape[0]
    for i in range(named.shape[0]):
        for k in range(asked.shape[1]):
            encode_key(keys, counts, totals, asked[i, k], which, is_regression, out[i, k])
        if np.isnan(y[i]):
            continue
        for key in named[i]:
            if key != 0:
                place = _choose_slot(keys, last, key)
                places[written], old_keys[written], old_last[written] = place, keys[place], last[place]
                old_counts[written] = counts[place]
                written += 1
                new += _update_category(keys, last, counts, place, row + rows, key, y[i], w[i], is_regression)
        _update_totals(totals, y[i], w[i], is_regression)
        rows += 1
        if new > room:
            done = i + 1
            break
    for k in range(written - 1, -1, -1):
        keys[places[k]], last[places[k]] = old_keys[k], old_last[k]
        counts[places[k]] = old_counts[k]
    totals[:] = old_totals
    return done


@compiled
def merge_categories(
    keys: Any, last: Any, counts: Any, room: Any, more_keys: Any, more_last: Any, more_counts: Any, first: Any
) -> Any:
    """Add the counts of the names of another table, from one on; return the next one, once ``room`` new names were added, and how
    many were.
    """
    new = 0
    for i in range(first, more_keys.shape[0]):
        if more_keys[i] == 0:
            continue
        if new > room:
            return i, new
        place = _choose_slot(keys, last, more_keys[i])
        new += keys[place] == 0
        if keys[place] != more_keys[i]:
            keys[place] = more_keys[i]
            counts[place] = 0.0
            last[place] = 0
        last[place] = max(last[place], more_last[i])
        counts[place] += more_counts[i]
    return more_keys.shape[0], new
