"""Full fits: accuracy and time of each kind of machine against the number of rows, on a noisy mixture and on data files.

CPU seconds of one fit in a process of its own, on one core, after a fit of a few rows that loads compiled code. A method that
took longer than ``--patience`` at some number of rows is not run at more. Plots show the front of accuracy against time.
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
from common import RESULTS, load_split, make_parser, print_table, report_progress, write_results
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import SGDClassifier
from sklearn.pipeline import make_pipeline
from sklearn.svm import SVC, LinearSVC

from streamsvm import BSCAClassifier, BSGDClassifier
from streamsvm.batch import CSMOClassifier, HierarchicalSVC

SIZES = (2_000, 10_000, 50_000, 100_000, 1_000_000)
N_TEST = 20_000
WIDTHS = {"a9a": 2.0**-7, "ijcnn1": 2.0, "magic04": None, "eeg_eye": None}  # gamma; None: standardised, one over the features


def draw_mixture(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows of 40 Gaussians in 8 dimensions with a class each, 5 % of the labels flipped."""
    rng = np.random.default_rng(seed)
    centres, classes = rng.normal(size=(40, 8)) * 0.75, rng.random(40) < 0.5
    which = rng.integers(0, 40, n)
    X = centres[which] + 0.5 * rng.normal(size=(n, 8))
    return X, classes[which] ^ (rng.random(n) < 0.05)


def budgeted(kind: Any, gamma: float, C: float, n: int) -> Any:
    parameters = {"C": C} if kind is BSCAClassifier else {"l2": 1.0 / (C * n)}
    return kind(500, gamma=gamma, scaling=None, max_classes=2, seed=0, **parameters)


def approximate(landmarks: int, gamma: float, C: float, n: int, linear: bool) -> Any:
    last = LinearSVC(C=C, dual=False) if linear else SGDClassifier(alpha=1.0 / (C * n), average=True, random_state=0)
    return make_pipeline(Nystroem(gamma=gamma, n_components=min(landmarks, n), random_state=0), last)


METHODS: dict[str, Callable[[float, float, int], Any]] = {
    "CSMOClassifier": lambda gamma, C, _: CSMOClassifier(C, gamma=gamma),
    "HierarchicalSVC": lambda gamma, C, _: HierarchicalSVC(C, gamma=gamma),
    "BSCAClassifier, one pass": lambda gamma, C, n: budgeted(BSCAClassifier, gamma, C, n),
    "BSGDClassifier, one pass": lambda gamma, C, n: budgeted(BSGDClassifier, gamma, C, n),
    "scikit-learn SVC": lambda gamma, C, _: SVC(C=C, gamma=gamma),
    "scikit-learn LinearSVC": lambda _, C, __: LinearSVC(C=C, dual=False),
    "Nystroem(300) + SGD": lambda gamma, C, n: approximate(300, gamma, C, n, False),
    "Nystroem(1000) + SGD": lambda gamma, C, n: approximate(1000, gamma, C, n, False),
    "Nystroem(300) + LinearSVC": lambda gamma, C, n: approximate(300, gamma, C, n, True),
}
if importlib.util.find_spec("daal4py") is not None:

    def _intelex(gamma: float, C: float, _: int) -> Any:
        from sklearnex import svm  # noqa: PLC0415 - where it is installed

        return svm.SVC(C=C, gamma=gamma)

    METHODS["scikit-learn-intelex SVC"] = _intelex


def load_data(name: str, n: int, folder: Path | None) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, float]:
    """Rows and labels, then those for tests, and gamma."""
    if name == "mixture":
        X, y = draw_mixture(n + N_TEST)
        return X[:n], y[:n], X[n:], y[n:], 0.5
    split = load_split(name, folder)
    X, y = split.shuffle_rows(np.random.default_rng(0))
    X, X_test, gamma = X.astype(float)[:n], split.X_test.astype(float), WIDTHS[name]
    if gamma is None:
        mean, deviation = X.mean(axis=0), X.std(axis=0)
        deviation[deviation == 0.0] = 1.0
        X, X_test, gamma = (X - mean) / deviation, (X_test - mean) / deviation, 1.0 / X.shape[1]
    return X, y[:n], X_test, split.y_test, gamma


