"""What a stream loses to the refit of its batch model, in the foreground and in the background.

A window of rows is full, and the model fitted; then rows come one after the other, each predicted and learned, and a fit is due
at once. Milliseconds of the slowest row and microseconds of the 99.9th percentile, rows a second until the new model answers, and
the seconds that this took. "none" is the same stream without a refit. Needs no data. The stream and the fit share the cores that
there are.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
from common import argument_parser, show, write

from streamsvm.batch import BatchAdapter, CSMOClassifier, HierarchicalSVC

MODELS = {
    "CSMO": lambda: CSMOClassifier(C=10.0),
    "HierarchicalSVC": lambda: HierarchicalSVC(C=1.0),
}


def rows(n: int, seed: int) -> tuple[list[dict[str, float]], list[bool]]:
    """Rows of 10 features, a tenth of whose labels are wrong."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 10)).astype(np.float32)
    y = (np.sin(2.0 * X[:, 0]) + X[:, 1] * X[:, 2] > 0.0) ^ (rng.random(n) < 0.1)
    names = [f"x{i}" for i in range(X.shape[1])]
    return [dict(zip(names, row, strict=True)) for row in X.tolist()], y.tolist()


def measure(name: str, how: str, window: int, n: int) -> dict[str, Any]:
    """Fit the window, then stream n rows, or more until a new model answers; the first row makes the refit due."""
    X, y = rows(window + n, 0)
    parameters: dict[str, Any] = {"window": window, "calibration_folds": 0, "max_features": 16}
    due = None if how == "none" else window // 2
    model = BatchAdapter(MODELS[name](), refit_every=due, background=how == "background", **parameters)
    model.fit(zip(X[:window], y[:window], strict=True))
    model.collect(zip(X[: window // 2 - 1], y[: window // 2 - 1], strict=True))
    for x in X[:100]:
        model.predict_one(x)
    fits, taken, swapped, i = model.n_fits, [], None, 0
    began = time.perf_counter()
    while i < n or (how != "none" and swapped is None):
        x, label = X[window + i % n], y[window + i % n]
        start = time.perf_counter()
        model.predict_one(x)
        model.learn_one(x, label)
        taken.append(time.perf_counter() - start)
        i += 1
        if swapped is None and model.n_fits > fits:
            swapped = (i, time.perf_counter() - began)
            if how == "background":
                break
    at, seconds = swapped or (i, time.perf_counter() - began)
    slowest, usual = 1e3 * max(taken), 1e6 * float(np.quantile(taken, 0.999))
    return {"solver": name, "fit": how, "rows": at, "rows_s": at / seconds, "slowest_ms": slowest, "p999_us": usual, "s": seconds}


def main() -> None:
    parser = argument_parser(__doc__, "background_fits")
    parser.add_argument("--window", type=int, default=20_000)
    parser.add_argument("--rows", type=int, default=5_000)
    parser.add_argument("--solvers", nargs="+", default=list(MODELS), choices=list(MODELS))
    options: argparse.Namespace = parser.parse_args()
    measure(options.solvers[0], "foreground", 500, 20)
    found = []
    for name in options.solvers:
        measure(name, "background", 500, 20)  # compiles
        found += [measure(name, how, options.window, options.rows) for how in ("none", "foreground", "background")]
    header = ("solver", "fit", "rows until it answers", "rows a second", "slowest row, ms", "99.9 %, us", "seconds")
    numbers = ("{rows:,}", "{rows_s:,.0f}", "{slowest_ms:,.1f}", "{p999_us:,.0f}", "{s:.2f}")
    cells = [(r["solver"], r["fit"], *(number.format(**r) for number in numbers)) for r in found]
    show(f"a refit of {options.window:,} rows", header, cells)
    write(Path(options.out), {"window": options.window, "found": found})


if __name__ == "__main__":
    main()
