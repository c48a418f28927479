"""Linear machines row by row, beside river's: from nothing, and from a machine that was fitted to the first half.

Prequential accuracy: each row is predicted, then learned. Microseconds a row are for both, on dicts with the features that are
not zero. a9a, w7a and reuters come in random order, ijcnn1 and elec2 in their own, standardised by mean and deviation so far.
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
IN_TIME = ("ijcnn1", "elec2")
MODELS: dict[str, Callable[[], Any]] = {
    "OnlineLinearSVC": OnlineLinearSVC,
    "OnlineLinearSVC, C = 0.1": lambda: OnlineLinearSVC(C=0.1),
    "river PAClassifier, C = 0.1": lambda: linear_model.PAClassifier(C=0.1, mode=1),
    "river PAClassifier, C = 1": lambda: linear_model.PAClassifier(C=1.0, mode=1),
    "river ALMAClassifier": linear_model.ALMAClassifier,
    "river LogisticRegression": linear_model.LogisticRegression,
}

Rows = list[tuple[dict[Any, float], bool]]


def rows_of(name: str, folder: Path | None) -> tuple[Any, np.ndarray]:
    """Rows in the order in which they are learned, CSR float32 [n, d], and labels bool [n]."""
    arrays = load_file(name, folder)
    if "X" in arrays:
        X = sparse.csr_array(_standardised(arrays["X"]) if name in IN_TIME else arrays["X"].astype(np.float32))
    else:
        shape = tuple(arrays["X_shape"].tolist())
        X = sparse.csr_array((arrays["X_data"], arrays["X_indices"], arrays["X_indptr"]), shape, dtype=np.float32)
    y = arrays["y"] > 0
    if name in IN_TIME:
        return X, y
    order = np.random.default_rng(0).permutation(len(y))
    return X[order], y[order]


def _standardised(X: np.ndarray) -> np.ndarray:
    # By the rows so far, as a scaler on a stream does.
    counts, X = np.arange(1, len(X) + 1)[:, np.newaxis], X.astype(np.float64)
    means = np.cumsum(X, axis=0) / counts
    deviations = np.sqrt(np.maximum(np.cumsum(X * X, axis=0) / counts - means * means, 0.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(deviations > 1e-6, (X - means) / deviations, 0.0).astype(np.float32)


def dicts(X: Any, y: np.ndarray) -> Rows:
    """Rows as river has them, without the zeros."""
    parts = [slice(*of) for of in zip(X.indptr[:-1].tolist(), X.indptr[1:].tolist(), strict=True)]
    names, values = X.indices.tolist(), X.data.tolist()
    return [(dict(zip(names[part], values[part], strict=True)), label) for part, label in zip(parts, y.tolist(), strict=True)]


def learned(model: Any, rows: Rows) -> tuple[float, float]:
    """Percent right, and microseconds a row."""
    right, start = 0, time.process_time()
    for x, y in rows:
        right += model.predict_one(x) == y
        model.learn_one(x, y)
    return 100.0 * right / len(rows), 1e6 * (time.process_time() - start) / len(rows)


def one_set(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """All models on a set, and a fitted one that goes on."""
    X, y = rows_of(name, args.data)
    rows, half = dicts(X, y), len(y) // 2
    found: dict[str, Any] = {"rows": len(y), "features of a row": X.nnz / len(y), "models": {}}
    for title, make in MODELS.items():
        learned(make(), rows[:50])  # compiles
        runs = [learned(make(), rows) for _ in range(args.repeats)]
        found["models"][title] = {"accuracy": runs[0][0], "microseconds": summarise([of[1] for of in runs])}
        report_progress(f"{name}: {title}")
    fitted = OutOfCoreLinearSVC(max_iter=200).fit(X[:half], y[:half])
    found["second half"] = {
        "fitted": 100.0 * fitted.score(X[half:], y[half:]),
        "goes on": learned(fitted.to_online(), rows[half:])[0],
        "goes on, C = 0.01": learned(fitted.to_online(C=0.01), rows[half:])[0],
        "goes on, C = 1": learned(fitted.to_online(C=1.0), rows[half:])[0],
        "from nothing": learned(OnlineLinearSVC(), rows[half:])[0],
    }
    return found


def print_sets(results: dict[str, Any]) -> None:
    """Both tables."""
    sets = list(results)
    rows = []
    for title in MODELS:
        cells = []
        for name in sets:
            of = results[name]["models"][title]
            cells += [f"{of['accuracy']:.2f}", f"{of['microseconds']['median']:.1f}"]
        rows.append((title, *cells))
    columns = [text for name in sets for text in (f"{name} ({results[name]['features of a row']:.0f} a row)", "us")]
    print_table("Percent right, and microseconds to predict and learn a row", ("model", *columns), rows)
    kinds = list(next(iter(results.values()))["second half"])
    rows = [(name, *(f"{results[name]['second half'][kind]:.2f}" for kind in kinds)) for name in sets]
    print_table("Percent right of the second half, by a machine fitted to the first", ("set", *kinds), rows)


def main() -> None:
    """Run it."""
    parser = make_parser(__doc__, "online_linear")
    parser.add_argument("--sets", default=",".join(SETS), help="comma-separated names of data sets")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    results = {name: one_set(name, args) for name in args.sets.split(",")}
    print_sets(results)
    write_json(args.out, {"sets": results})


if __name__ == "__main__":
    main()
