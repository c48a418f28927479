"""Compressed kernel matrices: time against error, accuracy of ADMM on them beside the exact machine, and growth with the rows.

CPU seconds in one process, beside Y: one pass over the whole kernel matrix with numpy, float32 blocks of 2,048 rows (product,
exponential, times a vector). Errors e = |(K - K~) V| / |K V| in the Frobenius norm, of all rows and 20 random vectors, with K in
float64. Run it on one core: ``OMP_NUM_THREADS=1 taskset -c 1 python benchmarks/hss_admm.py``.
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
from common import load_file, load_split, make_parser, print_table, report_progress, summarise, write_results

from streamsvm.batch import CSMOClassifier, HSSADMMClassifier
from streamsvm.batch.hss import HSSMatrix

VECTORS, BLOCK = 20, 2048
CS = (0.1, 1.0, 10.0)
LONG = 0.05  # tolerances below are measured once
LARGEST_RANK = 2000
GROWING = ("seconds", "bytes")
GROWTH_TOLERANCES = (1.2, 1.0, 0.8, 0.6, 0.5, 0.4, 0.36, 0.3, 0.2, 0.1)


@dataclass(frozen=True)
class Case:
    """A data set, h of the kernel exp(-|x - s|^2 / (2 h^2)), tolerances, and what the paper reports at C = 1 (coarse, LIBSVM)."""

    name: str
    h: float
    tolerances: tuple[float, ...]
    paper: tuple[float, float]
    asked: tuple[float, float] | None = None  # Y at most, at an error of at most

    @property
    def gamma(self) -> float:
        return 0.5 / self.h**2


CASES = [
    Case("a9a", 1.0, (0.6, 0.4, 0.3, 0.2, 0.1), (83.477, 82.697), (0.25, 0.45)),
    Case("ijcnn1", 0.1, (0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.03), (92.403, 96.007), (0.18, 0.20)),
    Case("w7a", 1.0, (0.6, 0.3, 0.1, 0.03), (97.465, 97.904)),
    Case("skin", 10.0, (0.3, 0.1, 0.03, 0.01), (99.846, 99.960)),
]


def rows_of(case: Case, folder: Path | None) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """X, y, X_test, y_test: skin, which has no test file, 70/30 as in the paper."""
    if case.name == "skin":
        arrays = load_file("skin", folder)
        X, y = arrays["X"].astype(float), arrays["y"] > 0
        learn, test = np.split(np.random.default_rng(1234).permutation(len(y)), [len(y) * 7 // 10])
        return X[learn], y[learn], X[test], y[test]
    split = load_split(case.name, folder)
    return split.X.astype(float), split.y, split.X_test.astype(float), split.y_test


def pass_over(X: np.ndarray, gamma: float) -> float:
    """Y: seconds for the kernel matrix times a vector."""
    X = X.astype(np.float32)
    squares, v, out = np.square(X).sum(axis=1), np.ones(len(X), np.float32), np.empty(len(X), np.float32)
    start = time.process_time()
    for begin in range(0, len(X), BLOCK):
        K = X[begin : begin + BLOCK] @ X.T
        K *= np.float32(2.0 * gamma)
        K -= np.float32(gamma) * squares
        K -= np.float32(gamma) * squares[begin : begin + BLOCK, None]
        np.exp(K, out=K)
        out[begin : begin + BLOCK] = K @ v
    return time.process_time() - start


def products(X: np.ndarray, gamma: float, V: np.ndarray) -> np.ndarray:
    """K V in float64."""
    centred = X - X.mean(axis=0)
    squares = np.square(centred).sum(axis=1)
    return np.concatenate([
        np.exp(-gamma * np.maximum(squares[some, None] + squares - 2.0 * centred[some] @ centred.T, 0.0)) @ V
        for some in np.array_split(np.arange(len(X)), -(-len(X) // 500))
    ])  # fmt: skip


def compression(cases: list[Case], args: argparse.Namespace) -> dict[str, Any]:
    """Time against error."""
    results: dict[str, Any] = {}
    HSSMatrix.compress(np.eye(100)).factorize(1.0)  # compiled from here on
    for case in cases:
        X = rows_of(case, args.data)[0]
        V = np.random.default_rng(0).normal(size=(len(X), VECTORS))
        KV = products(X, case.gamma, V)
        results[case.name] = {}
        for tolerance in case.tolerances:
            times: dict[str, list[float]] = {"Y": [], "compress": [], "factorize": [], "solve": []}
            for _ in range(args.repeats if tolerance >= LONG else 1):
                times["Y"].append(pass_over(X, case.gamma))
                start = time.process_time()
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", RuntimeWarning)
                    K = HSSMatrix.compress(X, gamma=case.gamma, rel_tol=tolerance, max_rank=LARGEST_RANK, seed=None)
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
            found = results[case.name][str(tolerance)]
            report_progress(f"compression: {case.name} at {tolerance:g}: e = {found['error']:.4f}, {found['share']:.3f} Y")
    return results


def show_compression(results: dict[str, Any]) -> None:
    rows = []
    for name, by_tolerance in results.items():
        for tolerance, r in by_tolerance.items():
            asked = ""
            if r["asked"] and r["error"] <= r["asked"][1]:
                asked = f"{'yes' if r['share'] <= r['asked'][0] else 'NO'} ({r['asked'][0]:g} at {r['asked'][1]:g})"
            rows.append((
                name, tolerance, f"{r['error']:.3f}", f"{r['estimate']:.3f}",
                *(f"{r[part]['min']:.2f} {r[part]['median']:.2f} {r[part]['max']:.2f}" for part in ("compress", "factorize")),
                f"{r['Y']['median']:.2f}", f"{r['share']:.3f}", asked, f"{r['solve share']:.4f}", r["largest rank"],
                f"{r['bytes'] / 1e6:.0f}",
            ))  # fmt: skip
    print_table(
        "Compression: CPU seconds (min median max), and in Y",
        ("set", "rel_tol", "e", "estimate", "compress", "factorize", "Y, s", "both / Y", "enough", "solve / Y", "rank", "MB"),
        rows,
    )


def accuracy(cases: list[Case], args: argparse.Namespace) -> dict[str, Any]:
    """Of a balanced penalty, and of the paper's setting."""
    results: dict[str, Any] = {}
    for case in cases:
        X, y, X_test, y_test = rows_of(case, args.data)
        found: dict[str, Any] = {}
        settings = {
            "balanced": HSSADMMClassifier(gamma=case.gamma),
            "paper's setting": HSSADMMClassifier(gamma=case.gamma, beta="paper", rel_tol=case.tolerances[1]),
        }
        for label, model in settings.items():
            start = time.process_time()
            models = model.fit_path(X, y, CS)
            found[label] = {
                "seconds": time.process_time() - start,
                "accuracy": [100.0 * m.score(X_test, y_test) for m in models],
                "iterations": max(m.n_iter_ for m in models),
                "error": models[0].compression_error_,
                "value errors": [m.value_error_ for m in models],
            }
        start = time.process_time()
        exact = [CSMOClassifier(C=C, gamma=case.gamma).fit(X, y) for C in CS]
        found["exact"] = {
            "seconds": time.process_time() - start,
            "accuracy": [100.0 * m.score(X_test, y_test) for m in exact],
        }
        results[case.name] = {**found, "paper": case.paper}
        report_progress(f"accuracy: {case.name}")
    return results


