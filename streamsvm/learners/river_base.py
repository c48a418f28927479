"""The conventions of river's estimators: fixed parameters, clones, and rows to learn."""

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


class RiverEstimator(base.Estimator):
    """An estimator of river whose parameters are fixed once it is made.

    It is a dataclass. The parameters are fixed once its constructor has set ``_features``.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if "_features" in self.__dict__ and name in list_parameters(type(self)):
            raise AttributeError(f"{name} is fixed when a model is made: model.clone({{{name!r}: ...}}) makes another")
        super().__setattr__(name, value)

    def mutate(self, new_attrs: dict[str, Any]) -> None:
        """Refuse to change a parameter: the memory of a model is laid out for those that it was made with.

        To get a model with other parameters, use `clone`. If you write a subclass and list names in ``_mutable_attributes``,
        these are changed as river does it.

        Parameters
        ----------
        new_attrs
            A mapping of name to new value.

        Raises
        ------
        ValueError
            A name is that of a parameter, or of nothing.
        """
        mine = list_parameters(type(self)) - self._mutable_attributes
        for name in new_attrs:
            if name in mine:
                raise ValueError(
                    f"{name} cannot be mutated, nor any other parameter of {type(self).__name__}: all are fixed when a model is "
                    f"made, and model.clone({{{name!r}: ...}}) makes another"
                )
        super().mutate(new_attrs)

    def clone(self, new_params: dict[str, Any] | None = None, include_attributes: bool = False) -> Self:
        """Return a model with the same parameters that has learned nothing.

        Parameters
        ----------
        new_params
            A mapping of name to value, for the parameters to change.
        include_attributes
            Whether the new model also gets what this one has learned.

        Raises
        ------
        ValueError
            Both are given. What was learned fits the parameters of this model only.
        """
        if new_params and include_attributes:
            raise ValueError("what was learned fits its own parameters only: leave out new_params or include_attributes")
        return copy.deepcopy(self) if include_attributes else super().clone(new_params)

    def save(self, path: str | Path) -> None:
        """Save the model to a file, with all that it has learned.

        `streamsvm.load` reads it back, and `streamsvm.save` says more.
        """
        streamsvm.save(self, path)


class SupervisedEstimator(RiverEstimator):
    """An estimator of labels or targets."""

    def learn_one(self, x: Mapping[Any, Any], y: Any, w: float = 1.0) -> None:
        """Learn one row.

        Parameters
        ----------
        x
            The row: a mapping of feature names to numbers. Features that it does not have count as 0.
        y
            The label (a bool, an int, a str, or anything else that is hashable), or the target of a regressor.
        w
            The weight of the row, at least 0. A row of weight 0 is ignored.

        Raises
        ------
        ValueError
            A feature, the target or the weight is not a finite number; there are more features than ``max_features``, with
            ``overflow="raise"``; or the label is missing, or a text that is too long. The model stays as it was. A row whose
            label is one more than ``max_classes`` is ignored: see `n_ignored`.
        """
        raise NotImplementedError

    def learn_many(self, X: Any, y: Any, w: Any = 1.0) -> None:
        """Learn the rows of a frame or an array in order, exactly as `learn_one` learns each.

        Parameters
        ----------
        X
            The rows [n, features]: an eager frame that narwhals knows (pandas, polars, pyarrow, ...); or a 2-D numpy array, or
            a sparse matrix or array of scipy, whose columns are the features 0, 1, ... What is sparse, as columns of a pandas
            frame may be too, is learned like the same rows dense, of which only some at a time are in memory.
        y
            The n labels or targets: a series, an array or a sequence.
        w
            The weights of the rows: one number for all of them, or n numbers.

        Raises
        ------
        ValueError
            As in `learn_one`, with the number of the row; or the lengths differ. The model stays as it was.
        """
        raise NotImplementedError

    def predict_one(self, x: Mapping[Any, Any], **_: Any) -> Any:
        """Predict the label or target of one row.

        Parameters
        ----------
        x
            The row: a mapping of feature names to numbers. Features that it does not have count as 0, and features that were
            never learned are ignored.

        Returns
        -------
        The label, or None before any row was learned. A regressor returns the target, or 0 before any row was learned.

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
        """Predict the labels or targets of the rows of X, which are as in `learn_many`, as `predict_one` predicts each.

        Returned is an array [n] of labels, or of targets in float64; or a series if X is a frame. A ValueError says that X is not
        a frame or array of finite numbers; it names the row.
        """
        return self._predict_rows(X)

    def _predict_rows(self, X: Any) -> Any:
        """Return what `predict_many` does."""
        raise NotImplementedError


@lru_cache
def list_parameters(kind: Any) -> frozenset[str]:
    """Return the names of a dataclass's parameters: all fields but private ones."""
    return frozenset(declared.name for declared in fields(kind) if not declared.name.startswith("_"))
