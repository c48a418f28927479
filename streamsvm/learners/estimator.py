"""What all online learners share: rows, frames and kept models, between river's protocol and compiled code."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, ClassVar, Self

import numpy as np
from river import base

from streamsvm.checks import check_one_of
from streamsvm.frames import Batch, as_matrix
from streamsvm.learners.compiled import iterates
from streamsvm.learners.compiled.state_checks import COMMON_RANGES, check_fields
from streamsvm.memory.block import STATE_BEGIN, STATE_END
from streamsvm.memory.features import FeatureSpace

__all__ = ["OnlineEstimator"]

_OUTPUTS = {"auto": iterates.CHOSEN, "last": iterates.LAST, "average": iterates.AVERAGE}


class OnlineEstimator(base.Estimator):
    """A model in memory of a fixed size, which learns row by row and averages what it learns.

    A class below this one makes the store and has the four methods that hand rows to compiled code. Input that is refused leaves
    the model as it was. A model is for one thread at a time, even to predict: the row at hand is laid out inside its store.
    """

    #: What there is room for; it has ``used``, ``nbytes``, ``snapshot`` and ``restore``.
    _store: Any
    #: Feature names and their columns in the store.
    _features: FeatureSpace
    #: The `iterates.COMMON` record, [1], and the rule's own; parameters are fixed once they are there.
    _common: np.ndarray
    _own: np.ndarray
    #: Decision values of a row, and where there are several the array that holds them.
    _outputs = 1
    _scores: np.ndarray

    def __setattr__(self, name: str, value: Any) -> None:
        if "_own" in self.__dict__ and name in _parameters(type(self)):
            raise AttributeError(f"{name} is fixed when a model is made: model.clone({{{name!r}: ...}}) makes another")
        super().__setattr__(name, value)

    def _open_state(self, own: np.dtype, averaging: int) -> None:
        # The two records inside the store's block; ``own``: what the rule keeps beside `iterates.COMMON`.
        state, at = self._store.block[STATE_BEGIN:STATE_END], iterates.OWN_BEGIN - STATE_BEGIN
        self._common = state[:at].view(iterates.COMMON)
        self._common["scale"] = self._common["average_v"] = 1.0
        self._common["horizon"] = averaging
        self._own = state[at : at + own.itemsize].view(own) if own.names else np.zeros(1, own)

    # Rows -------------------------------------------------------------------------------------------------------------------

    def _learn_row(self, x: Mapping[Hashable, Any], target: float, weight: float, outputs: int = 1) -> None:
        # What is refused leaves nothing behind, no name of a feature either.
        raise NotImplementedError

    def _decide_row(self, x: Mapping[Hashable, Any], what: int) -> float:
        # One of `compiled.iterates`' codes for what is asked; ValueError where a feature is not finite.
        raise NotImplementedError

    def _learn_batch(self, batch: Batch) -> None:
        raise NotImplementedError

    def _decide_matrix(self, matrix: np.ndarray, columns: np.ndarray, what: int, decisions: np.ndarray) -> None:
        # Of rows float32 [n, features] into float64 [n, 1 or more], NaN where a row is refused.
        raise NotImplementedError

    def _first_refused(self, matrix: np.ndarray, columns: np.ndarray) -> int:
        # The number of the first row that is not finite or too large, or -1.
        raise NotImplementedError

    def _targets(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        """What compiled code takes for the labels or targets, float64 [n], and the outputs that each row needs, int64 [n]."""
        raise NotImplementedError

    def _forget(self, n_features: int, outputs: int) -> None:  # noqa: ARG002
        # What a row that was refused had brought.
        self._features.forget(n_features)
        self._store.used = n_features

    @contextmanager
    def _undoing(self) -> Iterator[None]:
        """Forget what a batch had brought, new names first of all, where it is refused or its admission interrupted."""
        n_features, n_outputs = self._store.used, self._outputs
        try:
            yield
        except BaseException:
            self._forget(n_features, n_outputs)
            raise

    def _admit(self, batch: Batch) -> np.ndarray:
        """The columns of a batch's features, int64 [features], once all of its rows can be learned."""
        features, matrix, names = self._features, batch.matrix, batch.names
        columns = features.columns_of(names, True) if len(matrix) else np.empty(0, np.int64)
        self._store.used = len(features)
        row = self._first_refused(matrix, columns)
        if row >= 0:
            self._complain_of(matrix[row], names, int(batch.numbers[row]))
        return columns

    def _decide_rows(self, X: Any, what: int) -> tuple[np.ndarray, Any]:
        """What `_decide_matrix` gives, and the frame that answers are made like (None for an array)."""
        matrix, names, like = as_matrix(X)
        decisions = np.empty((len(matrix), 1 if self._outputs == 1 else self._outputs + 1))
        self._decide_matrix(matrix, self._features.columns_of(names, False), what, decisions)
        refused = np.flatnonzero(np.isnan(decisions[:, 0]))
        if len(refused):
            self._complain_of(matrix[refused[0]], names, int(refused[0]))
        return decisions, like

    def _complain_of(self, row: np.ndarray, names: list[Hashable], number: int) -> None:
        try:
            self._features.complain_not_finite(dict(zip(names, row.tolist(), strict=True)))
        except ValueError as error:
            raise ValueError(f"row {number}: {error}") from None

    # What the model is ------------------------------------------------------------------------------------------------------

    def _output(self, name: str) -> int:
        # What is asked for by name. Without averaging, the average is the last iterate.
        check_one_of("output", name, _OUTPUTS)
        return iterates.LAST if self._common["horizon"][0] == 0.0 else _OUTPUTS[name]

    @property
    def averaged(self) -> bool:
        """Whether predictions follow the average of the iterates now, or the last one."""
        return bool(iterates.prefers_average(self._common[0]))

    @property
    def n_learned(self) -> int:
        """Rows learned so far (those of weight 0 do not count)."""
        return int(self._common[0]["t"])

    @property
    def feature_names(self) -> list[Hashable]:
        """The features seen, in the order of their columns."""
        return self._features.names

    @property
    def nbytes(self) -> int:
        """Bytes that the model takes: constant from construction. The formula is that of the store's ``nbytes``."""
        return int(self._store.nbytes)

    @property
    def _mutable_attributes(self) -> set[str]:
        return set()

    def clone(self, new_params: dict[str, Any] | None = None, include_attributes: bool = False) -> Self:
        """A fresh model with the same parameters; see `river.base.Base.clone`.

        Raises
        ------
        ValueError
            Both other parameters and what was learned are asked for: a model of other sizes cannot hold it.
        """
        if new_params and include_attributes:
            raise ValueError("what was learned fits its own parameters only: leave out new_params or include_attributes")
        return copy.deepcopy(self) if include_attributes else super().clone(new_params)

    # A model is kept as plain values, which its constructor and the checks below put together again: whatever a file says,
    # nothing that compiled code relies on comes from it unseen.

    #: Fields of the rule's own state that learning changes, with the least and the largest value they can have. All others are
    #: what the parameters make them.
    _own_ranges: ClassVar[Mapping[str, tuple[float, float]]] = {}

    def __getstate__(self) -> dict[str, Any]:
        parameters = self._get_params()
        made = {*parameters, *_MADE_ANEW}
        return {
            "parameters": parameters,
            "store": self._store.snapshot(),
            "features": self.feature_names,
            "attributes": {name: value for name, value in self.__dict__.items() if name not in made},
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state["attributes"].items():  # those that a subclass or a user has added
            if hasattr(type(self), name):
                raise ValueError(f"the model was kept with an attribute {name!r}, which is not one that a model keeps")
            self.__dict__[name] = value
        self.__init__(**state["parameters"])  # type: ignore[misc]
        common, own, fixed = self._common[0].copy(), self._own[0].copy(), self._fixed()
        self._features.restore(state["features"])
        self._store.restore(state["store"])
        if len(self._features) != self._store.used:
            raise ValueError(f"the model has {len(self._features)} feature names for {self._store.used} columns")
        for name, value in self._fixed().items():
            if value != fixed[name]:
                raise ValueError(f"the model was kept with the {name} {value}, its parameters ask for {fixed[name]}")
        check_fields(self._common[0], common, {**COMMON_RANGES, **self._more_ranges})
        check_fields(self._own[0], own, self._own_ranges)

    def _fixed(self) -> dict[str, Any]:
        # What the parameters decide of the store, beside sizes and the states.
        return {}

    @property
    def _more_ranges(self) -> dict[str, tuple[float, float]]:
        # As `COMMON_RANGES`, where the parameters decide.
        return {}


#: Attributes that the constructor makes, and that a kept model holds as the values from which to make them.
_MADE_ANEW = (
    *("_store", "_features", "_labels", "_block", "_row", "_scores", "_upkeep", "_common", "_own"),
    *("_outputs", "_capped", "_strategy"),
)


@lru_cache
def _parameters(kind: type) -> frozenset[str]:
    return frozenset(inspect.signature(kind).parameters)
