"""Compares predictions of exact machines with ten lines of numpy: a matrix product in float64, np.exp, and another product.

CPU seconds to predict 6,000 held-out rows, in turn in one process, after a fit of up to 10,000 rows at gamma = one over the
number of features, on one core: ``OMP_NUM_THREADS=1 taskset -c 1 python benchmarks/csmo_predictions.py``. Labels are compared
with the signs of numpy's values.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
from common import load_file, make_parser, print_table, report_progress, write_json

from streamsvm.batch import CSMOClassifier

SETS, COSTS, ROWS, REPEATS = ("w7a", "magic04", "eeg_eye", "ijcnn1"), (1.0, 32.0), 6000, 5


def compute_values(X: np.ndarray, S: np.ndarray, coefficients: np.ndarray, gamma: float) -> np.ndarray:
    """Return the decision values of rows X without the intercept, computed by numpy, 1,000 rows at a time."""
    squares, parts = np.square(S).sum(axis=1), []
    for start in range(0, len(X), 1000):
        x = X[start : start + 1000]
        K = x @ S.T
        K *= 2.0 * gamma
        K -= gamma * np.square(x).sum(axis=1)[:, np.newaxis]
        K -= gamma * squares
        parts.append(np.exp(K, out=K) @ coefficients)
    return np.concatenate(parts)


def measure_median(call: Callable[..., object], *args: object) -> float:
    """Return the median CPU seconds of some calls of a function."""
    seconds = []
    for _ in range(REPEATS):
        start = time.process_time()
        call(*args)
        seconds.append(time.process_time() - start)
    return statistics.median(seconds)


def main() -> None:
    args = make_parser(__doc__, "csmo_predictions").parse_args()
    results, table = {}, []
    for name in SETS:
        arrays = load_file(name, args.data)
        X, y = arrays["X"].astype(float), arrays["y"] > 0
        order = np.random.default_rng(0).permutation(len(y))
        learned, new = np.split(order, [min(10_000, len(y) * 6 // 10)])
        X = (X - X[learned].mean(axis=0)) / np.maximum(X[learned].std(axis=0), 1e-9)
        rows, gamma = np.ascontiguousarray(X[new[:ROWS]]), 1.0 / X.shape[1]
        for C in COSTS:
            model = CSMOClassifier(C=C, gamma=gamma).fit(X[learned], y[learned])
            S, c = np.ascontiguousarray(model.support_vectors_), model.dual_coef_[0]
            expected = compute_values(rows, S, c, gamma) + model.intercept_
            n_different = int((model.predict(rows) != (expected > 0.0)).sum())
            max_difference = float(np.abs(model.decision_function(rows) - expected).max())
            theirs = measure_median(compute_values, rows, S, c, gamma)
            ours = measure_median(model.decision_function, rows)
            speeds = {"numpy": theirs, "decision_function": ours}
            figures = {**speeds, "other labels": n_different, "off by": max_difference}
            results[f"{name}, C = {C:g}"] = {**figures, "support vectors": len(S)}
            cells = [f"{theirs:.3f}", f"{ours:.3f} ({ours / theirs:.2f})", n_different, f"{max_difference:.0e}"]
            table.append([f"{name}, C = {C:g}", f"{len(S):,}", *cells])
            report_progress(f"{name}, C = {C:g}: {figures}")
            write_json(args.out, {"sets": results})
    columns = ["", "support vectors", "numpy", "decision_function", "other labels", "off by"]
    print_table("CPU seconds of predictions (times numpy's)", columns, table)


if __name__ == "__main__":
    main()
