"""The conventions of river's estimators: parameters that are fixed when a model is made, clones, and rows to learn."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import Any, Self, overload

import numpy as np
from river import base

import streamsvm

__all__ = ["RiverEstimator", "SupervisedEstimator", "parameters_of"]


class RiverEstimator(base.Estimator):
    """An estimator of river, a dataclass, whose parameters are fixed once its constructor has set ``_features``."""

    def __setattr__(self, name: str, value: Any) -> None:
        if "_features" in self.__dict__ and name in parameters_of(type(self)):
            raise AttributeError(f"{name} is fixed when a model is made: model.clone({{{name!r}: ...}}) makes another")
        super().__setattr__(name, value)

    def mutate(self, new_attrs: dict[str, Any]) -> None:
        """Refuse to change parameters: sizes and numbers that a model was made with are part of its memory.

        Parameters
        ----------
        new_attrs
            Name to value. What a subclass of your own names in ``_mutable_attributes`` is changed, as river does it.

        Raises
        ------
        ValueError
            A name is that of a parameter, or of nothing.
        """
        mine = parameters_of(type(self)) - self._mutable_attributes
        for name in new_attrs:
            if name in mine:
                raise ValueError(
                    f"{name} cannot be mutated, nor any other parameter of {type(self).__name__}: all are fixed when a model is "
                    f"made, and model.clone({{{name!r}: ...}}) makes another"
                )
        super().mutate(new_attrs)

    def clone(self, new_params: dict[str, Any] | None = None, include_attributes: bool = False) -> Self:
        """Make a model that has learned nothing, with the same parameters.

        Parameters
        ----------
        new_params
            Parameters that are to be different.
        include_attributes
            Whether the model takes with it what was learned.

        Raises
        ------
        ValueError
            Both are given: a model of other sizes cannot hold what was learned.
        """
        if new_params and include_attributes:
            raise ValueError("what was learned fits its own parameters only: leave out new_params or include_attributes")
        return copy.deepcopy(self) if include_attributes else super().clone(new_params)

    def save(self, path: str | Path) -> None:
        """Save the model, with all that it has learned, as a file. `streamsvm.load` reads it; see `streamsvm.save`."""
        streamsvm.save(self, path)


class SupervisedEstimator(RiverEstimator):
    """An estimator of labels or targets."""

    def learn_one(self, x: Mapping[Any, Any], y: Any, w: float = 1.0) -> None:
        """Learn one row.

        Parameters
        ----------
        x
            Feature name to number. A name that is missing counts as 0.
        y
            The label: a bool, an int, a str, or anything else that is hashable; or the target of a regressor.
        w
            The row's weight, at least 0. A row of weight 0 is ignored.

        Raises
        ------
        ValueError
            A feature, the target or the weight is not a finite number, there are more features than ``max_features`` with
            ``overflow="raise"``, or the label is missing, too long a text or one too many. The model stays as it was.
        """
        raise NotImplementedError

    def learn_many(self, X: Any, y: Any, w: Any = 1.0) -> None:
        """Learn the rows of a frame, one after the other: exactly what `learn_one` does with each.

        Parameters
        ----------
        X
            An eager frame that narwhals knows (pandas, polars, pyarrow, ...), [n rows, features]; or a 2-D numpy array, whose
            columns are the features 0, 1, ...
        y
            n labels or targets: a series, an array or a sequence.
        w
            One weight for all rows, or n of them.

        Raises
        ------
        ValueError
            As `learn_one`, naming the row; or the lengths differ. The model stays as it was.
        """
        raise NotImplementedError

    def predict_one(self, x: Mapping[Any, Any], **_: Any) -> Any:
        """Predict the label or target of one row.

        Parameters
        ----------
        x
            Feature name to number. A name that is missing counts as 0, and one that was never learned is ignored.

        Returns
        -------
        The label, None before any row was learned; of a regressor the target, 0 before.

        Raises
        ------
        ValueError
            A feature is not a finite number.
        """
        raise NotImplementedError

    @overload
    def predict_many(self, X: np.ndarray) -> np.ndarray: ...
    @overload
    def predict_many(self, X: Any) -> Any: ...
    def predict_many(self, X: Any) -> Any:
        """Predict the labels or targets of the rows of X, each as `predict_one` does.

        Parameters
        ----------
        X
            As in `learn_many`.

        Returns
        -------
        An array [n] of labels or of targets, float64; a series where X is a frame.

        Raises
        ------
        ValueError
            X is no frame or array of finite numbers; the message names the row.
        """
        return self._predict_rows(X)

    def _predict_rows(self, X: Any) -> Any:
        """Return what `predict_many` does."""
        raise NotImplementedError


@lru_cache
def parameters_of(kind: Any) -> frozenset[str]:
    """Return the names of a dataclass's parameters: all fields but private ones."""
    return frozenset(declared.name for declared in fields(kind) if not declared.name.startswith("_"))
