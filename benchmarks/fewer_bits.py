"""Counts predictions of held-out rows that change when vectors have 16 or 8 bits a number; for regression, relative errors.

Each learner learns at most 12,000 rows of a set in one pass (ensembles and batch machines 4,000), in random order, with its usual
parameters. Predictions are those of the exported program in numpy, equal to C up to rounding to float32. A dash means that
quantisation was refused, because it would lose too much accuracy.
"""

from __future__ import annotations

import argparse
from statistics import median
from typing import Any

import numpy as np
from common import load_file, make_parser, print_table, report_progress, write_json
from sklearn.preprocessing import StandardScaler

from streamsvm import (
    BSCAClassifier,
    BSCARegressor,
    BSGDClassifier,
    BSGDRegressor,
    KernelRLSClassifier,
    KernelRLSRegressor,
    SVMClassifier,
    SVMRegressor,
)
from streamsvm.batch import CSMOClassifier, CSMORegressor
from streamsvm.edge.program import ExportError, Program
from streamsvm.export.compare import Comparison, compare_programs
from streamsvm.export.convert import make_program
from streamsvm.export.quantise import quantise_program

LABEL_SETS = "ijcnn1", "a9a", "w7a", "phishing", "skin", "elec2", "magic04", "eeg_eye", "sea_stream", "letter", "chess", "krkopt"
REGRESSION_SETS = "kin40k", "abalone", "cpusmall", "cadata"
BITS = (16, 8)
LEARNED_ROWS, LEARNED_ROWS_OF_LARGE = 12_000, 4_000

CLASSIFIERS: dict[str, Any] = {
    "BSGDClassifier(100)": BSGDClassifier(100, seed=0),
    "BSCAClassifier(100)": BSCAClassifier(100, seed=0),
    "BSCAClassifier(500)": BSCAClassifier(500, seed=0),
    "KernelRLSClassifier()": KernelRLSClassifier(),
    "SVMClassifier()": SVMClassifier(seed=0),
    "CSMOClassifier()": CSMOClassifier(),
}
REGRESSORS: dict[str, Any] = {
    "BSGDRegressor(100)": BSGDRegressor(100, seed=0),
    "BSCARegressor(100)": BSCARegressor(100, seed=0),
    "KernelRLSRegressor()": KernelRLSRegressor(),
    "SVMRegressor()": SVMRegressor(seed=0),
    "CSMORegressor()": CSMORegressor(),
}


def train_program(kind: Any, name: str, args: argparse.Namespace) -> tuple[Program, np.ndarray]:
    """Train a learner on a set, and return its exported program and held-out rows of the set."""
    arrays = load_file(name, args.data)
    order = np.random.default_rng(0).permutation(len(arrays["y"]))
    X, y = arrays["X"].astype(np.float32)[order], arrays["y"][order]
    n = min(args.rows, len(y) // 3)
    if isinstance(kind, CSMOClassifier | CSMORegressor):
        scaler = StandardScaler().fit(X[n:])
        stop = n + LEARNED_ROWS_OF_LARGE
        return make_program(kind.fit(scaler.transform(X[n:stop]), y[n:stop])), scaler.transform(X[:n])
    model = kind.clone({"max_features": X.shape[1]})
    stop = n + (LEARNED_ROWS_OF_LARGE if isinstance(model, SVMClassifier | SVMRegressor) else LEARNED_ROWS)
    model.learn_many(X[n:stop], y[n:stop].astype(float if name in REGRESSION_SETS else int))
    return make_program(model), X[:n]


def measure_changes(title: str, kinds: dict[str, Any], sets: list[str], args: argparse.Namespace) -> list[dict[str, Any]]:
    """Compare the program of each learner and set with its quantised forms, print a table, and return the comparisons."""
    results = []
    for learner, kind in kinds.items():
        for name in sets:
            report_progress(f"{learner}, {name}")
            program, X = train_program(kind, name, args)
            row: dict[str, Any] = {"learner": learner, "data": name, "rows": len(X)}
            for bits in BITS:
                try:
                    row[str(bits)] = compare_programs(program, quantise_program(program, bits), X)._asdict()
                except ExportError:
                    row[str(bits)] = None
            results.append(row)
    cells = []
    for learner in kinds:
        rows = [row for row in results if row["learner"] == learner]
        figures = [[_get_difference(row[str(bits)]) for row in rows] for bits in BITS]
        cells_by_bits = [text for differences in figures for text in (_format(median(differences)), _format(max(differences)))]
        cells.append([learner, *cells_by_bits, *map(_format, figures[-1])])
    names = [f"{bits} bits: {statistic}" for bits in BITS for statistic in ("median", "worst")]
    print_table(title, ["learner", *names, *(f"{name}, 8 bits" for name in sets)], cells)
    return results


def _get_difference(comparison: dict[str, Any] | None) -> float:
    """Return the number of changed labels, or the RMSE in percent of the standard deviation; infinite if it was refused."""
    if comparison is None:
        return float("inf")
    parsed = Comparison(**comparison)
    return float(parsed.n_changed_labels) if parsed.n_changed_labels is not None else 100.0 * (parsed.relative_rmse or 0.0)


def _format(figure: float) -> str:
    return "-" if figure == float("inf") else f"{figure:.3g}"


def main() -> None:
    parser = make_parser(__doc__, "fewer_bits")
    parser.add_argument("--rows", type=int, default=5000, help="held-out rows to compare on; at most a third of a set")
    parser.add_argument("--sets", nargs="*", default=[*LABEL_SETS, *REGRESSION_SETS])
    parser.add_argument("--learners", nargs="*", default=[*CLASSIFIERS, *REGRESSORS])
    args = parser.parse_args()
    results = {}
    for title, kinds, sets in (
        (f"Labels that changed, of {args.rows:,}", CLASSIFIERS, LABEL_SETS),
        ("Changes of numbers, percent of their deviation", REGRESSORS, REGRESSION_SETS),
    ):
        asked = {name: kind for name, kind in kinds.items() if name in args.learners}
        if chosen := [name for name in sets if name in args.sets]:
            results[title] = measure_changes(title, asked, chosen, args)
    write_json(args.out, results)


if __name__ == "__main__":
    main()
