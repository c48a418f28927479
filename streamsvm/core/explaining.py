"""Explanations of a model's decision for a row: the contribution of each feature, and similar rows that the model stores."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from streamsvm.files.messages import missing_package_error, shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Maps features to groups that are counted together. None: each feature is one.
Groups = Mapping[Any, Hashable] | None
MAX_NAME_CHARACTERS = 40  # of a name or a value
_MAX_BARS = 12
_MAX_WORDS = 5
_MAX_ROW_CHARACTERS = 200


@dataclass(frozen=True)
class Explanation:
    """The contribution of each feature of a row to the difference between its decision value and that of a typical row.

    ``typical + sum(contributions.values()) + remainder`` equals ``decision``. A contribution is the mean of two differences: the
    change of the decision if only this feature of the typical row is replaced by that of the row, and if only this feature of the
    row is replaced by that of the typical row. It is the Shapley value [1]_ if at most two features interact, and shares its
    properties: an unused feature has 0, equal features have equal contributions, and those of a sum of functions are the sums of
    contributions. The ``remainder`` contains the interactions of three and more features.

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
    >>> explanation = model.explain_one({"a": 6.0, "b": 1.0})
    >>> explanation.prediction, list(explanation.contributions)
    ('high', ['a', 'b'])
    >>> total = explanation.typical + sum(explanation.contributions.values()) + explanation.remainder
    >>> round(total - explanation.decision, 9)
    0.0
    """

    prediction: Any
    """The predicted label or number; None for an anomaly detector."""
    decision: float
    """The decision value of the label, above 0 if it is predicted; or the predicted number."""
    typical: float
    """The decision value, or number, of the typical row."""
    contributions: dict[Hashable, float]
    """Contributions by feature, or by column of a table, from the largest to the smallest absolute value."""
    remainder: float
    """The contribution of interactions of three and more features."""
    values: dict[Hashable, Any] = field(repr=False)
    """Values of the row, by feature or column."""
    words: dict[Hashable, dict[str, float]] = field(default_factory=dict)
    """The 5 most telling words of each column of texts, with the score of the word alone: above 0 if it speaks for the label, or
    for a larger number, as in `streamsvm.stream.tables.TableModel.score_words`.
    """

    def rescale(self, mean: float, deviation: float) -> Explanation:
        """Convert this explanation of a prediction to another unit of the target: multiply contributions by ``deviation``, and
        convert the predictions to ``mean + deviation * value``. Returns a new explanation.
        """
        parts = {name: deviation * size for name, size in self.contributions.items()}
        decision, typical = (mean + deviation * value for value in (self.decision, self.typical))
        return Explanation(decision, decision, typical, parts, deviation * self.remainder, self.values)

    def with_values(self, row: Mapping[Any, Any]) -> Explanation:
        """Return a copy of this explanation that displays the feature values of ``row``, the original row before it was scaled or
        encoded. Features that ``row`` does not contain keep their displayed value.
        """
        return replace(self, values={name: row.get(name, value) for name, value in self.values.items()})

    def __str__(self) -> str:
        value = self.prediction
        label = repr(value) if isinstance(value, str) else f"{value:.6g}" if isinstance(value, float) else str(value)
        prefix = "" if self.prediction is None else f"{label}: "
        lines = [f"{prefix}decision {self.decision:.4g}, of a typical row {self.typical:.4g}"]
        for name, size in self.contributions.items():
            lines.append(f"  {size:+10.4f}  {_format_value(name, self.values.get(name))}")
            if self.words.get(name):
                lines.append(f"{'':14}{'' if isinstance(value, float) else prefix}{format_words(self.words[name])}")
        return "\n".join([*lines, f"  {self.remainder:+10.4f}  several together"])

    def plot(self, axes: Axes | None = None) -> Axes:
        """Draw this explanation as a bar chart with the 12 largest contributions of features into the matplotlib ``axes`` (None:
        pyplot's current ones), and return the axes.

        This needs matplotlib (extra ``plot``).
        """
        axes = get_axes(axes)
        values = {name: self.values.get(name) for name in self.contributions}
        texts = [f"{name} = {'missing' if x is None else f'{x:g}' if isinstance(x, float) else x}" for name, x in values.items()]
        draw_bars(axes, [*texts, "several together"], [*self.contributions.values(), self.remainder], _MAX_BARS)
        prefix = "" if self.prediction is None else f"{to_plot_text(self.prediction)}: "
        axes.set(xlabel="Contribution to the decision", title=f"{prefix}{self.decision:.3g}, a typical row {self.typical:.3g}")
        return axes


class Example(NamedTuple):
    """A row or support vector that a model stores."""

    values: dict[Hashable, Any]
    """Values by feature, in the units of rows; for a table, by column."""
    target: Any
    """The label of the row or support vector, or its approximate target, since targets are stored by the scale of their time.
    None if the model does not store targets.
    """
    distance: float
    """Distance from the explained row by the model's metric; 0 for an equal row."""


@dataclass(frozen=True)
class Examples:
    """The stored rows or support vectors of a model that are most similar to a row.

    Ensembles store rows. Other kernel machines have support vectors, which are rows, or after a merge, points between two rows.

    Examples
    --------
    >>> from streamsvm import SVMClassifier
    >>> model = SVMClassifier(seed=0)
    >>> for i in range(200):
    ...     model.learn_one({"a": float(i % 7), "b": float(i % 2)}, "high" if i % 7 > 3 else "low")
    >>> print(model.examples_one({"a": 4.0, "b": 1.0}, n=1))
    'low': 1 of 200 rows
      distance 0.4977  a = 3, b = 1
    'high': 1 of 200 rows
      distance 0  a = 4, b = 1
    """

    nearest: dict[Any, list[Example]]
    """Examples of each label, nearest first; without labels, all examples under None."""
    n_candidates: int
    """Number of stored rows, or support vectors, that were compared."""
    kind: str
    """``"rows"`` or ``"support vectors"``."""

    def map_examples(self, function: Callable[[Example], Example]) -> Examples:
        """Return a copy of this collection of similar rows, with ``function`` applied to each `Example`."""
        return replace(self, nearest={label: list(map(function, examples)) for label, examples in self.nearest.items()})

    def __str__(self) -> str:
        lines = []
        for label, examples in self.nearest.items():
            prefix = "" if label is None else f"{label!r}: "
            lines.append(f"{prefix}{len(examples)} of {self.n_candidates:,} {self.kind}")
            for example in examples:
                target = f"  target {example.target:.6g}" if label is None and example.target is not None else ""
                values = ", ".join(_format_value(name, value) for name, value in example.values.items())
                lines.append(f"  distance {round(example.distance, 6):.4g}{target}  {shorten(values, _MAX_ROW_CHARACTERS)}")
        return "\n".join(lines)


def compute_distances(row: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the Euclidean distances, float64 [m], between ``row`` [features] and each row of ``rows`` [m, features]."""
    return np.sqrt(np.square(np.asarray(rows, np.float64) - row).sum(1))


def find_nearest_examples(
    names: Sequence[Hashable],
    rows: np.ndarray,
    distances: np.ndarray,
    targets: Sequence[Any],
    labels: Sequence[Any],
    n: int,
    kind: str,
) -> Examples:
    """Select the stored ``rows`` [m, features] with the smallest ``distances``: ``n`` for each label in ``labels``, or n in total
    if it is empty. ``names`` are the feature names, and ``targets`` the labels or numbers of the rows. Returns them as
    `Examples`, nearest first; ``kind`` is ``"rows"`` or ``"support vectors"``.
    """
    order = np.argsort(distances, kind="stable").tolist()
    nearest: dict[Any, list[Example]] = {label: [] for label in labels or [None]}
    for i in order:
        examples = nearest.setdefault(targets[i] if labels else None, [])
        if len(examples) < n:
            values = dict(zip(names, rows[i].tolist(), strict=True))
            examples.append(Example(values, targets[i], max(float(distances[i]), 0.0)))
    return Examples(nearest, len(rows), kind)


def _format_value(name: Hashable, value: Any) -> str:
    """Return the text ``name = value`` for a feature, such as ``age = 41``, shortened if it is long; "missing" for None."""
    text = "missing" if value is None else f"{value:g}" if isinstance(value, float) else shorten(str(value), MAX_NAME_CHARACTERS)
    return f"{shorten(str(name), MAX_NAME_CHARACTERS)} = {text}"


def select_strongest(scores: Mapping[str, float], n: int = _MAX_WORDS) -> dict[str, float]:
    """Return the ``n`` words with the largest absolute scores, largest first."""
    return dict(sorted(scores.items(), key=lambda pair: -abs(pair[1]))[:n])


def format_words(scores: Mapping[str, float]) -> str:
    """Return words with their scores as text.

    >>> format_words({"free": 3.14, "home": -0.5})
    "+3.1 'free', -0.5 'home'"
    """
    return ", ".join(f"{score:+.2g} {word!r}" for word, score in scores.items())


def compute_contributions(
    decide: Callable[[np.ndarray], np.ndarray], row: np.ndarray, typical: np.ndarray, groups: np.ndarray, n_groups: int
) -> tuple[float, float, np.ndarray]:
    """Explain why a model's decision value for ``row`` differs from that for a ``typical`` row: split the difference into
    contributions of groups of features. ``decide`` computes decision values [m] of rows [m, features]. Returns (decision value of
    the row, that of the typical row, contributions float64 [n_groups]).

    ``groups`` contains the group number of each feature, int64 [features]. ``decide`` is called once, with two rows for each
    group where the row differs from the typical row, and two more.

    >>> row, typical = np.array([3.0, 2.0, 1.0]), np.array([1.0, 1.0, 1.0])
    >>> decision, base, parts = compute_contributions(lambda rows: rows[:, 0] * rows[:, 1], row, typical, np.arange(3), 3)
    >>> decision, base, parts.tolist()
    (6.0, 1.0, [3.0, 2.0, 0.0])
    """
    different = np.unique(groups[row != typical])
    n, is_member = len(different), groups == different[:, None]
    rows = np.vstack([row, np.where(is_member, typical, row), typical, np.where(is_member, row, typical)])
    decisions = decide(rows)
    contributions = np.zeros(n_groups)
    contributions[different] = 0.5 * ((decisions[0] - decisions[1 : n + 1]) + (decisions[n + 2 :] - decisions[n + 1]))
    return float(decisions[0]), float(decisions[n + 1]), contributions


def make_explanation(
    prediction: Any,
    decide: Callable[[np.ndarray], np.ndarray],
    row: np.ndarray,
    typical: np.ndarray,
    names: Sequence[Hashable],
    groups: Mapping[Hashable, Hashable],
    values: Mapping[Hashable, Any],
) -> Explanation:
    """Explain a ``prediction`` for ``row`` [features] by the contributions of features to the difference from a ``typical`` row.
    ``decide`` maps rows to decision values, and ``groups`` maps the ``names`` of features that belong together to a common name.
    Returns an `Explanation`, largest contribution first, with ``values`` to display.

    ``groups`` maps feature names to the name of their group, such as a column; other features are their own group.
    """
    group_names = [groups.get(name, name) for name in names] if groups else names
    numbers = {name: number for number, name in enumerate(dict.fromkeys(group_names))}
    group_numbers = np.fromiter(map(numbers.__getitem__, group_names), np.int64, len(group_names))
    decision, base, contributions = compute_contributions(decide, row, typical, group_numbers, len(numbers))
    order = np.argsort(-np.abs(contributions), kind="stable").tolist()
    unique_names, sizes = list(numbers), contributions.tolist()
    ordered = {unique_names[number]: sizes[number] for number in order}
    return Explanation(prediction, decision, base, ordered, decision - base - float(contributions.sum()), dict(values))


COLOR_FOR, COLOR_AGAINST = "#2166ac", "#b2182b"


def get_axes(axes: Axes | None) -> Axes:
    """Return the matplotlib ``axes`` to draw on; if None, pyplot's current axes. Raises an ImportError with the pip command to
    use if matplotlib is missing.
    """
    if axes is not None:
        return axes
    try:
        import matplotlib.pyplot as plt  # noqa: PLC0415 - of an extra
    except ImportError as error:
        raise missing_package_error("drawing", "matplotlib", "plot", error) from error
    return plt.gca()


def to_plot_text(text: Any) -> str:
    """Convert ``text`` to one short line for a matplotlib plot. Dollar signs are escaped, since they would begin a formula."""
    text = " ".join(str(text).split())
    return (text if len(text) <= MAX_NAME_CHARACTERS else f"{text[: MAX_NAME_CHARACTERS - 3]}...").replace("$", r"\$")


def draw_bars(axes: Axes, names: Sequence[Any], sizes: Sequence[float], max_bars: int) -> None:
    """Draw a horizontal bar chart into the matplotlib ``axes``: a bar of length ``sizes[i]`` with the label ``names[i]`` for the
    first ``max_bars`` items, from top to bottom, and one for the sum of the remaining items.
    """
    texts, values = [to_plot_text(name) for name in names[:max_bars]], list(sizes[:max_bars])
    if len(names) > max_bars:
        texts.append(f"{len(names) - max_bars:,} others")
        values.append(sum(sizes[max_bars:]))
    positions = range(len(values))
    axes.barh(positions, values, color=[COLOR_FOR if value >= 0.0 else COLOR_AGAINST for value in values])
    axes.set_yticks(positions, texts)
    axes.invert_yaxis()
    axes.axvline(0.0, color="black", linewidth=0.8)
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
