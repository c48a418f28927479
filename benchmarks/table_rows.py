"""Measures the microseconds of CPU that the default model of `table_model` needs for single rows of six real tables.

Rows are dicts of texts, as `csv.DictReader` reads them. Each row is predicted, and then learned. Beside it: the learner alone, on
encoded rows; the rows as one frame with ``learn_many``, which is the least that a row can cost; and, of the learned model, a
prediction and an explanation. Run it on one core: ``OMP_NUM_THREADS=1 taskset -c 1 python benchmarks/table_rows.py``.
"""

from __future__ import annotations

import csv
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from common import make_parser, print_table, report_progress, summarise, write_json

from streamsvm import table_model

TABLES = ("adult", "amazon", "mushrooms", "telco", "seoul", "taxis")
WARM_UP, EXPLAINED = 1_000, 100  # rows

Row = dict[str, Any]


class Table(NamedTuple):
    """The rows of a table, their labels, and an untrained model."""

    rows: list[Row]
    y: list[Any]
    model: Any


def read_table(name: str, folder: Path, count: int | None) -> Table:
    """Read the first ``count`` rows of a table (None: all); exit with a message if it is missing."""
    path = folder / f"{name}.csv"
    if not (path.is_file() and path.with_suffix(".json").is_file()):
        sys.exit(f"no data: {path} is missing, or its .json (see benchmarks/README.md)")
    label = json.loads(path.with_suffix(".json").read_text())["label"]
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))[:count]
    model = table_model(str(path), label)
    return Table(rows, model.parse_labels([row.pop(label) for row in rows]), model)


def time_rows(run: Callable[[Row, Any], object], rows: list[Any], y: list[Any]) -> float:
    """Return the microseconds of CPU that ``run(row, label)`` takes for a row, on average."""
    start = time.process_time()
    for x, label in zip(rows, y, strict=True):
        run(x, label)
    return (time.process_time() - start) / len(rows) * 1e6


def learn_rows(model: Any, rows: list[Any], y: list[Any]) -> float:
    """Predict and learn each row. Returns the microseconds of CPU a row."""

    def predict_and_learn(x: Row, label: Any) -> None:
        model.predict_one(x)
        model.learn_one(x, label)

    return time_rows(predict_and_learn, rows, y)


def encode_rows(model: Any, rows: list[Row], y: list[Any]) -> list[Row]:
    """Return the features of each row, as encoded before the row is learned."""
    encoder, features = model.clone()["TableEncoder"], []
    for x, label in zip(rows, y, strict=True):
        features.append(encoder.transform_one(x))
        encoder.learn_one(x, label)
    return features


def measure_table(table: Table, repeats: int) -> dict[str, dict[str, float]]:
    """Return summaries of the microseconds a row, by kind of call."""
    rows, y, untrained = table
    learn_rows(untrained.clone(), rows[:WARM_UP], y[:WARM_UP])  # compiles
    features, frame = encode_rows(untrained, rows, y), pd.DataFrame(rows)
    times: dict[str, list[float]] = {name: [] for name in ("row", "learner", "frame", "predict", "explain")}
    for _ in range(repeats):
        model, of_frame = untrained.clone(), untrained.clone()
        times["row"].append(learn_rows(model, rows, y))
        times["learner"].append(learn_rows(untrained.clone()[-1], features, y))
        start = time.process_time()
        of_frame.learn_many(frame, y)
        times["frame"].append((time.process_time() - start) / len(rows) * 1e6)
        times["predict"].append(time_rows(lambda x, _, model=model: model.predict_one(x), rows, y))
        times["explain"].append(time_rows(lambda x, _, model=model: model.explain_one(x), rows[-EXPLAINED:], y[-EXPLAINED:]))
    return {name: summarise(values) for name, values in times.items()}


def main() -> None:
    """Measure all tables, print the results, and write JSON."""
    parser = make_parser(__doc__, "table_rows")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--rows", type=int, help="number of first rows of each table; default: all")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    if args.repeats < 1:
        parser.error("--repeats must be at least 1")
    if args.data is None:
        sys.exit("no data: name the folder of the tables with --data DIR (see benchmarks/README.md)")
    results, lines = {}, []
    for name in args.tables:
        table = read_table(name, args.data, args.rows)
        times = measure_table(table, args.repeats)
        results[name] = {"rows": len(table.rows), "regression": table.model.schema.regression, "microseconds": times}
        row = [f"{times['row'][kind]:.1f}" for kind in ("min", "median", "max")]
        others = [f"{times[kind]['min']:.1f}" for kind in ("learner", "frame", "predict", "explain")]
        lines.append([name, *row, *others, f"{times['explain']['min'] / times['predict']['min']:.1f}"])
        report_progress(", ".join(lines[-1]))
        write_json(args.out, {"repeats": args.repeats, "tables": results})
    columns = ["table", "row, min", "median", "max", "learner", "frame", "predict", "explain", "explain / predict"]
    print_table("Microseconds of CPU: a row is predicted and learned; of the other columns, the minimum", columns, lines)


if __name__ == "__main__":
    main()
