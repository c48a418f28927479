"""Changes by 16 and 8 bits a number of the vectors: of labels of rows that were not learned, and of numbers in their deviations.

Each learner has learned at most 12,000 rows of a set in one pass (ensembles and machines 4,000), in random order, with its usual
parameters; labels are those of its program evaluated by numpy, as C answers but for rounding to float32. A dash: refused, because
so few bits would lose too much of the model.
"""

from __future__ import annotations

import argparse
from statistics import median
from typing import Any

import numpy as np
from common import load_file, make_parser, print_table, report_progress, write_results
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

LABELLED = "ijcnn1", "a9a", "w7a", "phishing", "skin", "elec2", "magic04", "eeg_eye", "sea_stream", "letter", "chess", "krkopt"
NUMBERS = "kin40k", "abalone", "cpusmall", "cadata"
BITS = (16, 8)
LEARNED, LEARNED_BY_LARGE = 12_000, 4_000

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


def program_after(kind: Any, name: str, args: argparse.Namespace) -> tuple[Program, np.ndarray]:
    """The program of a learner that has learned a set, and rows of the set that it has not."""
    arrays = load_file(name, args.data)
    order = np.random.default_rng(0).permutation(len(arrays["y"]))
    X, y = arrays["X"].astype(np.float32)[order], arrays["y"][order]
    n = min(args.rows, len(y) // 3)
    if isinstance(kind, CSMOClassifier | CSMORegressor):
        scaler = StandardScaler().fit(X[n:])
        end = n + LEARNED_BY_LARGE
        return make_program(kind.fit(scaler.transform(X[n:end]), y[n:end])), scaler.transform(X[:n])
    model = kind.clone({"max_features": X.shape[1]})
    end = n + (LEARNED_BY_LARGE if isinstance(model, SVMClassifier | SVMRegressor) else LEARNED)
    model.learn_many(X[n:end], y[n:end].astype(float if name in NUMBERS else int))
    return make_program(model), X[:n]


def measured(title: str, kinds: dict[str, Any], sets: list[str], args: argparse.Namespace) -> list[dict[str, Any]]:
    """Compare all programs with those of fewer bits, print a table, and return its rows."""
    results = []
    for learner, kind in kinds.items():
        for name in sets:
            report_progress(f"{learner}, {name}")
            program, X = program_after(kind, name, args)
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
        figures = [[_figure(row[str(bits)]) for row in rows] for bits in BITS]
        shown = [text for some in figures for text in (_text(median(some)), _text(max(some)))]
        cells.append([learner, *shown, *map(_text, figures[-1])])
    names = [f"{bits} bits: {what}" for bits in BITS for what in ("median", "worst")]
    print_table(title, ["learner", *names, *(f"{name}, 8 bits" for name in sets)], cells)
    return results


def _figure(found: dict[str, Any] | None) -> float:
    """Labels that changed, or percent of the deviation by which numbers did; infinite if it was refused."""
    if found is None:
        return float("inf")
    one = Comparison(**found)
    return float(one.n_changed_labels) if one.n_changed_labels is not None else 100.0 * (one.relative_rmse or 0.0)


def _text(figure: float) -> str:
    return "-" if figure == float("inf") else f"{figure:.3g}"


def main() -> None:
    parser = make_parser(__doc__, "fewer_bits")
    parser.add_argument("--rows", type=int, default=5000, help="to compare on; a third of a set at most")
    parser.add_argument("--sets", nargs="*", default=[*LABELLED, *NUMBERS])
    parser.add_argument("--learners", nargs="*", default=[*CLASSIFIERS, *REGRESSORS])
    args = parser.parse_args()
    results = {}
    for title, kinds, sets in (
        (f"Labels that changed, of {args.rows:,}", CLASSIFIERS, LABELLED),
        ("Changes of numbers, percent of their deviation", REGRESSORS, NUMBERS),
    ):
        asked = {name: kind for name, kind in kinds.items() if name in args.learners}
        if chosen := [name for name in sets if name in args.sets]:
            results[title] = measured(title, asked, chosen, args)
    write_results(args.out, results)


if __name__ == "__main__":
    main()
