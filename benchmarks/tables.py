"""Six real tables with names, dates and numbers: what each contender predicts of a row before it learns it, and what that costs.

`svm` and `bsgd` are ours, from the CSV file to the learner, by blocks of rows, as `streamsvm learn` runs them. Peers are given
rows that were read before: a date as seconds since 1970, an empty name as a name, a missing number as the mean of those before.
For river and Vowpal Wabbit (`vw-pairs`: with products of two features) names are one-hot and numbers standardised. Targets are
standardised for these and CapyMOA. CapyMOA (`arf` of 30 trees, `srp` of 10) and LightGBM have names as categories, and know all
of them beforehand. LightGBM is fitted anew to all rows so far, after each 2,000 of them and after 250, 500 and 1,000; before that
it predicts their mean. Run it on one core: ``OMP_NUM_THREADS=1 taskset -c 1 python benchmarks/tables.py``.
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
FIRST_FITS, REFIT = (250, 500, 1_000), 2_000  # rows
LEAST = 1e-4  # of a probability in the log loss: forests say 0
DIGITS = {False: {"accuracy": 2, "log_loss": 4, "auc": 2}, True: {"rmse": 3, "mae": 3, "r2": 4}}  # of metrics, by regression

Row = dict[str, Any]
_now = time.process_time_ns


class Table(NamedTuple):
    """A table: its file, how the library reads that, and its rows as peers take them."""

    path: Path
    label: str
    regression: bool
    kinds: dict[str, str]  # of columns, as `open_source` and `TableEncoder` take them
    positive: str  # one of the two labels
    rows: list[Row]
    y: np.ndarray  # targets, or whether a label is the positive one

    @property
    def categories(self) -> list[str]:
        """The columns of names."""
        return [name for name, kind in self.kinds.items() if kind == "category"]

    @property
    def codes(self) -> dict[str, dict[str, int]]:
        """The numbers of the values of each column of names."""
        values = {name: dict.fromkeys(row[name] for row in self.rows) for name in self.categories}
        return {name: {value: code for code, value in enumerate(of)} for name, of in values.items()}


class Run(NamedTuple):
    """What was predicted (of labels also the probability of the positive one), CPU time a row, memory, features."""

    predicted: np.ndarray
    probability: np.ndarray | None
    microseconds: float
    bytes: int | None = None
    features: int | None = None


def read(name: str, folder: Path, count: int | None) -> Table:
    """Read the first rows of a table; end the program if it is missing."""
    path = folder / f"{name}.csv"
    if not (path.is_file() and path.with_suffix(".json").is_file()):
        sys.exit(f"no data: {path} is missing, or its .json (see benchmarks/README.md)")
    about = json.loads(path.with_suffix(".json").read_text())
    kinds = {"category": about["cat"], "date": about["date"], "drop": about["drop"]}
    kind_of = {column: kind for kind, columns in kinds.items() for column in columns}
    with path.open(newline="") as file:
        cells = list(csv.DictReader(file))[:count]
    labels, rows = [cell.pop(about["label"]) for cell in cells], []
    means: dict[str, stats.Mean] = defaultdict(stats.Mean)
    for cell in cells:
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
    regression, positive = about["task"] == "reg", max(labels)
    y = np.array(labels, float) if regression else np.array(labels) == positive
    return Table(path, about["label"], regression, kind_of, positive, rows, y)


def last_of(model: Any) -> Any:
    """Return the last step of a pipeline, without the scaler of its targets."""
    last = next(reversed(model.steps.values())) if isinstance(model, compose.Pipeline) else model
    return getattr(last, "regressor", last)


class Kept(list[Any], Sink):
    """Keeps the predictions."""

    name, write = "memory", list.append

    def flush(self) -> dict[str, Any]:
        return {}


def ours(make: Callable[[], Any], table: Table) -> Run:
    """Learn the file twice: first with the predictions kept, which compiles, then for the time."""
    kept = Kept()
    for sink in (kept, None):
        with open_source(str(table.path), label=table.label, columns=table.kinds) as source:
            loop = LearningLoop(source, TableEncoder(table.kinds) | make(), sink=sink)
            began = _now()
            loop.run(len(table.y))
            microseconds = (_now() - began) / 1e3 / len(table.y)
    learner, names = last_of(loop.model), loop.model["TableEncoder"].target_encoding
    cost = microseconds, learner.nbytes + names.nbytes, len(learner.feature_names)
    predicted = np.array([record["y_pred"] for record in kept])
    if table.regression:
        return Run(predicted, None, *cost)
    chances = np.array([0.5 if record["probability"] is None else record["probability"] for record in kept])
    return Run(predicted == table.positive, np.where(predicted == table.positive, chances, 1.0 - chances), *cost)


class VW(base.Regressor):
    """Vowpal Wabbit's linear regression, with further options of its command line."""

    def __init__(self, **options: Any) -> None:
        self._model = import_module("vowpalwabbit").Workspace(quiet=True, **options)

    def _call(self, method: str, x: Row, label: str = "") -> Any:
        example = self._model.example({"f": x})
        example.set_label_string(label)
        found = getattr(self._model, method)(example)
        self._model.finish_example(example)
        return found

    def learn_one(self, x: Row, y: float) -> None:
        self._call("learn", x, str(y))

    def predict_one(self, x: Row) -> float:
        return self._call("predict", x)

    nbytes = _peers.OAA.nbytes


