"""Kernel machines that may predict by trees, in the approximate kernel that they were trained with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy import sparse

from streamsvm.batch.hss.forest import Forest, add_values, check_forest, pack
from streamsvm.batch.path_machine import PathMachine

__all__ = ["ForestMachine"]

_CHUNK = 65_536  # rows of a prediction


@dataclass(eq=False, repr=False, kw_only=True)
class ForestMachine(PathMachine):
    """A machine whose decision values are those of ``_forest`` over its support vectors, if it has one, else an expansion."""

    #: Whether values of the Gaussian kernel may be float32: weights of the trees are then not so large that they cancel.
    _single: ClassVar[bool] = True

    @property
    def _is_expansion(self) -> bool:  # type: ignore[override]
        return not hasattr(self, "_forest")

    def _set_forest(self, X: np.ndarray, coefficients: np.ndarray, intercepts: np.ndarray, forest: Forest) -> None:
        """Take a solution as `_set_solution` does, and a forest that calls the rows of X float64 [n, d] by their numbers."""
        used: np.ndarray = np.any(coefficients, axis=0)
        used[forest.rows] = True
        support = np.flatnonzero(used)
        self._forest = forest._replace(rows=np.searchsorted(support, forest.rows).astype(np.int32))
        self._set_solution(X, coefficients, intercepts, support)

    # Predictions ------------------------------------------------------------------------------------------------------------

    def _store_rows(self) -> None:
        if self._is_expansion:
            super()._store_rows()
        else:
            vectors = np.ascontiguousarray(self.support_vectors_)
            self._rows = pack(self._forest, vectors, self._kernel, single=self._single)

    def _decide(self, X: Any) -> np.ndarray:
        if self._is_expansion:
            return super()._decide(X)
        out = np.tile(self._intercepts, (X.shape[0], 1))

        def decide(begin: int) -> None:
            chunk = X[begin : begin + _CHUNK]
            chunk = chunk.toarray() if sparse.issparse(chunk) else chunk
            add_values(self._rows, self._kernel, np.ascontiguousarray(chunk, np.float64), out[begin : begin + _CHUNK])

        self._decide_chunks(decide, range(0, X.shape[0], _CHUNK))
        return out

    # Saved models -----------------------------------------------------------------------------------------------------------

    def __getstate__(self) -> Any:
        state = super().__getstate__()
        if "_forest" in state:
            state["_forest"] = tuple(state["_forest"])
        return state

    def _check_saved(self, state: dict[str, Any], machines: int) -> None:
        super()._check_saved(state, machines)
        if "_forest" in state:
            vectors = state["support_vectors_"]
            if sparse.issparse(vectors):
                raise ValueError("the saved model is corrupt: it has trees and sparse support vectors")
            state["_forest"] = check_forest(state["_forest"], machines, *vectors.shape)
