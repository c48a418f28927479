"""Runs contenders prequentially on six real tables with categories, dates and numbers, and measures accuracy, time and memory.

`svm` and `bsgd` are ours; their times include reading the CSV file in chunks, as in `streamsvm learn`. Peers get parsed rows:
dates as seconds since 1970, empty categories as a category, missing numbers as the running mean of the column.
For river and Vowpal Wabbit (`vw-pairs`: with products of two features), categories are one-hot and numbers standardised. Targets
are standardised for these and CapyMOA. CapyMOA (`arf` with 30 trees, `srp` with 10) and LightGBM get categorical features, with
all categories known in advance. LightGBM is refitted to all rows so far after 250, 500 and 1,000 rows and then every 2,000 rows;
until the first fit, it predicts the running mean. Run it on one core:
``OMP_NUM_THREADS=1 taskset -c 1 python benchmarks/tables.py``.
"""

from __future__ import annotations

import csv
import datetime
import json
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from importlib import import_module, metadata
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import _peers
import numpy as np
from _prequential import WARM_UP, measure_clock_cost
from _stream_learners import measure_memory
from common import make_parser, print_table, report_progress, summarise, write_json
from river import base, compose, linear_model, preprocessing, stats
from sklearn.metrics import mean_absolute_error, r2_score, roc_auc_score, root_mean_squared_error

from streamsvm import BSGDClassifier, BSGDRegressor, SVMClassifier, SVMRegressor
from streamsvm.learners.preprocessing import BoundedTargetScaler
from streamsvm.stream import LearningLoop, Sink, open_source
from streamsvm.stream.tables import TableEncoder

TABLES = ("adult", "amazon", "mushrooms", "telco", "seoul", "taxis")
FIRST_FIT_ROWS, REFIT_ROWS = (250, 500, 1_000), 2_000  # rows
MIN_PROBABILITY = 1e-4  # probabilities are clipped in the log loss, because forests predict 0
#: Digits of the metrics, by whether the task is a regression.
DIGITS = {False: {"accuracy": 2, "log_loss": 4, "auc": 2}, True: {"rmse": 3, "mae": 3, "r2": 4}}

Row = dict[str, Any]
_now = time.process_time_ns


class Table(NamedTuple):
    """A table: its file, the options to read it, and its parsed rows for the peers."""

    path: Path
    label: str
    regression: bool
    kinds: dict[str, str]  # kinds of columns, for `open_source` and `TableEncoder`
    positive: str  # the positive one of the two labels
    rows: list[Row]
    y: np.ndarray  # targets, or whether the label is the positive one

    @property
    def categories(self) -> list[str]:
        """Names of the categorical columns."""
        return [name for name, kind in self.kinds.items() if kind == "category"]

    @property
    def codes(self) -> dict[str, dict[str, int]]:
        """An integer code for each value of each categorical column."""
        values = {name: dict.fromkeys(row[name] for row in self.rows) for name in self.categories}
        return {name: {value: code for code, value in enumerate(distinct)} for name, distinct in values.items()}


class Run(NamedTuple):
    """Predictions of a run, probabilities of the positive label (None for regression), CPU time a row, bytes and features."""

    predicted: np.ndarray
    probability: np.ndarray | None
    microseconds: float
    bytes: int | None = None
    features: int | None = None


def read_table(name: str, folder: Path, count: int | None) -> Table:
    """Read the first ``count`` rows of a table (None: all); exit with a message if it is missing."""
    path = folder / f"{name}.csv"
    if not (path.is_file() and path.with_suffix(".json").is_file()):
        sys.exit(f"no data: {path} is missing, or its .json (see benchmarks/README.md)")
    description = json.loads(path.with_suffix(".json").read_text())
    kinds = {"category": description["cat"], "date": description["date"], "drop": description["drop"]}
    kind_of = {column: kind for kind, columns in kinds.items() for column in columns}
    with path.open(newline="") as file:
        format_cells = list(csv.DictReader(file))[:count]
    labels, rows = [cell.pop(description["label"]) for cell in format_cells], []
    means: dict[str, stats.Mean] = defaultdict(stats.Mean)
    for cell in format_cells:
        rows.append({})
        for column, text in cell.items():
            kind = kind_of.get(column, "number")
            if kind == "category":
                rows[-1][column] = text.strip()
            elif kind == "date":
                rows[-1][column] = datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.UTC).timestamp()
            elif kind == "number":
                rows[-1][column] = number = float(text) if text else means[column].get()
                means[column].update(number)
    regression, positive = description["task"] == "reg", max(labels)
    y = np.array(labels, float) if regression else np.array(labels) == positive
    return Table(path, description["label"], regression, kind_of, positive, rows, y)