def linear(make: Callable[[], Any], table: Table) -> Any:
    """Put names as indicators and standardised numbers before a linear model."""
    names = compose.Select(*table.categories) | preprocessing.OneHotEncoder(drop_zeros=True)
    numbers = compose.Discard(*table.categories) | preprocessing.StandardScaler()
    return (names + numbers) | (preprocessing.TargetStandardScaler(make()) if table.regression else make())


class Nominal:
    """Lets a learner of CapyMOA know which columns are names, by ``codes`` of `Table`."""

    def _make_model(self, features: list[str]) -> None:
        super()._make_model(features)  # which starts Java
        categories = {name: [str(code) for code in of.values()] for name, of in self.codes.items()}
        categories |= {"target": labels} if (labels := self._targets()) else {}
        self._schema = import_module("capymoa.stream").Schema.from_custom([*features, "target"], "target", categories)
        self._model = type(self._model)(schema=self._schema, random_seed=self.seed, **self.parameters)

    def _to_array(self, x: Row) -> np.ndarray:
        return super()._to_array({name: self.codes[name][of] if name in self.codes else of for name, of in x.items()})


def ensemble(size: int, kind: type, table: Table) -> Any:
    """Make an ensemble of CapyMOA, which finds its class by the name."""
    model = type(kind.__name__, (Nominal, kind), {"codes": table.codes})(ensemble_size=size)
    return preprocessing.TargetStandardScaler(model) if table.regression else model


def row_by_row(build: Callable[[Any, Table], Any], make: Any, table: Table) -> Run:
    """Predict each row, then learn it. Before, another model learns some rows, for what is compiled or loaded."""
    model, ys, cost = build(make, table), table.y.tolist(), 2.0 * measure_clock_cost()
    for x, y in zip(table.rows[:WARM_UP], ys, strict=False):
        model.predict_one(x)
        model.learn_one(x, y)
    model, predicted, chances, spent = build(make, table), [], [], 0.0
    for x, y in zip(table.rows, ys, strict=True):
        began = _now()
        predicted.append(model.predict_one(x))
        spent += _now() - began
        if not table.regression:
            found = model.predict_proba_one(x)
            chances.append(found[True] if True in found else 1.0 - found.get(False, 0.5))
        began = _now()
        model.learn_one(x, y)
        spent += _now() - began - cost
    last = last_of(model)  # whose weights river does not count
    size, features = (None, len(last.weights)) if hasattr(last, "weights") else (measure_memory(last), None)
    return Run(np.array(predicted), None if table.regression else np.array(chances), spent / 1e3 / len(ys), size, features)


def refitted(kind: str, table: Table) -> Run:
    """Have a model of LightGBM predict the rows up to the next fit, then fit all rows so far."""
    make, codes, y = getattr(import_module("lightgbm"), kind), table.codes, table.y
    X = np.array([[codes[name][of] if name in codes else of for name, of in x.items()] for x in table.rows], float)
    names = [i for i, name in enumerate(table.rows[0]) if name in codes]
    ends = [end for end in (*FIRST_FITS, *range(REFIT, len(y), REFIT)) if end < len(y)]
    began = _now()
    found = np.concatenate([[0.5], np.cumsum(y)[:-1] / np.arange(1, len(y))])  # means of the rows before
    for begin, end in pairwise([*ends, len(y)]):
        model = make(random_state=0, verbose=-1).fit(X[:begin], y[:begin], categorical_feature=names)
        found[begin:end] = model.predict(X[begin:end]) if table.regression else model.predict_proba(X[begin:end])[:, 1]
    microseconds = (_now() - began) / 1e3 / len(y)
    return Run(found, None, microseconds) if table.regression else Run(found > 0.5, found, microseconds)


