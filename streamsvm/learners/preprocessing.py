"""Scalers for features and targets with river's protocol, which are robust against outliers."""

from __future__ import annotations

import copy
import math
import operator
import struct
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from river import base

from streamsvm.core.checks import LARGEST_FLOAT32, to_python_scalar, validate_target
from streamsvm.core.docstrings import complete_docstring
from streamsvm.core.explaining import Example, Examples, Explanation, Groups
from streamsvm.core.frames import to_frame, to_matrix
from streamsvm.core.memory.features import FeatureSpace
from streamsvm.core.memory.moments import (
    N_FIRST,
    N_MOMENTS,
    learn_value_rows,
    learn_values,
    pool_moments,
    standardise_rows,
    standardise_targets,
    standardise_values,
)
from streamsvm.core.mutation import Mutable
from streamsvm.core.sparse import to_dense
from streamsvm.core.transformers import Units, compute_unit_conversion
from streamsvm.files.container import check_hash_collisions
from streamsvm.files.messages import short_repr
from streamsvm.learners.wrapping import RegressorWrapper, Weights

_TARGET: Hashable = "target"  # the feature name of the target in a BoundedScaler


@complete_docstring
class BoundedScaler(Mutable, base.MiniBatchTransformer):
    """A scaler like river's StandardScaler that clips outliers, so that they affect mean and variance little.

    Each value is clipped to ``deviations`` standard deviations from the mean of its feature. Mean and variance are those of the
    clipped values, so that an outlier changes the mean by at most ``deviations`` standard deviations over n. If the level of a
    feature changes, the scaler adapts soon, because each clipped value increases the variance. As an outlier may also come first,
    the first 32 values of a feature are stored, and clipped by their median and median absolute deviation. If no value is
    clipped, the result is that of river's StandardScaler, up to rounding.

    A row takes O(features), and memory is 300 bytes for each feature name. After eight or more equal values, the first value that
    differs is not clipped, because the scale is unknown. Scaled rows are dense, also those of a sparse matrix.

    Parameters
    ----------
    deviations
        The number of standard deviations from the mean to clip values to, at least 2. None turns clipping off.

    Attributes
    ----------
    n_bounded : int
        The number of learned values that were clipped, not counting the first 32 of each feature.

    Raises
    ------
    ValueError
        ``deviations`` is out of its range. From `learn_one` and `transform_one`: a feature is not a finite float32 number.

    Examples
    --------
    >>> scaler = BoundedScaler(deviations=8)
    >>> for i in range(100):
    ...     scaler.learn_one({"a": i % 10})
    >>> scaler.learn_one({"a": 1e10})
    >>> scaler.n_bounded
    1
    >>> {name: round(value, 2) for name, value in scaler.transform_one({"a": 9}).items()}
    {'a': 1.17}
    >>> scaler.transform_one({"a": 1e10})
    {'a': 8.0}
    >>> scaler.counts["a"], round(scaler.means["a"], 1), round(scaler.vars["a"], 1)
    (101, 4.7, 13.3)
    """

    def __init__(self, deviations: float | None = 8.0) -> None:
        if deviations is not None and not (isinstance(deviations, int | float) and 2.0 <= deviations < math.inf):
            raise ValueError(f"deviations must be at least 2, or None, not {short_repr(deviations)}")
        self.deviations = deviations
        self.n_bounded: int = 0
        self._bound = math.inf if deviations is None else float(deviations)
        self._columns: dict[Hashable, int] = {}
        self._make_arrays(8)

    def _make_arrays(self, size: int) -> None:
        """Allocate the arrays of this scaler for ``size`` features, and copy the statistics of the features learned so far into
        them.
        """
        moments, first = self.__dict__.get("_moments", np.empty((0, 3))), self.__dict__.get("_first", np.empty((0, N_FIRST)))
        #: [features, 3]: the number of values, the mean, and the sum of squared differences from it.
        self._moments = np.zeros((size, 3))
        #: [features, N_FIRST]: the first values, sorted.
        self._first = np.zeros((size, N_FIRST))
        self._moments[: len(moments)], self._first[: len(first)] = moments, first
        self._values, self._all, self._scaled = np.zeros(size), np.arange(size), np.zeros(size)
        # For a row with exactly the known names, one C call reads all values, and one writes them.
        n = len(self._columns)
        self._pick: Callable[[Any], Any] | None = operator.itemgetter(*self._columns) if n > 1 else None
        self._pack = struct.Struct(f"{n}d").pack_into

    @property
    def counts(self) -> Counter[Hashable]:
        """The number of values that this scaler has learned of each feature, by feature name. A copy, made in O(features)."""
        return Counter(self._map_by_name(self._moments[:, 0].astype(np.int64)))

    @property
    def means(self) -> defaultdict[Hashable, float]:
        """The mean of the learned values of each feature, after clipping outliers, by feature name; 0 for unknown names. A copy,
        made in O(features).
        """
        return defaultdict(float, self._map_by_name(self._moments[:, 1]))

    @property
    def vars(self) -> defaultdict[Hashable, float]:
        """The variance (divided by n) of the learned values of each feature, after clipping outliers, by feature name; 0 for
        unknown names. A copy, made in O(features).
        """
        return defaultdict(float, self._map_by_name(self._moments[:, 2] / np.maximum(self._moments[:, 0], 1.0)))

    def _map_by_name(self, numbers: np.ndarray) -> dict[Hashable, Any]:
        """Return a dict of feature name to number. ``numbers`` is an array with one number for each feature of this scaler, in
        their order of arrival; further items have no effect.
        """
        return dict(zip(self._columns, numbers.tolist(), strict=False))

    def _fill_values(self, x: Mapping[Any, Any], learn: bool) -> tuple[np.ndarray, int]:
        """Copy the values of the row ``x`` into an internal array of this scaler. Returns their column indices in the scaler,
        int64 [n or more] (-1 for an unknown feature), and their number n. With ``learn``, unknown features get a new column.
        Raises a ValueError for an invalid row.
        """
        columns = self._columns
        if x.__class__ is dict and len(x) == len(columns) and self._pick is not None:
            try:
                self._pack(self._values.data, 0, *self._pick(x))
            except KeyError:
                pass
            except (struct.error, TypeError, OverflowError):
                FeatureSpace.raise_for_row(x)
            else:
                return self._all, len(x)
        if not isinstance(x, Mapping):
            raise ValueError(f"a row must be a mapping of feature names to numbers, not a {type(x).__name__}")
        if not learn:  # unknown features have no effect
            x = {name: value if name in columns else 0.0 for name, value in x.items()}
        values = np.empty(len(x))
        try:
            struct.pack_into(f"{len(x)}d", values.data, 0, *x.values())
        except (struct.error, TypeError, OverflowError):
            FeatureSpace.raise_for_row(x)
        if learn and not x.keys() <= columns.keys():
            if not np.all(np.abs(values) <= LARGEST_FLOAT32):
                FeatureSpace.raise_for_row(x)
            for name in x:
                columns.setdefault(to_python_scalar(name), len(columns))
            self._make_arrays(max(len(self._moments), 2 * len(columns) if len(columns) > len(self._moments) else 0))
        if len(x) > len(self._values):
            self._values, self._scaled = np.zeros(len(x)), np.zeros(len(x))
        self._values[: len(x)] = values
        return np.fromiter((columns.get(name, -1) for name in x), np.int64, len(x)), len(x)

    def learn_one(self, x: Mapping[Any, Any]) -> None:
        columns, n = self._fill_values(x, True)
        n_clipped = learn_values(columns, self._values, n, self._bound, self._moments, self._first)
        if n_clipped < 0:
            FeatureSpace.raise_for_row(x)
        self.n_bounded += n_clipped

    def transform_one(self, x: Mapping[Any, Any]) -> dict[Hashable, float]:
        """Return the row ``x`` with standardised values, as a dict of feature name to float. Features that this scaler has not
        learned become 0. Raises a ValueError if a value is not a finite number.
        """
        columns, n = self._fill_values(x, False)
        if not standardise_values(columns, self._values, n, self._bound, self._moments, self._scaled):
            FeatureSpace.raise_for_row(x)
        return dict(zip(self._columns if columns is self._all else x, self._scaled[:n].tolist(), strict=True))

    def merge_with(self, *others: BoundedScaler) -> list[Units]:
        """Merge ``others``, scalers that have learned different rows, into this scaler, so that it has the statistics of all
        their values. Returns a dict for each scaler (this one first): the factor and the shift that convert its scaled values to
        those of the merged scaler, by feature name.

        Parameters
        ----------
        *others
            Scalers with the same ``deviations``. They do not change.

        Returns
        -------
        list of Units
            For the previous state of this scaler, and for each other scaler: the factor and shift of each feature that convert
            its scaled values to those of the merged scaler.

        Raises
        ------
        ValueError
            Their ``deviations`` differ.

        Examples
        --------
        >>> scalers = BoundedScaler(), BoundedScaler()
        >>> for scaler, values in zip(scalers, [(1.0, 3.0), (5.0, 7.0)]):
        ...     for value in values:
        ...         scaler.learn_one({"a": value})
        >>> _ = scalers[0].merge_with(scalers[1])
        >>> scalers[0].counts["a"], scalers[0].means["a"], scalers[0].vars["a"]
        (4, 4.0, 5.0)
        """
        scalers = [self, *others]
        if different := {scaler.deviations for scaler in others} - {self.deviations}:
            raise ValueError(
                f"scalers with deviations={self.deviations} and {different.pop()} cannot be merged: give both the same"
            )
        scales = [scaler._read_scale() for scaler in scalers]
        columns = {name: column for column, name in enumerate(dict.fromkeys(n for scaler in scalers for n in scaler._columns))}
        parts = []
        for scaler in scalers:
            merged_columns = np.array([columns[name] for name in scaler._columns], np.int64)
            moments = np.zeros((len(merged_columns), N_MOMENTS))
            moments[:, :3] = scaler._moments[: len(merged_columns)]
            parts.append((moments, scaler._first.copy(), merged_columns))
        moments, first = np.zeros((len(columns), N_MOMENTS)), np.zeros((len(columns), N_FIRST))
        pool_moments(parts, moments, first)
        self._columns, self.n_bounded = columns, sum(scaler.n_bounded for scaler in scalers)
        self._moments, self._first = moments[:, :3].copy(), first
        self._make_arrays(max(len(columns), 8))
        merged_scale = self._read_scale()
        return [compute_unit_conversion(scale, merged_scale) for scale in scales]

    def _read_scale(self) -> dict[Hashable, tuple[float, float]]:
        """Return the current scale of this scaler: a dict of feature name to (mean, standard deviation)."""
        variances = self.vars
        return {name: (mean, math.sqrt(variances[name])) for name, mean in self.means.items()}

    def learn_many(self, X: Any) -> None:
        matrix, names, columns, _ = self._read_matrix(X)
        if (columns < 0).any():
            for name in names:
                self._columns.setdefault(name, len(self._columns))
            self._make_arrays(max(len(self._moments), 2 * len(self._columns)))
            columns = np.array([self._columns[name] for name in names], np.int64)
        self.n_bounded += learn_value_rows(columns, matrix, self._bound, self._moments, self._first)

    def transform_many(self, X: Any) -> Any:
        """Return the rows of ``X`` (a frame or array) with standardised values, float64, as a frame if X is a frame. Features
        that this scaler has not learned become 0. Raises a ValueError if a value is not a finite number.
        """
        matrix, names, columns, like = self._read_matrix(X)
        standardise_rows(columns, matrix, self._bound, self._moments)
        return to_frame(matrix, names, like)

    def _read_matrix(self, X: Any) -> tuple[np.ndarray, list[Hashable], np.ndarray, Any]:
        """Convert ``X`` (a frame or array) to a new array, float64 [n, features], that the caller may change. Returns it with the
        feature names, the scaler's column index of each (-1 if unknown), and the frame (None for an array). Raises a ValueError
        if a value is not a finite float32 number.
        """
        matrix, names, like = to_matrix(X, np.float64)
        values = to_dense(matrix)
        is_valid = np.abs(values) <= LARGEST_FLOAT32
        if not is_valid.all():
            row = int(np.argmin(is_valid.all(axis=1)))
            FeatureSpace.raise_for_numbers(values[row], names, row)
        values = values.copy() if values is matrix else values
        return values, names, np.array([self._columns.get(name, -1) for name in names], np.int64), like

    def __getstate__(self) -> dict[str, Any]:
        n = len(self._columns)
        return {
            "deviations": self.deviations,
            "n_bounded": self.n_bounded,
            "names": list(self._columns),
            "moments": self._moments[:n].copy(),
            "first_values": self._first[:n].copy(),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._init_from(state)
        names, n = state["names"], len(state["names"])
        moments, first = (np.array(state[key], np.float64) for key in ("moments", "first_values"))
        check_hash_collisions(names)
        self._columns = {name: column for column, name in enumerate(names)}
        if len(self._columns) != n or moments.shape != (n, 3) or first.shape != (n, N_FIRST):
            raise ValueError(f"the saved scaler is corrupt: {n} names for moments {moments.shape} and first values {first.shape}")
        self.n_bounded = state["n_bounded"]
        self._make_arrays(max(n, len(self._moments)))
        self._moments[:n], self._first[:n] = moments, first


@complete_docstring
class BoundedTargetScaler(RegressorWrapper):
    """A wrapper that standardises the targets of a regressor, like river's TargetStandardScaler, and clips outliers.

    The regressor learns each target as the number of standard deviations from the mean of the targets before it, clipped as in
    `BoundedScaler`. Predictions are in the unit of the target.

    Parameters
    ----------
    regressor
        A river regressor.
    deviations
        The number of standard deviations from the mean to clip targets to, at least 2. None turns clipping off.

    Raises
    ------
    ValueError
        ``deviations`` is out of its range. From `learn_one`: the target is not a finite float32 number. Nothing is learned then.

    Examples
    --------
    >>> from river import datasets, evaluate, metrics
    >>> from streamsvm import BSCARegressor
    >>> model = BoundedScaler() | BoundedTargetScaler(BSCARegressor(budget=100))
    >>> round(evaluate.progressive_val_score(datasets.TrumpApproval(), model, metrics.MAE()).get(), 1)
    0.4
    """

    deviations: float | None = 8.0
    _forwarded = frozenset({"feature_names", "note_columns", "overflow", "can_learn_many"})

    def __init__(self, regressor: base.Regressor, deviations: float | None = 8.0) -> None:
        self._set_wrapped(regressor, regressor)
        if hasattr(regressor, "expect_scaled_targets"):
            regressor.expect_scaled_targets()
        self.deviations = deviations
        self._scaler = BoundedScaler(deviations)

    def _copy_with(self, parameters: dict[str, Any]) -> Any:
        """Return a model with the regressor and the statistics of this one, and with other ``parameters``."""
        changed = type(self)(self.regressor, **parameters)
        changed._scaler = self._scaler._copy_with(parameters)
        return changed

    @property
    def n_bounded(self) -> int:
        """The number of learned targets that were clipped as outliers, not counting the first 32."""
        return self._scaler.n_bounded

    def learn_one(self, x: dict[Any, Any], y: float, w: float = 1.0) -> None:
        target = {_TARGET: validate_target(y)}
        scaled = self._scaler.transform_one(target)[_TARGET]
        if w == 1.0:
            self.regressor.learn_one(x, scaled)
        else:  # not passed if it is 1, because some regressors do not accept weights
            self.regressor.learn_one(x, scaled, w=w)  # type: ignore[call-arg]
        if w != 0.0:
            self._scaler.learn_one(target)

    def predict_one(self, x: dict[Any, Any], **kwargs: Any) -> float:
        mean, deviation = self._target_unit
        return mean + deviation * float(super().predict_one(x, **kwargs))

    def explain_one(
        self, x: Mapping[Any, Any], typical: Mapping[Any, Any] | None = None, groups: Groups = None, label: Any = None
    ) -> Explanation:
        return super().explain_one(x, typical, groups, label).rescale(*self._target_unit)

    def examples_one(self, x: Mapping[Any, Any], n: int = 3) -> Examples:
        mean, deviation = self._target_unit

        def unscale(example: Example) -> Example:
            return example if example.target is None else example._replace(target=mean + deviation * example.target)

        return super().examples_one(x, n).map_examples(unscale)

    @property
    def _target_unit(self) -> tuple[float, float]:
        """The current mean and standard deviation of the targets, with which the regressor's targets and predictions are
        scaled.
        """
        n, mean, squares = self._scaler._moments[0].tolist()
        return mean, math.sqrt(squares / max(n, 1.0))

    def _predict_then_learn(
        self, predict: Any, X: np.ndarray, names: Sequence[Hashable], y: Sequence[Any], probability: Any, weights: Weights = None
    ) -> tuple[list[float], None] | None:
        """Predict each of the rows ``X`` before it is learned with its target in ``y``. ``predict`` does this with scaled
        targets: it is the wrapped regressor's method of this kind. Returns a list of predictions in the unit of the targets, and
        None instead of probabilities; or None alone if the rows must be processed one by one.
        """
        targets = np.array([math.nan if target is None else float(target) for target in y], np.float64)
        if not (np.abs(targets[~np.isnan(targets)]) <= LARGEST_FLOAT32).all():
            return None
        is_learned = ~np.isnan(targets) if weights is None else ~np.isnan(targets) & (weights > 0.0)
        moments, first, scale = self._scaler._moments[:1].copy(), self._scaler._first[:1].copy(), np.empty((len(targets), 3))
        n_clipped = standardise_targets(targets, is_learned, self._scaler._bound, moments[0], first[0], scale)
        scaled = [None if target is None else value for target, value in zip(y, scale[:, 2].tolist(), strict=True)]
        if (predictions := predict(X, names, scaled, probability, weights)) is None:
            return None
        if is_learned.any():
            self._scaler._columns.setdefault(_TARGET, 0)
            self._scaler._moments[:1], self._scaler._first[:1] = moments, first
            self._scaler.n_bounded += int(n_clipped)
        return (scale[:, 0] + scale[:, 1] * np.array(predictions[0])).tolist(), None

    def merge_with(self, *others: BoundedTargetScaler, units: Sequence[Units] | None = None) -> None:
        """Merge ``others``, trained models with the same parameters, into this model, so that it approximates one model that has
        learned the rows of all of them. ``units`` converts features of models with different scalers, as in
        `BSGDClassifier.merge_with`.

        Parameters
        ----------
        *others
            The other models. They do not change.
        units
            Conversions of features, as in `BSGDClassifier.merge_with`.

        Raises
        ------
        ValueError
            The models cannot be merged. This model does not change.
        """
        scaler = copy.deepcopy(self._scaler)
        target_units = scaler.merge_with(*(model._scaler for model in others))
        targets = [conversion.get(_TARGET, (1.0, 0.0)) for conversion in target_units]
        self.regressor.merge_with(*(model.regressor for model in others), units=units, targets=targets)  # type: ignore[attr-defined]
        self._scaler = scaler
