"""Compares online linear machines with river's: new ones, and ones that continue from a fit to the first half.

Prequential accuracy: each row is predicted, then learned. Microseconds a row include both, on dicts of the nonzero features.
a9a, w7a and reuters are in random order; ijcnn1 and elec2 are in file order, standardised with running means and deviations.
Run it on one core: ``OMP_NUM_THREADS=1 taskset -c 1 python benchmarks/online_linear.py``.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from common import load_file, make_parser, print_table, report_progress, summarise, write_json
from river import linear_model
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning

from streamsvm.learners import OnlineLinearSVC
from streamsvm.linear import OutOfCoreLinearSVC

SETS = ("a9a", "w7a", "reuters", "ijcnn1", "elec2")
ORDERED_SETS = ("ijcnn1", "elec2")
MODELS: dict[str, Callable[[], Any]] = {
    "OnlineLinearSVC": OnlineLinearSVC,
    "OnlineLinearSVC, C = 0.1": lambda: OnlineLinearSVC(C=0.1),
    "river PAClassifier, C = 0.1": lambda: linear_model.PAClassifier(C=0.1, mode=1),
    "river PAClassifier, C = 1": lambda: linear_model.PAClassifier(C=1.0, mode=1),
    "river ALMAClassifier": linear_model.ALMAClassifier,
    "river LogisticRegression": linear_model.LogisticRegression,
}

Rows = list[tuple[dict[Any, float], bool]]


def load_rows(name: str, folder: Path | None) -> tuple[Any, np.ndarray]:
    """Return the rows of a set, CSR float32 [n, d], and labels bool [n], in the order to learn them."""
    arrays = load_file(name, folder)
    if "X" in arrays:
        X = sparse.csr_array(_standardise_online(arrays["X"]) if name in ORDERED_SETS else arrays["X"].astype(np.float32))
    else:
        shape = tuple(arrays["X_shape"].tolist())
        X = sparse.csr_array((arrays["X_data"], arrays["X_indices"], arrays["X_indptr"]), shape, dtype=np.float32)
    y = arrays["y"] > 0
    if name in ORDERED_SETS:
        return X, y
    order = np.random.default_rng(0).permutation(len(y))
    return X[order], y[order]


def _standardise_online(X: np.ndarray) -> np.ndarray:
    # Uses the mean and deviation of the rows so far, as a scaler on a stream does.
    counts, X = np.arange(1, len(X) + 1)[:, np.newaxis], X.astype(np.float64)
    means = np.cumsum(X, axis=0) / counts
    deviations = np.sqrt(np.maximum(np.cumsum(X * X, axis=0) / counts - means * means, 0.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(deviations > 1e-6, (X - means) / deviations, 0.0).astype(np.float32)


def make_rows(X: Any, y: np.ndarray) -> Rows:
    """Return rows as pairs of a dict of nonzero features and a label."""
    slices = [slice(*bounds) for bounds in zip(X.indptr[:-1].tolist(), X.indptr[1:].tolist(), strict=True)]
    names, values = X.indices.tolist(), X.data.tolist()
    return [(dict(zip(names[row], values[row], strict=True)), label) for row, label in zip(slices, y.tolist(), strict=True)]


def learn_rows(model: Any, rows: Rows) -> tuple[float, float]:
    """Predict and learn rows, and return the accuracy (percent) and CPU microseconds a row."""
    right, start = 0, time.process_time()
    for x, y in rows:
        right += model.predict_one(x) == y
        model.learn_one(x, y)
    return 100.0 * right / len(rows), 1e6 * (time.process_time() - start) / len(rows)


def measure_set(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Run all models on a set, and fitted machines that continue online on its second half."""
    X, y = load_rows(name, args.data)
    rows, half = make_rows(X, y), len(y) // 2
    result: dict[str, Any] = {"rows": len(y), "features of a row": X.nnz / len(y), "models": {}}
    for title, make in MODELS.items():
        learn_rows(make(), rows[:50])  # compiles before any time is taken
        runs = [learn_rows(make(), rows) for _ in range(args.repeats)]
        result["models"][title] = {"accuracy": runs[0][0], "microseconds": summarise([run[1] for run in runs])}
        report_progress(f"{name}: {title}")
    fitted = OutOfCoreLinearSVC(max_iter=200).fit(X[:half], y[:half])
    result["second half"] = {
        "fitted": 100.0 * fitted.score(X[half:], y[half:]),
        "continued": learn_rows(fitted.to_online(), rows[half:])[0],
        "continued, C = 0.01": learn_rows(fitted.to_online(C=0.01), rows[half:])[0],
        "continued, C = 1": learn_rows(fitted.to_online(C=1.0), rows[half:])[0],
        "new": learn_rows(OnlineLinearSVC(), rows[half:])[0],
    }
    return result


def print_sets(results: dict[str, Any]) -> None:
    """Print tables of all rows, and of the second half."""
    sets = list(results)
    rows = []
    for title in MODELS:
        cells = []
        for name in sets:
            figures = results[name]["models"][title]
            cells += [f"{figures['accuracy']:.2f}", f"{figures['microseconds']['median']:.1f}"]
        rows.append((title, *cells))
    columns = [text for name in sets for text in (f"{name} ({results[name]['features of a row']:.0f} a row)", "us")]
    print_table("Percent right, and microseconds to predict and learn a row", ("model", *columns), rows)
    kinds = list(next(iter(results.values()))["second half"])
    rows = [(name, *(f"{results[name]['second half'][kind]:.2f}" for kind in kinds)) for name in sets]
    print_table("Percent right of the second half, by a machine fitted to the first", ("set", *kinds), rows)


def main() -> None:
    """Measure all sets, print tables and write JSON."""
    parser = make_parser(__doc__, "online_linear")
    parser.add_argument("--sets", default=",".join(SETS), help="comma-separated names of data sets")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    results = {name: measure_set(name, args) for name in args.sets.split(",")}
    print_sets(results)
    write_json(args.out, {"sets": results})


if __name__ == "__main__":
    main()
