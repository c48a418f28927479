"""Measures compressed kernel matrices: time against error, accuracy of ADMM compared with the exact machine, and scaling.

CPU seconds in one process are compared with Y, the time of one pass of numpy over the kernel matrix in float32 blocks of 2,048
rows (matrix product, exponential, product with a vector). Errors are e = |(K - K~) V| / |K V| in the Frobenius norm, for all rows
and 20 random vectors, with K in float64. Run it on one core: ``OMP_NUM_THREADS=1 taskset -c 1 python benchmarks/hss_admm.py``.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from common import load_file, load_split, make_parser, print_table, report_progress, summarise, write_json

from streamsvm.batch import CSMOClassifier, HSSADMMClassifier
from streamsvm.batch.hss import HSSMatrix

N_VECTORS, BLOCK = 20, 2048
CS = (0.1, 1.0, 10.0)
REPEATED_TOLERANCE = 0.05  # smaller tolerances, which take long, are measured once
MAX_RANK = 2000
GROWTH_MEASURES = ("seconds", "bytes")
GROWTH_TOLERANCES = (1.2, 1.0, 0.8, 0.6, 0.5, 0.4, 0.36, 0.3, 0.2, 0.1)


@dataclass(frozen=True)
class Case:
    """A data set, h of the kernel exp(-|x - s|^2 / (2 h^2)), tolerances, and the paper's accuracies at C = 1 (coarse, LIBSVM)."""

    name: str
    h: float
    tolerances: tuple[float, ...]
    paper: tuple[float, float]
    asked: tuple[float, float] | None = None  # maximum time in Y, if the error is at most the second number

    @property
    def gamma(self) -> float:
        return 0.5 / self.h**2


CASES = [
    Case("a9a", 1.0, (0.6, 0.4, 0.3, 0.2, 0.1), (83.477, 82.697), (0.25, 0.45)),
    Case("ijcnn1", 0.1, (0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.03), (92.403, 96.007), (0.18, 0.20)),
    Case("w7a", 1.0, (0.6, 0.3, 0.1, 0.03), (97.465, 97.904)),
    Case("skin", 10.0, (0.3, 0.1, 0.03, 0.01), (99.846, 99.960)),
]


