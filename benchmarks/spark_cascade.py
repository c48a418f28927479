"""Compares `CascadeSVC` on Spark with one exact fit of all rows: seconds, rounds, transferred bytes, objectives and gaps.

`CascadeSVC` runs in a local Spark session (``local[2]`` by default) whose partitions have the rows in a fixed random order
(``--sorted``: sorted by class), and `CSMOClassifier` on all rows in this process. Times are wall-clock seconds, the minimum of
the repeats, after fits of a few rows that start Spark's workers and load compiled code. Spark counts the bytes that go through
the tree from task to task, and results to the driver; support vectors are sent to the workers once in each round.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from common import PAPER, load_split, make_parser, print_table, report_progress, write_json
from pyspark.sql import DataFrame, SparkSession
from sklearn.exceptions import ConvergenceWarning
from spark_common import start_session, write_parquet

from streamsvm.batch import CSMOClassifier
from streamsvm_spark import CascadeSVC

MAX_DIFF = 1e-3  # relative difference of the objective to the exact fit's


COLUMNS = (
    "set, C, gamma",
    "all, s",
    "cascade, s",
    "tasks, s",
    "off after each round",
    "gap",
    "SV",
    "held",
    "MB: all",
    "tree",
    "to driver",
    "to node",
)


class Case(NamedTuple):
    """A data set with C and gamma; ``rows`` is the number of rows of the synthetic mixture."""

    name: str
    C: float
    gamma: float
    rows: int = 0


CASES = [
    Case("a9a", 1.0, 0.05),
    Case("a9a", PAPER["a9a"].C, PAPER["a9a"].gamma),
    Case("ijcnn1", 10.0, 1.0),
    Case("ijcnn1", PAPER["ijcnn1"].C, PAPER["ijcnn1"].gamma),
    Case("phishing", PAPER["phishing"].C, PAPER["phishing"].gamma),
    Case("skin", PAPER["skin"].C, PAPER["skin"].gamma),
    Case("mixture", 10.0, 0.5, 100_000),
    Case("mixture", 10.0, 0.5, 500_000),
]


def draw_mixture(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw n rows from 40 slightly overlapping Gaussians in 8 dimensions with a random class each; return rows and labels."""
    rng = np.random.default_rng(0)
    centres, classes = rng.normal(size=(40, 8)) * 0.75, rng.random(40) < 0.5
    components = rng.integers(0, 40, n)
    return (centres[components] + 0.3 * rng.normal(size=(n, 8))).astype(np.float32), classes[components]


def make_frame(spark: SparkSession, folder: Path, X: np.ndarray, y: np.ndarray, partitions: int) -> DataFrame:
    """Write the rows to Parquet files, one for each partition, and return them as a Spark frame."""
    folder.mkdir()
    for part, rows in enumerate(zip(np.array_split(X, partitions), np.array_split(y, partitions), strict=True)):
        write_parquet(folder / f"{part:03}.parquet", [rows])
    frame = spark.read.parquet(str(folder))
    if frame.rdd.getNumPartitions() != partitions:
        sys.exit(f"Spark made {frame.rdd.getNumPartitions()} partitions of {partitions} files")
    return frame


