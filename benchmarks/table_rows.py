"""Microseconds a row of a learning loop, by what a table holds and by the format that it is in.

Tables of 20,000 rows: nine columns of numbers; the same with a category; with a column dropped, with weights, with kept columns
and predictions in a file; and orders with three columns of names, a date, gaps and an id. Of each, CPU time from the file to the
learner, reading included. The peer is the pipeline of river that somebody would write by hand for the orders.

    OMP_NUM_THREADS=1 taskset -c 0 python benchmarks/table_rows.py
"""

from __future__ import annotations

import csv
import datetime
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import common
import numpy as np
import pyarrow as pa
from pyarrow import parquet
from river import compose, linear_model, preprocessing, stream

from streamsvm import BSGDClassifier, SVMClassifier
from streamsvm.stream import FileSink, LearningLoop, open_source
from streamsvm.stream.tables import TableEncoder

ROWS = 20_000
NUMBERS = [f"f{i}" for i in range(9)]
NAMES = ["city", "product", "plan"]
ORDERS: dict[str, Any] = {"categorical": NAMES, "dates": ["when"], "drop": ["id"]}


def write(folder: Path) -> None:
    """Write the tables."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(ROWS, len(NUMBERS))).round(4)
    y = ["yes" if label else "no" for label in X[:, 0] * X[:, 1] + X[:, 2] > 0]
    numbers = {name: X[:, i] for i, name in enumerate(NUMBERS)}
    lines = X.astype(str).tolist()

    def as_csv(name: str, header: list[str], rows: Any) -> None:
        with (folder / name).open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([header, *rows])

    as_csv("numbers.csv", [*NUMBERS, "y"], ([*row, label] for row, label in zip(lines, y, strict=True)))
    as_csv("category.csv", ["c", *NUMBERS, "y"], (["abcdefgh"[i % 8], *lines[i], y[i]] for i in range(ROWS)))
    as_csv("ids.csv", ["id", *NUMBERS, "w", "y"], ([i, *lines[i], 1 + i % 3, y[i]] for i in range(ROWS)))
    with (folder / "numbers.jsonl").open("w") as file:
        file.writelines(json.dumps(dict(zip(NUMBERS, X[i].tolist(), strict=True)) | {"y": y[i]}) + "\n" for i in range(ROWS))
    with (folder / "numbers.libsvm").open("w") as file:
        pairs = (" ".join(f"{j + 1}:{value}" for j, value in enumerate(row)) for row in lines)
        file.writelines(f"{int(label == 'yes')} {row}\n" for label, row in zip(y, pairs, strict=True))
    table = pa.table({**numbers, "y": y})
    parquet.write_table(table, folder / "numbers.parquet")
    with pa.ipc.new_file(folder / "numbers.arrow", table.schema) as file:
        file.write_table(table)

    cities, effects, begin = ["Ulm", "Köln", "Bern", "Wien", "Graz", "Genf"], rng.normal(size=120), datetime.datetime(2025, 1, 1)
    rows = []
    for i in range(ROWS):
        city, product, plan, amount = rng.integers(6), rng.integers(120), rng.integers(3), float(np.exp(rng.normal(3)))
        gap = "" if rng.random() < 0.03 else f"{amount:.2f}"
        score = effects[product] + 0.6 * (city % 2) - 0.5 * (plan == 2) + 0.4 * np.log(amount) - 1.2 + X[i, 0] * X[i, 1]
        when = begin + datetime.timedelta(minutes=7 * i)
        rows.append([i, when, cities[city], f"P{product:03d}", plan, gap, *lines[i][:3], "yes" if score > 0 else "no"])
    as_csv("orders.csv", ["id", "when", *NAMES, "amount", "a", "b", "c", "y"], rows)


def learn(path: Path, model: Any, out: Path | None = None, keep: tuple[str, ...] = (), **reading: Any) -> tuple[float, float]:
    """Learn a file; return microseconds of CPU a row, and the accuracy."""
    out = None if out is None else out.with_stem(f"{time.perf_counter_ns()}")
    with open_source(str(path), label="y", **reading) as source:
        sink = None if out is None else FileSink(out)
        began = time.process_time()
        end = LearningLoop(source, model, sink=sink, keep=keep).run()
        seconds = time.process_time() - began
        if sink is not None:
            sink.close()
    return 1e6 * seconds / end.rows, end.metric


def by_hand(path: Path) -> tuple[float, float]:
    """Learn the orders by a pipeline of river; return microseconds of CPU a row, and the accuracy."""
    names = compose.Select(*NAMES) | preprocessing.OneHotEncoder()
    numbers = compose.Select("when", "amount", "a", "b", "c") | preprocessing.StandardScaler()
    model, right = (names + numbers) | linear_model.LogisticRegression(), 0
    converters = dict.fromkeys("abc", float) | {
        "amount": lambda text: float(text) if text else 0.0,
        "when": lambda text: datetime.datetime.fromisoformat(text).timestamp(),
    }
    began = time.process_time()
    for x, y in stream.iter_csv(str(path), target="y", converters=converters, drop=["id"]):
        right += model.predict_one(x) == (y == "yes")
        model.learn_one(x, y == "yes")
    return 1e6 * (time.process_time() - began) / ROWS, right / ROWS


def main() -> None:
    """Measure, print a table, and write JSON."""
    parser = common.argument_parser(__doc__, "table_rows")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    results, shown = [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder)
        for learner, make in (("bsgd", lambda: BSGDClassifier(seed=0)), ("default", lambda: SVMClassifier(seed=0))):
            cases = cases_of(folder, make)
            for _, run in cases:
                run()  # which compiles
            found = {case: [run() for _ in range(arguments.repeats)] for case, run in cases}
            for case, runs in found.items():
                figures = common.summary([us for us, _ in runs])
                results.append({"learner": learner, "case": case, "us": figures, "accuracy": runs[0][1]})
                times = (f"{figures[part]:.1f}" for part in ("min", "median", "max"))
                shown.append((learner, case, *times, f"{runs[0][1]:.3f}"))
                common.progress(f"{learner}, {case}: {figures['median']:.1f} us a row")
    common.show(f"{ROWS:,} rows", ("learner", "table", "min", "median", "max", "accuracy"), shown)
    common.write(arguments.out, {"rows": ROWS, "repeats": arguments.repeats, "tables": results})


def cases_of(folder: Path, make: Callable[[], Any]) -> list[tuple[str, Callable[[], tuple[float, float]]]]:
    """Return what is measured, by its name."""
    out = folder / "out.jsonl"

    def encoded(**options: Any) -> Callable[[Path], tuple[float, float]]:
        return lambda path: learn(path, TableEncoder(**options) | make(), **options)

    return [
        ("CSV, numbers", lambda: learn(folder / "numbers.csv", make())),
        ("CSV, a column dropped", lambda: learn(folder / "ids.csv", make(), drop=["id", "w"])),
        ("CSV, a category", lambda: encoded(categorical=["c"])(folder / "category.csv")),
        ("CSV, orders", lambda: encoded(**ORDERS)(folder / "orders.csv")),
        ("CSV, predictions to a file", lambda: learn(folder / "numbers.csv", make(), out)),
        ("CSV, weights", lambda: learn(folder / "ids.csv", make(), drop=["id"], weight="w")),
        ("CSV, all three", lambda: learn(folder / "ids.csv", make(), out, ("id",), drop=["id"], weight="w")),
        *(
            (kind, lambda kind=kind: learn(folder / f"numbers.{kind.lower()}", make()))
            for kind in ("JSONL", "LIBSVM", "Parquet", "Arrow")
        ),
        ("CSV, orders, river by hand", lambda: by_hand(folder / "orders.csv")),
    ]


if __name__ == "__main__":
    main()
