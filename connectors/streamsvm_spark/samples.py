"""A sample of the rows of each partition, which the merge of its models fits coefficients to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np

__all__ = ["Reservoir", "Sample", "joined"]

_MOST_ROWS = 16_000  # that the coefficients are fitted to
_ROWS_OF_PART, _BYTES_OF_PART = 2_000, 2**20  # that a partition sends, at most


class Sample(NamedTuple):
    """Some of the rows of a partition, each with the same chance to be here, in an order of chance."""

    X: np.ndarray
    """float32 [n, features]."""
    y: np.ndarray
    """float64 [n]."""
    w: np.ndarray
    """float64 [n]."""

    def to_bytes(self) -> bytes:
        """Return what `of_bytes` reads."""
        return b"".join([len(self.X).to_bytes(8, "little"), self.X.tobytes(), self.y.tobytes(), self.w.tobytes()])

    @classmethod
    def of_bytes(cls, content: bytes) -> Self:
        """Return the sample that was written by `to_bytes`."""
        n = int.from_bytes(content[:8], "little")
        end = len(content) - 16 * n
        y, w = np.split(np.frombuffer(content, np.float64, 2 * n, end), 2)
        return cls(np.frombuffer(content[8:end], np.float32).reshape(n, -1) if n else np.empty((0, 0), np.float32), y, w)


class Reservoir:
    """Rows that are drawn from a stream of any length: those with the smallest of random numbers, of which each row gets one.

    The same rows in the same order give the same sample, whatever batches they come in.

    Parameters
    ----------
    seed
        Of the random numbers.
    size
        Rows, at most; as many as fit 1 MiB, if that is less.

    Notes
    -----
    O(1) a row, and the memory of these rows and of a batch.

    Examples
    --------
    >>> reservoir = Reservoir(seed=0, size=2)
    >>> X = np.arange(10.0, dtype=np.float32)[:, None]
    >>> reservoir.add(X[:4], X[:4, 0], np.ones(4))
    >>> reservoir.add(X[4:], X[4:, 0], np.ones(6))
    >>> reservoir.sample().y
    array([3., 2.])
    """

    def __init__(self, seed: Any, size: int = _ROWS_OF_PART) -> None:
        self._rng, self._size = np.random.default_rng(seed), size
        self._keys, self._held = np.empty(0), Sample(np.empty((0, 0), np.float32), np.empty(0), np.empty(0))

    def add(self, X: np.ndarray, y: np.ndarray, w: np.ndarray) -> None:
        """Take the next rows: X float32 [n, features], y and w float64 [n]."""
        keys = self._rng.random(len(X))
        if not len(self._keys):
            self._held = self._held._replace(X=np.empty((0, X.shape[1]), np.float32))
            self._size = min(self._size, max(_BYTES_OF_PART // (4 * X.shape[1] + 16), 1))
        elif len(self._keys) == self._size:
            some = np.flatnonzero(keys < self._keys[-1])
            X, y, w, keys = X[some], y[some], w[some], keys[some]
        keys = np.append(self._keys, keys)
        order = np.argsort(keys)[: self._size]
        self._keys = keys[order]
        self._held = Sample(*(np.concatenate(both)[order] for both in zip(self._held, (X, y, w), strict=True)))

    def sample(self) -> Sample:
        """Return the rows that are held."""
        return self._held


def joined(samples: Sequence[Sample], rows: Sequence[int]) -> Sample:
    """Return one sample of those of partitions, which have some number of rows each.

    Each row weighs what it does itself, times the rows that it stands for, of which the mean is made 1.
    """
    total = sum(rows)
    counts = [min(-(-_MOST_ROWS * n // total), len(sample.X)) for sample, n in zip(samples, rows, strict=True)]
    stands = [n / max(count, 1) * sum(counts) / total for n, count in zip(rows, counts, strict=True)]
    X = np.vstack([sample.X[:count] for sample, count in zip(samples, counts, strict=True)])
    y = np.concatenate([sample.y[:count] for sample, count in zip(samples, counts, strict=True)])
    w = np.concatenate([s * sample.w[:count] for sample, count, s in zip(samples, counts, stands, strict=True)])
    return Sample(X, y, w)
