"""A cascade of partitions beside one exact fit of all rows: seconds, rounds, bytes moved, objectives and gaps.

`CascadeSVC` on a session of Spark on this machine, ``local[2]`` by default, whose partitions hold the rows in a fixed random
order (``--sorted``: sorted by class), and `CSMOClassifier` on all rows in this process. Seconds are those of a clock, the least
of the repeats, after fits of a few rows that start Spark's workers and load compiled code. Bytes are those that Spark counts:
through the tree from task to task, and results to the driver; and support vectors to the workers, once for each round.
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

TARGET = 1e-3  # the objective's distance from that of all rows, relative


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
    """A set, or a mixture of so many rows, with C and gamma."""

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


def mixture(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of 40 Gaussians in 8 dimensions with a class each, which overlap a little."""
    rng = np.random.default_rng(0)
    centres, classes = rng.normal(size=(40, 8)) * 0.75, rng.random(40) < 0.5
    which = rng.integers(0, 40, n)
    return (centres[which] + 0.3 * rng.normal(size=(n, 8))).astype(np.float32), classes[which]


def framed(spark: SparkSession, folder: Path, X: np.ndarray, y: np.ndarray, partitions: int) -> DataFrame:
    """A frame of Parquet files, one a partition."""
    folder.mkdir()
    for part, rows in enumerate(zip(np.array_split(X, partitions), np.array_split(y, partitions), strict=True)):
        write_parquet(folder / f"{part:03}.parquet", [rows])
    frame = spark.read.parquet(str(folder))
    if frame.rdd.getNumPartitions() != partitions:
        sys.exit(f"Spark made {frame.rdd.getNumPartitions()} partitions of {partitions} files")
    return frame


class Stages:
    """What Spark counts in stages, from the first one after the construction on."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._before = {stage.stageId() for stage in self._all()}

    def _all(self) -> list[Any]:
        context = self._spark.sparkContext
        jvm, gateway = context._jvm, context._gateway
        none = jvm.java.util.ArrayList()
        stages = context._jsc.sc().statusStore().stageList(none, False, False, gateway.new_array(jvm.double, 0), none)
        return [stages.apply(i) for i in range(stages.size())]

    def sums(self) -> dict[str, float]:
        new = [stage for stage in self._all() if stage.stageId() not in self._before]
        return {
            "tasks": sum(stage.numCompleteTasks() for stage in new),
            "bytes through the tree": sum(stage.shuffleWriteBytes() for stage in new),
            "bytes to the driver": sum(stage.resultSize() for stage in new if stage.status().toString() == "COMPLETE"),
            "task seconds": sum(stage.executorRunTime() for stage in new) / 1000.0,
        }


def measure(case: Case, spark: SparkSession, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    if case.rows:
        X, y = mixture(case.rows)
    else:
        split = load_split(case.name, args.data)
        X, y = split.X, split.y
    order = np.argsort(y, kind="stable") if args.sorted else np.random.default_rng(0).permutation(len(y))
    X, y = X[order], y[order]
    frame = framed(spark, folder, X, y, args.partitions)
    seconds: dict[str, list[float]] = {"cascade": [], "whole": []}
    for _ in range(args.repeats):
        stages, start = Stages(spark), time.perf_counter()
        model = CascadeSVC(C=case.C, gamma=case.gamma, maxIter=args.rounds).fit(frame)
        seconds["cascade"].append(time.perf_counter() - start)
        counted = stages.sums()
        start = time.perf_counter()
        whole = CSMOClassifier(C=case.C, gamma=case.gamma).fit(X, y)
        seconds["whole"].append(time.perf_counter() - start)
    history = model.history
    best = abs(whole.objective_)
    row = 4 * X.shape[1] + 29  # of a support vector: its features and its other columns
    return {
        **counted,
        "seconds": {name: min(values) for name, values in seconds.items()},
        "rows": len(y),
        "bytes of all rows": X.nbytes,
        "bytes to a worker": float(history[:, 1].sum()) * row,
        "rounds": model.n_rounds,
        "held": [int(n) for n in history[:, 0]],
        "support vectors": [int(n) for n in history[:, 1]],
        "violators": [int(n) for n in history[:, 2]],
        "off": [float(value) for value in (history[:, 3] - whole.objective_) / best],
        "gap": [float(value) for value in history[:, 4] / best],
        "whole": {"objective": whole.objective_, "gap": whole.duality_gap_ / best, "support vectors": len(whole.support_)},
        "reached": bool(abs(history[-1, 3] - whole.objective_) <= TARGET * best),
    }


def main() -> None:
    parser = make_parser(__doc__, "spark_cascade")
    parser.add_argument("--sets", nargs="*", choices=sorted({case.name for case in CASES}))
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=30, help="at most")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--sorted", action="store_true", help="rows sorted by class, so that most partitions have one")
    args = parser.parse_args()
    warnings.simplefilter("ignore", FutureWarning)  # of pyspark, about pandas
    warnings.simplefilter("ignore", ConvergenceWarning)  # the table has the gap
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        # Each file is a partition.
        spark = start_session(Path(folder), args.cores, driver_memory="3g", sql_files_openCostInBytes=str(2**27))
        rng = np.random.default_rng(0)
        X = rng.normal(size=(400, 3)).astype(np.float32)
        CascadeSVC().fit(framed(spark, Path(folder, "few"), X, X[:, 0] * X[:, 1] > 0.0, args.partitions))
        CSMOClassifier().fit(X, X[:, 0] > 0.0)
        for number, case in enumerate(CASES):
            if args.sets and case.name not in args.sets:
                continue
            found = measure(case, spark, Path(folder, str(number)), args)
            label = f"{case.name} {found['rows']:,}, {case.C:g}, {case.gamma:.3g}"
            results[label] = found
            report_progress(f"{label}: {found['seconds']}")
            write_json(args.out, {"partitions": args.partitions, "cores": args.cores, "sorted": args.sorted, "results": results})
        spark.stop()
    mega = 2**20
    print_table(
        f"{args.partitions} partitions on {args.cores} cores, rows {'sorted by class' if args.sorted else 'shuffled'}",
        COLUMNS,
        [
            (
                label,
                f"{r['seconds']['whole']:.1f}",
                f"{r['seconds']['cascade']:.1f}",
                f"{r['task seconds']:.1f}",
                " ".join(f"{value:.1g}" for value in r["off"]) + ("" if r["reached"] else f": NOT within {TARGET:g}"),
                f"{r['gap'][-1]:.1g}",
                r["support vectors"][-1],
                max(r["held"]),
                f"{r['bytes of all rows'] / mega:.1f}",
                f"{r['bytes through the tree'] / mega:.1f}",
                f"{r['bytes to the driver'] / mega:.1f}",
                f"{r['bytes to a worker'] / mega:.1f}",
            )
            for label, r in results.items()
        ],
    )  # fmt: skip


if __name__ == "__main__":
    main()