class StageCounts:
    """Sums up Spark's metrics of the stages that run after the construction."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._earlier_ids = {stage.stageId() for stage in self._list_stages()}

    def _list_stages(self) -> list[Any]:
        context = self._spark.sparkContext
        jvm, gateway = context._jvm, context._gateway
        empty_list = jvm.java.util.ArrayList()
        stages = context._jsc.sc().statusStore().stageList(empty_list, False, False, gateway.new_array(jvm.double, 0), empty_list)
        return [stages.apply(i) for i in range(stages.size())]

    def sum_counts(self) -> dict[str, float]:
        new_stages = [stage for stage in self._list_stages() if stage.stageId() not in self._earlier_ids]
        return {
            "tasks": sum(stage.numCompleteTasks() for stage in new_stages),
            "bytes through the tree": sum(stage.shuffleWriteBytes() for stage in new_stages),
            "bytes to the driver": sum(stage.resultSize() for stage in new_stages if stage.status().toString() == "COMPLETE"),
            "task seconds": sum(stage.executorRunTime() for stage in new_stages) / 1000.0,
        }


def measure_case(case: Case, spark: SparkSession, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    if case.rows:
        X, y = draw_mixture(case.rows)
    else:
        split = load_split(case.name, args.data)
        X, y = split.X, split.y
    order = np.argsort(y, kind="stable") if args.sorted else np.random.default_rng(0).permutation(len(y))
    X, y = X[order], y[order]
    frame = make_frame(spark, folder, X, y, args.partitions)
    seconds: dict[str, list[float]] = {"cascade": [], "whole": []}
    for _ in range(args.repeats):
        stages, start = StageCounts(spark), time.perf_counter()
        model = CascadeSVC(C=case.C, gamma=case.gamma, maxIter=args.rounds).fit(frame)
        seconds["cascade"].append(time.perf_counter() - start)
        counts = stages.sum_counts()
        start = time.perf_counter()
        exact = CSMOClassifier(C=case.C, gamma=case.gamma).fit(X, y)
        seconds["whole"].append(time.perf_counter() - start)
    history = model.history
    objective_size = abs(exact.objective_)
    vector_bytes = 4 * X.shape[1] + 29  # its features and its other columns
    return {
        **counts,
        "seconds": {name: min(values) for name, values in seconds.items()},
        "rows": len(y),
        "bytes of all rows": X.nbytes,
        "bytes to a worker": float(history[:, 1].sum()) * vector_bytes,
        "rounds": model.n_rounds,
        "held": [int(n) for n in history[:, 0]],
        "support vectors": [int(n) for n in history[:, 1]],
        "violators": [int(n) for n in history[:, 2]],
        "off": [float(value) for value in (history[:, 3] - exact.objective_) / objective_size],
        "gap": [float(value) for value in history[:, 4] / objective_size],
        "whole": {
            "objective": exact.objective_,
            "gap": exact.duality_gap_ / objective_size,
            "support vectors": len(exact.support_),
        },
        "reached": bool(abs(history[-1, 3] - exact.objective_) <= MAX_DIFF * objective_size),
    }


def main() -> None:
    parser = make_parser(__doc__, "spark_cascade")
    parser.add_argument("--sets", nargs="*", choices=sorted({case.name for case in CASES}))
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=30, help="maximum number of rounds")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--sorted", action="store_true", help="rows sorted by class, so that most partitions have one")
    args = parser.parse_args()
    warnings.simplefilter("ignore", FutureWarning)  # pyspark's use of pandas
    warnings.simplefilter("ignore", ConvergenceWarning)  # the table shows the gap
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        # These options make each file a partition.
        spark = start_session(Path(folder), args.cores, driver_memory="3g", sql_files_openCostInBytes=str(2**27))
        rng = np.random.default_rng(0)
        X = rng.normal(size=(400, 3)).astype(np.float32)
        CascadeSVC().fit(make_frame(spark, Path(folder, "few"), X, X[:, 0] * X[:, 1] > 0.0, args.partitions))
        CSMOClassifier().fit(X, X[:, 0] > 0.0)
        for number, case in enumerate(CASES):
            if args.sets and case.name not in args.sets:
                continue
            result = measure_case(case, spark, Path(folder, str(number)), args)
            label = f"{case.name} {result['rows']:,}, {case.C:g}, {case.gamma:.3g}"
            results[label] = result
            report_progress(f"{label}: {result['seconds']}")
            write_json(args.out, {"partitions": args.partitions, "cores": args.cores, "sorted": args.sorted, "results": results})
        spark.stop()
    mega = 2**20
    print_table(
        f"{args.partitions} partitions on {args.cores} cores, rows {'sorted by class' if args.sorted else 'shuffled'}",
        COLUMNS,
        [
            (
                label,
                f"{result['seconds']['whole']:.1f}",
                f"{result['seconds']['cascade']:.1f}",
                f"{result['task seconds']:.1f}",
                " ".join(f"{value:.1g}" for value in result["off"]) + ("" if result["reached"] else f": NOT within {MAX_DIFF:g}"),
                f"{result['gap'][-1]:.1g}",
                result["support vectors"][-1],
                max(result["held"]),
                f"{result['bytes of all rows'] / mega:.1f}",
                f"{result['bytes through the tree'] / mega:.1f}",
                f"{result['bytes to the driver'] / mega:.1f}",
                f"{result['bytes to a worker'] / mega:.1f}",
            )
            for label, result in results.items()
        ],
    )  # fmt: skip


if __name__ == "__main__":
    main()
