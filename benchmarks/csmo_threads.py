"""How much threads can save of exact fits: the critical path, from the processor time of each item of their loops.

A fit with ``n_jobs=2`` is run, but its items one after another, and each is timed. A greedy schedule on 2, 4 or 8 threads, plus
what is not in a loop, is the time that as many threads take on an idle machine whose memory keeps up. Other programs on the same
processor disturb this less than seconds by the clock, which are measured, too, for one and two threads in turn.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from common import load_file, make_parser, print_table, report_progress, write_results
from csmo_shapes import standardise
from full_fits import draw_mixture

from streamsvm.batch import CSMOClassifier
from streamsvm.core.threads import Workers

THREADS, COSTS = (2, 4, 8), (1.0, 32.0)


def web(folder: Path | None) -> tuple[np.ndarray, np.ndarray, float]:
    """All rows of w7a, which are indicators."""
    arrays = load_file("w7a", folder)
    X, y = (np.concatenate([arrays[name], arrays[f"{name}_test"]]) for name in ("X", "y"))
    some = np.random.default_rng(0).permutation(len(y))
    return X[some].astype(float), y[some] > 0, 2.0**-5


def smooth(_: Path | None) -> tuple[np.ndarray, np.ndarray, float]:
    """Rows of 8 features that depend on each other, as in cod_rna."""
    rng, n = np.random.default_rng(1), 59_535
    Z, A = rng.normal(size=(n, 4)), rng.normal(size=(4, 8))
    X, f = Z @ A + 0.4 * rng.normal(size=(n, 8)), 1.5 * Z[:, 0] + 0.8 * Z[:, 1] * Z[:, 2] - 0.6 * Z[:, 3] ** 2
    return standardise(X), f + 0.3 * rng.normal(size=n) > 0.6, 0.125


def names_and_numbers(_: Path | None) -> tuple[np.ndarray, np.ndarray, float]:
    """Rows of ten numbers, and two names as indicators, as in covtype."""
    rng, n = np.random.default_rng(2), 50_000
    c, area = rng.normal(size=(n, 10)), rng.choice(4, n, p=[0.45, 0.05, 0.44, 0.06])
    soil = np.minimum(rng.geometric(0.08, n) - 1, 39)
    f = np.sin(2.0 * c[:, 0]) + 0.5 * c[:, 1] * c[:, 2] + 0.7 * rng.normal(size=40)[soil] + 0.5 * rng.normal(size=4)[area]
    X = np.concatenate([c, np.eye(4)[area], np.eye(40)[soil]], axis=1)
    return standardise(X), f + 0.4 * rng.normal(size=n) > 0.0, 1.0 / 54.0


SETS: dict[str, Callable[[Path | None], tuple[np.ndarray, np.ndarray, float]]] = {
    "w7a": web,
    "smooth": smooth,
    "names and numbers": names_and_numbers,
    "mixture": lambda _: (*draw_mixture(60_000), 0.5),
}


def critical_paths(X: np.ndarray, y: np.ndarray, C: float, gamma: float) -> dict[str, float]:
    """Seconds of a fit on one thread, and on several, by its critical path."""
    alone, paths, each = 0.0, dict.fromkeys(THREADS, 0.0), Workers.for_each

    def timed_each(self: Workers, do: Callable[[Any], Any], items: Iterable[Any], stop: Any = None) -> None:
        nonlocal alone
        if self.threads == 1:  # the loop over machines, of which there is one
            each(self, do, items, stop)
            return
        begin, loads = time.thread_time(), {threads: np.zeros(threads) for threads in THREADS}
        for item in items:
            start = time.thread_time()
            do(item)
            seconds = time.thread_time() - start
            for load in loads.values():
                load[load.argmin()] += seconds
        alone += time.thread_time() - begin
        for threads, load in loads.items():
            paths[threads] += float(load.max())

    Workers.for_each = timed_each  # type: ignore[method-assign]
    try:
        begin = time.thread_time()
        CSMOClassifier(C, gamma=gamma, n_jobs=2).fit(X, y)
        total = time.thread_time() - begin
    finally:
        Workers.for_each = each  # type: ignore[method-assign]
    return {"1": total, **{str(threads): total - alone + path for threads, path in paths.items()}}


def by_the_clock(X: np.ndarray, y: np.ndarray, C: float, gamma: float) -> dict[str, float]:
    """Seconds of fits by the clock, on one thread and on two."""
    found = {}
    for jobs in (1, 2):
        begin = time.perf_counter()
        CSMOClassifier(C, gamma=gamma, n_jobs=jobs).fit(X, y)
        found[f"clock {jobs}"] = time.perf_counter() - begin
    return found


def main() -> None:
    parser = make_parser(__doc__, "csmo_threads")
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=list(SETS))
    parser.add_argument("--rows", type=int, help="of each set, at most; by default, all")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    results: dict[str, dict[str, float]] = {}
    CSMOClassifier().fit(np.eye(4), np.arange(4) > 1)
    for name in args.sets:
        X, y, gamma = SETS[name](args.data)
        X, y = X[: args.rows], y[: args.rows]
        for C in COSTS:
            runs = [critical_paths(X, y, C, gamma) | by_the_clock(X, y, C, gamma) for _ in range(args.repeats)]
            label = f"{name}, {X.shape[0]:,} x {X.shape[1]}, C = {C:g}"
            results[label] = {key: min(run[key] for run in runs) for key in runs[0]}
            report_progress(f"{label}: {results[label]}")
            write_results(args.out, {"sets": results})
    rows = [
        [
            label,
            f"{found['1']:.2f}",
            *(f"{found['1'] / found[str(threads)]:.2f}" for threads in THREADS),
            f"{found['clock 1']:.2f} / {found['clock 2']:.2f} ({found['clock 1'] / found['clock 2']:.2f})",
        ]
        for label, found in results.items()
    ]
    columns = ["", "seconds on one thread", *(f"times as fast on {threads}" for threads in THREADS), "by the clock: 1 / 2"]
    print_table("Exact fits on several threads, by their critical path", columns, rows)


if __name__ == "__main__":
    main()
