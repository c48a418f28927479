"""Compares conjugate SMO with scikit-learn's SVC and SVR (time, objective, gap, accuracy), and with plain SMO (iterations).

CPU seconds of fits, in turn in one process, at tol = 1e-3 and 200 MB of cache. SVC and SVR get dense or sparse rows, whichever
is faster. Objectives and gaps of both are recomputed in float64 from the coefficients, by code that belongs to neither. Run it
on one core: ``taskset -c 1 python benchmarks/csmo.py``.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from common import PAPER, load_file, load_split, make_parser, print_table, report_progress, summarise, write_json
from scipy import sparse
from sklearn.svm import SVC, SVR

from streamsvm.batch import CSMOClassifier, CSMORegressor

EPSILON, TOL = 0.1, 1e-3


@dataclass(frozen=True)
class Case:
    """A data set, C, and limits: the minimum speed-up, and the maximum ratio of CSMO's iterations to SMO's."""

    name: str
    C: float
    min_speedup: float | None  # None: no limit, and not in the mean
    unit: float = 0.0  # divides the targets of a regression; 0: classification
    max_iterations: float | None = None

    @property
    def label(self) -> str:
        unit = f" / {self.unit:g}" if self.unit > 1.0 else ""
        return f"{self.name}{unit}, C = {self.C:g}"


CASES = [
    Case("a9a", 32.0, 6.0, max_iterations=0.65),
    Case("ijcnn1", 32.0, 6.0, max_iterations=0.80),
    Case("phishing", 32.0, 6.0),
    Case("reuters", 32.0, None),
    Case("abalone", 32.0, 3.0, 1.0),
    Case("abalone", 1000.0, 3.0, 1.0),
    Case("cpusmall", 32.0, 3.0, 1.0),
    Case("cpusmall", 1000.0, 3.0, 1.0, max_iterations=0.60),
    Case("cadata", 32.0, 3.0, 1e5, max_iterations=0.60),
    Case("cadata", 1000.0, 3.0, 1e5),
    Case("cadata", 32.0, 3.0, 1.0),
    Case("cadata", 1000.0, 3.0, 1.0),
]


def load_regression(name: str, unit: float, folder: Path | None) -> tuple[np.ndarray, np.ndarray]:
    """Return a regression data set: features scaled to [-1, 1], and targets divided by ``unit``."""
    arrays = load_file(name, folder)
    X, y = arrays["X"].astype(float), arrays["y"].astype(float) / unit
    low, high = X.min(axis=0), X.max(axis=0)
    return 2.0 * (X - low) / (high - low) - 1.0, y


def load_text(folder: Path | None) -> list[Any]:
    """Return the sparse rows and labels of reuters, then its test rows and labels."""
    arrays = load_file("reuters", folder)
    parts: list[Any] = []
    for part in ("", "_test"):
        data, indices, starts, shape = (arrays[f"X{part}_{key}"] for key in ("data", "indices", "indptr", "shape"))
        values = data.astype(float), indices.astype(np.int32), starts.astype(np.int32)
        parts += [sparse.csr_array(values, shape=tuple(shape)), arrays[f"y{part}"] > 0]
    return parts


def load_rows(case: Case, args: argparse.Namespace) -> tuple[Any, np.ndarray, Any, np.ndarray, float]:
    """Return X, y, X_test, y_test and gamma of a case. Regressions are fitted to, and tested on, all rows."""
    if case.name == "reuters":
        X, y, X_test, y_test = load_text(args.data)
        return X, y, X_test, y_test, 1.0
    if not case.unit:
        split = load_split(case.name, args.data)
        return split.X.astype(float), split.y, split.X_test.astype(float), split.y_test, PAPER[case.name].gamma
    X, y = load_regression(case.name, case.unit, args.data)
    return X, y, X, y, 1.0 / X.shape[1]


def measure_quality(model: Any, case: Case, X: Any, y: np.ndarray, gamma: float) -> tuple[float, float]:
    """Return the dual objective and the largest violation of its optimality conditions, computed in float64 by numpy."""
    beta = np.zeros(len(y))
    coefficients = model.dual_coef_
    beta[model.support_] = (coefficients.toarray() if sparse.issparse(coefficients) else coefficients)[0]
    X = X.toarray() if sparse.issparse(X) else X
    S = X[model.support_]
    product = np.concatenate([
        np.exp(-gamma * np.maximum((part**2).sum(1)[:, None] + (S**2).sum(1) - 2.0 * part @ S.T, 0.0)) @ beta[model.support_]
        for part in np.array_split(X, max(len(X) // 500, 1))
    ])  # fmt: skip
    if case.unit:
        gradient, low, high = product - y, -case.C, case.C
        rise, fall = np.where(beta >= 0.0, EPSILON, -EPSILON), np.where(beta > 0.0, EPSILON, -EPSILON)
        objective = 0.5 * beta @ product - beta @ y + EPSILON * np.abs(beta).sum()
    else:
        signs = np.where(y, 1.0, -1.0)
        gradient, low, high = product - signs, np.where(y, 0.0, -case.C), np.where(y, case.C, 0.0)
        rise = fall = np.zeros(len(beta))
        objective = 0.5 * beta @ product - signs @ beta
    up, down = beta < high, beta > low
    return float(objective), float((gradient + fall)[down].max() - (gradient + rise)[up].min())


def time_fit(model: Any, X: Any, y: np.ndarray) -> float:
    start = time.process_time()
    model.fit(X, y)
    return time.process_time() - start


FIRST_FIT = """
import time
import numpy as np
from streamsvm.batch import CSMOClassifier
X = np.random.default_rng(0).normal(size=(200, 5))
start = time.process_time()
CSMOClassifier().fit(X, X[:, 0] > 0.0)
print(time.process_time() - start)
"""


def time_first_fits() -> dict[str, float]:
    """Return the CPU seconds of a process's first fit, with an empty and with a filled compile cache."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "NUMBA_CACHE_DIR": folder}
        command = [sys.executable, "-c", FIRST_FIT]
        return {
            name: float(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
            for name in ("with compilation", "from the compile cache")
        }


def measure_speed(cases: list[Case], args: argparse.Namespace) -> dict[str, Any]:
    """Fit CSMO and scikit-learn in turn, and return seconds, objectives, gaps, scores and iterations of each case."""
    results: dict[str, Any] = {}
    results["cold"] = time_first_fits()
    time_fit(CSMOClassifier(), np.eye(4), np.arange(4) > 1)  # compiles before any time is taken
    for case in cases:
        X, y, X_test, y_test, gamma = load_rows(case, args)
        params = {"C": case.C, "gamma": gamma, "tol": TOL, "cache_size": 200}
        params.update({"epsilon": EPSILON} if case.unit else {})
        peer, ours = (SVR(**params), CSMORegressor(**params)) if case.unit else (SVC(**params), CSMOClassifier(**params))
        forms = {"sparse": X} if sparse.issparse(X) else {"dense": X}
        if "dense" in forms and (X == 0.0).mean() > 0.5:
            forms["sparse"] = sparse.csr_array(X)
        form_seconds = {form: time_fit(peer, rows, y) for form, rows in forms.items()}
        form = min(form_seconds, key=lambda name: form_seconds[name])
        seconds: dict[str, list[float]] = {"ours": [], "theirs": [form_seconds[form]]}
        for repeat in range(args.repeats):
            seconds["ours"].append(time_fit(ours, X, y))
            if repeat:
                seconds["theirs"].append(time_fit(peer, forms[form], y))
        qualities = {name: measure_quality(model, case, X, y, gamma) for name, model in (("ours", ours), ("theirs", peer))}
        results[case.label] = {
            "form": form,
            "seconds": {name: summarise(values) for name, values in seconds.items()},
            "ratio": statistics.median(seconds["theirs"]) / statistics.median(seconds["ours"]),
            "least": case.min_speedup,
            "regression": bool(case.unit),
            "objective": {name: value[0] for name, value in qualities.items()},
            "gap": {name: value[1] for name, value in qualities.items()},
            "gap_": ours.gap_,
            "score": {"ours": 100.0 * ours.score(X_test, y_test), "theirs": 100.0 * peer.score(X_test, y_test)},
            "iterations": {"ours": int(np.sum(ours.n_iter_)), "theirs": int(np.sum(peer.n_iter_))},
            "support vectors": {"ours": len(ours.support_), "theirs": len(peer.support_)},
        }
        report_progress(f"speed: {case.label} {results[case.label]['ratio']:.1f} times")
    return results


def print_speed(results: dict[str, Any]) -> None:
    rows = []
    for label, result in results.items():
        if label == "cold":
            continue
        own_seconds, peer_seconds = result["seconds"]["ours"], result["seconds"]["theirs"]
        tolerance = 1e-4 if label.endswith("1000") else 1e-5
        better = (result["objective"]["theirs"] - result["objective"]["ours"]) / abs(result["objective"]["theirs"])
        rows.append((
            label,
            f"{own_seconds['min']:.3f} {own_seconds['median']:.3f} {own_seconds['max']:.3f}",
            f"{peer_seconds['min']:.2f} {peer_seconds['median']:.2f} {peer_seconds['max']:.2f} ({result['form']})",
            f"{result['ratio']:.1f}",
            "" if result["least"] is None else "yes" if result["ratio"] >= result["least"] else "NO",
            f"{better:+.1e}" + ("" if better >= -tolerance else " NO"),
            f"{result['gap']['ours']:.1e} / {result['gap']['theirs']:.1e}" + ("" if result["gap"]["ours"] <= TOL else " NO"),
            f"{result['score']['ours']:.2f} / {result['score']['theirs']:.2f}",
            f"{result['iterations']['ours']:,} / {result['iterations']['theirs']:,}",
        ))  # fmt: skip
    print_table(
        "CSMO beside scikit-learn: CPU seconds (min median max), ours / theirs",
        ("set", "CSMO", "SVC, SVR", "times", "enough", "objective lower by", "gap", "accuracy or R2, %", "iterations"),
        rows,
    )
    for kind, regressions, least in (("classification", False, 10.0), ("regression", True, 6.0)):
        results_with_limit = [result for label, result in results.items() if label != "cold" and result["least"] is not None]
        ratios = [result["ratio"] for result in results_with_limit if result["regression"] == regressions]
        if ratios:
            mean = statistics.geometric_mean(ratios)
            print(f"{kind}: geometric mean {mean:.1f} times ({'' if mean >= least else 'NOT '}at least {least:g})")
    print("first fit of 200 rows:", ", ".join(f"{name} {value:.1f} s" for name, value in results["cold"].items()))


def measure_iterations(cases: list[Case], args: argparse.Namespace) -> dict[str, Any]:
    """Return the iterations of CSMO and plain SMO, with shrinking, for each case."""
    results: dict[str, Any] = {}
    for case in cases:
        X, y, _, _, gamma = load_rows(case, args)
        counts = {}
        for conjugate in (True, False):
            params = {"C": case.C, "gamma": gamma, "tol": TOL, "cache_size": 200, "conjugate": conjugate}
            model = CSMORegressor(epsilon=EPSILON, **params) if case.unit else CSMOClassifier(**params)
            seconds = time_fit(model, X, y)
            counts["CSMO" if conjugate else "SMO"] = {"iterations": int(np.sum(model.n_iter_)), "seconds": seconds}
        ratio = counts["CSMO"]["iterations"] / counts["SMO"]["iterations"]
        results[case.label] = {**counts, "ratio": ratio, "most": case.max_iterations}
        report_progress(f"iterations: {case.label} {ratio:.3f}")
    return results


def print_iterations(results: dict[str, Any]) -> None:
    print_table(
        "Iterations of CSMO and SMO, shrinking on",
        ("set", "CSMO", "SMO", "CSMO / SMO", "asked", "enough", "CPU seconds, CSMO / SMO"),
        [
            (
                label,
                f"{result['CSMO']['iterations']:,}",
                f"{result['SMO']['iterations']:,}",
                f"{result['ratio']:.3f}",
                f"<= {result['most']:.2f}" if result["most"] else "",
                ("yes" if result["ratio"] <= result["most"] else "NO") if result["most"] else "",
                f"{result['CSMO']['seconds']:.3f} / {result['SMO']['seconds']:.3f}",
            )
            for label, result in results.items()
        ],
    )


PARTS = {"speed": (measure_speed, print_speed), "iterations": (measure_iterations, print_iterations)}


def main() -> None:
    parser = make_parser(__doc__, "csmo")
    parser.add_argument("--parts", default=",".join(PARTS), help="comma-separated")
    parser.add_argument("--sets", default="", help="comma-separated names of data sets; empty: all")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    cases = [case for case in CASES if not args.sets or case.name in args.sets.split(",")]
    results: dict[str, Any] = {"scikit-learn": version("scikit-learn")}
    for part in args.parts.split(","):
        measure, print_results = PARTS[part]
        results[part] = measure(cases, args)
        print_results(results[part])
        write_json(args.out, results)


if __name__ == "__main__":
    main()