def load_rows(case: Case, folder: Path | None) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return X, y, X_test and y_test of a case. skin, which has no test file, is split 70/30 as in the paper."""
    if case.name == "skin":
        arrays = load_file("skin", folder)
        X, y = arrays["X"].astype(float), arrays["y"] > 0
        learn, test = np.split(np.random.default_rng(1234).permutation(len(y)), [len(y) * 7 // 10])
        return X[learn], y[learn], X[test], y[test]
    split = load_split(case.name, folder)
    return split.X.astype(float), split.y, split.X_test.astype(float), split.y_test


def time_numpy_pass(X: np.ndarray, gamma: float) -> float:
    """Return Y: the CPU seconds of numpy to multiply the kernel matrix with a vector."""
    X = X.astype(np.float32)
    squares, v, out = np.square(X).sum(axis=1), np.ones(len(X), np.float32), np.empty(len(X), np.float32)
    start = time.process_time()
    for first in range(0, len(X), BLOCK):
        K = X[first : first + BLOCK] @ X.T
        K *= np.float32(2.0 * gamma)
        K -= np.float32(gamma) * squares
        K -= np.float32(gamma) * squares[first : first + BLOCK, None]
        np.exp(K, out=K)
        out[first : first + BLOCK] = K @ v
    return time.process_time() - start


def multiply_exactly(X: np.ndarray, gamma: float, V: np.ndarray) -> np.ndarray:
    """Return K V, with the exact kernel matrix K in float64."""
    centred = X - X.mean(axis=0)
    squares = np.square(centred).sum(axis=1)
    return np.concatenate([
        np.exp(-gamma * np.maximum(squares[rows, None] + squares - 2.0 * centred[rows] @ centred.T, 0.0)) @ V
        for rows in np.array_split(np.arange(len(X)), -(-len(X) // 500))
    ])  # fmt: skip


def measure_compression(cases: list[Case], args: argparse.Namespace) -> dict[str, Any]:
    """Return times and errors of each case and tolerance."""
    results: dict[str, Any] = {}
    HSSMatrix.compress(np.eye(100)).factorize(1.0)  # compiles before any time is taken
    for case in cases:
        X = load_rows(case, args.data)[0]
        V = np.random.default_rng(0).normal(size=(len(X), N_VECTORS))
        KV = multiply_exactly(X, case.gamma, V)
        results[case.name] = {}
        for tolerance in case.tolerances:
            times: dict[str, list[float]] = {"Y": [], "compress": [], "factorize": [], "solve": []}
            for _ in range(args.repeats if tolerance >= REPEATED_TOLERANCE else 1):
                times["Y"].append(time_numpy_pass(X, case.gamma))
                start = time.process_time()
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", RuntimeWarning)
                    K = HSSMatrix.compress(X, gamma=case.gamma, rel_tol=tolerance, max_rank=MAX_RANK, seed=None)
                times["compress"].append(time.process_time() - start)
                start = time.process_time()
                factorization = K.factorize(1.0)
                times["factorize"].append(time.process_time() - start)
                start = time.process_time()
                factorization.solve(V[:, 0])
                times["solve"].append(time.process_time() - start)
            Y = statistics.median(times["Y"])
            results[case.name][str(tolerance)] = {
                **{name: summarise(values) for name, values in times.items()},
                "share": (statistics.median(times["compress"]) + statistics.median(times["factorize"])) / Y,
                "solve share": statistics.median(times["solve"]) / Y,
                "error": float(np.linalg.norm(K @ V - KV) / np.linalg.norm(KV)),
                "estimate": K.error,
                "largest rank": int(K.ranks.max(initial=0)),
                "bytes": K.nbytes + factorization.nbytes,
                "asked": case.asked,
            }
            result = results[case.name][str(tolerance)]
            report_progress(f"compression: {case.name} at {tolerance:g}: e = {result['error']:.4f}, {result['share']:.3f} Y")
    return results


def print_compression(results: dict[str, Any]) -> None:
    rows = []
    for name, by_tolerance in results.items():
        for tolerance, r in by_tolerance.items():
            verdict = ""
            if r["asked"] and r["error"] <= r["asked"][1]:
                verdict = f"{'yes' if r['share'] <= r['asked'][0] else 'NO'} ({r['asked'][0]:g} at {r['asked'][1]:g})"
            rows.append((
                name, tolerance, f"{r['error']:.3f}", f"{r['estimate']:.3f}",
                *(f"{r[part]['min']:.2f} {r[part]['median']:.2f} {r[part]['max']:.2f}" for part in ("compress", "factorize")),
                f"{r['Y']['median']:.2f}", f"{r['share']:.3f}", verdict, f"{r['solve share']:.4f}", r["largest rank"],
                f"{r['bytes'] / 1e6:.0f}",
            ))  # fmt: skip
    print_table(
        "Compression: CPU seconds (min median max), and in Y",
        ("set", "rel_tol", "e", "estimate", "compress", "factorize", "Y, s", "both / Y", "enough", "solve / Y", "rank", "MB"),
        rows,
    )


def measure_accuracy(cases: list[Case], args: argparse.Namespace) -> dict[str, Any]:
    """Return times and accuracies of ADMM with a balanced penalty and with the paper's setting, and of exact machines."""
    results: dict[str, Any] = {}
    for case in cases:
        X, y, X_test, y_test = load_rows(case, args.data)
        result: dict[str, Any] = {}
        settings = {
            "balanced": HSSADMMClassifier(gamma=case.gamma),
            "paper's setting": HSSADMMClassifier(gamma=case.gamma, beta="paper", rel_tol=case.tolerances[1]),
        }
        for label, model in settings.items():
            start = time.process_time()
            models = model.fit_path(X, y, CS)
            result[label] = {
                "seconds": time.process_time() - start,
                "accuracy": [100.0 * m.score(X_test, y_test) for m in models],
                "iterations": max(m.n_iter_ for m in models),
                "error": models[0].compression_error_,
                "value errors": [m.value_error_ for m in models],
            }
        start = time.process_time()
        exact = [CSMOClassifier(C=C, gamma=case.gamma).fit(X, y) for C in CS]
        result["exact"] = {"seconds": time.process_time() - start, "accuracy": [100.0 * m.score(X_test, y_test) for m in exact]}
        results[case.name] = {**result, "paper": case.paper}
        report_progress(f"accuracy: {case.name}")
    return results