def get_last_step(model: Any) -> Any:
    """Return the last step of a pipeline, unwrapped from a target scaler."""
    last = next(reversed(model.steps.values())) if isinstance(model, compose.Pipeline) else model
    return getattr(last, "regressor", last)


class PredictionList(list[Any], Sink):
    """A sink that collects prediction records in a list."""

    name, write = "memory", list.append

    def flush(self) -> dict[str, Any]:
        return {}


def run_ours(make: Callable[[], Any], table: Table) -> Run:
    """Run one of our learners on the file twice: first to collect predictions and compile, then to measure the time."""
    predictions = PredictionList()
    for sink in (predictions, None):
        with open_source(str(table.path), label=table.label, columns=table.kinds) as source:
            loop = LearningLoop(source, TableEncoder(table.kinds) | make(), sink=sink)
            start = _now()
            loop.run(len(table.y))
            microseconds = (_now() - start) / 1e3 / len(table.y)
    learner, names = get_last_step(loop.model), loop.model["TableEncoder"].target_encoding
    cost = microseconds, learner.nbytes + names.nbytes, len(learner.feature_names)
    predicted = np.array([record["y_pred"] for record in predictions])
    if table.regression:
        return Run(predicted, None, *cost)
    probabilities = np.array([0.5 if record["probability"] is None else record["probability"] for record in predictions])
    return Run(predicted == table.positive, np.where(predicted == table.positive, probabilities, 1.0 - probabilities), *cost)


class VW(base.Regressor):
    """Vowpal Wabbit's linear regression, with further options of its command line."""

    def __init__(self, **options: Any) -> None:
        self._model = import_module("vowpalwabbit").Workspace(quiet=True, **options)

    def _call_model(self, method: str, x: Row, label: str = "") -> Any:
        example = self._model.example({"f": x})
        example.set_label_string(label)
        result = getattr(self._model, method)(example)
        self._model.finish_example(example)
        return result

    def learn_one(self, x: Row, y: float) -> None:
        self._call_model("learn", x, str(y))

    def predict_one(self, x: Row) -> float:
        return self._call_model("predict", x)

    nbytes = _peers.OAA.nbytes


def make_linear(make: Callable[[], Any], table: Table) -> Any:
    """Return a linear model with one-hot categories and standardised numbers."""
    names = compose.Select(*table.categories) | preprocessing.OneHotEncoder(drop_zeros=True)
    numbers = compose.Discard(*table.categories) | preprocessing.StandardScaler()
    return (names + numbers) | (preprocessing.TargetStandardScaler(make()) if table.regression else make())


class Nominal:
    """Mixin that makes categorical columns nominal attributes of a CapyMOA learner; ``codes`` are those of a `Table`."""

    def _make_model(self, features: list[str]) -> None:
        super()._make_model(features)  # also starts Java
        categories = {name: [str(code) for code in value.values()] for name, value in self.codes.items()}
        categories |= {"target": labels} if (labels := self._targets()) else {}
        self._schema = import_module("capymoa.stream").Schema.from_custom([*features, "target"], "target", categories)
        self._model = type(self._model)(schema=self._schema, random_seed=self.seed, **self.parameters)

    def _to_array(self, x: Row) -> np.ndarray:
        return super()._to_array({name: self.codes[name][value] if name in self.codes else value for name, value in x.items()})


