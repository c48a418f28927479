"""Why a model decides as it does of a row: how much each feature moves the decision, and which rows it knows that are like it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from streamsvm.files.messages import missing_package_error, shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LONGEST_NAME = 40  # characters of a name or a value
_MOST_BARS = 12
_LONGEST_ROW = 200


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
    """The part that no feature has by itself, or with one other."""
    values: dict[Hashable, Any] = field(repr=False)
    """The values of the row, by feature or column."""

    def rescaled(self, mean: float, deviation: float) -> Explanation:
        """Return the explanation of a number in another unit: ``deviation`` times what it was, and ``mean`` more."""
        parts = {name: deviation * size for name, size in self.contributions.items()}
        decision, typical = (mean + deviation * value for value in (self.decision, self.typical))
        return Explanation(decision, decision, typical, parts, deviation * self.remainder, self.values)

    def with_values(self, row: Mapping[Any, Any]) -> Explanation:
        """Return the explanation with the values of a row as it came, before transformers that kept the names."""
        return replace(self, values={name: row.get(name, value) for name, value in self.values.items()})

    def __str__(self) -> str:
        given = self.prediction
        label = repr(given) if isinstance(given, str) else f"{given:.6g}" if isinstance(given, float) else str(given)
        what = "" if self.prediction is None else f"{label}: "
        lines = [f"{what}decision {self.decision:.4g}, of a typical row {self.typical:.4g}"]
        lines += [f"  {size:+10.4f}  {_name_and_value(name, self.values.get(name))}" for name, size in self.contributions.items()]
        return "\n".join([*lines, f"  {self.remainder:+10.4f}  several together"])

    def plot(self, axes: Axes | None = None) -> Axes:
        """Draw a bar for each of the 12 largest contributions, and return the axes, by default the current ones of pyplot.

        You need matplotlib (extra ``plot``).
        """
        axes = get_axes(axes)
        given = {name: self.values.get(name) for name in self.contributions}
        texts = [f"{name} = {'missing' if x is None else f'{x:g}' if isinstance(x, float) else x}" for name, x in given.items()]
        draw_bars(axes, [*texts, "several together"], [*self.contributions.values(), self.remainder], _MOST_BARS)
        what = "" if self.prediction is None else f"{to_plot_text(self.prediction)}: "
        axes.set(xlabel="Contribution to the decision", title=f"{what}{self.decision:.3g}, a typical row {self.typical:.3g}")
        return axes


class Example(NamedTuple):
    """A row that a model knows."""

    values: dict[Hashable, Any]
    """By feature, in the units of rows; of a table, by column."""
    target: Any
    """Its label, or the label that a support vector speaks for. Its number, about: it is kept as it was scaled when it came. None
    where neither is kept.
    """
    distance: float
    """Its distance from the row that was asked about, as the model measures it: 0 is the same row."""


@dataclass(frozen=True)
class Examples:
    """The rows that a model knows which are nearest to a row.

    An ensemble remembers rows. Other kernel machines have support vectors: rows, or after a merge something between two rows.

    Examples
    --------
    >>> from streamsvm import SVMClassifier
    >>> model = SVMClassifier(seed=0)
    >>> for i in range(200):
    ...     model.learn_one({"a": float(i % 7), "b": float(i % 2)}, "high" if i % 7 > 3 else "low")
    >>> found = model.examples_one({"a": 4.0, "b": 1.0}, n=1)
    >>> print(found)
    'low': 1 of 200 rows
      distance 0.4977  a = 3, b = 1
    'high': 1 of 200 rows
      distance 0  a = 4, b = 1
    """

    nearest: dict[Any, list[Example]]
    """Those of each label, the nearest first; where there are no labels, all of them under None."""
    n_known: int
    """The number of rows, or support vectors, among which they were found."""
    what: str
    """``"rows"`` or ``"support vectors"``."""

    def changed(self, change: Callable[[Example], Example]) -> Examples:
        """Return the same with each example changed."""
        return replace(self, nearest={label: [change(each) for each in found] for label, found in self.nearest.items()})

    def __str__(self) -> str:
        lines = []
        for label, found in self.nearest.items():
            of = "" if label is None else f"{label!r}: "
            lines.append(f"{of}{len(found)} of {self.n_known:,} {self.what}")
            for each in found:
                target = f"  target {each.target:.6g}" if label is None and each.target is not None else ""
                values = ", ".join(_name_and_value(name, value) for name, value in each.values.items())
                lines.append(f"  distance {round(each.distance, 6):.4g}{target}  {shorten(values, _LONGEST_ROW)}")
        return "\n".join(lines)


def compute_distances(row: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the Euclidean distance of each of m rows to a row, float64 [m]."""
    return np.sqrt(np.square(np.asarray(rows, np.float64) - row).sum(1))


