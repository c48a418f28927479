"""A cross-validated grid of 5 C and 5 gamma: scikit-learn's search with SVC or SVR, with CSMO, and our search.

CPU seconds of each search on standardised rows, without the last fit. Run it on one core:
``OMP_NUM_THREADS=1 taskset -c 1 python benchmarks/csmo_path.py``.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from common import argument_parser, load_file, progress, show, write
from sklearn.model_selection import GridSearchCV
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, SVR

from streamsvm.batch import CSMOClassifier, CSMORegressor, CSMOSearchCV

REGRESSIONS = ("cpusmall",)
COSTS = (0.1, 1.0, 10.0, 100.0, 1000.0)
GAMMAS = (1 / 16, 1 / 4, 1.0, 4.0, 16.0)  # over the number of features


def searched(search: Any, X: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray]:
    """CPU seconds of a search, and its mean scores."""
    begin = time.process_time()
    search.fit(X, y)
    return time.process_time() - begin, search.cv_results_["mean_test_score"]


def main() -> None:
    parser = argument_parser(__doc__, "csmo_path")
    parser.add_argument("--sets", default="magic04,elec2,a9a,letter,cpusmall", help="comma-separated names of data sets")
    parser.add_argument("--rows", type=int, default=5000, help="of the random sample of each set, at most")
    args = parser.parse_args()
    results: dict[str, Any] = {}
    for name in args.sets.split(","):
        arrays = load_file(name, args.data)
        some = np.random.default_rng(0).permutation(len(arrays["y"]))[: args.rows]
        X, y = StandardScaler().fit_transform(arrays["X"][some].astype(float)), arrays["y"][some]
        peer, own = (SVR, CSMORegressor) if name in REGRESSIONS else (SVC, CSMOClassifier)
        if name in REGRESSIONS:
            y = (y - y.mean()) / y.std()
        grid = {"C": list(COSTS), "gamma": [gamma / X.shape[1] for gamma in GAMMAS]}
        for kind in (GridSearchCV, CSMOSearchCV):  # compiled from here on
            kind(own(), {"C": [1.0, 10.0]}, cv=2, refit=False).fit(X[:600], y[:600])
        found = {
            "SVC, SVR": searched(GridSearchCV(peer(), grid, cv=5, refit=False), X, y),
            "CSMO": searched(GridSearchCV(own(), grid, cv=5, refit=False), X, y),
            "CSMOSearchCV": searched(CSMOSearchCV(own(), grid, cv=5, refit=False), X, y),
        }
        results[name] = {key: {"seconds": seconds, "scores": scores.tolist()} for key, (seconds, scores) in found.items()}
        progress(f"{name}: " + ", ".join(f"{key} {seconds:.1f} s" for key, (seconds, _) in found.items()))
        write(args.out, {"rows": args.rows, "C": COSTS, "gamma times features": GAMMAS, "sets": results})
    rows = []
    for name, by_search in results.items():
        seconds = [each["seconds"] for each in by_search.values()]
        scores = [np.array(each["scores"]) for each in by_search.values()]
        rows.append((
            name,
            *(f"{value:.1f}" for value in seconds),
            f"{seconds[0] / seconds[2]:.1f}",
            f"{seconds[1] / seconds[2]:.1f}",
            f"{scores[2].max():.4f}",
            f"{max(np.abs(scores[2] - other).max() for other in scores[:2]):.4f}",
        ))  # fmt: skip
    show(
        f"Five folds of 5 C x 5 gamma on up to {args.rows:,} rows: CPU seconds",
        ("set", "SVC, SVR", "CSMO", "CSMOSearchCV", "SVC / ours", "CSMO / ours", "best score", "largest difference"),
        rows,
    )


if __name__ == "__main__":
    main()
