"""Threads that share the loops over the rows of a step, a few microseconds each.

Python's own threads take longer to wake up than such a loop takes. So for as long as a call of compiled steps lasts, helpers run
a compiled function without the interpreter's lock. They watch a number that the leader raises when there is a loop to share; it
is cut into as many parts as there are threads, and a part belongs to whoever claims it first. A helper that the operating system
has put aside claims nothing, and the leader does its part.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from streamsvm.core.compiling.functions import Intrinsic, compiled

#: Rows of words: the loop's, and the first of the parts'.
LOOP, PARTS = 0, 1
#: Columns of the loop's words: its number, whether helpers shall leave, what it is, its integers, and its first float.
_NUMBER, _LEFT, KIND, FIRST, SECOND, FLAG, FLOATS = 0, 1, 2, 3, 4, 5, 6
#: Columns of a part's words: the last loop in which it was claimed, that in which it was done, and the first with what was found.
_CLAIMED, _DONE, FOUND = 0, 1, 2

_LINE = 16  # words of two cache lines: threads that write to one line slow each other down
_ALIGNED = 64  # rows: parts begin at multiples, so that a row is computed alike in parts of any length
_LONG = 200_000  # looks at a number: the best part of a millisecond, in which a helper that runs has done its part
_PATIENCE = 10**7  # looks at a number before a helper leaves: some hundredths of a second


class Team(NamedTuple):
    """Memory that a leader and its helpers share."""

    words: np.ndarray
    """int64 [1 + threads, 16]: the loop's words, and those of each part."""
    numbers: np.ndarray
    """float64 [3]: the loop's floats, in the memory of its words, so that one line of the cache has all."""

    @classmethod
    def of(cls, threads: int) -> Team:
        """Return a team of so many threads, the leader included."""
        words = np.zeros((PARTS + threads, _LINE), np.int64)
        return cls(words, words[LOOP, FLOATS : FLOATS + 3].view(np.float64))

    @property
    def left(self) -> bool:
        """Whether helpers shall leave, or have left."""
        return bool(self.words[LOOP, _LEFT])

    @left.setter
    def left(self, value: bool) -> None:
        self.words[LOOP, _LEFT] = value


# Words that threads share: one reads what another has written, and what that one wrote before.
_load = Intrinsic(lambda codegen: codegen.load_word)
_store = Intrinsic(lambda codegen: codegen.store_word)
_exchange = Intrinsic(lambda codegen: codegen.exchange_word)


@compiled(nogil=True, forceinline=True)
def bounds_of(part: int, threads: int, n: int) -> tuple[int, int]:
    """Return the rows, from and to, of a part of n rows."""
    size = (n + threads * _ALIGNED - 1) // (threads * _ALIGNED) * _ALIGNED
    return min(part * size, n), min((part + 1) * size, n)


@compiled(nogil=True, forceinline=True)
def call(words: np.ndarray, threads: int, kind: int, first: int, second: int, flag: bool) -> int:
    """Describe a loop, let helpers begin with it, and return its number. The leader does."""
    if threads == 1:
        return -1
    number = words[LOOP, _NUMBER] + 1
    words[LOOP, KIND], words[LOOP, FIRST], words[LOOP, SECOND], words[LOOP, FLAG] = kind, first, second, flag
    _store(words, LOOP, _NUMBER, number)
    return number


@compiled(nogil=True, forceinline=True)
def claim(words: np.ndarray, part: int, number: int) -> bool:
    """Return whether a part of a loop is the caller's to do: nobody has claimed it, and the loop is not over.

    Without a number the caller is alone.
    """
    if number < 0:
        return True
    row = PARTS + part
    if _load(words, row, _CLAIMED) != number - 1:  # an exchange would take the line from the cache of who works on the part
        return False
    return _exchange(words, row, _CLAIMED, number - 1, number)


@compiled(nogil=True, forceinline=True)
def finish(words: np.ndarray, part: int, number: int) -> None:
    """Tell that a part is done."""
    if number >= 0:
        _store(words, PARTS + part, _DONE, number)


@compiled(nogil=True, forceinline=True)
def present(words: np.ndarray) -> int:
    """Return how many threads there are: the leader alone where helpers have left."""
    return 1 if words[LOOP, _LEFT] != 0 else len(words) - PARTS


@compiled(nogil=True, forceinline=True)
def wait(words: np.ndarray, number: int) -> None:
    """Wait until all parts of a loop are done. Where a helper was put aside in the middle of one, let all helpers leave."""
    if number < 0:
        return
    looks = 0
    for row in range(PARTS, len(words)):
        while _load(words, row, _DONE) != number:
            looks += 1
    if looks > _LONG:
        _store(words, LOOP, _LEFT, 1)


@compiled(nogil=True)
def wait_for_call(words: np.ndarray, last: int) -> int:
    """Return the number of the next loop after number ``last`` once the leader calls; -1 if the helper shall leave."""
    for _ in range(_PATIENCE):
        number = _load(words, LOOP, _NUMBER)
        if number != last:
            return number
        if _load(words, LOOP, _LEFT):
            break
    return -1
