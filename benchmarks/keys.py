"""Compares ways to use the key of a keyed stream, such as the device of each row, on tables in the order of time.

Each table NAME.csv or NAME.csv.gz has the columns ``device`` (the key), numbers or categories, and ``y``. The same default model
learns it prequentially without the key, with the key as a number (if it is one), as a category and as a key, and as a key with
small models of each key. `last` predicts the key's previous label, with a probability of 0.9, or its previous target, and the
first row of a key by the rows before it. The loss is log loss, without the first row of each label, or MAE for numbers. Times
include reading the file, and variants take turns. With ``--speed``, made rows show the cost of a row and of a key, the small
models of one key and of many in random order, and a checkpoint after rows of 1 % of the keys.
Run it on one core: ``OMP_NUM_THREADS=1 taskset -c 1 python benchmarks/keys.py --data FOLDER``.
"""

from __future__ import annotations

import csv
import gzip
import math
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from _key_speed import measure_encoder, measure_models
from common import make_parser, print_table, report_progress, summarise, write_json

from streamsvm import SVMClassifier, SVMRegressor
from streamsvm.learners.keyed import KeyedClassifier, KeyedRegressor
from streamsvm.stream import LearningLoop, open_source
from streamsvm.stream.tables import TableEncoder

KEY, TARGET, REFERENCE, BASELINE = "device", "y", "category", "last"
#: For each variant, the kind of the key's column, and whether each key has small models.
VARIANTS = {
    "no key": ("drop", False),
    "number": ("number", False),
    REFERENCE: ("category", False),
    "key": ("key", False),
    "key, small models": ("key", True),
}
MAX_LABELS = 8  # more distinct numbers are targets of a regression
LAST_PROBABILITY = 0.9  # of the previous label of a key
MIN_PROBABILITY = 2.0**-52  # to which the metric LogLoss clips probabilities
_now = time.process_time_ns


class Table(NamedTuple):
    """A keyed table: its file, the names of its categories, and the columns of the key and of the labels or targets."""

    path: Path
    categories: list[str]
    keys: list[str]
    y: list[Any]

    @property
    def regression(self) -> bool:
        """Whether ``y`` has numbers to predict."""
        return isinstance(self.y[0], float)

    @property
    def variants(self) -> list[str]:
        """The variants for this table: the key as a number only if it is one."""
        return [name for name in VARIANTS if name != "number" or are_numbers(self.keys)]


class Run(NamedTuple):
    """Loss and accuracy (percent; NaN for regression) of a run, and microseconds of CPU a row."""

    loss: float
    accuracy: float
    microseconds: float


def are_numbers(texts: list[str]) -> bool:
    """Return whether all texts are numbers."""
    try:
        return bool(np.isfinite(np.array(texts, float)).all())
    except ValueError:
        return False


def read_tables(folder: Path) -> Iterator[tuple[str, Table]]:
    """Yield the name and the table of each CSV file in a folder, by name."""
    for path in sorted([*folder.glob("*.csv"), *folder.glob("*.csv.gz")]):
        with gzip.open(path, "rt", newline="") if path.suffix == ".gz" else path.open(newline="") as file:
            names, *rows = csv.reader(file)
        columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
        keys, y = columns.pop(KEY), columns.pop(TARGET)
        categories = [name for name, values in columns.items() if not are_numbers([*filter(None, values)])]
        targets = [*map(float, y)] if are_numbers(y) and len(set(y)) > MAX_LABELS else y
        yield path.name.split(".")[0], Table(path, categories, keys, targets)


def make_learner(regression: bool, has_models: bool) -> Any:
    """Return the default learner, optionally with small models of each key."""
    learner = SVMRegressor(seed=0) if regression else SVMClassifier(seed=0)
    return (KeyedRegressor if regression else KeyedClassifier)(learner, key=KEY) if has_models else learner


def run_variant(table: Table, variant: str) -> Run:
    """Learn a table prequentially, with this use of the key."""
    kind, has_models = VARIANTS[variant]
    kinds = {**dict.fromkeys(table.categories, "category"), KEY: kind}
    with open_source(str(table.path), label=TARGET, columns=kinds) as source:
        model = TableEncoder(kinds) | make_learner(table.regression, has_models)
        loop = LearningLoop(source, model, ["MAE"] if table.regression else ["LogLoss", "Accuracy"])
        start = _now()
        values = [report.value for report in loop.run().scores]
        n, microseconds = len(table.y), (_now() - start) / 1e3 / len(table.y)
    if table.regression:
        return Run(values[0], math.nan, microseconds)
    n_labels = len(set(table.y))  # the first row has no prediction; the first one of each further label has probability 0
    loss = (values[0] * (n - 1) + (n_labels - 1) * math.log(MIN_PROBABILITY)) / (n - n_labels)
    return Run(loss, 100.0 * values[1], microseconds)


