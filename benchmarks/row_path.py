"""Measures the microseconds of each part of ``predict_one`` and ``learn_one`` of a `BSGDClassifier`.

The model has a full budget of 500 support vectors with 20 features; rows are random dicts. The time of a compiled part is the
difference of two compiled loops over rows, one with the part and one without. The rest of a call's time is that of Python calls.
The processor overlaps parts, so that the sum of their times is only approximate.
"""
# ruff: noqa: ARG001 - all parts have the same parameters

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from common import make_parser, print_table, report_progress, summarise, to_dicts, write_json
from numba import njit

from streamsvm import BSGDClassifier
from streamsvm.core.kernels import compare_with_vectors
from streamsvm.core.memory.slots import scan_row
from streamsvm.core.memory.support_vectors import views
from streamsvm.core.steps.decisions import set_current_row
from streamsvm.core.steps.iterates import get_common_state
from streamsvm.core.steps.step import add_support_vector, compute_scores, end_row, score_row, track_errors
from streamsvm.learners.bsgd import step as rule

BUDGET, FEATURES, ROWS, CLUSTERS = 500, 20, 20_000, 60
CHUNK = 2000  # rows of a loop: their dicts must fit into the processor's cache, as new rows of a stream do

#: The rule's compiled step, which `Rule` does not expose.
_step = rule.learn_one.py_func.__globals__["step"]


@njit
def _scan(block, n_active, norm, y):
    pass


@njit
def _kernel_row(block, n_active, norm, y):
    v = views(block)
    compare_with_vectors(v, 0, n_active, norm, v.kernel_rows[1], v.kernel_rows[0])


@njit
def _scores(block, n_active, norm, y):
    compute_scores(block, n_active, norm)


@njit
def _scores_twice(block, n_active, norm, y):
    compute_scores(block, n_active, norm)
    compute_scores(block, n_active, norm)


@njit
def _errors(block, n_active, norm, y):
    compute_scores(block, n_active, norm)
    v = views(block)
    track_errors(get_common_state(block), v.scores, v.header[0]["n_outputs"], y)


@njit
def _average(block, n_active, norm, y):
    compute_scores(block, n_active, norm)
    end_row(block)


@njit
def _observe(block, n_active, norm, y):
    score_row(block, n_active, norm, y, 1.0)


@njit
def _observe_and_step(block, n_active, norm, y):
    _step(block, score_row(block, n_active, norm, y, 1.0))


@njit
def _observe_and_add(block, n_active, norm, y):
    add_support_vector(block, score_row(block, n_active, norm, y, 1.0), 0.01 * y)


PARTS = (_scan, _kernel_row, _scores, _scores_twice, _errors, _average, _observe, _observe_and_step, _observe_and_add)


def make_loop(part: Any) -> Any:
    """Return a compiled loop over the rows of X that sets and scans the current row, and then runs the part."""

    @njit
    def loop(block, X, columns, y):
        v = views(block)
        for i in range(len(X)):
            set_current_row(block, X, columns, i)
            n_active, norm = scan_row(v.rows[0], v.header[0]["used"], v.active[0])
            part(block, n_active, norm, y[i])

    return loop


@njit
def _fill_alone(block, X, columns, y):
    for i in range(len(X)):
        set_current_row(block, X, columns, i)


LOOPS = {"_fill": _fill_alone} | {part.__name__: make_loop(part) for part in PARTS}


@njit
def _predict_nothing(block, output):
    return 0.0


@njit
def _learn_nothing(block, target, weight):
    return 0


