"""Mean ranks of learners over streams, with Nemenyi's critical difference.

Demsar (2006), Statistical comparisons of classifiers over multiple data sets.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np


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