def run_baseline(table: Table) -> Run:
    """Predict the previous label or target of the key; the first row of a key by the frequencies or the mean of all rows before
    it.
    """
    last: dict[str, Any] = {}
    counts: Counter[Any] = Counter()
    losses, n_right, total, n_labels = [], 0, 0.0, len(set(table.y))
    for i, (key, y) in enumerate(zip(table.keys, table.y, strict=True)):
        if table.regression:
            losses.append(abs(y - last.get(key, total / max(i, 1))))
            total += y
        else:
            n_right += y == last.get(key, max(counts, key=counts.__getitem__, default=None))
            p = LAST_PROBABILITY if last.get(key) == y else (1.0 - LAST_PROBABILITY) / (n_labels - 1)
            if y in counts:
                losses.append(-math.log(p if key in last else counts[y] / i))
            counts[y] += 1
        last[key] = y
    return Run(math.fsum(losses) / len(losses), math.nan if table.regression else 100.0 * n_right / len(table.y), math.nan)


def measure_table(table: Table, repeats: int) -> dict[str, dict[str, Any]]:
    """Return loss, accuracy and times of each variant, and the ratios to those of the reference in the same repeat."""
    runs = [{name: run_variant(table, name) for name in table.variants} for _ in range(repeats)]
    results: dict[str, dict[str, Any]] = {}
    for name in table.variants:
        times = [run[name].microseconds for run in runs]
        extra = [run[name].microseconds - run[REFERENCE].microseconds for run in runs]
        results[name] = runs[0][name]._asdict() | {"microseconds": summarise(times), "extra_microseconds": summarise(extra)}
    results[BASELINE] = run_baseline(table)._asdict() | {"microseconds": None}
    for result in results.values():
        result["ratio"] = result["loss"] / results[REFERENCE]["loss"]
    return results


def format_result(result: dict[str, Any]) -> list[str]:
    """Return the results of a variant as cells of a table."""
    accuracy = "-" if math.isnan(result["accuracy"]) else f"{result['accuracy']:.2f}"
    times = [f"{result['microseconds'][name]:.1f}" for name in ("min", "median", "max")] if result["microseconds"] else ["-"] * 3
    return [f"{result['loss']:.4f}", f"{result['ratio']:.3f}", accuracy, *times]


def summarise_ratios(results: dict[str, Any], chosen: list[str]) -> tuple[list[list[str]], dict[str, Any]]:
    """Return the geometric means of the ratios of each variant over the chosen sets, over the others and over all, and the
    largest ratio: as lines of a table, and as a dict.
    """
    halves = {"choosing": chosen, "confirming": [name for name in results if name not in chosen], "all": list(results)}
    lines, summary = [], {}
    for variant in dict.fromkeys(variant for result in results.values() for variant in result):
        ratios = {name: result[variant]["ratio"] for name, result in results.items() if variant in result}
        values = {half: [ratios[name] for name in names if name in ratios] for half, names in halves.items()}
        means = {half: math.exp(np.log(numbers).mean()) if numbers else None for half, numbers in values.items()}
        worst = max(ratios, key=ratios.__getitem__)
        summary[variant] = {**means, "worst": ratios[worst], "worst_set": worst, "sets": len(ratios)}
        cells = ["-" if mean is None else f"{mean:.3f}" for mean in means.values()]
        lines.append([variant, *cells, f"{ratios[worst]:.3f} ({worst})", str(len(ratios))])
    return lines, summary


def main() -> None:
    """Measure all tables in a folder, or the speed; print tables, and write JSON."""
    parser = make_parser(__doc__, "keys")
    parser.add_argument("--sets", nargs="+", help="names of tables; default: all in the folder")
    parser.add_argument("--choose", help="comma-separated names of the sets of the first half; default: every other one by name")
    parser.add_argument("--repeats", type=int, default=1, help="runs of each variant, to measure the time")
    parser.add_argument("--speed", action="store_true", help="measure the speed instead, on made rows")
    parser.add_argument("--keys", nargs="+", type=int, default=[10_000, 100_000], help="numbers of keys for --speed")
    args = parser.parse_args()
    if args.repeats < 1:
        parser.error("--repeats must be at least 1")
    if args.speed:
        encoder = measure_encoder(args.repeats)
        models = measure_models(args.repeats, args.keys)
        write_json(args.out, {"repeats": args.repeats, "encoder": encoder, "models": models})
        return
    if args.data is None or not (tables := dict(read_tables(args.data))):
        sys.exit("no data: name the folder of the tables with --data DIR (see benchmarks/README.md)")
    if unknown := {*(args.sets or ()), *(args.choose or "").split(",")} - {*tables, ""}:
        parser.error(f"no tables in the folder: {', '.join(sorted(unknown))}")
    results: dict[str, Any] = {}
    names = [name for name in tables if not args.sets or name in args.sets]
    chosen = args.choose.split(",") if args.choose else names[::2]
    columns = ["variant", "loss", f"/ {REFERENCE}", "accuracy", "us, min", "median", "max"]
    for name in names:
        table = tables[name]
        results[name] = measure_table(table, args.repeats)
        lines = [[variant, *format_result(result)] for variant, result in results[name].items()]
        print_table(f"{name}, {len(table.y):,} rows, {len(set(table.keys)):,} keys", columns, lines)
        report_progress(f"{name}: {', '.join(' '.join(line[::2][:2]) for line in lines)}")
        ratio_lines, summary = summarise_ratios(results, chosen)
        write_json(args.out, {"repeats": args.repeats, "summary": summary, "tables": results})
    columns = ["variant", f"choosing ({len(chosen)} sets)", "confirming", "all", "worst set", "sets"]
    print_table(f"Loss relative to that with the key as a {REFERENCE}: geometric means", columns, ratio_lines)


if __name__ == "__main__":
    main()
