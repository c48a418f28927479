"""Computes mean ranks of learners over streams, with Nemenyi's critical difference, and plots the results of a suite.

Demsar (2006), Statistical comparisons of classifiers over multiple data sets.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

MIN_POINT_ROWS = 5  # a reliability plot leaves out bins with fewer rows


def compute_mean_ranks(values: np.ndarray) -> np.ndarray:
    """Return the mean rank of each learner, float64 [learners]; 1 is the best, and ties get the mean of their ranks.

    Parameters
    ----------
    values
        float64 [streams, learners], larger is better; -inf where a learner failed.
    """
    below = (values[:, :, np.newaxis] < values[:, np.newaxis, :]).sum(axis=2)
    equal = (values[:, :, np.newaxis] == values[:, np.newaxis, :]).sum(axis=2)
    return (below + 0.5 * (equal + 1)).mean(axis=0)


def compute_critical_difference(n_learners: int, n_streams: int, level: float = 0.05) -> float | None:
    """Return the smallest significant difference of two mean ranks in Nemenyi's test; None if scipy is missing."""
    try:
        from scipy.stats import studentized_range  # noqa: PLC0415 - optional
    except ImportError:
        return None
    quantile = float(studentized_range.ppf(1.0 - level, n_learners, math.inf)) / math.sqrt(2.0)
    return quantile * math.sqrt(n_learners * (n_learners + 1) / (6.0 * n_streams))


def compute_friedman_p(values: np.ndarray) -> float | None:
    """Return the p value of Friedman's test that all learners are equally good; None without scipy, or with too few values."""
    if values.shape[0] < 2 or values.shape[1] < 3:
        return None
    try:
        from scipy.stats import friedmanchisquare  # noqa: PLC0415 - optional
    except ImportError:
        return None
    lowest = np.where(np.isfinite(values), values, values[np.isfinite(values)].min() - 1.0)
    return float(friedmanchisquare(*lowest.T).pvalue)


def plot_curves(curves: dict[str, dict[str, list[float]]], block: int, label: str, folder: Any) -> None:
    """Save a plot of a metric over time for each stream, with one line for each learner.

    Parameters
    ----------
    curves
        For each stream and learner, the means of its blocks of rows.
    block
        Number of rows in a block.
    label
        Name of the metric.
    folder
        A `Path`; it is created if it is missing.
    """
    import matplotlib  # noqa: PLC0415 - optional

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    folder.mkdir(parents=True, exist_ok=True)
    for name, learners in curves.items():
        figure, axes = plt.subplots(figsize=(10, 5), layout="constrained")
        for learner, means in learners.items():
            axes.plot([(i + 1) * block for i in range(len(means))], means, label=learner, linewidth=1.2)
        axes.set(title=name, xlabel="row", ylabel=f"{label} in {block} rows")
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
        figure.savefig(folder / f"{name}.png", dpi=120)
        plt.close(figure)


def plot_reliability(points: dict[str, dict[str, Any]], folder: Any) -> None:
    """Save a reliability plot for each stream: a panel for each class (only the second one of two), a line for each learner.

    A point is a bin of rows: the predicted probability of the class, and its frequency. They are equal on the diagonal.

    Parameters
    ----------
    points
        For each stream, learner and class, its bins: ``rows``, ``probability``, ``frequency``. Streams without bins are left out.
    folder
        A `Path`; it is created if it is missing.
    """
    import matplotlib  # noqa: PLC0415 - optional

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    folder.mkdir(parents=True, exist_ok=True)
    for name, learners in points.items():
        labels = sorted({label for classes in learners.values() for label in classes})
        labels = labels[1:] if len(labels) == 2 else labels
        if not labels:
            continue
        across = min(len(labels), 4)
        down = math.ceil(len(labels) / across)
        figure, grid = plt.subplots(
            down,
            across,
            figsize=(max(4 * across, 6), 4 * down + 1),
            layout="constrained",
            squeeze=False,
            sharex=True,
            sharey=True,
        )
        for axes in grid.flat[len(labels) :]:
            axes.set_visible(False)
        for axes, label in zip(grid.flat, labels, strict=False):
            axes.plot([0, 1], [0, 1], color="gray", linewidth=0.8, linestyle=":")
            for learner, classes in learners.items():
                if (bins := classes.get(label)) is None:
                    axes.plot([], [], label=learner)
                    continue
                rows, x, y = (np.array(bins[name]) for name in ("rows", "probability", "frequency"))
                is_shown = rows >= MIN_POINT_ROWS
                line = axes.plot(x[is_shown], y[is_shown], label=learner, linewidth=1.2)
                sizes = 4.0 + 60.0 * rows[is_shown] / rows.sum()
                axes.scatter(x[is_shown], y[is_shown], s=sizes, color=line[0].get_color(), alpha=0.7)
            axes.set(
                title=label, xlabel="probability", ylabel="frequency", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), aspect="equal"
            )
            axes.grid(alpha=0.3)
        handles, names = grid.flat[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=2, fontsize="small")
        figure.suptitle(f"{name}: reliability of probabilities; a dot's size is its share of the rows")
        figure.savefig(folder / f"{name} reliability.png", dpi=110)
        plt.close(figure)
