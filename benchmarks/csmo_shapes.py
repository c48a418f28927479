"""Compares conjugate SMO with scikit-learn's SVC, and with scikit-learn-intelex if it is installed, on data of many shapes.

Real sets, standardised, and synthetic ones: one-hot categories, a few integer columns with many equal rows, wide sparse rows,
a rare class, noisy labels, and many features with few relevant ones. CPU seconds of fits, in turn in one process, at
C = 1 and 32, tol = 1e-3, 200 MB of cache and gamma = one over the number of features, on one core:
``taskset -c 1 python benchmarks/csmo_shapes.py``. SVC gets dense or sparse rows, whichever is faster.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from common import load_file, make_parser, print_table, report_progress, summarise, write_json
from csmo import time_fit
from scipy import sparse
from sklearn.svm import SVC

from streamsvm.batch import CSMOClassifier

Rows = tuple[np.ndarray, np.ndarray]
TOL, COSTS = 1e-3, (1.0, 32.0)


def standardise(X: np.ndarray) -> np.ndarray:
    """Clip outliers, and scale columns to mean 0 and standard deviation 1."""
    X = X.astype(float)
    low, high = np.percentile(X, (0.2, 99.8), axis=0)
    X = np.clip(X, low, np.where(high > low, high, X.max(axis=0)))
    deviation = X.std(axis=0)
    return (X - X.mean(axis=0)) / np.where(deviation > 0.0, deviation, 1.0)


def sample_file(
    name: str, rows: int, positive: Callable[[np.ndarray], np.ndarray] = lambda y: y > 0
) -> Callable[[Path | None], Rows]:
    """Return a function that draws a random sample of a data set; ``positive`` maps its labels to bool."""

    def make(folder: Path | None) -> Rows:
        arrays = load_file(name, folder)
        sample = np.random.default_rng(0).permutation(len(arrays["y"]))[:rows]
        X, y = arrays["X"][sample], arrays["y"][sample]
        return (X.astype(float) if name == "w7a" else standardise(X)), positive(y)

    return make


def make_names(_: Path | None) -> Rows:
    rng = np.random.default_rng(1)
    levels = [5, 8, 12, 30, 4, 20, 7, 3, 15, 10]
    codes = np.stack([rng.integers(0, k, 12_000) ** 2 // k for k in levels], axis=1)
    weights = [rng.normal(size=k) for k in levels]
    f = sum(w[code] for w, code in zip(weights, codes.T, strict=True)) + weights[0][codes[:, 0]] * weights[3][codes[:, 3]]
    X = np.concatenate([np.eye(k)[code] for k, code in zip(levels, codes.T, strict=True)], axis=1)
    return X, f + rng.normal(size=len(X)) > 0.0


def make_integers(_: Path | None) -> Rows:
    rng = np.random.default_rng(2)
    X = rng.integers(0, 5, (15_000, 6)).astype(float)
    X[:, 0] = rng.integers(0, 3, len(X))
    f = X[:, 0] * X[:, 1] - X[:, 2] - 0.5 * X[:, 3] + 0.3 * X[:, 4] * X[:, 5] - 2.0
    return standardise(X), rng.random(len(X)) < 1.0 / (1.0 + np.exp(-f))


def make_rare(_: Path | None) -> Rows:
    rng, n, d = np.random.default_rng(3), 20_000, 20
    y, X = rng.random(n) < 1.0 / 21.0, rng.normal(size=(n, d))
    centres = 0.9 * rng.normal(size=(4, d))
    X[y] = 0.8 * X[y] + centres[rng.integers(0, 4, y.sum())]
    return standardise(X), y


def make_noisy(_: Path | None) -> Rows:
    rng, n, d = np.random.default_rng(4), 12_000, 18
    X, W = rng.normal(size=(n, d)), rng.normal(size=(d, d))
    f = np.einsum("ij,jk,ik->i", X, W, X) + 5.0 * X[:, 0]
    return X, (f > np.median(f)) ^ (rng.random(n) < 0.2)


def make_bananas(_: Path | None) -> Rows:
    rng, n = np.random.default_rng(5), 20_000
    angle, y = np.pi * rng.random(n), rng.random(n) < 0.45
    X = 2.0 * np.stack([np.cos(angle), np.sin(angle)], axis=1) + 0.6 * rng.normal(size=(n, 2))
    X[y] = [1.5, 0.6] - X[y]
    return standardise(X), y


def make_wide(_: Path | None) -> Rows:
    rng, n, d = np.random.default_rng(6), 8000, 60
    A, Z = rng.normal(size=(8, d)), rng.normal(size=(n, 8))
    X = Z @ A + 1.5 * rng.normal(size=(n, d))
    return standardise(X), (np.sin(1.5 * Z[:, 0]) + Z[:, 1] * Z[:, 2] > 0.0) ^ (rng.random(n) < 0.05)


def make_words(_: Path | None) -> Rows:
    rng, n, d = np.random.default_rng(7), 8000, 1500
    X = np.zeros((n, d))
    for j, share in enumerate(np.minimum(0.3, 2.0 / (1.0 + np.arange(d)) ** 0.8)):
        with_word = np.flatnonzero(rng.random(n) < share)
        X[with_word, j] = np.round(1.0 + rng.exponential(size=len(with_word)), 2)
    X /= np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1e-9)
    f = X @ rng.normal(size=d)
    return X, f + 0.1 * rng.normal(size=n) > np.quantile(f, 0.7)


#: Functions that make the data sets, in two halves of eight, with gamma (None: one over the number of features).
SETS: dict[str, tuple[Callable[[Path | None], Rows], float | None]] = {
    "w7a": (sample_file("w7a", 30_000), 2.0**-5),
    "krkopt": (sample_file("krkopt", 15_000, lambda y: y > 11), None),
    "letter": (sample_file("letter", 20_000, lambda y: y == 1), None),
    "elec2": (sample_file("elec2", 20_000), None),
    "names": (make_names, 0.05),
    "integers": (make_integers, None),
    "noisy": (make_noisy, None),
    "wide": (make_wide, None),
    "eeg_eye": (sample_file("eeg_eye", 15_000), None),
    "magic04": (sample_file("magic04", 20_000), None),
    "kin40k": (sample_file("kin40k", 15_000, lambda y: y > np.median(y)), None),
    "chess": (sample_file("chess", 20_000, lambda y: y > np.median(y)), None),
    "sea_stream": (sample_file("sea_stream", 15_000), None),
    "rare": (make_rare, None),
    "bananas": (make_bananas, None),
    "words": (make_words, 1.0),
}


def compute_objective(model: Any, X: np.ndarray, gamma: float) -> float:
    """Return the dual objective, computed in float64 by numpy."""
    coefficients = model.dual_coef_
    beta = (coefficients.toarray() if sparse.issparse(coefficients) else coefficients)[0]
    S, total = X[model.support_], -float(np.abs(beta).sum())
    squares = (S**2).sum(axis=1)
    for start in range(0, len(S), 2000):
        part = S[start : start + 2000]
        distances = (part**2).sum(axis=1)[:, np.newaxis] + squares - 2.0 * part @ S.T
        total += 0.5 * float(beta[start : start + 2000] @ (np.exp(-gamma * np.maximum(distances, 0.0)) @ beta))
    return total


def measure(args: argparse.Namespace) -> dict[str, Any]:
    peers: dict[str, Any] = {"SVC": SVC}
    try:
        from sklearnex.svm import SVC as IntelSVC  # noqa: PLC0415, N811 - it is optional

        peers["intelex"] = IntelSVC
    except ImportError:
        pass
    time_fit(CSMOClassifier(), np.eye(4), np.arange(4) > 1)
    results: dict[str, Any] = {}
    for name in args.sets:
        make, gamma = SETS[name]
        X, y = make(args.data)
        if args.rows is not None:
            sample = np.random.default_rng(1).permutation(len(y))[: args.rows]
            X, y = X[sample], y[sample]
        gamma = gamma or 1.0 / X.shape[1]
        zeros = float((X == 0.0).mean())
        for C in COSTS:
            params = {"C": C, "gamma": gamma, "tol": TOL, "cache_size": 200}
            models = {"ours": CSMOClassifier(**params), **{peer: kind(**params) for peer, kind in peers.items()}}
            rows: dict[str, Any] = dict.fromkeys(models, X)
            if zeros > 0.9:  # all peers are faster with sparse rows here
                rows = {model: X if model == "ours" else sparse.csr_array(X) for model in models}
            elif zeros > 0.5 and time_fit(models["SVC"], sparse.csr_array(X), y) < time_fit(models["SVC"], X, y):
                rows["SVC"] = sparse.csr_array(X)
            models["ours"].fit(X, y)  # compiles before any time is taken
            seconds: dict[str, list[float]] = {model: [] for model in models}
            for _ in range(args.repeats):
                for model, fitted in models.items():
                    seconds[model].append(time_fit(fitted, rows[model], y))
            results[f"{name}, C = {C:g}"] = {
                "seconds": {model: summarise(values) for model, values in seconds.items()},
                "ratio": {peer: statistics.median(seconds[peer]) / statistics.median(seconds["ours"]) for peer in peers},
                "objective": {model: compute_objective(fitted, X, gamma) for model, fitted in models.items()},
                "gap": models["ours"].gap_,
                "rows": list(X.shape),
                "support vectors": len(models["ours"].support_),
            }
            report_progress(f"{name}, C = {C:g}: {results[f'{name}, C = {C:g}']['ratio']}")
            write_json(args.out, {"scikit-learn": version("scikit-learn"), "sets": results})
    return results


def main() -> None:
    parser = make_parser(__doc__, "csmo_shapes")
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=list(SETS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rows", type=int, help="maximum number of random rows of each set; default: all")
    args = parser.parse_args()
    results = measure(args)
    peers = list(next(iter(results.values()))["ratio"])
    table = []
    for label, result in results.items():
        own_seconds, objectives = result["seconds"]["ours"], result["objective"]
        table.append((
            label,
            "{:,} x {:,}".format(*result["rows"]),
            f"{own_seconds['min']:.4f} {own_seconds['median']:.4f} {own_seconds['max']:.4f}",
            *(f"{result['seconds'][peer]['median']:.4f} ({result['ratio'][peer]:.1f})" for peer in peers),
            f"{(objectives['SVC'] - objectives['ours']) / abs(objectives['SVC']):+.1e}",
            f"{result['gap']:.1e}",
            f"{result['support vectors']:,}",
        ))  # fmt: skip
    print_table(
        "CSMO beside SVC and others: CPU seconds, and how many times CSMO's",
        ("set", "rows", "CSMO: min, median, max", *peers, "objective lower by", "gap", "support vectors"),
        table,
    )
    for peer in peers:
        ratios = [result["ratio"][peer] for result in results.values()]
        print(f"{peer}: geometric mean {statistics.geometric_mean(ratios):.1f} times, worst {min(ratios):.1f}")
        for half, half_names in (("first", list(SETS)[:8]), ("second", list(SETS)[8:])):
            half_ratios = [result["ratio"][peer] for label, result in results.items() if label.split(",")[0] in half_names]
            if half_ratios:
                print(f"  {half} half: {statistics.geometric_mean(half_ratios):.1f} times, worst {min(half_ratios):.1f}")


if __name__ == "__main__":
    main()