def print_accuracy(results: dict[str, Any]) -> None:
    rows = []
    for name, result in results.items():
        for label in ("exact", "balanced", "paper's setting"):
            part = result[label]
            differences = [a - b for a, b in zip(part["accuracy"], result["exact"]["accuracy"], strict=True)]
            rows.append((
                name, label, *(f"{a:.2f} ({d:+.2f})" for a, d in zip(part["accuracy"], differences, strict=True)),
                f"{part['seconds']:.1f}", part.get("iterations", ""), f"{part['error']:.3f}" if "error" in part else "",
                " ".join(f"{error:.2f}" for error in part.get("value errors", ())),
                {"exact": f"{result['paper'][1]:.2f} (LIBSVM)", "paper's setting": f"{result['paper'][0]:.2f}"}.get(label, ""),
            ))  # fmt: skip
    print_table(
        "Accuracy in % (and points above the exact machine's) at each C; CPU seconds for all three",
        ("set", "", *(f"C = {C:g}" for C in CS), "seconds", "iterations", "e", "value errors", "the paper's best"),
        rows,
    )


def draw_mixture(n: int) -> np.ndarray:
    """Draw n rows with 8 features from 50 Gaussians."""
    rng = np.random.default_rng(0)
    return rng.uniform(-5.0, 5.0, size=(50, 8))[rng.integers(0, 50, n)] + rng.normal(size=(n, 8))


def measure_size(n: int, error: float) -> list[dict[str, float]]:
    """Decrease the tolerance until the error is reached, and return results of the last two; run it in its own process."""
    X = draw_mixture(n)
    HSSMatrix.compress(X[:500]).factorize(1.0)
    results: list[dict[str, float]] = []
    for tolerance in GROWTH_TOLERANCES:
        start = time.process_time()
        K = HSSMatrix.compress(X, gamma=0.5, rel_tol=tolerance)
        factorization = K.factorize(1.0)
        seconds = time.process_time() - start
        start = time.process_time()
        factorization.solve(np.ones(n))
        results.append(
            {
                "n": n,
                "tolerance": tolerance,
                "seconds": seconds,
                "solve": time.process_time() - start,
                "bytes": K.nbytes + factorization.nbytes,
                "peak": 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
                "error": K.error,
                "largest rank": int(K.ranks.max()),
            }
        )
        if K.error <= error:
            break
        del K, factorization
    return results[-2:]


def measure_growth(_: list[Case], args: argparse.Namespace) -> dict[str, Any]:
    """Return time and memory for increasing numbers of rows."""
    results = {}
    for n in args.rows:
        code = f"import json; from hss_admm import measure_size; print(json.dumps(measure_size({n}, {args.error})))"
        process = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code], cwd=Path(__file__).parent, capture_output=True, text=True, check=True
        )
        results[str(n)] = json.loads(process.stdout)
        report_progress(f"growth: {n:,} rows")
    return {"error": args.error, "sizes": results}


