"""Kernel recursive least squares beside BSCA: time and worst latency of a row, accuracy in one pass, a million rows.

Times are CPU time of rows of `learn_many`, which predicts each row before it learns it, after the first 2,000 rows; the least of
the repeats. Latency: each row alone, the least of the repeats for each row, then the largest of all rows, so that what other
programs do does not count. Accuracy is on rows set aside, after one pass in random order, or prequential.
Run it on one core: ``OMP_NUM_THREADS=1 taskset -c 1 python benchmarks/kernel_rls.py``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from common import argument_parser, load, load_file, progress, show, summary, write

from streamsvm import BSCAClassifier, BSCARegressor, KernelRLSClassifier, KernelRLSRegressor

PARTS = ("time", "latency", "accuracy", "streams", "regression", "stability")
LANDMARKS = (100, 300, 500)
FEATURES = (10, 54)
SPLITS = ("magic04", "ijcnn1", "phishing", "a9a")
STREAMS = ("elec2", "sea_stream", "eeg_eye")
REGRESSIONS = ("kin40k", "abalone", "cpusmall")
FIRST = 2000
CHUNK = 20  # rows of a stream that are predicted before they are learned

Learner = KernelRLSClassifier | KernelRLSRegressor | BSCAClassifier | BSCARegressor


def synthetic(rows: int, d: int, seed: int = 0) -> tuple[np.ndarray, list[bool]]:
    """Standardised rows with a curved boundary and noise."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, d)).astype(np.float32)
    f = np.sin(2.0 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.5 * rng.normal(size=rows)
    return X, (f > 0.0).tolist()


def seconds(model: Learner, X: np.ndarray, y: list[Any]) -> float:
    """CPU seconds to learn the rows."""
    start = time.process_time()
    model.learn_many(X, y)
    return time.process_time() - start


def times(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Microseconds a row by landmarks and features, of the first rows and later."""
    results = []
    for d in FEATURES:
        X, y = synthetic(FIRST + args.rows, d)
        models: dict[str, Learner] = {f"BSCA, {m}": BSCAClassifier(m, max_features=d, seed=0) for m in (100, 500)}
        for m in LANDMARKS:
            models[f"KernelRLS, {m}"] = KernelRLSClassifier(m, max_features=d)
            models[f"KernelRLS, {m}, no swaps"] = KernelRLSClassifier(m, max_features=d, max_swaps=0)
        for name, kind in models.items():
            progress(f"time: {name}, {d} features")
            kind.clone().learn_many(X[:FIRST], y[:FIRST])  # compiles
            first, later = [], []
            for _ in range(args.repeats):
                model = kind.clone()
                first.append(1e6 * seconds(model, X[:FIRST], y[:FIRST]) / FIRST)
                later.append(1e6 * seconds(model, X[FIRST:], y[FIRST:]) / args.rows)
            results.append({"model": name, "features": d, "first": summary(first), "us": summary(later), "bytes": kind.nbytes})
    show(
        "Microseconds a row, predicted and learned",
        ["model", "features", f"first {FIRST:,} rows", "later: min", "median", "max", "bytes"],
        [
            [
                r["model"],
                r["features"],
                f"{r['first']['min']:.2f}",
                *(f"{r['us'][key]:.2f}" for key in ("min", "median", "max")),
                f"{r['bytes']:,}",
            ]
            for r in results
        ],
    )
    return results


def latencies(args: argparse.Namespace) -> list[dict[str, Any]]:
    """The largest time that a row takes, of those that it takes in each of the repeats the least."""
    results = []
    X, y = synthetic(4000, 10)
    for m in LANDMARKS:
        progress(f"latency: {m} landmarks")
        least = np.full(len(y), np.inf)
        for _ in range(args.repeats):
            model = KernelRLSClassifier(m, max_features=10)
            for i in range(len(y)):
                row, label = X[i : i + 1], y[i : i + 1]
                start = time.perf_counter()
                model.learn_many(row, label)
                least[i] = min(least[i], time.perf_counter() - start)
        least[0] = 0.0  # it may compile
        least *= 1e6
        results.append(
            {
                "landmarks": m,
                "median": float(np.median(least)),
                "first": float(least[:1000].max()),
                "later": float(least[1000:].max()),
                "above_100": int((least > 100.0).sum()),
            }
        )
    show(
        "Microseconds of one row in a call of its own, 4,000 rows of 10 features",
        ["landmarks", "median", "worst of the first 1,000", "worst later", "rows above 100"],
        [[r["landmarks"], *(f"{r[k]:.0f}" for k in ("median", "first", "later")), r["above_100"]] for r in results],
    )
    return results


def standardised(X: np.ndarray) -> np.ndarray:
    """Rows by mean and deviation so far, as a scaler on a stream does."""
    counts, X = np.arange(1, len(X) + 1)[:, np.newaxis], X.astype(np.float64)
    means = np.cumsum(X, axis=0) / counts
    deviations = np.sqrt(np.maximum(np.cumsum(X * X, axis=0) / counts - means * means, 0.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(deviations > 1e-6, (X - means) / deviations, 0.0).astype(np.float32)


def classifiers(d: int) -> dict[str, Learner]:
    """What is compared."""
    models: dict[str, Learner] = {f"BSCA, {m}": BSCAClassifier(m, max_features=d, seed=0) for m in (100, 500)}
    return models | {f"KernelRLS, {m}": KernelRLSClassifier(m, max_features=d) for m in LANDMARKS}


def accuracies_of_splits(args: argparse.Namespace) -> dict[str, dict[str, dict[str, float]]]:
    """Percent right on rows set aside, after one pass in random order."""
    results: dict[str, dict[str, dict[str, float]]] = {}
    for name in SPLITS:
        split = load(name, args.data)
        scores: dict[str, list[float]] = {}
        for seed in range(args.seeds):
            progress(f"accuracy: {name}, shuffle {seed}")
            X, y = split.shuffled(np.random.default_rng(seed))
            mean, deviation = X.mean(axis=0), X.std(axis=0) + 1e-9
            X, X_test = (X - mean) / deviation, (split.X_test - mean) / deviation
            for kind, model in classifiers(X.shape[1]).items():
                model.learn_many(X, y.tolist())
                scores.setdefault(kind, []).append(100.0 * float((model.predict_many(X_test) == split.y_test).mean()))
        results[name] = {kind: summary(values) for kind, values in scores.items()}
    _show_means("Percent right on rows set aside, after one pass", results, ".2f")
    return results


def prequential(model: Learner, X: np.ndarray, y: np.ndarray, loss: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> float:
    """Mean loss of rows that are predicted before they are learned, a few at a time."""
    total = 0.0
    for begin in range(0, len(y), CHUNK):
        rows, targets = X[begin : begin + CHUNK], y[begin : begin + CHUNK]
        total += float(loss(model.predict_many(rows), targets).sum()) if begin else 0.0
        model.learn_many(rows, targets.tolist())
    return total / (len(y) - CHUNK)


def accuracies_of_streams(args: argparse.Namespace) -> dict[str, dict[str, dict[str, float]]]:
    """Prequential accuracy of the first rows of streams in their own order."""
    results: dict[str, dict[str, dict[str, float]]] = {}
    for name in STREAMS:
        progress(f"streams: {name}")
        arrays = load_file(name, args.data)
        X, y = standardised(arrays["X"][:10_000]), arrays["y"][:10_000] > 0
        models = classifiers(X.shape[1])
        results[name] = {kind: summary([100.0 * prequential(model, X, y, lambda p, t: p == t)]) for kind, model in models.items()}
    _show_means(f"Prequential percent right, 10,000 rows, {CHUNK} at a time", results, ".2f")
    return results


def errors_of_regressions(args: argparse.Namespace) -> dict[str, dict[str, dict[str, float]]]:
    """Prequential mean absolute error, over the standard deviation of the targets."""
    results: dict[str, dict[str, dict[str, float]]] = {}
    for name in REGRESSIONS:
        arrays = load_file(name, args.data)
        scores: dict[str, list[float]] = {}
        for seed in range(args.seeds):
            progress(f"regression: {name}, shuffle {seed}")
            order = np.random.default_rng(seed).permutation(len(arrays["y"]))[:10_000]
            X, y = standardised(arrays["X"][order]), arrays["y"][order].astype(np.float64)
            y = (y - y.mean()) / y.std()
            d = X.shape[1]
            models: dict[str, Learner] = {f"BSCA, {m}": BSCARegressor(m, max_features=d, seed=0) for m in (100, 500)}
            models |= {f"KernelRLS, {m}": KernelRLSRegressor(m, max_features=d) for m in LANDMARKS}
            for kind, model in models.items():
                scores.setdefault(kind, []).append(prequential(model, X, y, lambda p, t: np.abs(p - t)))
        results[name] = {kind: summary(values) for kind, values in scores.items()}
    _show_means("Prequential mean absolute error of targets of deviation 1, at most 10,000 rows", results, ".3f")
    return results


def stability(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Accuracy over many rows, of which every fifth stretch of 10,000 is one row again and again."""
    results = []
    rows = args.stable_rows
    for m in (100, 300):
        for forgetting in (1.0, 0.999):
            progress(f"stability: {m} landmarks, forgetting factor {forgetting}")
            model, right = KernelRLSClassifier(m, max_features=10, forgetting_factor=forgetting), {}
            for number in range(rows // 10_000):
                X, y = synthetic(10_000, 10, seed=number)
                if number % 5 == 4:
                    X[:], y = X[0], [y[0]] * len(y)
                elif number:
                    right[number] = 100.0 * float((model.predict_many(X) == np.array(y)).mean())
                model.learn_many(X, y)
            results.append(
                {
                    "landmarks": m,
                    "forgetting_factor": forgetting,
                    "rows": rows,
                    "first": right[1],
                    "last": list(right.values())[-1],
                    "least": min(right.values()),
                    "after_quiet": float(np.mean([score for number, score in right.items() if number % 5 == 0])),
                    "finite": bool(np.isfinite(model.coefficients).all()),
                }
            )
    show(
        f"Percent right on the next 10,000 rows, over {rows:,} rows with quiet stretches",
        ["landmarks", "forgetting factor", "after 10,000", "at the end", "least", "after quiet stretches", "finite"],
        [
            [
                r["landmarks"],
                r["forgetting_factor"],
                *(f"{r[k]:.2f}" for k in ("first", "last", "least", "after_quiet")),
                r["finite"],
            ]
            for r in results
        ],
    )
    return results


def _show_means(title: str, results: dict[str, dict[str, dict[str, float]]], form: str) -> None:
    kinds = list(next(iter(results.values())))
    rows = [[name, *(f"{of[kind]['mean']:{form}} +- {of[kind]['std']:{form}}" for kind in kinds)] for name, of in results.items()]
    show(title, ["set", *kinds], rows)


def main() -> None:
    """Run the parts, print their tables, write their figures."""
    parser = argument_parser(__doc__, "kernel_rls")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--rows", type=int, default=10_000, help="rows that are timed")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=3, help="shuffles")
    parser.add_argument("--stable-rows", type=int, default=1_000_000, help="rows of the stability part")
    args = parser.parse_args()
    run: dict[str, Callable[[argparse.Namespace], Any]] = dict(
        zip(PARTS, (times, latencies, accuracies_of_splits, accuracies_of_streams, errors_of_regressions, stability), strict=True)
    )
    write(args.out, {part: run[part](args) for part in args.parts})


if __name__ == "__main__":
    main()