def find_nearest_examples(
    names: Sequence[Hashable],
    rows: np.ndarray,
    distances: np.ndarray,
    targets: Sequence[Any],
    labels: Sequence[Any],
    n: int,
    what: str,
) -> Examples:
    """Return the n nearest of rows [m, features] for each label, or of all where there are no ``labels``."""
    order = np.argsort(distances, kind="stable").tolist()
    found: dict[Any, list[Example]] = {label: [] for label in labels or [None]}
    for i in order:
        among = found.setdefault(targets[i] if labels else None, [])
        if len(among) < n:
            values = dict(zip(names, rows[i].tolist(), strict=True))
            among.append(Example(values, targets[i], max(float(distances[i]), 0.0)))
    return Examples(found, len(rows), what)


def _name_and_value(name: Hashable, value: Any) -> str:
    """Return a feature and its value as people read it."""
    text = "missing" if value is None else f"{value:g}" if isinstance(value, float) else shorten(str(value), LONGEST_NAME)
    return f"{shorten(str(name), LONGEST_NAME)} = {text}"


def compute_contributions(
    decide: Callable[[np.ndarray], np.ndarray], row: np.ndarray, typical: np.ndarray, groups: np.ndarray, n_groups: int
) -> tuple[float, float, np.ndarray]:
    """Return the decision of a row, that of the typical row, and what each group of features contributes, float64 [n_groups].

    ``groups`` has the number of the group of each feature, int64 [features]. Two rows are decided for each group in which the row
    is not typical, and two more, in one call of ``decide``.

    >>> row, typical = np.array([3.0, 2.0, 1.0]), np.array([1.0, 1.0, 1.0])
    >>> decision, base, parts = compute_contributions(lambda rows: rows[:, 0] * rows[:, 1], row, typical, np.arange(3), 3)
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


def make_explanation(
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
    decision, base, found = compute_contributions(decide, row, typical, of, len(numbers))
    order = np.argsort(-np.abs(found), kind="stable").tolist()
    listed, sizes = list(numbers), found.tolist()
    ordered = {listed[number]: sizes[number] for number in order}
    return Explanation(prediction, decision, base, ordered, decision - base - float(found.sum()), dict(values))


COLOR_FOR, COLOR_AGAINST = "#2166ac", "#b2182b"


def get_axes(axes: Axes | None) -> Axes:
    """Return the axes to draw on: those that are given, else the current ones of pyplot."""
    if axes is not None:
        return axes
    try:
        import matplotlib.pyplot as plt  # noqa: PLC0415 - of an extra
    except ImportError as error:
        raise missing_package_error("drawing", "matplotlib", "plot", error) from error
    return plt.gca()


def to_plot_text(text: Any) -> str:
    """Return a text from anywhere as one short line, without the signs of formulas."""
    text = " ".join(str(text).split())
    return (text if len(text) <= LONGEST_NAME else f"{text[: LONGEST_NAME - 3]}...").replace("$", r"\$")


def draw_bars(axes: Axes, names: Sequence[Any], sizes: Sequence[float], most: int) -> None:
    """Draw a bar for each of the first ``most`` names, the first at the top, and one for the sum of the others."""
    texts, values = [to_plot_text(name) for name in names[:most]], list(sizes[:most])
    if len(names) > most:
        texts.append(f"{len(names) - most:,} others")
        values.append(sum(sizes[most:]))
    places = range(len(values))
    axes.barh(places, values, color=[COLOR_FOR if value >= 0.0 else COLOR_AGAINST for value in values])
    axes.set_yticks(places, texts)
    axes.invert_yaxis()
    axes.axvline(0.0, color="black", linewidth=0.8)
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
