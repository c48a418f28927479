"""Base classes for river's estimator protocol: fixed parameters, cloning, saving, and the methods that learn and predict rows."""

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
from streamsvm.core.mutation import Mutable


class RiverEstimator(Mutable, base.Estimator):
    """A river estimator, declared as a dataclass, whose parameters only change by `mutate` after construction.

    Setting a parameter raises an AttributeError once the constructor has set ``_features``.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if "_features" in self.__dict__ and name in list_parameters(type(self)):
            method = "mutate" if name in self._mutable_attributes else "clone"
            effect = "changes it" if method == "mutate" else "makes another model"
            raise AttributeError(f"{name} cannot be set after construction: model.{method}({{{name!r}: ...}}) {effect}")
        super().__setattr__(name, value)

    def clone(self, new_params: dict[str, Any] | None = None, include_attributes: bool = False) -> Self:
        """Return a new, untrained model with the same parameters, except for those in ``new_params`` (a dict of name to value);
        or with ``include_attributes`` a deep copy that includes the learned state.

        Parameters
        ----------
        new_params
            A mapping of name to value, for the parameters to change.
        include_attributes
            Whether to copy the learned state, too.

        Raises
        ------
        ValueError
            Both are given: the learned state only fits the parameters of this model.
        """
        if new_params and include_attributes:
            raise ValueError("the learned state does not fit other parameters: leave out new_params or include_attributes")
        return copy.deepcopy(self) if include_attributes else super().clone(new_params)

    def save(self, path: str | Path) -> None:
        """Save this model with its learned state to the file ``path``, from which `streamsvm.load` reads it again.

        Parameters
        ----------
        path
            The file to write. An existing file is replaced.
        """
        streamsvm.save(self, path)


class SupervisedEstimator(RiverEstimator):
    """The base of classifiers and regressors: the methods that learn and predict rows, with their documentation."""

    def learn_one(self, x: Mapping[Any, Any], y: Any, w: float = 1.0) -> None:
        """Learn the row ``x`` (a mapping of feature names to numbers) with the label or target ``y`` and the weight ``w``.

        Parameters
        ----------
        x
            The row: a mapping of feature names to numbers. Missing features count as 0.
        y
            The label of a classifier (a bool, an int, a str, or any other hashable value), or the target of a regressor.
        w
            The weight of the row, at least 0. A row of weight 0 is ignored.

        Raises
        ------
        ValueError
            A feature, the target or the weight is not a finite number; there are more features than ``max_features``, with
            ``overflow="raise"``; or the label is missing, or longer than 1,024 characters. The model does not change. A row with
            a new label is ignored if there are ``max_classes`` labels already: see `n_ignored`.
        """
        raise NotImplementedError

    def learn_many(self, X: Any, y: Any, w: Any = 1.0) -> None:
        """Learn the rows ``X`` (a frame or array) with labels or targets ``y`` and weights ``w``, in order. The result is the
        same as that of `learn_one` for each row.

        Parameters
        ----------
        X
            The rows [n, features]: an eager frame that narwhals supports (pandas, polars, pyarrow, ...), a 2-D numpy array, or
            a scipy sparse matrix or array. The columns of an array or matrix are the features 0, 1, ... Sparse matrices, and
            sparse columns of a pandas frame, give the same result as dense ones; they are made dense a few rows at a time.
        y
            The n labels or targets: a series, an array or a sequence.
        w
            The weights of the rows: one number for all of them, or n numbers.

        Raises
        ------
        ValueError
            As in `learn_one`, with the number of the row; or the lengths differ. The model does not change.
        """
        raise NotImplementedError

    def predict_one(self, x: Mapping[Any, Any], **_: Any) -> Any:
        """Predict the label (of a classifier) or the target (of a regressor) of the row ``x``, a mapping of feature names to
        numbers.

        Parameters
        ----------
        x
            The row: a mapping of feature names to numbers. Missing features count as 0, and features that the model has not
            learned are ignored.

        Returns
        -------
        The label, or None before the first row was learned. A regressor returns the target as a float, or 0 before the first row.

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
        """Predict the label or target of each row of ``X`` (a frame or array). The result is the same as that of `predict_one`
        for each row.

        Parameters
        ----------
        X
            The rows [n, features], as in `learn_many`.

        Returns
        -------
        An array [n] of labels, or of float64 targets; a series if X is a frame.

        Raises
        ------
        ValueError
            X is not a frame or array of finite numbers; the message has the number of the row.
        """
        return self._predict_rows(X)

    def _predict_rows(self, X: Any) -> Any:
        """Return the predicted label or target of each row of ``X``: an array [n], or a series if ``X`` is a frame."""
        raise NotImplementedError


@lru_cache
def list_parameters(kind: Any) -> frozenset[str]:
    """Return the names of the constructor parameters of ``kind``, a dataclass: its fields whose names do not begin with an
    underscore.
    """
    return frozenset(declared.name for declared in fields(kind) if not declared.name.startswith("_"))
