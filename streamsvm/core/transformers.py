"""Merging of transformers that have learned different rows.

Their means, variances and categories are pooled.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from river import preprocessing

#: Of each feature: the factor and the shift by which values that one transformer has scaled come into the units of another.
Units = Mapping[Any, tuple[float, float]]
_Scale = Mapping[Any, tuple[float, float]]


def import_standard_scaler() -> type[preprocessing.StandardScaler]:
    """Return river's class StandardScaler."""
    from river import preprocessing  # noqa: PLC0415 - takes a second, and few streams need it

    return preprocessing.StandardScaler


def merge_transformers(transformer: Any, others: Sequence[Any]) -> list[Units]:
    """Merge other transformers into one, which becomes that of all the rows that any of them has learned.

    It is a StandardScaler of river, or a transformer with its own ``merge_with``, such as `BoundedScaler` and `TableEncoder`. The
    others are of the same class and parameters, and stay as they are. Returned is, for ``transformer`` as it was and for each
    other, how to bring what it has scaled into the units of the result. If they cannot be merged, it is a ValueError, and all
    stay as they were.

    >>> from river import preprocessing
    >>> scalers = preprocessing.StandardScaler(), preprocessing.StandardScaler()
    >>> for scaler, values in zip(scalers, [(1.0, 3.0), (5.0, 7.0)]):
    ...     for value in values:
    ...         scaler.learn_one({"a": value})
    >>> units = merge_transformers(scalers[0], scalers[1:])
    >>> scalers[0].means["a"], scalers[0].vars["a"], units[0]["a"][0] == 1.0 / 5.0**0.5
    (4.0, 5.0, True)
    """
    kind = type(transformer)
    if unlike := [other for other in others if type(other) is not kind]:
        raise ValueError(f"a {kind.__name__} cannot be merged with a {type(unlike[0]).__name__}: give models of one kind")
    if kind is import_standard_scaler():
        return _pool_scalers(transformer, others)
    if not hasattr(transformer, "merge_with"):
        raise ValueError(
            f"models with a {kind.__name__} before them cannot be merged: how to pool what it has learned is not known. Of "
            "BoundedScaler, TableEncoder and StandardScaler it is"
        )
    units: list[Units] = transformer.merge_with(*others)
    return units


def compute_units(before: _Scale, after: _Scale) -> Units:
    """Return how to bring values from one scale to another. Both map each feature to its location and spread.

    >>> compute_units({"a": (1.0, 2.0)}, {"a": (3.0, 4.0)})
    {'a': (0.5, -0.5)}
    """
    units = {}
    for name, (location, spread) in before.items():
        new_location, new_spread = after[name]
        units[name] = (spread / new_spread, (location - new_location) / new_spread) if new_spread > 0.0 else (0.0, 0.0)
    return units


def _scale_of(scaler: preprocessing.StandardScaler) -> _Scale:
    return {name: (mean, math.sqrt(scaler.vars[name]) if scaler.with_std else 1.0) for name, mean in scaler.means.items()}


def _pool_scalers(ours: preprocessing.StandardScaler, others: Iterable[preprocessing.StandardScaler]) -> list[Units]:
    scalers = [ours, *others]
    parameters = {(scaler.with_std, scaler.window_size) for scaler in scalers}
    if len(parameters) > 1 or ours.window_size is not None:
        raise ValueError("a StandardScaler cannot be merged with others of other parameters, or of a window of rows")
    scales, names = [_scale_of(scaler) for scaler in scalers], dict.fromkeys(name for scaler in scalers for name in scaler.means)
    pooled = {}
    for name in names:
        known = [(scaler.counts[name], scaler.means[name], scaler.vars[name]) for scaler in scalers if name in scaler.means]
        count = sum(n for n, _, _ in known)
        mean = sum(n * mean for n, mean, _ in known) / max(count, 1)
        squares = sum(n * (variance + (of - mean) ** 2) for n, of, variance in known)
        pooled[name] = count, float(mean), float(squares / max(count, 1)) if ours.with_std else 0.0
    for name, (count, mean, variance) in pooled.items():
        ours.counts[name], ours.means[name] = count, mean
        if ours.with_std:
            ours.vars[name] = variance
    after = _scale_of(ours)
    return [compute_units(scale, after) for scale in scales]