def show_accuracy(results: dict[str, Any]) -> None:
    rows = []
    for name, r in results.items():
        for label in ("exact", "balanced", "paper's setting"):
            part = r[label]
            differences = [a - b for a, b in zip(part["accuracy"], r["exact"]["accuracy"], strict=True)]
            rows.append((
                name, label, *(f"{a:.2f} ({d:+.2f})" for a, d in zip(part["accuracy"], differences, strict=True)),
                f"{part['seconds']:.1f}", part.get("iterations", ""), f"{part['error']:.3f}" if "error" in part else "",
                " ".join(f"{error:.2f}" for error in part.get("value errors", ())),
                {"exact": f"{r['paper'][1]:.2f} (LIBSVM)", "paper's setting": f"{r['paper'][0]:.2f}"}.get(label, ""),
            ))  # fmt: skip
    print_table(
        "Accuracy in % (and points above the exact machine's) at each C; CPU seconds for all three",
        ("set", "", *(f"C = {C:g}" for C in CS), "seconds", "iterations", "e", "value errors", "the paper's best"),
        rows,
    )


def mixture(n: int) -> np.ndarray:
    """Rows of 8 features from 50 Gaussians."""
    rng = np.random.default_rng(0)
    return rng.uniform(-5.0, 5.0, size=(50, 8))[rng.integers(0, 50, n)] + rng.normal(size=(n, 8))


