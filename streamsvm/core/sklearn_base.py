"""Base classes of the batch estimators, which follow scikit-learn's conventions, and helpers for class weights and seeds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

import streamsvm
from streamsvm.core.checks import check_number
from streamsvm.core.compiling.common import expect_component
from streamsvm.files.messages import short_repr, shorten

_SMALLEST_TARGET, _LARGEST_TARGET = 1e-20, 1e20  # outside, products of gradients overflow or underflow float32


def validate_rows(estimator: Any, *rows: Any, **options: Any) -> Any:
    """Call scikit-learn's ``validate_data``; an error about names, dates or gaps of a data frame points to `TableClassifier`."""
    try:
        return validate_data(estimator, *rows, **options)
    except (TypeError, ValueError) as error:
        if hasattr(rows[0], "columns") and any(text in str(error) for text in ("convert", "promote", "NaN")):
            remedy = "For a frame with names, dates or gaps: streamsvm.batch.tables.TableClassifier, or TableRegressor"
            raise ValueError(f"{type(estimator).__name__} takes numbers only ({shorten(str(error), 80)}). {remedy}") from None
        raise


class SklearnEstimator(BaseEstimator):  # type: ignore[misc]
    """The base class of the batch estimators.

    A fit that fails does not change the model. Rows can be sparse or dense. A crafted pickle cannot replace methods.
    """

    def predict(self, X: Any) -> np.ndarray:
        """Predict the class label, or the regression target, of each row of X [n, features].

        Parameters
        ----------
        X
            Array or sparse matrix of rows [n, features].

        Returns
        -------
        ndarray [n]
            The predicted labels, or the predicted targets of a regressor, float64.

        Raises
        ------
        ValueError
            X does not fit the model, or holds a value that is not finite.
        sklearn.exceptions.NotFittedError
            The model is not fitted.
        """
        return self._predict_checked(self._check_rows(X))

    def _predict_checked(self, X: Any) -> np.ndarray:
        """Predict the class labels or regression targets [n] of rows ``X`` that `_check_rows` has returned: a validated float64
        array or CSR matrix.
        """
        return self._predict_from_decisions(self._compute_decisions(X))

    def _check_rows(self, X: Any) -> Any:
        """Validate the rows of X for a prediction, and return them as a float64 array or CSR matrix. Raises NotFittedError before
        a fit, and ValueError if X has another number of features or a value that is not finite.
        """
        check_is_fitted(self)
        if is_finite_array(X) and X.shape[1] == self.n_features_in_ and not hasattr(self, "feature_names_in_"):
            return X
        return validate_rows(self, X, accept_sparse="csr", dtype=np.float64, accept_large_sparse=True, reset=False)

    def _compute_decisions(self, X: Any) -> np.ndarray:
        """Return the decision values, float64 [n, ...], of rows X that `_check_rows` has validated. Subclasses implement this."""
        raise NotImplementedError

    def _predict_from_decisions(self, f: np.ndarray) -> np.ndarray:
        """Return the predicted labels or targets [n] for the decision values ``f`` float64 [n, ...] of n rows. Subclasses
        implement this.
        """
        raise NotImplementedError

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def save(self, path: str | Path) -> None:
        """Save this fitted model to the file at ``path``.

        `streamsvm.load` reads the file back, and `streamsvm.edge.load` predicts with it. See `streamsvm.save`.
        """
        streamsvm.save(self, path)

    def __setstate__(self, state: dict[str, Any]) -> None:
        parameters = self._get_param_names()
        for name, value in state.items():
            if name not in parameters and hasattr(type(self), name):
                raise ValueError(f"the saved model is corrupt: {name!r} is an attribute of {type(self).__name__} itself")
            if name in parameters and hasattr(value, "get_params"):  # it could be the model itself, an endless recursion
                raise ValueError(f"the saved model is corrupt: its {name} is a {type(value).__name__}")
        super().__setstate__({name: with_shared_dtype(value) for name, value in state.items()})

    def _make_models(self, Cs: Iterable[float]) -> list[Self]:
        """Return unfitted copies of this estimator, one for each value of the regularisation parameter C in ``Cs``. Raises
        ValueError if it is empty or not a sequence.
        """
        Cs = list(Cs) if np.iterable(Cs) else []
        if not Cs:
            raise ValueError("Cs must be numbers, at least one")
        return [clone(self).set_params(C=C) for C in Cs]

    def _copy_fit_to(self, models: Iterable[Self]) -> None:
        """Copy the fitted attributes of this model to each of ``models``, so that they predict the same. Their hyperparameters do
        not change. This model itself may be among them and is skipped.
        """
        parameters = self.get_params(deep=False)
        fitted = {name: value for name, value in self.__dict__.items() if name not in parameters}
        for model in models:
            if model is not self:
                model.__dict__.update(deepcopy(fitted))

    @contextmanager
    def _rollback_on_error(self) -> Iterator[None]:
        """Context manager for a fit: if its body raises an exception, restore the attributes that this estimator had before.
        Raises KeyboardInterrupt if compiled code has turned Ctrl-C into a SystemError.
        """
        expect_component(type(self))
        before = dict(self.__dict__)
        try:
            yield
        except BaseException as error:
            self.__dict__.clear()
            self.__dict__.update(before)
            if is_interrupt(error):
                raise KeyboardInterrupt from None
            raise


