"""What all budgeted classifiers share: the glue between river's protocol and a compiled rule over a store."""

from __future__ import annotations

import copy
import math
from collections.abc import Hashable, Mapping
from types import ModuleType
from typing import Any, ClassVar, Self, cast

import narwhals.stable.v2 as nw
import numpy as np
from river import base
from river.utils import dataframe

from streamsvm.budget.table import merge_tables
from streamsvm.features import FeatureSpace
from streamsvm.learners.labels import BinaryLabels
from streamsvm.store import SupportVectorStore

_LARGEST_WEIGHT = 1e9  # so that no coefficient overflows

__all__ = ["BudgetedClassifier", "check_number", "check_one_of"]


def check_one_of(name: str, value: object, choices: Any) -> None:
    """Raise a ValueError that names a parameter whose value is not among the choices."""
    if value not in tuple(choices):
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, not {value!r}")


def check_number(
    name: str, value: object, low: float, *, inclusive: bool = False, high: float = math.inf, integer: bool = False
) -> None:
    """Raise a ValueError that names a parameter which is not a finite number in the range."""
    number = value.item() if isinstance(value, np.generic) else value
    if (
        isinstance(number, bool)
        or not isinstance(number, int if integer else int | float)
        or not (number >= low if inclusive else number > low)
        or not (number < math.inf and number <= high)
    ):
        bound = f"{'at least' if inclusive else 'above'} {low:g}"
        bound += f" and at most {high:g}" if high < math.inf else ""
        raise ValueError(f"{name} must be {'an integer' if integer else 'a finite number'} {bound}, not {value!r}")