_ARF = _peers.AdaptiveRandomForestClassifier, _peers.AdaptiveRandomForestRegressor
_OAA = partial(_peers.OAA, probabilities=True, loss_function="logistic")
#: The package of each contender, how it runs, and what with: for labels, and for numbers.
CONTENDERS: dict[str, tuple[str, Callable[[Any, Table], Run], Any, Any]] = {
    "svm": ("streamsvm", ours, partial(SVMClassifier, seed=0), partial(SVMRegressor, seed=0)),
    "bsgd": ("streamsvm", ours, partial(BSGDClassifier, 500, seed=0), lambda: BoundedTargetScaler(BSGDRegressor(500, seed=0))),
    "river": ("river", partial(row_by_row, linear), linear_model.LogisticRegression, linear_model.LinearRegression),
    "vw": ("vowpalwabbit", partial(row_by_row, linear), _OAA, VW),
    "vw-pairs": ("vowpalwabbit", partial(row_by_row, linear), partial(_OAA, q="::"), partial(VW, q="::")),
    "arf": ("capymoa", partial(row_by_row, partial(ensemble, 30)), *_ARF),
    "srp": ("capymoa", partial(row_by_row, partial(ensemble, 10)), _peers.StreamingRandomPatches, None),
    "lightgbm": ("lightgbm", refitted, "LGBMClassifier", "LGBMRegressor"),
}


def measure(contender: str, table: Table, repeats: int) -> dict[str, Any]:
    """Run a contender on a table: its scores, times, bytes and features.

    The first row of each label counts in the accuracy alone: nobody can name its label.
    """
    _, run, *models = CONTENDERS[contender]
    with warnings.catch_warnings(action="ignore"):  # of targets, and of numpy in river's models: the figures say it
        runs = [run(models[table.regression], table) for _ in range(repeats)]
    times, (predicted, probability, _, size, features) = summarise([run.microseconds for run in runs]), runs[0]
    result = {"microseconds": times, "bytes": size, "features": features}
    if table.regression:
        kinds = {"rmse": root_mean_squared_error, "mae": mean_absolute_error, "r2": r2_score}
        return {name: kind(table.y, predicted) for name, kind in kinds.items()} | result
    rows = np.delete(np.arange(len(table.y)), np.unique(table.y, return_index=True)[1])
    y, p = table.y[rows], probability[rows]
    loss = -np.log(np.clip(np.where(y, p, 1.0 - p), LEAST, 1.0)).mean()
    accuracy, auc = 100.0 * (predicted == table.y).mean(), 100.0 * roc_auc_score(y, p)
    return {"accuracy": float(accuracy), "log_loss": float(loss), "auc": float(auc), **result}


def cells(result: dict[str, Any], digits: dict[str, int]) -> list[str]:
    """Return what was measured as a line of a table."""
    values = [f"{result[metric]:.{n}f}" for metric, n in digits.items()]
    times = [f"{result['microseconds'][of]:.1f}" for of in ("min", "median", "max")]
    return [*values, *times, f"{result['bytes'] / 1e3:,.0f}" if result["bytes"] else "-", str(result["features"] or "-")]


def main() -> None:
    """Measure, print a table of each data file, and write JSON."""
    parser = make_parser(__doc__, "tables")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--only", nargs="+", choices=CONTENDERS, default=list(CONTENDERS), help="these contenders")
    parser.add_argument("--rows", type=int, help="the first rows of each table; else all")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each contender, for the time")
    args = parser.parse_args()
    if args.repeats < 1:
        parser.error("--repeats must be at least 1")
    if args.data is None:
        sys.exit("no data: name the folder of the tables with --data DIR (see benchmarks/README.md)")
    able = []
    for contender in args.only:
        package = CONTENDERS[contender][0]
        try:
            _peers.FIMTDD() if package == "capymoa" else _peers._require_package(package)  # CapyMOA needs Java, too
        except ValueError as error:
            report_progress(f"{contender} is left out: {error}")
        else:
            able.append(contender)
    peers = _peers.list_versions() | ({"lightgbm": metadata.version("lightgbm")} if "lightgbm" in able else {})
    results: dict[str, Any] = {}
    for name in args.tables:
        table = read(name, args.data, args.rows)
        digits, found = DIGITS[table.regression], {}
        results[name] = {"rows": len(table.y), "contenders": found}
        for contender in [each for each in able if CONTENDERS[each][2 + table.regression]]:
            found[contender] = measure(contender, table, args.repeats)
            report_progress(f"{name}, {contender}: {', '.join(cells(found[contender], digits))}")
            write_json(args.out, {"peers": peers, "repeats": args.repeats, "tables": results})
        columns = ["contender", *(metric.replace("_", " ") for metric in digits), "us, min", "median", "max", "kB", "features"]
        print_table(f"{name}, {len(table.y):,} rows", columns, [[each, *cells(of, digits)] for each, of in found.items()])


if __name__ == "__main__":
    main()
