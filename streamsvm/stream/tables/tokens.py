"""Splits texts into tokens, which are words, pairs of words and 4-grams of characters, and hashes them."""

from __future__ import annotations

from typing import Any

import numpy as np

from streamsvm.core.compiling.functions import compiled
from streamsvm.core.memory.slots import GOLDEN_GAMMA, next_random


@compiled(forceinline=True)
def _make_key(hash_value: Any) -> Any:
    """Return the key of a token, uint32 from 1 on, from the uint64 that identifies it."""
    return max(next_random(hash_value) >> np.uint64(32), np.uint64(1))


@compiled
def hash_text(codes: Any, kinds: Any, keys: Any, ends: Any) -> None:
    """Write the keys of the tokens of a text to ``keys``, uint32 [3 n + 1 or more]: its words, then the pairs of consecutive
    words, then its 4-grams. ``codes``, uint32 [n], are the characters, and ``kinds`` is from `list_character_kinds`.

    Words are those of `find_words`. Also writes to ``ends``, int64 [3], where the tokens of each kind end. Takes O(n).
    """
    words, hash_value, n, kind = np.empty(codes.shape[0], np.uint64), np.uint64(0), 0, 0
    for i in range(codes.shape[0] + 1):
        last_kind, kind = kind, 0
        if i < codes.shape[0]:
            kind = kinds[codes[i]] if codes[i] < kinds.shape[0] else 2
        if last_kind > 0 and not (kind == 1 and last_kind == 1):
            words[n] = hash_value
            keys[n] = _make_key(hash_value)
            n += 1
            hash_value = np.uint64(0)
        if kind > 0:
            hash_value = (hash_value + np.uint64(codes[i])) * GOLDEN_GAMMA
    ends[0] = n
    for i in range(1, n):
        keys[n + i - 1] = _make_key(words[i - 1] * np.uint64(3) + words[i])
    ends[1] = n + max(n - 1, 0)
    # The last 4 characters, of 16 bits each: older ones are shifted out. A shorter text is a single token.
    gram, n = np.uint64(0), ends[1]
    for i in range(codes.shape[0]):
        gram = (gram << np.uint64(16)) + np.uint64(codes[i])
        if i >= min(3, codes.shape[0] - 1):
            keys[n] = _make_key(~gram)
            n += 1
    ends[2] = n
