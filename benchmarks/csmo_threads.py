"""Estimates the time of exact fits on several threads by their critical path: the CPU time of each item of their parallel loops.

A fit with ``n_jobs=2`` runs the items of its loops one after another, and each is timed. The time on 2, 4 or 8 threads is that of
a greedy schedule of the items, plus the code outside of loops; it assumes an idle machine with enough memory bandwidth. Other
programs on the machine disturb this less than wall-clock times, which are also measured, for one and two threads in turn.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from common import load_file, make_parser, print_table, report_progress, write_json
from csmo_shapes import standardise
from full_fits import draw_mixture

from streamsvm.batch import CSMOClassifier
from streamsvm.core.threads import Workers

THREADS, COSTS = (2, 4, 8), (1.0, 32.0)


def load_web(folder: Path | None) -> tuple[np.ndarray, np.ndarray, float]:
    """Return all rows of w7a, which has binary features, labels and gamma."""
    arrays = load_file("w7a", folder)
    X, y = (np.concatenate([arrays[name], arrays[f"{name}_test"]]) for name in ("X", "y"))
    order = np.random.default_rng(0).permutation(len(y))
    return X[order].astype(float), y[order] > 0, 2.0**-5


def make_smooth(_: Path | None) -> tuple[np.ndarray, np.ndarray, float]:
    """Return synthetic rows of 8 dependent features, as in cod_rna, labels and gamma."""
    rng, n = np.random.default_rng(1), 59_535
    Z, A = rng.normal(size=(n, 4)), rng.normal(size=(4, 8))
    X, f = Z @ A + 0.4 * rng.normal(size=(n, 8)), 1.5 * Z[:, 0] + 0.8 * Z[:, 1] * Z[:, 2] - 0.6 * Z[:, 3] ** 2
    return standardise(X), f + 0.3 * rng.normal(size=n) > 0.6, 0.125


def make_mixed(_: Path | None) -> tuple[np.ndarray, np.ndarray, float]:
    """Return synthetic rows of ten numeric and two one-hot features, as in covtype, labels and gamma."""
    rng, n = np.random.default_rng(2), 50_000
    c, area = rng.normal(size=(n, 10)), rng.choice(4, n, p=[0.45, 0.05, 0.44, 0.06])
    soil = np.minimum(rng.geometric(0.08, n) - 1, 39)
    f = np.sin(2.0 * c[:, 0]) + 0.5 * c[:, 1] * c[:, 2] + 0.7 * rng.normal(size=40)[soil] + 0.5 * rng.normal(size=4)[area]
    X = np.concatenate([c, np.eye(4)[area], np.eye(40)[soil]], axis=1)
    return standardise(X), f + 0.4 * rng.normal(size=n) > 0.0, 1.0 / 54.0


SETS: dict[str, Callable[[Path | None], tuple[np.ndarray, np.ndarray, float]]] = {
    "w7a": load_web,
    "smooth": make_smooth,
    "names and numbers": make_mixed,
    "mixture": lambda _: (*draw_mixture(60_000), 0.5),
}


def measure_critical_paths(X: np.ndarray, y: np.ndarray, C: float, gamma: float) -> dict[str, float]:
    """Return the CPU seconds of a fit on one thread, and estimates for several threads by its critical path."""
    loop_seconds, paths, for_each = 0.0, dict.fromkeys(THREADS, 0.0), Workers.for_each

    def time_each(self: Workers, call: Callable[[Any], Any], items: Iterable[Any], stop: Any = None) -> None:
        nonlocal loop_seconds
        if self.threads == 1:  # the loop over machines has a single item
            for_each(self, call, items, stop)
            return
        loop_start, loads = time.thread_time(), {threads: np.zeros(threads) for threads in THREADS}
        for item in items:
            start = time.thread_time()
            call(item)
            seconds = time.thread_time() - start
            for load in loads.values():
                load[load.argmin()] += seconds
        loop_seconds += time.thread_time() - loop_start
        for threads, load in loads.items():
            paths[threads] += float(load.max())

    Workers.for_each = time_each  # type: ignore[method-assign]
    try:
        start = time.thread_time()
        CSMOClassifier(C, gamma=gamma, n_jobs=2).fit(X, y)
        total = time.thread_time() - start
    finally:
        Workers.for_each = for_each  # type: ignore[method-assign]
    return {"1": total, **{str(threads): total - loop_seconds + path for threads, path in paths.items()}}


def measure_wall_time(X: np.ndarray, y: np.ndarray, C: float, gamma: float) -> dict[str, float]:
    """Return the wall-clock seconds of fits on one and on two threads."""
    seconds = {}
    for jobs in (1, 2):
        start = time.perf_counter()
        CSMOClassifier(C, gamma=gamma, n_jobs=jobs).fit(X, y)
        seconds[f"clock {jobs}"] = time.perf_counter() - start
    return seconds


def main() -> None:
    parser = make_parser(__doc__, "csmo_threads")
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=list(SETS))
    parser.add_argument("--rows", type=int, help="maximum number of rows of each set; default: all")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    results: dict[str, dict[str, float]] = {}
    CSMOClassifier().fit(np.eye(4), np.arange(4) > 1)
    for name in args.sets:
        X, y, gamma = SETS[name](args.data)
        X, y = X[: args.rows], y[: args.rows]
        for C in COSTS:
            runs = [measure_critical_paths(X, y, C, gamma) | measure_wall_time(X, y, C, gamma) for _ in range(args.repeats)]
            label = f"{name}, {X.shape[0]:,} x {X.shape[1]}, C = {C:g}"
            results[label] = {key: min(run[key] for run in runs) for key in runs[0]}
            report_progress(f"{label}: {results[label]}")
            write_json(args.out, {"sets": results})
    rows = [
        [
            label,
            f"{result['1']:.2f}",
            *(f"{result['1'] / result[str(threads)]:.2f}" for threads in THREADS),
            f"{result['clock 1']:.2f} / {result['clock 2']:.2f} ({result['clock 1'] / result['clock 2']:.2f})",
        ]
        for label, result in results.items()
    ]
    columns = ["", "seconds on one thread", *(f"times as fast on {threads}" for threads in THREADS), "by the clock: 1 / 2"]
    print_table("Exact fits on several threads, by their critical path", columns, rows)


if __name__ == "__main__":
    main()