def make_ensemble(size: int, kind: type, table: Table) -> Any:
    """Return an ensemble of CapyMOA with nominal attributes; CapyMOA's class is found by the name of the class."""
    model = type(kind.__name__, (Nominal, kind), {"codes": table.codes})(ensemble_size=size)
    return preprocessing.TargetStandardScaler(model) if table.regression else model


def run_row_by_row(build: Callable[[Any, Table], Any], make: Any, table: Table) -> Run:
    """Predict and learn each row, after another model has learned some rows to compile and load code."""
    model, targets, cost = build(make, table), table.y.tolist(), 2.0 * measure_clock_cost()
    for x, y in zip(table.rows[:WARM_UP], targets, strict=False):
        model.predict_one(x)
        model.learn_one(x, y)
    model, predicted, chances, nanoseconds = build(make, table), [], [], 0.0
    for x, y in zip(table.rows, targets, strict=True):
        start = _now()
        predicted.append(model.predict_one(x))
        nanoseconds += _now() - start
        if not table.regression:
            probabilities = model.predict_proba_one(x)
            chances.append(probabilities[True] if True in probabilities else 1.0 - probabilities.get(False, 0.5))
        start = _now()
        model.learn_one(x, y)
        nanoseconds += _now() - start - cost
    last = get_last_step(model)  # river's memory estimate does not include the weights
    size, features = (None, len(last.weights)) if hasattr(last, "weights") else (measure_memory(last), None)
    return Run(
        np.array(predicted), None if table.regression else np.array(chances), nanoseconds / 1e3 / len(targets), size, features
    )


def run_refitted(kind: str, table: Table) -> Run:
    """Fit LightGBM to all rows so far, and predict the rows up to the next fit, in turn."""
    make, codes, y = getattr(import_module("lightgbm"), kind), table.codes, table.y
    X = np.array([[codes[name][value] if name in codes else value for name, value in x.items()] for x in table.rows], float)
    names = [i for i, name in enumerate(table.rows[0]) if name in codes]
    stops = [stop for stop in (*FIRST_FIT_ROWS, *range(REFIT_ROWS, len(y), REFIT_ROWS)) if stop < len(y)]
    start_time = _now()
    predictions = np.concatenate([[0.5], np.cumsum(y)[:-1] / np.arange(1, len(y))])  # running means, until the first fit
    for start, stop in pairwise([*stops, len(y)]):
        model = make(random_state=0, verbose=-1).fit(X[:start], y[:start], categorical_feature=names)
        predictions[start:stop] = model.predict(X[start:stop]) if table.regression else model.predict_proba(X[start:stop])[:, 1]
    microseconds = (_now() - start_time) / 1e3 / len(y)
    return Run(predictions, None, microseconds) if table.regression else Run(predictions > 0.5, predictions, microseconds)


_ARF = _peers.AdaptiveRandomForestClassifier, _peers.AdaptiveRandomForestRegressor
_OAA = partial(_peers.OAA, probabilities=True, loss_function="logistic")
#: For each contender: its package, the function that runs it, and its model for classification and for regression (None: none).
CONTENDERS: dict[str, tuple[str, Callable[[Any, Table], Run], Any, Any]] = {
    "svm": ("streamsvm", run_ours, partial(SVMClassifier, seed=0), partial(SVMRegressor, seed=0)),
    "bsgd": (
        "streamsvm",
        run_ours,
        partial(BSGDClassifier, 500, seed=0),
        lambda: BoundedTargetScaler(BSGDRegressor(500, seed=0)),
    ),
    "river": ("river", partial(run_row_by_row, make_linear), linear_model.LogisticRegression, linear_model.LinearRegression),
    "vw": ("vowpalwabbit", partial(run_row_by_row, make_linear), _OAA, VW),
    "vw-pairs": ("vowpalwabbit", partial(run_row_by_row, make_linear), partial(_OAA, q="::"), partial(VW, q="::")),
    "arf": ("capymoa", partial(run_row_by_row, partial(make_ensemble, 30)), *_ARF),
    "srp": ("capymoa", partial(run_row_by_row, partial(make_ensemble, 10)), _peers.StreamingRandomPatches, None),
    "lightgbm": ("lightgbm", run_refitted, "LGBMClassifier", "LGBMRegressor"),
}