def one_fit(args: argparse.Namespace) -> dict[str, float]:
    """Time and accuracy of one method; in a process of its own, so that memory is that of this fit."""
    method, name, n, C = json.loads(args.one)
    X, y, X_test, y_test, gamma = load_data(name, n, args.data)
    n = len(X)

    def fit(some: np.ndarray) -> Any:
        model = METHODS[method](gamma, C, len(some))
        (model.learn_many if hasattr(model, "learn_many") else model.fit)(X[some], y[some])
        return model

    def predict(model: Any) -> np.ndarray:
        return np.asarray((model.predict_many if hasattr(model, "predict_many") else model.predict)(X_test))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        predict(fit(np.arange(min(n, 4000))))
        began = time.process_time()
        model = fit(np.arange(n))
        middle = time.process_time()
        right = predict(model) == y_test
        end = time.process_time()
    return {"seconds": middle - began, "accuracy": 100.0 * right.mean(), "us a prediction": (end - middle) / len(right) * 1e6}


def measure(args: argparse.Namespace) -> dict[str, Any]:
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
                found = json.loads(done.stdout)
                label = f"{name}, {n:,} rows" if name == "mixture" else f"{name}, C = {C:g}"
                results.setdefault(label, {})[method] = found
                report_progress(f"{label}, {method}: {found['accuracy']:.2f} %, {found['seconds']:.2f} s")
                if found["seconds"] > args.patience:
                    slow.add(method)
    return results


def show_results(results: dict[str, Any]) -> None:
    for label, methods in results.items():
        quickest = sorted(methods.items(), key=lambda item: item[1]["seconds"])
        best, rows = -1.0, []
        for method, found in quickest:
            front = found["accuracy"] > best
            best = max(best, found["accuracy"])
            cells = f"{found['seconds']:.2f}", f"{found['accuracy']:.2f}", f"{found['us a prediction']:.1f}"
            rows.append((method, *cells, "yes" if front else ""))
        print_table(label, ["method", "s", "accuracy %", "us a prediction", "none is quicker and as accurate"], rows)


def plot(results: dict[str, Any], folder: Path) -> None:
    import matplotlib.pyplot as plt  # noqa: PLC0415 - an extra

    folder.mkdir(parents=True, exist_ok=True)
    for label, methods in results.items():
        figure, axes = plt.subplots(figsize=(7, 4.5))
        for number, (method, found) in enumerate(methods.items()):
            color, marker = f"C{number % 10}", "os^"[number // 10]
            axes.scatter(found["seconds"], found["accuracy"], color=color, marker=marker, label=method)
        axes.set(xscale="log", xlabel="CPU seconds of a fit", ylabel="test accuracy %", title=label)
        reached = [found["accuracy"] for found in methods.values()]
        axes.set_ylim(bottom=max(max(reached) - 8.0, min(reached) - 0.5))  # what is below is far behind
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8)
        axes.grid(alpha=0.3)
        figure.savefig(folder / f"{label.replace(' ', '_').replace(',', '')}.png", dpi=120, bbox_inches="tight")
        plt.close(figure)


def main() -> None:
    parser = make_parser(__doc__, "full_fits")
    parser.add_argument("--sets", nargs="+", choices=["mixture", *WIDTHS], default=["mixture", *WIDTHS])
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES, help="rows of the mixture")
    parser.add_argument("--C", nargs="+", type=float, default=[1.0, 10.0], help="on data files")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--patience", type=float, default=100.0, help="seconds")
    parser.add_argument("--plots", type=Path, default=RESULTS / "full_fits", help="folder of the plots")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(one_fit(args)))
        return
    results = measure(args)
    show_results(results)
    plot(results, args.plots)
    write_results(args.out, {"full fits": results})


if __name__ == "__main__":
    main()
