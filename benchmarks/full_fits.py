"""Measures accuracy and time of batch fits of several methods against the number of rows: a noisy mixture, and data files.

CPU seconds of a fit in its own process, on one core, after a fit of a few rows that loads compiled code. A method that needs
more than ``--patience`` seconds is not run on larger samples. Plots show accuracy against time.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from common import RESULTS, load_split, make_parser, print_table, report_progress, write_json
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import SGDClassifier
from sklearn.pipeline import make_pipeline
from sklearn.svm import SVC, LinearSVC

from streamsvm import BSCAClassifier, BSGDClassifier
from streamsvm.batch import CSMOClassifier, HierarchicalSVC

MIXTURE_SIZES = (2_000, 10_000, 50_000, 100_000, 1_000_000)
N_TEST = 20_000
#: Gamma of each set; None: standardised, with gamma = one over the number of features.
GAMMAS = {"a9a": 2.0**-7, "ijcnn1": 2.0, "magic04": None, "eeg_eye": None}


def draw_mixture(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Draw n rows from 40 Gaussians in 8 dimensions, with a random class each; 5 % of the labels are inverted."""
    rng = np.random.default_rng(seed)
    centres, classes = rng.normal(size=(40, 8)) * 0.75, rng.random(40) < 0.5
    components = rng.integers(0, 40, n)
    X = centres[components] + 0.5 * rng.normal(size=(n, 8))
    return X, classes[components] ^ (rng.random(n) < 0.05)


def make_budgeted(kind: Any, gamma: float, C: float, n: int) -> Any:
    parameters = {"C": C} if kind is BSCAClassifier else {"l2": 1.0 / (C * n)}
    return kind(500, gamma=gamma, scaling=None, max_classes=2, seed=0, **parameters)


def make_approximate(landmarks: int, gamma: float, C: float, n: int, linear: bool) -> Any:
    last = LinearSVC(C=C, dual=False) if linear else SGDClassifier(alpha=1.0 / (C * n), average=True, random_state=0)
    return make_pipeline(Nystroem(gamma=gamma, n_components=min(landmarks, n), random_state=0), last)


METHODS: dict[str, Callable[[float, float, int], Any]] = {
    "CSMOClassifier": lambda gamma, C, _: CSMOClassifier(C, gamma=gamma),
    "HierarchicalSVC": lambda gamma, C, _: HierarchicalSVC(C, gamma=gamma),
    "BSCAClassifier, one pass": lambda gamma, C, n: make_budgeted(BSCAClassifier, gamma, C, n),
    "BSGDClassifier, one pass": lambda gamma, C, n: make_budgeted(BSGDClassifier, gamma, C, n),
    "scikit-learn SVC": lambda gamma, C, _: SVC(C=C, gamma=gamma),
    "scikit-learn LinearSVC": lambda _, C, __: LinearSVC(C=C, dual=False),
    "Nystroem(300) + SGD": lambda gamma, C, n: make_approximate(300, gamma, C, n, False),
    "Nystroem(1000) + SGD": lambda gamma, C, n: make_approximate(1000, gamma, C, n, False),
    "Nystroem(300) + LinearSVC": lambda gamma, C, n: make_approximate(300, gamma, C, n, True),
}
if importlib.util.find_spec("daal4py") is not None:

    def _intelex(gamma: float, C: float, _: int) -> Any:
        from sklearnex import svm  # noqa: PLC0415 - optional

        return svm.SVC(C=C, gamma=gamma)

    METHODS["scikit-learn-intelex SVC"] = _intelex


def load_data(name: str, n: int, folder: Path | None) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, float]:
    """Return training rows and labels, test rows and labels, and gamma of a data set."""
    if name == "mixture":
        X, y = draw_mixture(n + N_TEST)
        return X[:n], y[:n], X[n:], y[n:], 0.5
    split = load_split(name, folder)
    X, y = split.shuffle_rows(np.random.default_rng(0))
    X, X_test, gamma = X.astype(float)[:n], split.X_test.astype(float), GAMMAS[name]
    if gamma is None:
        mean, deviation = X.mean(axis=0), X.std(axis=0)
        deviation[deviation == 0.0] = 1.0
        X, X_test, gamma = (X - mean) / deviation, (X_test - mean) / deviation, 1.0 / X.shape[1]
    return X, y[:n], X_test, split.y_test, gamma


