"""Mean ranks of learners over streams, with Nemenyi's critical difference.

Demsar (2006), Statistical comparisons of classifiers over multiple data sets.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

FEWEST = 5  # rows of a point of a reliability plot


def mean_ranks(values: np.ndarray) -> np.ndarray:
    """Mean rank of each learner, 1 the best; equal values share their ranks.

    Parameters
    ----------
    values
        float64 [streams, learners], the larger the better; -inf where a learner failed.
    """
    below = (values[:, :, np.newaxis] < values[:, np.newaxis, :]).sum(axis=2)
    equal = (values[:, :, np.newaxis] == values[:, np.newaxis, :]).sum(axis=2)
    return (below + 0.5 * (equal + 1)).mean(axis=0)


def critical_difference(n_learners: int, n_streams: int, level: float = 0.05) -> float | None:
    """By how much two mean ranks must differ by Nemenyi's test; None where scipy is missing."""
    try:
        from scipy.stats import studentized_range  # noqa: PLC0415 - optional
    except ImportError:
        return None
    quantile = float(studentized_range.ppf(1.0 - level, n_learners, math.inf)) / math.sqrt(2.0)
    return quantile * math.sqrt(n_learners * (n_learners + 1) / (6.0 * n_streams))


def friedman(values: np.ndarray) -> float | None:
    """Probability of ranks as different as these if all learners were alike; None where scipy is missing or they are too few."""
    if values.shape[0] < 2 or values.shape[1] < 3:
        return None
    try:
        from scipy.stats import friedmanchisquare  # noqa: PLC0415 - optional
    except ImportError:
        return None
    lowest = np.where(np.isfinite(values), values, values[np.isfinite(values)].min() - 1.0)
    return float(friedmanchisquare(*lowest.T).pvalue)


def plot(curves: dict[str, dict[str, list[float]]], block: int, label: str, folder: Any) -> None:
    """A plot over time for each stream, one line a learner.

    Parameters
    ----------
    curves
        Stream to learner to the means of its blocks.
    block
        Rows of a block.
    label
        What the values are.
    folder
        A `Path`; it is made.
    """
    import matplotlib  # noqa: PLC0415 - optional

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    folder.mkdir(parents=True, exist_ok=True)
    for name, of in curves.items():
        figure, axes = plt.subplots(figsize=(10, 5), layout="constrained")
        for learner, means in of.items():
            axes.plot([(i + 1) * block for i in range(len(means))], means, label=learner, linewidth=1.2)
        axes.set(title=name, xlabel="row", ylabel=f"{label} in {block} rows")
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
        figure.savefig(folder / f"{name}.png", dpi=120)
        plt.close(figure)


def plot_reliability(points: dict[str, dict[str, Any]], folder: Any) -> None:
    """A reliability plot for each stream: one panel a class (of two classes the second alone), one line a learner.

    A point is a bin of rows: how probable a learner called the class, and how frequent it was. On the diagonal the two agree.

    Parameters
    ----------
    points
        Stream to learner to class to its bins: ``rows``, ``probability``, ``frequency``. Streams without any are left out.
    folder
        A `Path`; it is made.
    """
    import matplotlib  # noqa: PLC0415 - optional

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    folder.mkdir(parents=True, exist_ok=True)
    for name, of in points.items():
        labels = sorted({label for classes in of.values() for label in classes})
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
            for learner, classes in of.items():
                if (bins := classes.get(label)) is None:
                    axes.plot([], [], label=learner)
                    continue
                rows, x, y = (np.array(bins[name]) for name in ("rows", "probability", "frequency"))
                held = rows >= FEWEST
                line = axes.plot(x[held], y[held], label=learner, linewidth=1.2)
                sizes = 4.0 + 60.0 * rows[held] / rows.sum()
                axes.scatter(x[held], y[held], s=sizes, color=line[0].get_color(), alpha=0.7)
            axes.set(
                title=label, xlabel="probability", ylabel="frequency", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), aspect="equal"
            )
            axes.grid(alpha=0.3)
        handles, names = grid.flat[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=2, fontsize="small")
        figure.suptitle(f"{name}: reliability of probabilities; a dot's size is its share of the rows")
        figure.savefig(folder / f"{name} reliability.png", dpi=110)
        plt.close(figure)