class PathEstimator(SklearnEstimator):
    """The base class of estimators that share work between fits for several values of C."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit this model to the rows X with labels or targets ``y``, and return it. If the fit fails, the model does not change.

        Parameters
        ----------
        X
            Rows to learn: an array or sparse matrix [n, features].
        y
            Labels or targets [n].
        sample_weight
            Weight of each row, at least 0, [n], by which C is multiplied. Rows of weight 0 are ignored. None gives every row
            weight 1.

        Returns
        -------
        The fitted estimator.

        Raises
        ------
        ValueError
            A parameter, a row, a label or target, or a weight cannot be learned. The class names further errors.
        """
        return self._fit_models([self], X, y, sample_weight)[0]

    def fit_path(self, X: Any, y: Any, Cs: Sequence[float], sample_weight: Any = None) -> list[Self]:
        """Fit one model for each value of the regularisation parameter C in ``Cs`` (above 0), and return the list of models. The
        fits share work that does not depend on C.

        Rows, labels or targets, and weights are as in `fit`. This estimator itself does not change. An interrupt discards all
        models.
        """
        models = self._make_models(Cs)
        return models[0]._fit_models(models, X, y, sample_weight)

    def _fit_models(self, models: list[Self], X: Any, y: Any, sample_weight: Any) -> list[Self]:
        """Fit ``models``, copies of this estimator with different values of C, to the rows X with targets ``y``, and return them.
        It is called on the first of the models; subclasses implement it.
        """
        raise NotImplementedError


