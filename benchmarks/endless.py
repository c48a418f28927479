"""Measures memory over long streams: ten million rows, and a million feature names that each occur once.

Each scenario samples the resident memory of its own process. For comparison, river's LogisticRegression stores a weight for
every name.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from pathlib import Path
from typing import Any

import numpy as np
from common import make_parser, print_table, read_resident_bytes, report_progress, write_json
from river import linear_model

from streamsvm import BSGDClassifier

BUDGET = 500
FEATURES = 20
N_SAMPLES = 200
WARM_UP = 0.05  # share of the stream in which libraries load, code compiles and the budget fills
MAX_FLAT_GROWTH = 1e6  # bytes; less growth is noise of the allocator


def learn_rows(samples: list[tuple[int, int]], n: int) -> Any:
    """Learn n rows with ``learn_many``, in chunks of a stream whose class boundary rotates, and return the model.

    ``samples`` gets pairs of the number of rows and the resident bytes.
    """
    model = BSGDClassifier(BUDGET, gamma=0.05, scaling=None, learning_rate="floor", max_features=FEATURES, seed=0)
    rng = np.random.default_rng(0)
    chunk = max(1, n // N_SAMPLES)
    for start in range(0, n, chunk):
        X = rng.standard_normal((min(chunk, n - start), FEATURES), np.float32)
        angle = 2.0 * np.pi * start / n
        y = np.cos(angle) * X[:, 0] + np.sin(angle) * X[:, 1] * X[:, 2] > 0.0
        model.learn_many(X, y)
        samples.append((start + len(X), read_resident_bytes()))
    return model


def learn_names(samples: list[tuple[int, int]], n: int, model: Any) -> Any:
    """Predict and learn n rows, each with a new feature name, and return the model; ``samples`` is as in `learn_rows`."""
    rng = np.random.default_rng(0)
    every = max(1, n // N_SAMPLES)
    for i in range(n):
        if i % every == 0:
            common = rng.standard_normal((every, 3)).tolist()
        a, b, c = common[i % every]
        x = {"a": a, "b": b, "c": c, f"visitor {i}": 1.0}
        model.predict_one(x)
        model.learn_one(x, a * b > 0.0)
        if (i + 1) % every == 0:
            samples.append((i + 1, read_resident_bytes()))
    return model


def run_scenario(name: str, rows: int, names: int) -> dict[str, Any]:
    samples: list[tuple[int, int]] = []
    start = time.perf_counter()
    if name == "rows":
        model = learn_rows(samples, rows)
    elif name == "river":
        model = learn_names(samples, names, linear_model.LogisticRegression())
    else:
        model = learn_names(samples, names, BSGDClassifier(BUDGET, gamma=0.5, scaling=None, overflow=name, seed=0))
    seconds = time.perf_counter() - start
    warm = [memory for row, memory in samples if row >= WARM_UP * samples[-1][0]]
    return {
        "scenario": name,
        "rows": samples[-1][0],
        "seconds": seconds,
        "nbytes": getattr(model, "nbytes", None),
        "after_warm_up": warm[0],
        "growth": max(warm) - warm[0],
        "samples": samples,
    }


def save_plot(results: list[dict[str, Any]], labels: dict[str, str], path: Path) -> None:
    import matplotlib as mpl  # noqa: PLC0415 - slow to import, and not needed by the processes that measure

    mpl.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    for result in results:
        rows, memory = np.array(result["samples"], float).T
        axes.plot(100.0 * rows / rows[-1], memory / 1e6, label=labels[result["scenario"]])
    axes.set(xlabel="% of the stream", ylabel="resident memory, MB", ylim=(0, None), title="Memory over an endless stream")
    axes.grid(alpha=0.3)
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def main() -> None:
    parser: argparse.ArgumentParser = make_parser(__doc__, "endless")
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--names", type=int, default=1_000_000)
    parser.add_argument(
        "--scenarios", nargs="+", choices=("rows", "hash", "ignore", "river"), default=["rows", "hash", "ignore", "river"]
    )
    args = parser.parse_args()
    labels = {
        "rows": f"{args.rows:,} rows, learn_many",
        "hash": f"{args.names:,} names, overflow='hash'",
        "ignore": f"{args.names:,} names, overflow='ignore'",
        "river": f"{args.names:,} names, river LogisticRegression",
    }
    results = []
    for name in args.scenarios:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            results.append(pool.apply(run_scenario, (name, args.rows, args.names)))
        report_progress(f"{labels[name]}: {results[-1]['seconds']:.1f} s")
    rows = [
        (
            labels[result["scenario"]],
            f"{result['seconds'] / result['rows'] * 1e6:.2f}",
            f"{result['nbytes'] / 1e6:.2f}" if result["nbytes"] else "-",
            f"{result['after_warm_up'] / 1e6:.1f}",
            f"{result['growth'] / 1e6:+.2f}",
            "flat" if result["growth"] <= MAX_FLAT_GROWTH else "NOT FLAT",
        )
        for result in results
    ]
    columns = ("stream", "us a row", "nbytes, MB", "resident after warm-up, MB", "most after that, MB", "verdict")
    print_table("Resident memory", columns, rows)
    write_json(args.out, {"scenarios": results})
    save_plot(results, labels, args.out.with_suffix(".png"))
    report_progress(f"plot: {args.out.with_suffix('.png').name}")


if __name__ == "__main__":
    main()
