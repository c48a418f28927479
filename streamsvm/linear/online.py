"""Fitted linear machines turned into learners that continue from them, row by row."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.base import is_classifier, is_regressor
from sklearn.utils.validation import check_is_fitted

from streamsvm.learners.linear import OnlineLinearSVC, OnlineLinearSVR
from streamsvm.linear.names import StreamNames
from streamsvm.stream.rows import parse_label

_LARGEST_C = 0.1  # by default: a few rows should not undo what was learned from all


def to_online(
    model: Any, *, feature_names: Sequence[Hashable] | None = None, **parameters: Any
) -> OnlineLinearSVC | OnlineLinearSVR:
    """Return an online learner that decides as a fitted linear machine does, and keeps learning.

    Parameters
    ----------
    model
        A fitted `OutOfCoreLinearSVC` or `OutOfCoreLinearSVR`, or another linear model of two classes or of one target with
        scikit-learn's conventions, such as LinearSVC.
    feature_names
        How the stream names the columns of the machine. None uses the names in the file that the machine was fitted to: the
        columns of a table, the indices of LIBSVM text, or the names of a stream that became a block file. For arrays it uses
        ``feature_names_in_``, or 0, 1, ...
    parameters
        Parameters of `OnlineLinearSVC` or `OnlineLinearSVR`. By default C is that of the machine but at most 0.1, so that a few
        rows do not undo what was learned, and there is room for the features of the machine only. Give ``max_features`` if the
        stream will bring more. With ``fit_intercept=False``, the intercept of the machine stays as it is.

    Returns
    -------
    OnlineLinearSVC or OnlineLinearSVR
        A learner with the same decision values, to rounding. Its ``n_learned`` is the number of rows that the machine was
        fitted to, or ``averaging`` if that is not known.

    Raises
    ------
    ValueError
        A parameter is out of its range, the names are not those of all columns, or the model has more than one output.
    sklearn.exceptions.NotFittedError
        The model is not fitted.

    Notes
    -----
    This costs O(features). If the machine was fitted with ``class_weight``, pass those weights to ``learn_one`` as ``w``.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from streamsvm.linear import OutOfCoreLinearSVC, to_online

    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> X = (X - X.mean(axis=0)) / X.std(axis=0)
    >>> fitted = OutOfCoreLinearSVC(C=0.1).fit(X[:400], y[:400])
    >>> learner = to_online(fitted)  # or fitted.to_online()
    >>> bool((learner.predict_many(X) == fitted.predict(X)).all())
    True
    >>> learner.learn_many(X[400:], y[400:])
    >>> learner.n_learned
    569
    """
    check_is_fitted(model)
    w, intercept = _coefficients(model)
    columns = getattr(model, "stream_names_", StreamNames())
    names = _feature_names(model, columns, feature_names)
    learner = _new_learner(model, columns, parameters)
    if learner.max_features < len(w):
        raise ValueError(f"max_features must be at least {len(w)}, the features of the machine, not {learner.max_features}")
    labels = None
    if is_classifier(model):
        labels = [parse_label(y) if columns.text_labels and isinstance(y, str) else y for y in model.classes_.tolist()]
    n_learned = int(getattr(model, "n_samples_fit_", learner.averaging))
    learner.start_from(w, intercept, feature_names=names, labels=labels, n_learned=n_learned)
    return learner


def _coefficients(model: Any) -> tuple[np.ndarray, float]:
    if not hasattr(model, "coef_") or not (is_classifier(model) or is_regressor(model)):
        raise ValueError(f"model must be a fitted linear machine, not {model!r}")
    w = np.asarray(model.coef_.toarray() if sparse.issparse(model.coef_) else model.coef_, np.float64)
    intercepts = np.ravel(model.intercept_)
    if len(intercepts) != 1 or w.shape not in ((len(w),), (1, w.size)) or w.size != model.n_features_in_:
        raise ValueError(f"model must have one output, not coefficients of shape {w.shape}: make one learner for each class")
    return w.reshape(-1), float(intercepts[0])


def _feature_names(model: Any, columns: StreamNames, given: Sequence[Hashable] | None) -> list[Hashable]:
    n, names = model.n_features_in_, given
    if names is None and columns.names is None and columns.first == 0:
        names = getattr(model, "feature_names_in_", None)
    if names is None:
        names = columns.of_columns(n)
    names = [name.item() if isinstance(name, np.generic) else name for name in names] if isinstance(names, Iterable) else []
    if len(names) != n or not all(isinstance(name, Hashable) for name in names) or len(set(names)) != n:
        raise ValueError(f"feature_names must be {n} different names, not {given!r}")
    return names


def _new_learner(model: Any, columns: StreamNames, parameters: dict[str, Any]) -> Any:
    C = getattr(model, "C", 0.0)
    defaults: dict[str, Any] = {
        "C": min(C, _LARGEST_C) if C > 0.0 else _LARGEST_C,
        "fit_intercept": getattr(model, "fit_intercept", True),
        "max_features": columns.max_features or model.n_features_in_,
        "overflow": columns.overflow,
    }
    if is_classifier(model):
        return OnlineLinearSVC(**{**defaults, **parameters})
    defaults["epsilon"] = model.epsilon if hasattr(model, "epsilon") and C > 0.0 else 0.0  # only of a support vector machine
    return OnlineLinearSVR(**{**defaults, **parameters})
