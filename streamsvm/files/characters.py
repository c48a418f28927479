"""The characters of texts that are split into words: lower case, code points, and those that can be part of a word."""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

#: Maximum number of characters of a text. All further characters are ignored.
MAX_TEXT_LENGTH = 16_384
_BMP_SIZE = 65_536  # Unicode's Basic Multilingual Plane; almost all letters are in it
_WORDS_OF_THEIR_OWN = (0x3041, 0x30FF), (0x3400, 0x9FFF), (0xF900, 0xFAFF)  # hiragana and katakana, ideographs


class Characters(NamedTuple):
    """The characters of several texts in lower case."""

    codes: np.ndarray
    """Unicode code points of all texts, one after the other, uint32."""
    starts: np.ndarray
    """Position in ``codes`` where each text begins, and their end, int64 [texts + 1]."""

    @classmethod
    def from_texts(cls, texts: Sequence[str]) -> Characters:
        """Convert texts to lower case, as Python does, and to code points. Long texts are cut off.

        >>> Characters.from_texts(["Hi", "", "Ok"])
        Characters(codes=array([104, 105, 111, 107], dtype=uint32), starts=array([0, 2, 2, 4]))
        """
        texts = [text[:MAX_TEXT_LENGTH].lower()[:MAX_TEXT_LENGTH] for text in texts]
        codes = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), "<u4")
        return cls(codes, np.concatenate([[0], np.fromiter(map(len, texts), np.int64, len(texts)).cumsum()]))


@functools.cache
def list_character_kinds() -> np.ndarray:
    """Return the kind of each of the first 65,536 Unicode characters, uint8 [65536]: 1 if it is part of a word (letters, digits,
    marks of letters, and the underscore), 2 if it is a word of its own (ideographs and kana, in texts without blanks), else 0.
    """
    characters = map(chr, range(_BMP_SIZE))
    kinds = np.array([char.isalnum() or char == "_" or unicodedata.category(char)[0] == "M" for char in characters], np.uint8)
    for first, last in _WORDS_OF_THEIR_OWN:
        kinds[first : last + 1] *= 2
    return kinds


def find_words(codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions where the words of a text begin and end, int64 [words]. ``codes``, uint32 [n], are its characters.
    Those beyond `list_character_kinds`, such as emoji, are words of their own.
    """
    kinds = np.where(codes < _BMP_SIZE, list_character_kinds()[np.minimum(codes, _BMP_SIZE - 1)], 2)
    are_joined = (kinds[1:] == 1) & (kinds[:-1] == 1)  # with the next character
    starts, stops = ((kinds > 0) & ~np.insert(are_joined, i, False) for i in (0, len(are_joined)))
    return np.flatnonzero(starts), np.flatnonzero(stops) + 1


def split_words(codes: np.ndarray) -> list[str]:
    """Return the words of a text, each once. ``codes``, uint32 [n], are its characters.

    >>> split_words(Characters.from_texts(["Don't 漢字 don"]).codes)
    ['don', 't', '漢', '字']
    """
    words = zip(*find_words(codes), strict=True)
    return list(dict.fromkeys(codes[start:stop].tobytes().decode("utf-32-le") for start, stop in words))