class SklearnClassifier(ClassifierMixin):  # type: ignore[misc]
    """The base class of batch classifiers, with one decision value for two classes, else one for each class."""

    class_weight: dict[Any, float] | Literal["balanced"] | None

    def decision_function(self, X: Any) -> np.ndarray:
        """Return the decision values of the rows X [n, features], in units of the margin. They are [n] for two classes, positive
        for the second one, and [n, classes] for more. X and the errors are as in `predict`.

        Returns
        -------
        float64 [n] or [n, classes]
            With two classes, one value for each row, which is positive for ``classes_[1]``. With more classes, one value for
            each row and class; of `CSMOClassifier` with ``decision_function_shape="ovo"``, for each row and pair of classes.
        """
        return self._compute_scores(self._compute_decisions(self._check_rows(X)))

    def _compute_scores(self, f: np.ndarray) -> np.ndarray:
        """Convert the decision values ``f`` from `_compute_decisions` to the result of the public method `decision_function`.
        Returns them unchanged, unless a subclass overrides this.
        """
        return f

    def _predict_from_decisions(self, f: np.ndarray) -> np.ndarray:
        scores = self._compute_scores(f)
        return self.classes_[(scores > 0.0).astype(np.int64) if scores.ndim == 1 else scores.argmax(axis=1)]

    def _index_classes(self, y: Any, counted: np.ndarray) -> np.ndarray:
        """Store the sorted distinct labels of ``y`` [n] as ``classes_``, and return the class index of each row, int64 [n].
        ``counted`` is a mask of the rows with a weight above 0.

        Raises ValueError if there are fewer than two classes, one has no row among the ``counted`` ones, or y is not labels.
        """
        is_simple = y.ndim == 1 and y.dtype.kind in "biuU"
        if not is_simple:
            check_classification_targets(y)
        classes, labels = np.unique(y, return_inverse=True)
        if is_simple and 2 * len(classes) > len(y):
            check_classification_targets(y)  # it is slow, and for simple labels it only warns of too many classes
        if len(classes) < 2:
            raise ValueError(f"y has only one class, {classes.tolist()[0]!r}: a classifier needs at least two")
        present = np.bincount(labels[counted], minlength=len(classes)) > 0
        if not present.all():
            prefix = "Invalid input - all samples with positive weights belong to the same class: " if present.sum() == 1 else ""
            raise ValueError(f"{prefix}class {classes[~present].tolist()[0]!r} has no row whose sample_weight is above 0")
        self.classes_ = classes
        return labels

    def _compute_class_weights(self, labels: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return the weight of each class, float64 [classes], as the parameter ``class_weight`` requests it. ``labels`` are the
        rows' class indices, and ``weights`` their sample weights. Raises ValueError if the parameter is invalid.
        """
        class_weight, classes = self.class_weight, self.classes_
        if class_weight is None:
            return np.ones(len(classes))
        if not isinstance(class_weight, Mapping):
            if not (isinstance(class_weight, str) and class_weight == "balanced"):
                raise ValueError(f"class_weight must be a dictionary, 'balanced' or None, not {short_repr(class_weight)}")
            return weights.sum() / (len(classes) * np.bincount(labels, weights, len(classes)))
        present = set(classes.tolist())
        # A fold of cross-validation may lack some classes: further labels are an error only if a present class has no weight.
        if present - set(class_weight) and (unknown := set(class_weight) - present):
            raise ValueError(f"class_weight has labels that y does not have: {sorted(unknown, key=str)}")
        for label, weight in class_weight.items():
            check_number(f"class_weight[{label!r}]", weight, 0.0)
        return np.array([float(class_weight.get(label, 1.0)) for label in classes.tolist()])


def is_finite_array(X: Any) -> bool:
    """Return whether X is a non-empty 2-D float64 array whose sum is finite, so that the slow check by scikit-learn's
    ``validate_data`` can be skipped.
    """
    if type(X) is not np.ndarray or X.dtype != np.float64 or X.ndim != 2 or not X.size:
        return False
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(X.sum()))


def with_shared_dtype(value: Any) -> Any:
    """Return an array as a view with numpy's own dtype object, and any other value unchanged. Unpickled arrays have copies of
    this object; without the view, pickling them again would give different bytes.
    """
    return value.view(np.dtype(value.dtype.str)) if isinstance(value, np.ndarray) and value.dtype != object else value


def check_targets(y: np.ndarray) -> None:
    """Raise ValueError if the regression targets ``y``, float64 [n], are too large or too small to compute with in float32: their
    largest absolute value must be 0 or between 1e-20 and 1e20.
    """
    largest = np.abs(y).max()
    if not (largest == 0.0 or _SMALLEST_TARGET <= largest <= _LARGEST_TARGET):
        raise ValueError(f"y has values up to {largest:g}, out of {_SMALLEST_TARGET:g} to {_LARGEST_TARGET:g}: scale the targets")


def draw_seed(random_state: Any) -> int:
    """Return an integer seed for scikit-learn's parameter ``random_state`` (None, an int or a RandomState): the int itself, or a
    random one. Raises ValueError if the parameter is invalid.
    """
    generator = check_random_state(random_state)
    return int(random_state) if isinstance(random_state, int | np.integer) else int(generator.randint(2**31))


def is_interrupt(error: BaseException | None) -> bool:
    """Return whether ``error`` is a KeyboardInterrupt, or the SystemError that compiled code raises in its place after Ctrl-C."""
    while isinstance(error, SystemError):
        error = error.__cause__
    return isinstance(error, KeyboardInterrupt)
