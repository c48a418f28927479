"""Columns of texts in exported models: the scores of words, pairs of words and 4-grams of characters, looked up with numpy."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from streamsvm.files.characters import Characters, find_words

#: Kinds of tokens, which are words with pairs of words, and 4-grams; and maximum number of scores of a token.
N_KINDS, MAX_SCORES = 2, 20
_FACTOR = 0x9E3779B97F4A7C15  # of the hash of a word


class TextTable(NamedTuple):
    """The scores of the tokens of a column of texts: words, pairs of words, and 4-grams of characters."""

    keys: np.ndarray
    """Hash of each token, uint32 [n], in ascending order."""
    scores: np.ndarray
    """The scores of each token, one for each encoded label, float32 [n, labels]."""
    averages: np.ndarray
    """The scores of an average token of each kind, float64 [2, labels]."""

    @property
    def n_statistics(self) -> int:
        """Number of statistics of each kind of tokens and label."""
        return 3 if self.scores.shape[1] == 1 else 2

    def encode_text(self, text: str) -> np.ndarray:
        """Return the features of a text, float64 [1 + features]: log(1 + words) and, for each label, the sum of the scores
        relative to the average divided by the square root of their number, and the maximum, over words and pairs of words, and
        over 4-grams; of a single label also the minimum. Unknown tokens are left out.
        """
        keys, n_words, n_pairs = hash_text(text)
        rows, out = np.searchsorted(self.keys, keys), np.zeros((self.scores.shape[1], N_KINDS, self.n_statistics))
        is_known = np.searchsorted(self.keys, keys, "right") > rows
        for kind, tokens in enumerate((slice(n_words + n_pairs), slice(n_words + n_pairs, None))):
            scores = self.scores[rows[tokens][is_known[tokens]]] - self.averages[kind]
            if len(scores):
                statistics = scores.sum(axis=0) / len(scores) ** 0.5, scores.max(axis=0), scores.min(axis=0)
                out[:, kind] = np.transpose(statistics[: self.n_statistics])
        return np.concatenate([[np.log1p(n_words)], out.ravel()])


def hash_text(text: str) -> tuple[np.ndarray, int, int]:
    """Return the keys of the tokens of a text, uint32 [n], and the numbers of words and of pairs of words. Words come first, and
    4-grams last. The keys are those of `streamsvm.stream.tables.tokens.hash_text`.
    """
    codes = Characters.from_texts([text]).codes.astype(np.uint64)
    n, (starts, stops) = len(codes), find_words(codes)
    # The hash of a word is a polynomial of its characters: a difference of two sums over the text, modulo 2^64.
    inverse_powers = np.cumprod(np.full(n, pow(_FACTOR, -1, 2**64), np.uint64))
    sums = np.cumsum(np.append(np.uint64(0), codes * inverse_powers))
    words = (sums[stops] - sums[starts]) * np.cumprod(np.full(n + 1, _FACTOR, np.uint64))[stops]
    pairs, grams = np.uint64(3) * words[:-1] + words[1:], np.zeros(n, np.uint64)
    for i in range(min(4, n)):
        grams[i:] += codes[: n - i] << np.uint64(16 * i)
    keys = np.concatenate([words, pairs, ~grams[min(3, max(n - 1, 0)) :]])
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):  # SplitMix64
        keys = (keys ^ (keys >> np.uint64(shift))) * np.uint64(factor)
    return np.maximum(keys >> np.uint64(32), 1).astype(np.uint32), len(words), len(pairs)
