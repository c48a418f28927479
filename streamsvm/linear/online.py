"""From a fitted linear machine to a learner that goes on from it, row by row."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from sklearn.base import is_classifier, is_regressor
from sklearn.utils.validation import check_is_fitted

from streamsvm._warnings import warn
from streamsvm.learners.linear import OnlineLinearSVC, OnlineLinearSVR
from streamsvm.linear.files.block_file import LARGEST_JSON
from streamsvm.memory.features import OVERFLOW
from streamsvm.runtime.sources import parse_label

__all__ = ["StreamNames", "kept_names", "to_online"]

_ROOM = 2**20  # for what else is kept of a file
_C_AFTERWARDS = 0.1  # most: what was learned from all rows should not be undone by a few


class StreamNames(NamedTuple):
    """What the columns and the classes of a block file are called by the rows of a stream.

    Parameters
    ----------
    names
        Of the columns, or None: integers.
    first
        Of those integers; None: the names are not known.
    max_features, overflow
        Of the `FeatureSpace` that they are of, or None and "raise".
    text_labels
        Whether classes were cells of text, which are read as `parse_label` reads them.
    """

    names: list[Hashable] | None = None
    first: int | None = 0
    max_features: int | None = None
    overflow: str = "raise"
    text_labels: bool = False

    def called(self, n_features: int) -> list[Hashable]:
        """The names of as many columns; a ValueError where they are not known."""
        if self.names is not None:
            return list(self.names)
        if self.first is None:
            raise ValueError("the file does not say what its columns are called: give feature_names")
        return list(range(self.first, self.first + n_features))

    def texts(self) -> list[str]:
        """The names if they are all texts, and each column is of one of them; else none."""
        hashed = self.overflow == "hash" and self.names is not None and len(self.names) == self.max_features
        texts = [name for name in self.names or () if isinstance(name, str)]
        return texts if len(texts) == len(self.names or ()) and not hashed else []

    @classmethod
    def of(cls, meta: dict[str, Any], n_features: int) -> StreamNames:
        """Those that the notes of a block file tell of, as far as they are any."""
        text = meta.get("text_labels") is True
        names, first, room, overflow = (meta.get(key) for key in ("names", "first_index", "max_features", "overflow"))
        if not (isinstance(room, int) and n_features <= room < 2**31 and overflow in OVERFLOW):
            room, overflow = None, "raise"
        if (
            isinstance(names, list)
            and all(type(name) in (str, int) for name in names)
            and len(set(names)) == len(names) == n_features
        ):
            return cls(names, None, room, overflow, text)
        unnamed = "names" not in meta and first in (None, 0, 1)
        return cls(None, int(first or 0) if unnamed else None, room, overflow, text)


def kept_names(names: list[Any]) -> list[Any] | None:
    """What a block file keeps of the names of its columns: all or, where they are no text and no integers, or too many, none."""
    if len(set(names)) < len(names) or not all(type(name) in (str, int) for name in names):
        return None
    if sum(len(str(name)) for name in names) < LARGEST_JSON and len(json.dumps(names)) < LARGEST_JSON - _ROOM:
        return names
    warn("the names of features take too much to be kept with the rows: without them no learner can go on from what is fitted")
    return None


def to_online(
    model: Any, *, feature_names: Sequence[Hashable] | None = None, **parameters: Any
) -> OnlineLinearSVC | OnlineLinearSVR:
    """A learner of river's protocol that decides as a fitted linear machine does, and goes on learning from there.

    Parameters
    ----------
    model
        A fitted `OutOfCoreLinearSVC` or `OutOfCoreLinearSVR`, or another linear model of two classes or of one target with
        scikit-learn's conventions, such as its LinearSVC.
    feature_names
        What the stream calls the machine's columns. None: as the file called them that it was fitted to (the columns of a table,
        the indices of LIBSVM text, the names of a stream that became a block file); of arrays the names that it was fitted with
        (``feature_names_in_``), or 0, 1, ...
    parameters
        Of `OnlineLinearSVC` or `OnlineLinearSVR`. By default C is the machine's but 0.1 at most, so that a few rows do not undo
        what is there, and there is room for just the machine's features: give ``max_features`` where more are to come. With
        ``fit_intercept=False`` the machine's intercept stays as it is.

    Raises
    ------
    ValueError
        A parameter is out of its range, the names are not those of all columns, or the model has more than one output.
    sklearn.exceptions.NotFittedError
        The model was not fitted.

    Notes
    -----
    O(features). The learner goes on as if it had learned the machine's rows, or where those are not known ``averaging`` ones.
    Where the machine was fitted with ``class_weight``, give those weights to ``learn_one`` as ``w``.

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
    classifies = is_classifier(model)
    if not hasattr(model, "coef_") or not (classifies or is_regressor(model)):
        raise ValueError(f"model must be a fitted linear machine, not {model!r}")
    coefficients = model.coef_.toarray() if sparse.issparse(model.coef_) else model.coef_
    w, bias = np.asarray(coefficients, np.float64), np.ravel(model.intercept_)
    if len(bias) != 1 or w.shape not in ((len(w),), (1, w.size)) or w.size != model.n_features_in_:
        raise ValueError(
            f"model must have one output, and has coefficients of shape {w.shape}: make a learner of each of its own"
        )
    w = w.reshape(-1)
    columns = getattr(model, "stream_names_", StreamNames())
    names = feature_names
    if names is None:
        names = getattr(model, "feature_names_in_", None) if columns.names is None and columns.first == 0 else None
    names = columns.called(len(w)) if names is None else names
    names = [name.item() if isinstance(name, np.generic) else name for name in names] if isinstance(names, Iterable) else []
    if len(names) != len(w) or not all(isinstance(name, Hashable) for name in names) or len(set(names)) != len(w):
        raise ValueError(f"feature_names must be {len(w)} different names, not {feature_names!r}")
    C = getattr(model, "C", 0.0)
    given: dict[str, Any] = {
        "C": min(C, _C_AFTERWARDS) if C > 0.0 else _C_AFTERWARDS,
        "fit_intercept": getattr(model, "fit_intercept", True),
        "max_features": columns.max_features or len(w),
        "overflow": columns.overflow,
    }
    if not classifies:
        given["epsilon"] = model.epsilon if hasattr(model, "epsilon") and C > 0.0 else 0.0  # of a support vector machine
    made: Any = (OnlineLinearSVC if classifies else OnlineLinearSVR)(**{**given, **parameters})
    if made.max_features < len(w):
        raise ValueError(f"max_features must be at least {len(w)}, the features of the machine, not {made.max_features}")
    given_labels = None
    if classifies:
        text = columns.text_labels
        negative, positive = (parse_label(y) if text and isinstance(y, str) else y for y in model.classes_.tolist())
        given_labels = [negative, positive]
    n_learned = int(getattr(model, "n_samples_fit_", made.averaging))
    made.start_from(w, float(bias[0]), feature_names=names, labels=given_labels, n_learned=n_learned)
    return made