def interpolate_sizes(results: dict[str, Any]) -> list[dict[str, float]]:
    """Return time and memory of each size at the given error, interpolated between two measurements on logarithmic scales."""
    sizes = []
    for pair in results["sizes"].values():
        log_errors = np.log([result["error"] for result in pair[::-1]])
        log_error = np.log(results["error"])
        sizes.append(
            {
                "n": pair[0]["n"],
                **{
                    part: float(np.exp(np.interp(log_error, log_errors, np.log([result[part] for result in pair[::-1]]))))
                    for part in GROWTH_MEASURES
                },
            }
        )
    return sizes


def fit_exponents(results: dict[str, Any]) -> dict[str, float]:
    """Return the exponents with which time and memory grow with the number of rows (least squares on logarithms)."""
    sizes = interpolate_sizes(results)
    log_n = np.log([result["n"] for result in sizes])
    return {part: float(np.polyfit(log_n, np.log([result[part] for result in sizes]), 1)[0]) for part in GROWTH_MEASURES}


def print_growth(results: dict[str, Any]) -> None:
    print_table(
        "A mixture of 50 Gaussians in 8 dimensions, h = 1: compression and factorisation",
        ("rows", "rel_tol", "CPU s", "solve, s", "MB", "peak MB", "e, estimated", "rank"),
        [
            (f"{r['n']:,}", r["tolerance"], f"{r['seconds']:.1f}", f"{r['solve']:.3f}", f"{r['bytes'] / 1e6:,.0f}",
             f"{r['peak'] / 1e6:,.0f}", f"{r['error']:.3f}", r["largest rank"])
            for pair in results["sizes"].values() for r in pair
        ],
    )  # fmt: skip
    print_table(
        f"The same at e = {results['error']:g}, between the two",
        ("rows", "CPU s", "MB"),
        [(f"{r['n']:,}", f"{r['seconds']:.1f}", f"{r['bytes'] / 1e6:,.0f}") for r in interpolate_sizes(results)],
    )
    if len(results["sizes"]) > 1:
        print("exponents in n:", ", ".join(f"{name} {value:.2f}" for name, value in fit_exponents(results).items()))


PARTS = {
    "compression": (measure_compression, print_compression),
    "accuracy": (measure_accuracy, print_accuracy),
    "growth": (measure_growth, print_growth),
}


def save_plot(results: dict[str, Any], path: Path) -> None:
    """Save plots of time against error, and of growth."""
    import matplotlib as mpl  # noqa: PLC0415 - slow to import, and not needed by the processes that measure

    mpl.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
    for name, by_tolerance in results.get("compression", {}).items():
        points = sorted((result["error"], result["share"]) for result in by_tolerance.values())
        left.loglog(*zip(*points, strict=True), marker="o", label=name)
    left.set(xlabel="error e", ylabel="compression and factorisation, in passes Y", title="Time against error")
    sizes = interpolate_sizes(results["growth"]) if "growth" in results else []
    for part, label, unit in (("seconds", "CPU seconds", 1.0), ("bytes", "memory, GB", 1e9)):
        if sizes:
            right.loglog([result["n"] for result in sizes], [result[part] / unit for result in sizes], marker="o", label=label)
    right.set(xlabel="rows", title="Growth at the same error")
    for axes in (left, right):
        axes.grid(alpha=0.3, which="both")
        if axes.lines:
            axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    report_progress(f"drawn: {path}")


def main() -> None:
    parser = make_parser(__doc__, "hss_admm")
    parser.add_argument("--parts", default=",".join(PARTS), help="comma-separated")
    parser.add_argument("--sets", default="", help="comma-separated names of data sets; empty: all")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--rows", type=int, nargs="+", default=[100_000, 300_000, 1_000_000], help="numbers of rows for the part growth"
    )
    parser.add_argument("--error", type=float, default=0.5, help="error e at which sizes are compared in the part growth")
    args = parser.parse_args()
    cases = [case for case in CASES if not args.sets or case.name in args.sets.split(",")]
    results: dict[str, Any] = {}
    for part in args.parts.split(","):
        measure, print_part = PARTS[part]
        results[part] = measure(cases, args)
        print_part(results[part])
        write_json(args.out, results)
    save_plot(results, args.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