def draw_rows(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw rows from clusters of two classes, float32 [ROWS, FEATURES], and their labels bool [ROWS]."""
    rng = np.random.default_rng(seed)
    centres, labels = rng.normal(size=(CLUSTERS, FEATURES)), rng.random(CLUSTERS) < 0.5
    cluster = rng.integers(CLUSTERS, size=ROWS)
    return (centres[cluster] + 0.5 * rng.normal(size=(ROWS, FEATURES))).astype(np.float32), labels[cluster]


def make_python_loops(model: BSGDClassifier, rows: list[tuple[dict[str, float], bool]]) -> dict[str, Callable[[], None]]:
    """Return functions, by name, that loop over the rows in Python and run a part of a call."""
    features, row, block, labels = model._features, model._row, model._block, model._labels

    def fill() -> None:
        for x, _ in rows:
            features.fill_row(row, x, True)

    def name() -> None:
        for _ in rows:
            labels.decode(1.0)

    def enter_predict() -> None:
        for _ in rows:
            _predict_nothing(block, 2)

    def enter_learn() -> None:
        for _ in rows:
            _learn_nothing(block, 1.0, 1.0)

    def predict() -> None:
        for x, _ in rows:
            model.predict_one(x)

    def predict_and_learn() -> None:
        for x, y in rows:
            model.predict_one(x)
            model.learn_one(x, y)

    return {loop.__name__: loop for loop in (fill, name, enter_predict, enter_learn, predict, predict_and_learn)}


def time_loop(run: Callable[..., object], *args: Any) -> float:
    """Return the microseconds a row, the best of three runs, because differences of short loops are sensitive to noise."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        run(*args)
        times.append(time.perf_counter() - start)
    return min(times) / CHUNK * 1e6


def measure_loops(repeats: int) -> tuple[list[dict[str, float]], float]:
    """Return the microseconds a row of each loop, for each repeat, and the share of rows that become support vectors."""
    X, labels = draw_rows(0)
    rows = list(zip(to_dicts(X), labels.tolist(), strict=True))
    model, merges = BSGDClassifier(BUDGET, scaling=None, max_features=FEATURES, seed=0), 0
    for i, (x, y) in enumerate(rows):
        model.learn_one(x, y)
        merges = model.n_merges if i < ROWS // 2 else merges
    if model.n_support != BUDGET:
        sys.exit(f"the budget is not full: {model.n_support} of {BUDGET} support vectors")
    share = (model.n_merges - merges) / (ROWS - ROWS // 2)
    targets = np.where(labels == model.positive_label, 1.0, -1.0)
    columns = np.array([model.feature_names.index(name) for name in rows[0][0]])
    models = {name: copy.deepcopy(model) for name in LOOPS}
    for model_copy in models.values():
        model_copy._prepare_to_learn()  # compiles the budget maintenance
    runs = []
    for repeat in range(repeats + 1):
        start = repeat * CHUNK % ROWS
        part = slice(start, start + CHUNK)
        times = {name: time_loop(call) for name, call in make_python_loops(model, rows[part]).items()}
        merges = models["_observe_and_step"].n_merges
        for name, loop in LOOPS.items():
            times[name] = time_loop(loop, models[name]._block, X[part], columns, targets[part])
        times["merges a step"] = (models["_observe_and_step"].n_merges - merges) / (3 * CHUNK)
        if repeat:  # the first time compiles
            runs.append(times)
        report_progress(f"{repeat}/{repeats}")
    return runs, share


def compute_parts(times: dict[str, float]) -> dict[str, dict[str, float]]:
    """Return the microseconds of each call and its parts, computed from those of the loops."""
    scan, adding = times["_scan"] - times["_fill"], times["_observe_and_add"] - times["_observe"]
    predict = {
        "FeatureSpace.fill": times["fill"],
        "decide": times["enter_predict"],
        "scan_row": scan,
        "compare": times["_kernel_row"] - times["_scan"],
        "compute_scores": times["_scores"] - times["_kernel_row"],
        "Labels.decode": times["name"],
    }
    predict["calls"] = times["predict"] - sum(predict.values())
    learn = {
        "FeatureSpace.fill": times["fill"],
        "Rule.learn_one": times["enter_learn"],
        "begin_row": scan,
        "compute_scores": times["_scores_twice"] - times["_scores"],  # predict_one has already computed the kernel row
        "track_errors": times["_errors"] - times["_scores"],
        "step": times["_observe_and_step"] - times["_observe"] - adding * times["merges a step"],
        "add_support_vector": adding * times["merges a step"],
        "end_row": times["_average"] - times["_scores"],
    }
    predict_and_learn, one = times["predict_and_learn"], times["predict"]
    learn["calls"] = predict_and_learn - one - sum(learn.values())
    return {"predict_one": {"": one, **predict}, "learn_one": {"": predict_and_learn - one, **learn}, "event": {"": adding}}


#: For each part, its file and its work.
FILES_AND_WORK = {
    "FeatureSpace.fill": ("core/memory/features.py", "the numbers of the dict go into the current row"),
    "decide": ("core/steps/decisions.py", "compiled; numba unpacks its arguments"),
    "Rule.learn_one": ("core/steps/rule.py", "compiled; numba unpacks its arguments"),
    "scan_row": ("core/memory/slots.py", "columns that are not zero, squared norm"),
    "begin_row": ("core/steps/step.py", "scan_row, and the row is counted"),
    "compare": ("core/kernels.py", "kernel values with all support vectors"),
    "compute_scores": ("core/steps/step.py", "dot products with the coefficients of both iterates"),
    "track_errors": ("core/steps/step.py", "recent errors, calibration"),
    "step": ("learners/bsgd.py", "the rule: shrinking, shortfall"),
    "add_support_vector": ("core/steps/step.py, core/budget/merge.py", "append and merge, in few rows"),
    "end_row": ("core/steps/step.py, iterates.py", "the average iterate"),
    "Labels.decode": ("learners/labels.py", "the label of the decision value"),
    "calls": ("learners/classifier.py, budgeted.py", "the rest: calls in Python"),
}


def main() -> None:
    parser = make_parser(__doc__, "row_path")
    parser.add_argument("--repeats", type=int, default=25)
    args = parser.parse_args()
    runs, share = measure_loops(args.repeats)
    loops = {name: summarise([times[name] for times in runs]) for name in runs[0]}
    minima, medians = (compute_parts({name: values[kind] for name, values in loops.items()}) for kind in ("min", "median"))
    rows: list[tuple[object, ...]] = []
    for call in ("predict_one", "learn_one"):
        for part, value in medians[call].items():
            file, work = FILES_AND_WORK.get(part, ("", ""))
            name = f"  {part}" if part else call
            rows.append((name, file, work, f"{minima[call][part]:.2f}", f"{value:.2f}"))
    print_table(
        f"Microseconds a row: BSGDClassifier({BUDGET}), full, unscaled, {FEATURES} features; each row is predicted, then learned",
        ("", "in streamsvm/", "", "by the least times", "by the medians"),
        rows,
    )
    print(f"{100.0 * share:.1f} % of the rows become support vectors, at {medians['event']['']:.2f} us each with the merge.")
    write_json(
        args.out, {"budget": BUDGET, "features": FEATURES, "share": share, "least": minima, "medians": medians, "loops": loops}
    )


if __name__ == "__main__":
    main()
