"""Conjugate SMO beside scikit-learn's SVC and SVR: time, objective, gap, accuracy, and iterations beside those of plain SMO.

CPU seconds of fits in the same process in turn, at tol = 1e-3 and 200 MB of cache. SVC and SVR are given dense or sparse rows,
whichever is quicker for them. Objectives and gaps of both are recomputed in float64 from their coefficients, by code that neither
shares. Run it on one core: ``taskset -c 1 python benchmarks/csmo.py``.
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
from common import PAPER, load_file, load_split, make_parser, print_table, report_progress, summarise, write_results
from scipy import sparse
from sklearn.svm import SVC, SVR

from streamsvm.batch import CSMOClassifier, CSMORegressor

EPSILON, TOL = 0.1, 1e-3


@dataclass(frozen=True)
class Case:
    """A data set, C, and what is asked: how many times quicker at least, and CSMO's iterations over SMO's at most."""

    name: str
    C: float
    least: float | None  # None: beside the others, and not in their mean
    unit: float = 0.0  # of the targets of a regression; 0: classification
    iterations: float | None = None

    @property
    def label(self) -> str:
        unit = f" / {self.unit:g}" if self.unit > 1.0 else ""
        return f"{self.name}{unit}, C = {self.C:g}"


CASES = [
    Case("a9a", 32.0, 6.0, iterations=0.65),
    Case("ijcnn1", 32.0, 6.0, iterations=0.80),
    Case("phishing", 32.0, 6.0),
    Case("reuters", 32.0, None),
    Case("abalone", 32.0, 3.0, 1.0),
    Case("abalone", 1000.0, 3.0, 1.0),
    Case("cpusmall", 32.0, 3.0, 1.0),
    Case("cpusmall", 1000.0, 3.0, 1.0, iterations=0.60),
    Case("cadata", 32.0, 3.0, 1e5, iterations=0.60),
    Case("cadata", 1000.0, 3.0, 1e5),
    Case("cadata", 32.0, 3.0, 1.0),
    Case("cadata", 1000.0, 3.0, 1.0),
]


def load_regression(name: str, unit: float, folder: Path | None) -> tuple[np.ndarray, np.ndarray]:
    """Features scaled to [-1, 1], and targets over their unit."""
    arrays = load_file(name, folder)
    X, y = arrays["X"].astype(float), arrays["y"].astype(float) / unit
    low, high = X.min(axis=0), X.max(axis=0)
    return 2.0 * (X - low) / (high - low) - 1.0, y


def text(folder: Path | None) -> list[Any]:
    """Reuters' rows, sparse, and labels, then those for tests."""
    a = load_file("reuters", folder)
    found: list[Any] = []
    for part in ("", "_test"):
        values = a[f"X{part}_data"].astype(float), a[f"X{part}_indices"].astype(np.int32), a[f"X{part}_indptr"].astype(np.int32)
        found += [sparse.csr_array(values, shape=tuple(a[f"X{part}_shape"])), a[f"y{part}"] > 0]
    return found


def rows_of(case: Case, args: argparse.Namespace) -> tuple[Any, np.ndarray, Any, np.ndarray, float]:
    """X, y, X_test, y_test and gamma. Regressions are fitted to, and tested on, all rows, features scaled to [-1, 1]."""
    if case.name == "reuters":
        X, y, X_test, y_test = text(args.data)
        return X, y, X_test, y_test, 1.0
    if not case.unit:
        split = load_split(case.name, args.data)
        return split.X.astype(float), split.y, split.X_test.astype(float), split.y_test, PAPER[case.name].gamma
    X, y = load_regression(case.name, case.unit, args.data)
    return X, y, X, y, 1.0 / X.shape[1]


