"""Measures detectors of anomalies on labelled sets: the area under the ROC curve of scores given before each row is learned.

The rows of the most frequent label are normal, and other rows, a twentieth as many, are anomalies. A detector scores 50 rows,
then learns them, and so on. The first tenth of the rows is not counted. Sets alternate between two halves, so that a setting can
be chosen on one half and confirmed on the other; the last table does that with the width of our kernel.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from common import FILES, load_file, make_parser, print_table, report_progress, to_dicts, write_json
from river import anomaly, preprocessing
from sklearn import datasets
from sklearn.ensemble import IsolationForest
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import StandardScaler

from streamsvm import OneClassBSGD

IN_ORDER = frozenset({"elec2", "ijcnn1", "eeg_eye", "sea_stream"})  # sets in the order of time; others are shuffled
FROM_FILES = (
    "a9a",
    "chess",
    "eeg_eye",
    "elec2",
    "ijcnn1",
    "krkopt",
    "letter",
    "magic04",
    "phishing",
    "sea_stream",
    "skin",
    "w7a",
)
FROM_SKLEARN = ("breast_cancer", "digits", "iris", "wine")
CHUNK_ROWS, WINDOW_ROWS, REFIT_ROWS = 50, 2000, 500
WIDTHS = (1.0, 2.0, 4.0, 8.0)  # gamma times the number of features
Scorer = Callable[[np.ndarray], np.ndarray]


def load_sets(data: Path | None, rows: int) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield the name of each set, its rows float64 [n, d], and which of them are anomalies, bool [n]."""
    for name in sorted((*FROM_FILES, *FROM_SKLEARN)):
        if name in FILES:
            arrays = load_file(name, data)
            X, y = arrays["X"].astype(np.float64), arrays["y"]
        else:
            X, y = getattr(datasets, f"load_{name}")(return_X_y=True)
        rng, (labels, counts) = np.random.default_rng(0), np.unique(y, return_counts=True)
        is_normal = y == labels[counts.argmax()]
        normal = rng.permutation(np.flatnonzero(is_normal))[:rows]
        strange = rng.permutation(np.flatnonzero(~is_normal))[: max(10, len(normal) // 20)]
        order = np.concatenate([normal, strange])
        order = np.sort(order) if name in IN_ORDER else rng.permutation(order)
        yield name, X[order], ~is_normal[order]


class Ours:
    """`OneClassBSGD`, which learns chunks."""

    def __init__(self, **parameters: Any) -> None:
        self.model = OneClassBSGD(seed=0, **parameters)

    def score(self, X: np.ndarray) -> np.ndarray:
        return self.model.score_many(X)

    def learn(self, X: np.ndarray) -> None:
        self.model.learn_many(X)


class River:
    """A detector of river, which learns row by row, behind a scaler to [0, 1]."""

    def __init__(self) -> None:
        self.model = preprocessing.MinMaxScaler() | anomaly.HalfSpaceTrees(seed=0)

    def score(self, X: np.ndarray) -> np.ndarray:
        return np.array([self.model.score_one(x) for x in to_dicts(X)])

    def learn(self, X: np.ndarray) -> None:
        for x in to_dicts(X):
            self.model.learn_one(x)


class Window:
    """A detector that is fitted to the last 2,000 rows: after 50, 100, 200 and 400 rows, and then every ``every`` rows."""

    def __init__(self, fit: Callable[[np.ndarray], Scorer], every: int) -> None:
        self.fit, self.every, self.n_rows = fit, every, 0
        self.rows: list[np.ndarray] = []
        self.scorer: Scorer = lambda X: np.zeros(len(X))

    def score(self, X: np.ndarray) -> np.ndarray:
        return self.scorer(X)

    def learn(self, X: np.ndarray) -> None:
        self.rows = [*self.rows, X][-WINDOW_ROWS // CHUNK_ROWS :]
        self.n_rows += len(X)
        if self.n_rows % self.every == 0 or self.n_rows in (50, 100, 200, 400):
            self.scorer = self.fit(np.vstack(self.rows))


def fit_forest(X: np.ndarray) -> Scorer:
    forest = IsolationForest(random_state=0).fit(X)
    return lambda Z: -forest.score_samples(Z)


def fit_neighbours(X: np.ndarray) -> Scorer:
    """Return the distance to the tenth neighbour, among standardised rows, as a score."""
    scaler = StandardScaler().fit(X)
    neighbours = NearestNeighbors(n_neighbors=min(10, len(X))).fit(scaler.transform(X))
    return lambda Z: neighbours.kneighbors(scaler.transform(Z))[0][:, -1]


DETECTORS: dict[str, Callable[[], Any]] = {
    "OneClassBSGD": Ours,
    "OneClassBSGD, nu=0.5": lambda: Ours(nu=0.5),
    "HalfSpaceTrees": River,
    "kNN in a window": lambda: Window(fit_neighbours, CHUNK_ROWS),
    "IsolationForest, refitted": lambda: Window(fit_forest, REFIT_ROWS),
}


def measure(detector: Any, X: np.ndarray, is_anomaly: np.ndarray) -> tuple[float, float]:
    """Return the area under the ROC curve of a detector, and its microseconds of CPU for a row (scoring and learning)."""
    scores, start = [], time.process_time()
    for i in range(0, len(X), CHUNK_ROWS):
        scores.append(detector.score(X[i : i + CHUNK_ROWS]))
        detector.learn(X[i : i + CHUNK_ROWS])
    seconds, first = time.process_time() - start, len(X) // 10
    return float(roc_auc_score(is_anomaly[first:], np.concatenate(scores)[first:])), 1e6 * seconds / len(X)


def compute_means(values: list[float]) -> list[float]:
    """Return the mean over all sets, over half A and over half B."""
    return [float(np.mean(part)) for part in (values, values[::2], values[1::2])]


def measure_sets(args: argparse.Namespace) -> dict[str, Any]:
    """Return the areas and the microseconds of each detector, and the areas of each width of our kernel, by set."""
    areas: dict[str, dict[str, float]] = {}
    times: dict[str, dict[str, float]] = {}
    widths: dict[str, dict[str, float]] = {}
    Ours().learn(np.random.default_rng(0).normal(size=(200, 2)))  # compiles
    for name, X, is_anomaly in load_sets(args.data, args.rows):
        results = {detector: measure(make(), X, is_anomaly) for detector, make in DETECTORS.items()}
        areas[name] = {detector: area for detector, (area, _) in results.items()}
        times[name] = {detector: microseconds for detector, (_, microseconds) in results.items()}
        widths[name] = {f"{width:g}/d": measure(Ours(gamma=width / X.shape[1]), X, is_anomaly)[0] for width in WIDTHS}
        report_progress(f"{name}: " + ", ".join(f"{detector} {area:.3f}" for detector, area in areas[name].items()))
    return {"areas": areas, "microseconds": times, "widths": widths}


def print_results(results: dict[str, Any]) -> None:
    areas, detectors = results["areas"], list(DETECTORS)
    rows = [
        (f"{name} ({'AB'[i % 2]})", *(f"{areas[name][detector]:.3f}" for detector in detectors)) for i, name in enumerate(areas)
    ]
    means = {detector: compute_means([areas[name][detector] for name in areas]) for detector in detectors}
    for i, half in enumerate(("mean", "mean of half A", "mean of half B")):
        rows.append((half, *(f"{means[detector][i]:.3f}" for detector in detectors)))
    medians = (np.median([row[detector] for row in results["microseconds"].values()]) for detector in detectors)
    rows.append(("microseconds a row, median", *(f"{value:.0f}" for value in medians)))
    print_table("Area under the ROC curve", ("set", *detectors), rows)
    widths = results["widths"]
    width_means = {width: compute_means([row[width] for row in widths.values()]) for width in next(iter(widths.values()))}
    width_means["default"] = means["OneClassBSGD"]
    print_table(
        "OneClassBSGD: mean area by gamma (d features)",
        ("gamma", "all", "half A", "half B"),
        [(width, *(f"{value:.3f}" for value in values)) for width, values in width_means.items()],
    )


def main() -> None:
    parser = make_parser(__doc__, "anomalies")
    parser.add_argument("--rows", type=int, default=6000, help="the most normal rows of a set (default: %(default)s)")
    args = parser.parse_args()
    results = measure_sets(args)
    print_results(results)
    write_json(args.out, results)


if __name__ == "__main__":
    main()