def measure_contender(contender: str, table: Table, repeats: int) -> dict[str, Any]:
    """Run a contender on a table, and return its scores, times, bytes and number of features.

    The first row of each label counts only in the accuracy: no contender can know its label.
    """
    _, run, *models = CONTENDERS[contender]
    with warnings.catch_warnings(action="ignore"):  # of numpy, in river's models: the scores show their effect
        runs = [run(models[table.regression], table) for _ in range(repeats)]
    times, (predicted, probability, _, size, features) = summarise([run.microseconds for run in runs]), runs[0]
    result = {"microseconds": times, "bytes": size, "features": features}
    if table.regression:
        kinds = {"rmse": root_mean_squared_error, "mae": mean_absolute_error, "r2": r2_score}
        return {name: kind(table.y, predicted) for name, kind in kinds.items()} | result
    rows = np.delete(np.arange(len(table.y)), np.unique(table.y, return_index=True)[1])
    y, p = table.y[rows], probability[rows]
    loss = -np.log(np.clip(np.where(y, p, 1.0 - p), MIN_PROBABILITY, 1.0)).mean()
    accuracy, auc = 100.0 * (predicted == table.y).mean(), 100.0 * roc_auc_score(y, p)
    return {"accuracy": float(accuracy), "log_loss": float(loss), "auc": float(auc), **result}


def format_cells(result: dict[str, Any], digits: dict[str, int]) -> list[str]:
    """Return the results of a contender as a line of a table."""
    scores = [f"{result[metric]:.{n}f}" for metric, n in digits.items()]
    times = [f"{result['microseconds'][quantile]:.1f}" for quantile in ("min", "median", "max")]
    return [*scores, *times, f"{result['bytes'] / 1e3:,.0f}" if result["bytes"] else "-", str(result["features"] or "-")]


def main() -> None:
    """Measure all contenders, print a table for each data file, and write JSON."""
    parser = make_parser(__doc__, "tables")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--only", nargs="+", choices=CONTENDERS, default=list(CONTENDERS), help="contenders to run")
    parser.add_argument("--rows", type=int, help="number of first rows of each table; default: all")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each contender, to measure the time")
    args = parser.parse_args()
    if args.repeats < 1:
        parser.error("--repeats must be at least 1")
    if args.data is None:
        sys.exit("no data: name the folder of the tables with --data DIR (see benchmarks/README.md)")
    available = []
    for contender in args.only:
        package = CONTENDERS[contender][0]
        try:
            _peers.FIMTDD() if package == "capymoa" else _peers._require_package(package)  # CapyMOA needs Java, too
        except ValueError as error:
            report_progress(f"{contender} is skipped: {error}")
        else:
            available.append(contender)
    peers = _peers.list_versions() | ({"lightgbm": metadata.version("lightgbm")} if "lightgbm" in available else {})
    results: dict[str, Any] = {}
    for name in args.tables:
        table = read_table(name, args.data, args.rows)
        digits, contender_results = DIGITS[table.regression], {}
        results[name] = {"rows": len(table.y), "contenders": contender_results}
        for contender in [row_name for row_name in available if CONTENDERS[row_name][2 + table.regression]]:
            contender_results[contender] = measure_contender(contender, table, args.repeats)
            report_progress(f"{name}, {contender}: {', '.join(format_cells(contender_results[contender], digits))}")
            write_json(args.out, {"peers": peers, "repeats": args.repeats, "tables": results})
        columns = ["contender", *(metric.replace("_", " ") for metric in digits), "us, min", "median", "max", "kB", "features"]
        lines = [[row_name, *format_cells(result, digits)] for row_name, result in contender_results.items()]
        print_table(f"{name}, {len(table.y):,} rows", columns, lines)


if __name__ == "__main__":
    main()