def quality(model: Any, case: Case, X: Any, y: np.ndarray, gamma: float) -> tuple[float, float]:
    """The dual objective and the largest violation of its optimality conditions, in float64 by plain numpy."""
    b = np.zeros(len(y))
    coefficients = model.dual_coef_
    b[model.support_] = (coefficients.toarray() if sparse.issparse(coefficients) else coefficients)[0]
    X = X.toarray() if sparse.issparse(X) else X
    S = X[model.support_]
    product = np.concatenate([
        np.exp(-gamma * np.maximum((part**2).sum(1)[:, None] + (S**2).sum(1) - 2.0 * part @ S.T, 0.0)) @ b[model.support_]
        for part in np.array_split(X, max(len(X) // 500, 1))
    ])  # fmt: skip
    if case.unit:
        gradient, low, high = product - y, -case.C, case.C
        rise, fall = np.where(b >= 0.0, EPSILON, -EPSILON), np.where(b > 0.0, EPSILON, -EPSILON)
        objective = 0.5 * b @ product - b @ y + EPSILON * np.abs(b).sum()
    else:
        signs = np.where(y, 1.0, -1.0)
        gradient, low, high = product - signs, np.where(y, 0.0, -case.C), np.where(y, case.C, 0.0)
        rise = fall = np.zeros(len(b))
        objective = 0.5 * b @ product - signs @ b
    up, down = b < high, b > low
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


def first_fits() -> dict[str, float]:
    """CPU seconds of the first fit of a process: where nothing is compiled yet, and where it is on disk."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "NUMBA_CACHE_DIR": folder}
        command = [sys.executable, "-c", FIRST_FIT]
        return {
            name: float(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
            for name in ("with compilation", "from the compile cache")
        }


def speed(cases: list[Case], args: argparse.Namespace) -> dict[str, Any]:
    """Fits in turn."""
    results: dict[str, Any] = {}
    results["cold"] = first_fits()
    time_fit(CSMOClassifier(), np.eye(4), np.arange(4) > 1)  # compiled from here on
    for case in cases:
        X, y, X_test, y_test, gamma = rows_of(case, args)
        own = {"C": case.C, "gamma": gamma, "tol": TOL, "cache_size": 200}
        own.update({"epsilon": EPSILON} if case.unit else {})
        peer, ours = (SVR(**own), CSMORegressor(**own)) if case.unit else (SVC(**own), CSMOClassifier(**own))
        forms = {"sparse": X} if sparse.issparse(X) else {"dense": X}
        if "dense" in forms and (X == 0.0).mean() > 0.5:
            forms["sparse"] = sparse.csr_array(X)
        tried = {form: time_fit(peer, rows, y) for form, rows in forms.items()}
        form = min(tried, key=lambda name: tried[name])
        seconds: dict[str, list[float]] = {"ours": [], "theirs": [tried[form]]}
        for repeat in range(args.repeats):
            seconds["ours"].append(time_fit(ours, X, y))
            if repeat:
                seconds["theirs"].append(time_fit(peer, forms[form], y))
        found = {name: quality(model, case, X, y, gamma) for name, model in (("ours", ours), ("theirs", peer))}
        results[case.label] = {
            "form": form,
            "seconds": {name: summarise(values) for name, values in seconds.items()},
            "ratio": statistics.median(seconds["theirs"]) / statistics.median(seconds["ours"]),
            "least": case.least,
            "regression": bool(case.unit),
            "objective": {name: value[0] for name, value in found.items()},
            "gap": {name: value[1] for name, value in found.items()},
            "gap_": ours.gap_,
            "score": {"ours": 100.0 * ours.score(X_test, y_test), "theirs": 100.0 * peer.score(X_test, y_test)},
            "iterations": {"ours": int(np.sum(ours.n_iter_)), "theirs": int(np.sum(peer.n_iter_))},
            "support vectors": {"ours": len(ours.support_), "theirs": len(peer.support_)},
        }
        report_progress(f"speed: {case.label} {results[case.label]['ratio']:.1f} times")
    return results


def show_speed(results: dict[str, Any]) -> None:
    rows = []
    for label, r in results.items():
        if label == "cold":
            continue
        own, peer = r["seconds"]["ours"], r["seconds"]["theirs"]
        allowed = 1e-4 if label.endswith("1000") else 1e-5
        better = (r["objective"]["theirs"] - r["objective"]["ours"]) / abs(r["objective"]["theirs"])
        rows.append((
            label,
            f"{own['min']:.3f} {own['median']:.3f} {own['max']:.3f}",
            f"{peer['min']:.2f} {peer['median']:.2f} {peer['max']:.2f} ({r['form']})",
            f"{r['ratio']:.1f}",
            "" if r["least"] is None else "yes" if r["ratio"] >= r["least"] else "NO",
            f"{better:+.1e}" + ("" if better >= -allowed else " NO"),
            f"{r['gap']['ours']:.1e} / {r['gap']['theirs']:.1e}" + ("" if r["gap"]["ours"] <= TOL else " NO"),
            f"{r['score']['ours']:.2f} / {r['score']['theirs']:.2f}",
            f"{r['iterations']['ours']:,} / {r['iterations']['theirs']:,}",
        ))  # fmt: skip
    print_table(
        "CSMO beside scikit-learn: CPU seconds (min median max), ours / theirs",
        ("set", "CSMO", "SVC, SVR", "times", "enough", "objective lower by", "gap", "accuracy or R2, %", "iterations"),
        rows,
    )
    for kind, regressions, least in (("classification", False, 10.0), ("regression", True, 6.0)):
        asked = [r for label, r in results.items() if label != "cold" and r["least"] is not None]
        ratios = [r["ratio"] for r in asked if r["regression"] == regressions]
        if ratios:
            mean = statistics.geometric_mean(ratios)
            print(f"{kind}: geometric mean {mean:.1f} times ({'' if mean >= least else 'NOT '}at least {least:g})")
    print("first fit of 200 rows:", ", ".join(f"{name} {value:.1f} s" for name, value in results["cold"].items()))


def iterations(cases: list[Case], args: argparse.Namespace) -> dict[str, Any]:
    """Steps with and without conjugate directions, shrinking on."""
    results: dict[str, Any] = {}
    for case in cases:
        X, y, _, _, gamma = rows_of(case, args)
        found = {}
        for conjugate in (True, False):
            own = {"C": case.C, "gamma": gamma, "tol": TOL, "cache_size": 200, "conjugate": conjugate}
            model = CSMORegressor(epsilon=EPSILON, **own) if case.unit else CSMOClassifier(**own)
            seconds = time_fit(model, X, y)
            found["CSMO" if conjugate else "SMO"] = {"iterations": int(np.sum(model.n_iter_)), "seconds": seconds}
        ratio = found["CSMO"]["iterations"] / found["SMO"]["iterations"]
        results[case.label] = {**found, "ratio": ratio, "most": case.iterations}
        report_progress(f"iterations: {case.label} {ratio:.3f}")
    return results


def show_iterations(results: dict[str, Any]) -> None:
    print_table(
        "Iterations of CSMO and SMO, shrinking on",
        ("set", "CSMO", "SMO", "CSMO / SMO", "asked", "enough", "CPU seconds, CSMO / SMO"),
        [
            (
                label,
                f"{r['CSMO']['iterations']:,}",
                f"{r['SMO']['iterations']:,}",
                f"{r['ratio']:.3f}",
                f"<= {r['most']:.2f}" if r["most"] else "",
                ("yes" if r["ratio"] <= r["most"] else "NO") if r["most"] else "",
                f"{r['CSMO']['seconds']:.3f} / {r['SMO']['seconds']:.3f}",
            )
            for label, r in results.items()
        ],
    )


PARTS = {"speed": (speed, show_speed), "iterations": (iterations, show_iterations)}


def main() -> None:
    parser = make_parser(__doc__, "csmo")
    parser.add_argument("--parts", default=",".join(PARTS), help="comma-separated")
    parser.add_argument("--sets", default="", help="comma-separated names of data sets; empty: all")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    cases = [case for case in CASES if not args.sets or case.name in args.sets.split(",")]
    results: dict[str, Any] = {"scikit-learn": version("scikit-learn")}
    for part in args.parts.split(","):
        measure, tell = PARTS[part]
        results[part] = measure(cases, args)
        tell(results[part])
        write_results(args.out, results)


if __name__ == "__main__":
    main()