class BudgetedClassifier(base.MiniBatchClassifier):
    """A binary classifier whose model is a store of support vectors.

    A learner's file gives the parameters, and a module of compiled functions, its rule; this class turns feature dicts, frames
    and labels into what those take, and checks them: input that is refused leaves the model as it was.

    A model is for one thread at a time, even to predict: the row at hand is laid out inside its store.
    """

    #: Compiled functions: learn_one, learn_many, decide, decide_many; what to decide: LAST, AVERAGE, CHOSEN, PROBABILITY.
    _rule: ClassVar[ModuleType]

    _store: SupportVectorStore
    _features: FeatureSpace
    _labels: BinaryLabels

    def _allocate(self, store: SupportVectorStore, features: FeatureSpace) -> None:
        # Called by the learner's constructor, which has checked its parameters.
        self._store, self._features, self._labels = store, features, BinaryLabels()
        self._attach()

    def _attach(self) -> None:
        # What is derived from the store: taken anew when the store is another one (after a copy or unpickling).
        self._block = self._store.block
        self._row = self._store.views.rows[0]
        self._tables = merge_tables()

    # One row --------------------------------------------------------------------------------------------------------------

    def learn_one(self, x: Mapping[Hashable, Any], y: Any, w: float = 1.0) -> None:
        """Learn one row.

        Parameters
        ----------
        x
            Feature name to number. A name that is missing counts as 0.
        y
            The label: a bool, 0 or 1, -1 or 1, or one of two others of any kind.
        w
            The row's weight, at least 0. A row of weight 0 is not looked at.

        Raises
        ------
        ValueError
            A feature or the weight is not a finite number, there are more features than ``max_features`` with
            ``overflow="raise"``, or the label is missing or a third one. The model is as it was then.
        """
        if w == 1.0:
            w = 1.0  # compiled code takes floats only
        else:
            check_number("w", w, 0.0, inclusive=True, high=_LARGEST_WEIGHT)
            w = float(w)
            if w == 0.0:
                return
        labels, features = self._labels, self._features
        n_labels, n_features = labels.n_seen, len(features)
        try:
            sign = labels.sign(y)
            features.fill(self._row, x, True)
            if len(features) != n_features:
                self._store.used = len(features)
            if not self._rule.learn_one(self._block, self._tables, sign, w):
                features.complain_not_finite(x)
        except Exception:
            self._forget(n_labels, n_features)
            raise

    def _forget(self, n_labels: int, n_features: int) -> None:
        # What a row that was refused had brought.
        self._labels.forget(n_labels)
        self._features.forget(n_features)
        self._store.used = n_features

    def decision_function_one(self, x: Mapping[Hashable, Any], output: str = "auto") -> float:
        """The decision value of one row: positive for the positive label; 0 before any learning.

        Parameters
        ----------
        x
            Feature name to number.
        output
            ``"last"``: of the last iterate; ``"average"``: of the average of the iterates; ``"auto"``: of the one that has made
            fewer errors recently, which is what predictions follow.

        Raises
        ------
        ValueError
            A feature is not a finite number.
        """
        return self._decide_one(x, self._what(output))

    def predict_one(self, x: Mapping[Hashable, Any], **_: Any) -> Any:
        """The label of one row; False before any learning."""
        return self._labels.of(self._decide_one(x, self._rule.CHOSEN))

    def predict_proba_one(self, x: Mapping[Hashable, Any], **_: Any) -> dict[Any, float]:
        """The probability of both labels of one row; never at odds with `predict_one`.

        The decision value is turned into log odds by one factor, which is fitted to the stream as it goes by
        (temperature scaling: Guo et al. 2017, On calibration of modern neural networks).
        """
        return self._labels.probabilities(self._decide_one(x, self._rule.PROBABILITY))

    def _decide_one(self, x: Mapping[Hashable, Any], what: int) -> float:
        self._features.fill(self._row, x, False)
        f: float = self._rule.decide(self._block, what)
        if f != f:
            self._features.complain_not_finite(x)
        return f

    # Many rows --------------------------------------------------------------------------------------------------------------

    def learn_many(self, X: Any, y: Any, w: Any = 1.0) -> None:
        """Learn the rows of a frame, one after the other: exactly what `learn_one` does with each.

        Parameters
        ----------
        X
            An eager frame that narwhals knows (pandas, polars, pyarrow, ...), [n rows, features]; or a 2-D numpy array, whose
            columns are the features 0, 1, ...
        y
            n labels: a series, an array or a sequence.
        w
            One weight for all rows, or n of them.

        Raises
        ------
        ValueError
            As `learn_one`, naming the row; or the lengths differ. The model is as it was then.
        """
        matrix, names, _ = _as_matrix(X)
        y_list = _as_list(y)
        if len(y_list) != len(matrix):
            raise ValueError(f"X has {len(matrix)} rows, y {len(y_list)}")
        if np.asarray(w).dtype.kind not in "fiub":
            raise ValueError(f"w must be numbers, not {w!r}")
        weights = np.broadcast_to(np.asarray(w, np.float64), len(matrix)) if np.ndim(w) == 0 else np.asarray(w, np.float64)
        if weights.shape != (len(matrix),):
            raise ValueError(f"X has {len(matrix)} rows, w {weights.shape[0]}")
        if not ((weights >= 0.0) & (weights <= _LARGEST_WEIGHT)).all():
            raise ValueError(f"w must be finite numbers of at least 0 and at most {_LARGEST_WEIGHT:g}")
        if not weights.all():
            kept = weights > 0.0
            matrix, weights = matrix[kept], weights[kept]
            y_list = [label for label, keep in zip(y_list, kept, strict=True) if keep]
        labels, features = self._labels, self._features
        n_labels, n_features = labels.n_seen, len(features)
        try:
            signs = np.array([labels.sign(label) for label in y_list], np.float64)
            columns = features.columns_of(names, True) if len(matrix) else np.empty(0, np.int64)
            self._store.used = len(features)
            apart = len(np.unique(columns)) == len(columns) and (columns >= 0).all()
            self._complain_of(self._rule.first_refused(self._block, matrix, columns, bool(apart)), matrix, names)
            self._rule.learn_many(self._block, self._tables, matrix, columns, signs, np.ascontiguousarray(weights))
        except Exception:
            self._forget(n_labels, n_features)
            raise

    def decision_function_many(self, X: Any, output: str = "auto") -> Any:
        """`decision_function_one` for each row: float64 [n], a series where X is a frame."""
        decisions, like = self._decide_many(X, self._what(output))
        return decisions if like is None else dataframe.to_native_series(decisions, name=None, like=like)

    def predict_many(self, X: Any) -> Any:
        """`predict_one` for each row: an array [n] of labels, a series where X is a frame."""
        decisions, like = self._decide_many(X, self._rule.CHOSEN)
        labels = self._labels.array(decisions)
        return labels if like is None else dataframe.to_native_series(labels, name=None, like=like)

    def predict_proba_many(self, X: Any) -> Any:
        """`predict_proba_one` for each row: a frame with a column for each label, or where X is an array, float64 [n, 2]
        with the negative label's probability first ([n, 1] while there is but one label, and that is not a number).
        """
        positive, like = self._decide_many(X, self._rule.PROBABILITY)
        probabilities = self._labels.probabilities(positive)
        return (
            np.column_stack(list(probabilities.values())) if like is None else dataframe.to_native_frame(probabilities, like=like)
        )

    def _decide_many(self, X: Any, what: int) -> tuple[np.ndarray, Any]:
        matrix, names, like = _as_matrix(X)
        decisions = np.empty(len(matrix))
        self._rule.decide_many(self._block, matrix, self._features.columns_of(names, False), what, decisions)
        refused = np.flatnonzero(np.isnan(decisions))
        self._complain_of(int(refused[0]) if len(refused) else -1, matrix, names)
        return decisions, like

    def _complain_of(self, row: int, matrix: np.ndarray, names: list[Hashable]) -> None:
        if row >= 0:
            try:
                self._features.complain_not_finite(dict(zip(names, matrix[row].tolist(), strict=True)))
            except ValueError as error:
                raise ValueError(f"row {row}: {error}") from None

    def _what(self, output: str) -> int:
        check_one_of("output", output, ("auto", "last", "average"))
        rule = self._rule
        return int({"auto": rule.CHOSEN, "last": rule.LAST, "average": rule.AVERAGE}[output])

    # What the model is ------------------------------------------------------------------------------------------------------

    @property
    def n_support(self) -> int:
        """Support vectors that the model holds now, at most ``budget``."""
        return self._store.n_support

    @property
    def support_vectors(self) -> np.ndarray:
        """float32 [n_support, features seen]: a copy; columns in the order of `feature_names`."""
        return self._store.vectors

    @property
    def feature_names(self) -> list[Hashable]:
        """The features seen, in the order of the columns of `support_vectors`."""
        return self._features.names

    @property
    def labels(self) -> list[Any]:
        """The labels seen, in the order in which they came."""
        return self._labels.seen

    @property
    def nbytes(self) -> int:
        """Bytes that the model takes: constant from construction. The formula is that of `SupportVectorStore.nbytes`."""
        return self._store.nbytes

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

    def __getstate__(self) -> dict[str, Any]:
        parameters = self._get_params()
        own = {"_store", "_features", "_labels", "_block", "_row", "_tables", *parameters}
        return {
            "parameters": parameters,
            "store": self._store.snapshot(),
            "features": self.feature_names,
            "labels": self.labels,
            "attributes": {name: value for name, value in self.__dict__.items() if name not in own},
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state["attributes"].items():  # those that a subclass or a user has added
            if hasattr(type(self), name):
                raise ValueError(f"the model was kept with an attribute {name!r}, which is not one that a model keeps")
            self.__dict__[name] = value
        self.__init__(**state["parameters"])  # type: ignore[misc]
        fresh, kernel = self._state.copy(), self._kernel()
        self._features.restore(state["features"])
        self._labels.restore(state["labels"])
        self._store.restore(state["store"])
        if len(self._features) != self._store.used:
            raise ValueError(f"the model has {len(self._features)} feature names for {self._store.used} columns")
        if self._kernel() != kernel:
            raise ValueError(f"the model was kept with the kernel {self._kernel()}, its parameters ask for {kernel}")
        self._check_state(self._state[0], fresh[0])

    def _kernel(self) -> tuple[Any, ...]:
        header = self._store.views.header[0]
        return header["kernel"], header["degree"], header["coef0"]

    @property
    def _state(self) -> np.ndarray:
        """The learner's own numbers inside the block: a structured array [1], a view."""
        raise NotImplementedError

    def _check_state(self, state: np.void, fresh: np.void) -> None:
        """Refuse a state that was read from outside where compiled code could not trust it.

        Parameters
        ----------
        state
            What was read.
        fresh
            The state of a new model with the same parameters.

        Raises
        ------
        ValueError
            The state is not one that the parameters ask for, or that learning leads to.
        """
        raise NotImplementedError


def _as_matrix(X: Any) -> tuple[np.ndarray, list[Hashable], Any]:
    """X as float32 [n, features], its feature names, and the narwhals frame that answers are made like (None for an array)."""
    frame = None
    if isinstance(X, np.ma.MaskedArray):
        raise ValueError("X is a masked array: fill in what is masked (X.filled) or leave those rows out")
    if isinstance(X, np.ndarray):
        if X.ndim != 2 or X.dtype.kind not in "fiub":
            raise ValueError(f"X must be a 2-D array of numbers, not {X.ndim}-D of {X.dtype}")
        values, names = X, cast("list[Hashable]", list(range(X.shape[1])))
    else:
        try:
            frame = dataframe.into_frame(X)
        except TypeError:
            raise ValueError(f"X must be an eager frame or a 2-D numpy array, not {type(X).__name__}") from None
        for name, dtype in frame.schema.items():
            if not (dtype.is_numeric() or dtype == nw.Boolean):
                raise ValueError(f"feature {name!r} is of type {dtype}: features must be numbers")
        values, names = dataframe.to_numpy(frame), cast("list[Hashable]", list(frame.columns))
    with np.errstate(over="ignore"):  # what does not fit float32 becomes infinite and is refused by name
        # Writable, as compiled code knows no other: what is not is copied.
        return np.require(values, np.float32, ["C", "W"]), names, frame


def _as_list(y: Any) -> list[Any]:
    if hasattr(y, "columns") or getattr(y, "ndim", 1) != 1 or isinstance(y, str | bytes):
        raise ValueError(f"y must be a sequence of labels, not a {type(y).__name__}")
    try:
        return y.tolist() if hasattr(y, "tolist") else y.to_list() if hasattr(y, "to_list") else list(y)
    except TypeError:
        raise ValueError(f"y must be a sequence of labels, not a {type(y).__name__}") from None
