"""Compiled functions on the hash table of a text encoding: label counts, or weights and target sums, of each token.

A hash table is an array of records, uint32 [slots, 2 + columns]: the key of the token, 0 in free slots; the time when it was
learned last, in units of 256 rows; and as the bits of float32 its counts, one for each label, or the weight and the sum of
standardised targets. A key hashes to a set of 8 slots, which is filled from its first slot on.

Totals are float64 [3, columns]: for each kind of tokens, the weight of its tokens by label; the last row begins with the number
of tokens in the hash table.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from streamsvm.core.compiling.functions import compiled
from streamsvm.stream.tables.tokens import hash_text

#: Slots of a set.
WAYS = 8
#: Kinds of tokens that have features: words with pairs of words, and 4-grams.
N_KINDS = 2
#: Added to the count of each label (Lidstone smoothing), and to the total of each label for each token in the hash table.
_SMOOTHING, _SMOOTHING_OF_TOTALS = 0.2, 0.02
#: Weight of the prior of a token's mean target, in tokens.
_PRIOR = 1.0
#: Counts are halved when a token, or all of a kind, exceed these weights, so that a changed meaning is learned again.
_MAX_TOKEN_WEIGHT, _MAX_TOTAL_WEIGHT = 1000.0, 1e6
_ROWS_PER_TIME = 256
#: The logarithms of smoothed whole counts, float64, which are looked up.
LOGS = np.log(np.arange(1024) + _SMOOTHING)


@compiled
def find_slots(records: Any, keys: Any, start: Any, stop: Any, slots: Any) -> None:
    """Write the slots of the tokens with the ``keys`` from ``start`` to ``stop`` (exclusive) to ``slots``, int64. If a token is
    not in the hash table, that is the slot where it can be inserted: a free one of its set, or the one that was updated longest
    ago.
    """
    for token in range(start, stop):
        key = keys[token]
        first = (np.int64(key) & (records.shape[0] // WAYS - 1)) * WAYS
        oldest, oldest_time = first, records[first, 1]
        for slot in range(first, first + WAYS):
            if records[slot, 0] == key:
                oldest = slot
                break
            if records[slot, 1] < oldest_time:
                oldest, oldest_time = slot, records[slot, 1]
        slots[token] = oldest


@compiled
def score_tokens(records: Any, keys: Any, slots: Any, logs: Any, is_regression: Any, scores: Any) -> None:
    """Write the scores of n tokens to ``scores``, float64 [n, labels]; NaN if a token is not in the hash table. ``slots`` are
    from `find_slots`. The score of a label is the logarithm of the token's smoothed count minus the mean of all labels; in a
    regression, the only score is the mean standardised target, shrunk to 0.
    """
    counts, n_labels = records.view(np.float32), scores.shape[1]
    for token in range(scores.shape[0]):
        slot = slots[token]
        if records[slot, 0] != keys[token]:
            scores[token] = np.nan
        elif is_regression:
            scores[token, 0] = np.float64(counts[slot, 3]) / (np.float64(counts[slot, 2]) + _PRIOR)
        else:
            total = 0.0
            for k in range(n_labels):
                count = np.float64(counts[slot, 2 + k])
                index = np.int32(min(count, logs.shape[0] - 1))
                scores[token, k] = logs[index] if index == count else math.log(count + _SMOOTHING)
                total += scores[token, k]
            mean = total / n_labels
            for k in range(n_labels):
                scores[token, k] -= mean


@compiled
def score_average_tokens(totals: Any, is_regression: Any, averages: Any) -> None:
    """Write the scores of an average token of each kind to ``averages``, float64 [kinds, labels], as in `score_tokens`."""
    averages[:] = 0.0
    for kind in range(0 if is_regression else N_KINDS):
        averages[kind] = np.log(totals[kind] + _SMOOTHING_OF_TOTALS * max(totals[N_KINDS, 0], 1.0))
        averages[kind] -= averages[kind].mean()


@compiled
def _summarize_scores(scores: Any, ends: Any, averages: Any, positive: Any, out: Any) -> None:
    """Write the features of one text to ``out``, float64 [1 + features]. ``scores`` are from `score_tokens`, ``ends`` from
    `hash_text`, and ``averages``, float64 [kinds, labels], are the scores of an average token. Of two labels, only that with the
    class index ``positive`` is encoded.

    They are log(1 + words) and, for each encoded label, the sum of the scores relative to the average divided by the square root
    of their number, and the maximum, over words and pairs of words, and over 4-grams. If a single label is encoded, they also
    have the minimum. Tokens that are not in the hash table are left out.
    """
    out[:] = 0.0
    out[0] = math.log1p(ends[0])
    n_labels = scores.shape[1]
    n_statistics = 3 if n_labels <= 2 else 2
    for i in range((out.shape[0] - 1) // n_statistics):
        kind, label = i % N_KINDS, positive if n_labels == 2 else i // N_KINDS
        n, total, highest, lowest = 0, 0.0, -np.inf, np.inf
        for token in range(ends[1] * kind, ends[1 + kind]):
            score = scores[token, label]
            if not np.isnan(score):
                n += 1
                total += score
                highest, lowest = max(highest, score), min(lowest, score)
        if n > 0:
            first, average = 1 + i * n_statistics, averages[kind, label]
            out[first], out[first + 1] = (total - n * average) / math.sqrt(n), highest - average
            if n_statistics == 3:
                out[first + 2] = lowest - average


@compiled
def process_texts(
    records: Any,
    totals: Any,
    row: Any,
    codes: Any,
    starts: Any,
    character_kinds: Any,
    logs: Any,
    y: Any,
    w: Any,
    positive: Any,
    is_regression: Any,
    out: Any,
    changed_slots: Any,
    old_records: Any,
) -> Any:
    """Encode texts in order and learn each one after that. ``codes`` and ``starts`` are the `Characters` of n texts, ``y``,
    float64 [n], has class indices or standardised targets (NaN: not learned), and ``w`` the weights. ``row`` is the number of
    texts that were learned before.

    Writes the features to ``out``, float64 [n, 1 + features], which has no columns if they are not needed. If
    ``changed_slots``, int64, has any elements, the slots of the learned tokens and the old records there are written to it and to
    ``old_records``. Returns the number of learned texts.
    """
    counts, ends, n_learned, n_changes = records.view(np.float32), np.zeros(3, np.int64), 0, 0
    averages = np.zeros((N_KINDS, totals.shape[1]))
    for i in range(y.shape[0]):
        text = codes[starts[i] : starts[i + 1]]
        if text.shape[0] == 0:
            continue
        keys, slots = np.empty(3 * text.shape[0] + 1, np.uint32), np.empty(3 * text.shape[0] + 1, np.int64)
        hash_text(text, character_kinds, keys, ends)
        find_slots(records, keys, 0, ends[2], slots)
        if out.shape[1] > 0:
            scores = np.empty((ends[2], 1 if is_regression else totals.shape[1]))
            score_tokens(records, keys, slots, logs, is_regression, scores)
            score_average_tokens(totals, is_regression, averages)
            _summarize_scores(scores, ends, averages, positive, out[i])
        if np.isnan(y[i]):
            continue
        label = 0 if is_regression else int(y[i])
        for token in range(ends[2]):
            if records[slots[token], 0] != keys[token]:  # another new token of this text may have taken its slot
                find_slots(records, keys, token, token + 1, slots)
            slot = slots[token]
            if changed_slots.shape[0] > 0:
                changed_slots[n_changes] = slot
                for k in range(records.shape[1]):
                    old_records[n_changes, k] = records[slot, k]
                n_changes += 1
            if records[slot, 0] != keys[token]:
                totals[N_KINDS, 0] += records[slot, 0] == 0
                records[slot, 0] = keys[token]
                for k in range(2, records.shape[1]):
                    records[slot, k] = 0
            records[slot, 1] = 1 + (row + n_learned) // _ROWS_PER_TIME
            counts[slot, 2 + label] += w[i]
            if is_regression:
                counts[slot, 3] += w[i] * y[i]
            if counts[slot, 2 + label] > _MAX_TOKEN_WEIGHT:
                for k in range(2, records.shape[1]):
                    counts[slot, k] *= np.float32(0.5)
        for kind in range(N_KINDS):
            totals[kind, label] += w[i] * (ends[1 + kind] - ends[1] * kind)
            if totals[kind, label] > _MAX_TOTAL_WEIGHT:
                totals[kind] *= 0.5
        n_learned += 1
    return n_learned


@compiled
def merge_tokens(records: Any, totals: Any, other_records: Any) -> None:
    """Add the tokens of another hash table, with counts of the same labels, to this one."""
    counts, other_counts, slots = records.view(np.float32), other_records.view(np.float32), np.empty(1, np.int64)
    for i in range(other_records.shape[0]):
        find_slots(records, other_records[i], 0, 1, slots)
        slot = slots[0]
        if records[slot, 0] != other_records[i, 0]:
            totals[N_KINDS, 0] += records[slot, 0] == 0
            records[slot] = other_records[i]
        else:
            records[slot, 1] = max(records[slot, 1], other_records[i, 1])
            counts[slot, 2:] += other_counts[i, 2:]
