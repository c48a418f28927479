"""Why a model decides as it does of a row: how much each feature moves the decision, against a typical row."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from streamsvm.core.bars import axes_for, draw_bars, plain
from streamsvm.files.messages import cut

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LONGEST = 40  # characters of a name or a value
_MOST_BARS = 12


@dataclass(frozen=True)
class Explanation:
    """How much each feature of a row moves a decision, against that of a typical row.

    ``typical + sum(contributions.values()) + remainder`` is ``decision``. A contribution is the mean of two differences: what
    the feature changes in the typical row, and what it changes in the row itself. It is the Shapley value [1]_ of a function in
    which at most two features interact, as a sum of such terms is: so a feature that is not used has 0, equal ones share, and
    the parts of a sum are its terms. What three and more features do together is the ``remainder``.

    References
    ----------
    .. [1] E. Strumbelj and I. Kononenko, Explaining prediction models and individual predictions with feature contributions,
       Knowledge and Information Systems 41, 2014.

    Examples
    --------
    >>> from streamsvm import BSGDClassifier
    >>> model = BSGDClassifier(budget=20)
    >>> for i in range(200):
    ...     model.learn_one({"a": float(i % 7), "b": float(i % 2)}, "high" if i % 7 > 3 else "low")
    >>> found = model.explain_one({"a": 6.0, "b": 1.0})
    >>> found.prediction, list(found.contributions)
    ('high', ['a', 'b'])
    >>> total = found.typical + sum(found.contributions.values()) + found.remainder
    >>> round(total - found.decision, 9)
    0.0
    """

    prediction: Any
    """The label, the number, or of a model of anomalies None."""
    decision: float
    """The decision value of the label, above 0 if it is predicted; or the number."""
    typical: float
    """The same of the typical row."""
    contributions: dict[Hashable, float]
    """By feature, the largest first; of a table, by column."""
    remainder: float
    """What no feature does by itself, or with one other."""
    values: dict[Hashable, Any] = field(repr=False)
    """The values of the row, by feature or column."""

    def rescaled(self, mean: float, deviation: float) -> Explanation:
        """Return the explanation of a number in another unit: ``deviation`` times what it was, and ``mean`` more."""
        parts = {name: deviation * size for name, size in self.contributions.items()}
        decision, typical = (mean + deviation * value for value in (self.decision, self.typical))
        return Explanation(decision, decision, typical, parts, deviation * self.remainder, self.values)

    def __str__(self) -> str:
        given = self.prediction
        label = repr(given) if isinstance(given, str) else f"{given:.6g}" if isinstance(given, float) else str(given)
        what = "" if self.prediction is None else f"{label}: "
        lines = [f"{what}decision {self.decision:.4g}, of a typical row {self.typical:.4g}"]
        for name, size in self.contributions.items():
            value = self.values.get(name)
            text = "missing" if value is None else f"{value:g}" if isinstance(value, float) else cut(str(value), _LONGEST)
            lines.append(f"  {size:+10.4f}  {cut(str(name), _LONGEST)} = {text}")
        return "\n".join([*lines, f"  {self.remainder:+10.4f}  several together"])

    def plot(self, axes: Axes | None = None) -> Axes:
        """Draw a bar for each of the 12 largest contributions, and return the axes, by default the current ones of pyplot.

        You need matplotlib (extra ``plot``).
        """
        axes = axes_for(axes)
        given = {name: self.values.get(name) for name in self.contributions}
        texts = [f"{name} = {'missing' if x is None else f'{x:g}' if isinstance(x, float) else x}" for name, x in given.items()]
        draw_bars(axes, [*texts, "several together"], [*self.contributions.values(), self.remainder], _MOST_BARS)
        what = "" if self.prediction is None else f"{plain(self.prediction)}: "
        axes.set(xlabel="Contribution to the decision", title=f"{what}{self.decision:.3g}, a typical row {self.typical:.3g}")
        return axes


def contributions(
    decide: Callable[[np.ndarray], np.ndarray], row: np.ndarray, typical: np.ndarray, groups: np.ndarray, n_groups: int
) -> tuple[float, float, np.ndarray]:
    """Return the decision of a row, that of the typical row, and what each group of features contributes, float64 [n_groups].

    ``groups`` has the number of the group of each feature, int64 [features]. Two rows are decided for each group in which the row
    is not typical, and two more, in one call of ``decide``.

    Examples
    --------
    >>> row, typical = np.array([3.0, 2.0, 1.0]), np.array([1.0, 1.0, 1.0])
    >>> decision, base, parts = contributions(lambda rows: rows[:, 0] * rows[:, 1], row, typical, np.arange(3), 3)
    >>> decision, base, parts.tolist()
    (6.0, 1.0, [3.0, 2.0, 0.0])
    """
    moved = np.unique(groups[row != typical])
    n, within = len(moved), groups == moved[:, None]
    rows = np.vstack([row, np.where(within, typical, row), typical, np.where(within, row, typical)])
    decisions = decide(rows)
    found = np.zeros(n_groups)
    found[moved] = 0.5 * ((decisions[0] - decisions[1 : n + 1]) + (decisions[n + 2 :] - decisions[n + 1]))
    return float(decisions[0]), float(decisions[n + 1]), found


def explanation(
    prediction: Any,
    decide: Callable[[np.ndarray], np.ndarray],
    row: np.ndarray,
    typical: np.ndarray,
    names: Sequence[Hashable],
    groups: Mapping[Hashable, Hashable],
    values: Mapping[Hashable, Any],
) -> Explanation:
    """Return the explanation of a row [features], whose features belong to ``groups``, by default each to itself."""
    owners = [groups.get(name, name) for name in names] if groups else names
    numbers = {name: number for number, name in enumerate(dict.fromkeys(owners))}
    of = np.fromiter(map(numbers.__getitem__, owners), np.int64, len(owners))
    decision, base, found = contributions(decide, row, typical, of, len(numbers))
    order = np.argsort(-np.abs(found), kind="stable").tolist()
    listed, sizes = list(numbers), found.tolist()
    ordered = {listed[number]: sizes[number] for number in order}
    return Explanation(prediction, decision, base, ordered, decision - base - float(found.sum()), dict(values))
