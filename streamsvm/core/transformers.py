"""Merges transformers that have learned different rows, by pooling their means, variances and categories."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from river import preprocessing

#: The factor and shift of each feature that convert values scaled by one transformer to the units of another.
Units = Mapping[Any, tuple[float, float]]
_Scale = Mapping[Any, tuple[float, float]]  # the location and spread of each feature


def import_standard_scaler() -> type[preprocessing.StandardScaler]:
    """Import river's StandardScaler when it is first needed (the import takes a second), and return the class."""
    from river import preprocessing  # noqa: PLC0415 - takes a second, and few streams need it

    return preprocessing.StandardScaler


def merge_transformers(transformer: Any, sources: Sequence[Any]) -> list[Units]:
    """Merge fitted transformers into ``transformer``, in place, as if it had learned the rows of all ``sources``, too. Returns,
    for it and for each source, {feature name: (factor, shift)}, which converts values scaled before the merge: new = factor * old
    + shift. Raises ValueError if they differ in class or parameters.

    The transformers are river's StandardScalers, or have their own method ``merge_with``, like `BoundedScaler` and
    `TableEncoder`. They must have the same class and parameters; the others do not change. The result has an entry for
    ``transformer`` and for each other one, which converts values that it has scaled to the units of the merged transformer.
    After an error, all are unchanged.

    >>> from river import preprocessing
    >>> scalers = preprocessing.StandardScaler(), preprocessing.StandardScaler()
    >>> for scaler, values in zip(scalers, [(1.0, 3.0), (5.0, 7.0)]):
    ...     for value in values:
    ...         scaler.learn_one({"a": value})
    >>> units = merge_transformers(scalers[0], scalers[1:])
    >>> scalers[0].means["a"], scalers[0].vars["a"], units[0]["a"][0] == 1.0 / 5.0**0.5
    (4.0, 5.0, True)
    """
    cls = type(transformer)
    if different := [source for source in sources if type(source) is not cls]:
        raise ValueError(f"a {cls.__name__} cannot be merged with a {type(different[0]).__name__}: give models of one kind")
    if cls is import_standard_scaler():
        return _pool_scalers(transformer, sources)
    if not hasattr(transformer, "merge_with"):
        raise ValueError(
            f"models behind a {cls.__name__} cannot be merged, because it has no merge_with: use a BoundedScaler, "
            "TableEncoder or StandardScaler"
        )
    units: list[Units] = transformer.merge_with(*sources)
    return units


def compute_unit_conversion(before: _Scale, after: _Scale) -> Units:
    """Return {feature name: (factor, shift)}, which converts values from one scaling to another: new = factor * old + shift. The
    scalings ``before`` and ``after`` map feature names to (location, spread), where scaled = (value - location) / spread. Both
    results are 0 if the new spread is 0.

    >>> compute_unit_conversion({"a": (1.0, 2.0)}, {"a": (3.0, 4.0)})
    {'a': (0.5, -0.5)}
    """
    units = {}
    for name, (location, spread) in before.items():
        new_location, new_spread = after[name]
        units[name] = (spread / new_spread, (location - new_location) / new_spread) if new_spread > 0.0 else (0.0, 0.0)
    return units


def _get_scale(scaler: preprocessing.StandardScaler) -> _Scale:
    """Return {feature name: (mean, standard deviation)} of a river StandardScaler; the deviation is 1 if it only centres
    (``with_std=False``).
    """
    return {name: (mean, math.sqrt(scaler.vars[name]) if scaler.with_std else 1.0) for name, mean in scaler.means.items()}


def _pool_scalers(target: preprocessing.StandardScaler, sources: Iterable[preprocessing.StandardScaler]) -> list[Units]:
    """Merge river StandardScalers ``sources`` into ``target``, in place, by pooling their means and variances. Returns, for the
    target and each source, {feature name: (factor, shift)}, which converts values scaled before the merge. Raises ValueError if
    their parameters differ or they have a window.
    """
    scalers = [target, *sources]
    parameters = {(scaler.with_std, scaler.window_size) for scaler in scalers}
    if len(parameters) > 1 or target.window_size is not None:
        raise ValueError("StandardScalers cannot be merged if their parameters differ, or if they have a window_size")
    scales, names = [_get_scale(scaler) for scaler in scalers], dict.fromkeys(name for scaler in scalers for name in scaler.means)
    pooled = {}
    for name in names:
        moments = [(scaler.counts[name], scaler.means[name], scaler.vars[name]) for scaler in scalers if name in scaler.means]
        count = sum(n for n, _, _ in moments)
        mean = sum(n * mean for n, mean, _ in moments) / max(count, 1)
        squares = sum(n * (variance + (scaler_mean - mean) ** 2) for n, scaler_mean, variance in moments)
        pooled[name] = count, float(mean), float(squares / max(count, 1)) if target.with_std else 0.0
    for name, (count, mean, variance) in pooled.items():
        target.counts[name], target.means[name] = count, mean
        if target.with_std:
            target.vars[name] = variance
    after = _get_scale(target)
    return [compute_unit_conversion(scale, after) for scale in scales]
