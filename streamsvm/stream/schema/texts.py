"""Tells texts (messages, reviews, titles) from names, lists and categories, by a sample of the values of a column."""

from __future__ import annotations

import re
from collections.abc import Sequence

# Some scripts have no blanks between words. Four ideographs or kana count as one word, or eight letters of Thai to Khmer.
_UNSPACED_WORD = "[\u3040-\u30ff\u3400-\u9fff]{4}|[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]{8}"
#: A word of letters, also in quotes or before a full stop. Numbers, codes, paths, web and e-mail addresses do not count.
_WORD = re.compile(rf"{_UNSPACED_WORD}|(?<!\S)[^\w\s]{{0,2}}[^\W\d_][^\s\d_/@=:.]*(?:[.:][^\w\s]*)?(?!\S)")
_SEPARATOR, _DIGITS = re.compile(r"[,;|\t\n]"), re.compile(r"\d+")
_MIN_VALUES, _MAX_LENGTH = 20, 1000  # smallest sample to judge; only the beginning of a value is read
# The following thresholds were tuned on halves of 2,948 columns; 163 hold texts.
_MIN_WORDS = 5  # of a phrase: words that no separator divides, unlike the words of most names, addresses and lists
_MIN_PHRASE_SHARE, _MIN_DISTINCT_SHARE = 0.35, 0.6  # of the values: those with a phrase, and distinct ones without their digits


def describe_texts(values: Sequence[str]) -> str:
    """Return a note for the user if a column with these values holds texts to learn by their words: sentences or titles, few of
    which are repeated. Empty if it holds names, addresses, lists or categories, or fewer than 20 values.

    >>> days = ["Mon", "Tue", "Wed", "Thu", "Fri"]
    >>> describe_texts([f"I was there on {a} and again on {b}, with friends" for a in days for b in days])
    'sentences or titles: 11 words per value, 100 % distinct'
    >>> describe_texts([f"{a} at noon, {b} at noon, or some other day" for a in days for b in days])
    ''
    """
    if len(values) < _MIN_VALUES:
        return ""
    counts = [[len(_WORD.findall(phrase)) for phrase in _SEPARATOR.split(value[:_MAX_LENGTH])] for value in values]
    phrase_share = sum(max(lengths) >= _MIN_WORDS for lengths in counts) / len(values)
    distinct_share = len({_DIGITS.sub("", value) for value in values}) / len(values)
    if phrase_share < _MIN_PHRASE_SHARE or distinct_share < _MIN_DISTINCT_SHARE:
        return ""
    n_words = sum(map(sum, counts)) / len(values)
    return f"sentences or titles: {n_words:.0f} words per value, {100.0 * distinct_share:.0f} % distinct"