def one_size(n: int, error: float) -> list[dict[str, float]]:
    """From coarse to just below the error, in a process of its own, for its peak of memory."""
    X = mixture(n)
    HSSMatrix.compress(X[:500]).factorize(1.0)
    found: list[dict[str, float]] = []
    for tolerance in GROWTH_TOLERANCES:
        start = time.process_time()
        K = HSSMatrix.compress(X, gamma=0.5, rel_tol=tolerance)
        factorization = K.factorize(1.0)
        seconds = time.process_time() - start
        start = time.process_time()
        factorization.solve(np.ones(n))
        found.append(
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
    return found[-2:]


def growth(_: list[Case], args: argparse.Namespace) -> dict[str, Any]:
    """Time and memory at growing numbers of rows."""
    results = {}
    for n in args.rows:
        code = f"import json; from hss_admm import one_size; print(json.dumps(one_size({n}, {args.error})))"
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code], cwd=Path(__file__).parent, capture_output=True, text=True, check=True
        )
        results[str(n)] = json.loads(done.stdout)
        report_progress(f"growth: {n:,} rows")
    return {"error": args.error, "sizes": results}


def at_the_error(results: dict[str, Any]) -> list[dict[str, float]]:
    """Of each size, what it would be at the error: between the two measured ones, on logarithms."""
    found = []
    for pair in results["sizes"].values():
        where = np.log([r["error"] for r in pair[::-1]])
        at = np.log(results["error"])
        found.append(
            {
                "n": pair[0]["n"],
                **{part: float(np.exp(np.interp(at, where, np.log([r[part] for r in pair[::-1]])))) for part in GROWING},
            }
        )
    return found


def exponents(results: dict[str, Any]) -> dict[str, float]:
    """Of the number of rows, by least squares on logarithms."""
    sizes = at_the_error(results)
    log_n = np.log([r["n"] for r in sizes])
    return {part: float(np.polyfit(log_n, np.log([r[part] for r in sizes]), 1)[0]) for part in GROWING}


def show_growth(results: dict[str, Any]) -> None:
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
        [(f"{r['n']:,}", f"{r['seconds']:.1f}", f"{r['bytes'] / 1e6:,.0f}") for r in at_the_error(results)],
    )
    if len(results["sizes"]) > 1:
        print("exponents in n:", ", ".join(f"{name} {value:.2f}" for name, value in exponents(results).items()))


PARTS = {
    "compression": (compression, show_compression),
    "accuracy": (accuracy, show_accuracy),
    "growth": (growth, show_growth),
}


def plot(results: dict[str, Any], path: Path) -> None:
    """Time against error, and growth."""
    import matplotlib as mpl  # noqa: PLC0415 - slow to import, and not needed by the processes that measure

    mpl.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
    for name, by_tolerance in results.get("compression", {}).items():
        points = sorted((r["error"], r["share"]) for r in by_tolerance.values())
        left.loglog(*zip(*points, strict=True), marker="o", label=name)
    left.set(xlabel="error e", ylabel="compression and factorisation, in passes Y", title="Time against error")
    grown = at_the_error(results["growth"]) if "growth" in results else []
    for part, label, unit in (("seconds", "CPU seconds", 1.0), ("bytes", "memory, GB", 1e9)):
        if grown:
            right.loglog([r["n"] for r in grown], [r[part] / unit for r in grown], marker="o", label=label)
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
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 300_000, 1_000_000], help="of the part growth")
    parser.add_argument("--error", type=float, default=0.5, help="of the part growth: e, the same at all sizes")
    args = parser.parse_args()
    cases = [case for case in CASES if not args.sets or case.name in args.sets.split(",")]
    results: dict[str, Any] = {}
    for part in args.parts.split(","):
        measure, tell = PARTS[part]
        results[part] = measure(cases, args)
        tell(results[part])
        write_results(args.out, results)
    plot(results, args.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