def run_fit(args: argparse.Namespace) -> dict[str, float]:
    """Return time and accuracy of one method; it runs in its own process."""
    method, name, n, C = json.loads(args.one)
    X, y, X_test, y_test, gamma = load_data(name, n, args.data)
    n = len(X)

    def fit(rows: np.ndarray) -> Any:
        model = METHODS[method](gamma, C, len(rows))
        (model.learn_many if hasattr(model, "learn_many") else model.fit)(X[rows], y[rows])
        return model

    def predict(model: Any) -> np.ndarray:
        return np.asarray((model.predict_many if hasattr(model, "predict_many") else model.predict)(X_test))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        predict(fit(np.arange(min(n, 4000))))
        start = time.process_time()
        model = fit(np.arange(n))
        middle = time.process_time()
        right = predict(model) == y_test
        stop = time.process_time()
    return {"seconds": middle - start, "accuracy": 100.0 * right.mean(), "us a prediction": (stop - middle) / len(right) * 1e6}


def measure_methods(args: argparse.Namespace) -> dict[str, Any]:
    results: dict[str, Any] = {}
    cases = [("mixture", n) for n in args.sizes] if "mixture" in args.sets else []
    cases += [(name, 10**9) for name in args.sets if name != "mixture"]
    slow: set[str] = set()
    for name, n in cases:
        for C in args.C if name != "mixture" else [1.0]:
            for method in args.methods:
                if name == "mixture" and method in slow:
                    continue
                command = [sys.executable, __file__, "--one", json.dumps([method, name, n, C])]
                command += [] if args.data is None else ["--data", str(args.data)]
                done = subprocess.run(command, capture_output=True, text=True, timeout=20 * args.patience, check=False)
                if done.returncode:
                    report_progress(f"{method} on {name}: {done.stderr.strip().splitlines()[-1]}")
                    continue
                result = json.loads(done.stdout)
                label = f"{name}, {n:,} rows" if name == "mixture" else f"{name}, C = {C:g}"
                results.setdefault(label, {})[method] = result
                report_progress(f"{label}, {method}: {result['accuracy']:.2f} %, {result['seconds']:.2f} s")
                if result["seconds"] > args.patience:
                    slow.add(method)
    return results


def print_results(results: dict[str, Any]) -> None:
    for label, methods in results.items():
        quickest = sorted(methods.items(), key=lambda item: item[1]["seconds"])
        best, rows = -1.0, []
        for method, result in quickest:
            front = result["accuracy"] > best
            best = max(best, result["accuracy"])
            cells = f"{result['seconds']:.2f}", f"{result['accuracy']:.2f}", f"{result['us a prediction']:.1f}"
            rows.append((method, *cells, "yes" if front else ""))
        print_table(label, ["method", "s", "accuracy %", "us a prediction", "no other is faster and as accurate"], rows)


def save_plots(results: dict[str, Any], folder: Path) -> None:
    import matplotlib.pyplot as plt  # noqa: PLC0415 - an extra

    folder.mkdir(parents=True, exist_ok=True)
    for label, methods in results.items():
        figure, axes = plt.subplots(figsize=(7, 4.5))
        for number, (method, result) in enumerate(methods.items()):
            color, marker = f"C{number % 10}", "os^"[number // 10]
            axes.scatter(result["seconds"], result["accuracy"], color=color, marker=marker, label=method)
        axes.set(xscale="log", xlabel="CPU seconds of a fit", ylabel="test accuracy %", title=label)
        reached = [result["accuracy"] for result in methods.values()]
        axes.set_ylim(bottom=max(max(reached) - 8.0, min(reached) - 0.5))  # leaves out methods with much lower accuracy
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8)
        axes.grid(alpha=0.3)
        figure.savefig(folder / f"{label.replace(' ', '_').replace(',', '')}.png", dpi=120, bbox_inches="tight")
        plt.close(figure)


def main() -> None:
    parser = make_parser(__doc__, "full_fits")
    parser.add_argument("--sets", nargs="+", choices=["mixture", *GAMMAS], default=["mixture", *GAMMAS])
    parser.add_argument("--sizes", nargs="+", type=int, default=MIXTURE_SIZES, help="rows of the mixture")
    parser.add_argument("--C", nargs="+", type=float, default=[1.0, 10.0], help="values of C on data files")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--patience", type=float, default=100.0, help="CPU seconds; slower methods are not run on larger samples")
    parser.add_argument("--plots", type=Path, default=RESULTS / "full_fits", help="folder of the plots")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(run_fit(args)))
        return
    results = measure_methods(args)
    print_results(results)
    save_plots(results, args.plots)
    write_json(args.out, {"full fits": results})


if __name__ == "__main__":
    main()
