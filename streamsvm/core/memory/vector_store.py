"""A store that holds vectors of the stream: what those of support vectors and of landmarks share."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

from streamsvm.core.memory.block import Store

__all__ = ["VectorStore"]

V = TypeVar("V", bound=Any)  # a table with ``vectors`` and ``cache``


class VectorStore(Store[V]):
    """A `Store` whose header has the fields ``budget``, ``n_support`` and ``live`` too, and whose snapshots are one copy."""

    @property
    def budget(self) -> int:
        """The most vectors between two rows."""
        return int(self._header["budget"][0])

    @property
    def n_support(self) -> int:
        """The number of vectors."""
        return int(self._header["n_support"][0])

    @property
    def live(self) -> int:
        """The number of outputs in use; of support vectors, of rows of coefficients, two for each output."""
        return int(self._header["live"][0])

    @live.setter
    def live(self, rows: int) -> None:
        self._header["live"] = rows

    @property
    def vectors(self) -> np.ndarray:
        """A copy of the vectors, float32 [n_support, used]."""
        return np.ascontiguousarray(self.views.vectors[: self.used, : self.n_support].T)

    def snapshot(self) -> bytes:
        """Return all that the store holds as bytes: one copy. Equal stores give equal bytes."""
        return self._saved.tobytes()

    def restore(self, snapshot: bytes, trusted: bool = False) -> None:
        """Restore a `snapshot` of a store of the same sizes. Nothing changes unless all of it is valid. The state of a learner is
        for the learner to check.

        Parameters
        ----------
        snapshot
            The bytes.
        trusted
            Whether they have never left this process, and so need no check.

        Raises
        ------
        ValueError
            The snapshot is of another size or layout, or corrupt.
        """
        size = len(self._saved)
        if len(snapshot) != size:
            raise ValueError(
                f"a snapshot of {len(snapshot):,} bytes does not fit a store whose snapshots have {size:,} bytes: "
                "it is of a model with other sizes, or cut off"
            )
        block = np.zeros_like(self.block)  # pages of it that nothing writes to cost nothing
        block[:size] = np.frombuffer(snapshot, np.uint8)
        if not trusted:
            self._check(block)
        self._saved[:] = block[:size]
        self.views.cache[0] = 0

    def _check(self, block: np.ndarray) -> None:
        """Raise a ValueError where a block is corrupt: compiled code trusts the counts, indices and orders in it."""
        raise NotImplementedError
