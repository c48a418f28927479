"""Rows a second and memory of `streamsvm_spark.StreamLearner` over Parquet files, beside `learn_many` of the same rows.

    python benchmarks/spark_stream.py --rows 1000000 --batches 10

The table has, after each micro-batch, seconds since the query began, and the resident memory of the driver: its Python's and its
Java's, which has the workers, too.
"""

import argparse
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import parquet
from pyspark.sql import SparkSession

from streamsvm import BSCAClassifier
from streamsvm_spark import StreamLearner

FEATURES = 20
OPTIONS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
}


def write_rows(folder, rows, files):
    rng = np.random.default_rng(0)
    for i in range(files):
        X = rng.normal(size=(rows // files, FEATURES))
        label = (X[:, 0] * X[:, 1] + 0.5 * X[:, 2] > 0).astype(np.int64)
        features = pa.ListArray.from_arrays(pa.array(np.arange(0, X.size + 1, FEATURES, dtype=np.int32)), pa.array(X.ravel()))
        parquet.write_table(pa.table({"features": features, "label": label}), folder / f"{i:04d}.parquet")
        os.utime(folder / f"{i:04d}.parquet", (i + 1, i + 1))


def alone(model, folder):
    """Seconds to predict and learn all rows, and to learn them, without Spark; of these none to read them."""
    seconds = 0.0
    for path in sorted(folder.glob("*.parquet")):
        table = parquet.read_table(path)
        X = table["features"].combine_chunks().flatten().to_numpy().reshape(-1, FEATURES).astype(np.float32)
        y = table["label"].to_pylist()
        began = time.perf_counter()
        model.learn_many(X, y)
        seconds += time.perf_counter() - began
    return seconds


def resident(process="self"):
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def java_of(parent):
    """The process of Java that a process has started."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        number, name, _, started_by, *_ = path.read_text().split()
        if name == "(java)" and int(started_by) == parent:
            return number
    raise SystemExit("there is no Java")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--files", type=int, default=10, help="in all; a micro-batch has an equal number of them")
    parser.add_argument("--budget", type=int, default=100)
    arguments = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "rows")
        folder.mkdir()
        write_rows(folder, arguments.rows, arguments.files)
        BSCAClassifier(arguments.budget, seed=0).learn_many(np.zeros((2, 1), np.float32), [0, 1])  # compiled
        seconds = alone(BSCAClassifier(arguments.budget, seed=0), folder)
        print(f"learn_many alone: {seconds:.1f} s, {arguments.rows / seconds:,.0f} rows/s")
        builder = SparkSession.builder.master("local[2]").config("spark.local.dir", name)
        for key, value in OPTIONS.items():
            builder = builder.config(key, value)
        spark = builder.getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        java = java_of(os.getpid())
        files = arguments.files // arguments.batches
        frame = (
            spark.readStream.schema("features array<double>, label long").option("maxFilesPerTrigger", files).parquet(str(folder))
        )

        def query(learner):
            writer = frame.writeStream.foreachBatch(learner).option("checkpointLocation", f"{name}/spark")
            writer.trigger(availableNow=True).start().awaitTermination()

        began = time.perf_counter()

        def show(progress):
            print(
                f"| {progress.rows:,} | {time.perf_counter() - began:.1f} | {resident():.0f} | {resident(java):.0f} |", flush=True
            )

        print(f"| rows | seconds | Python, MiB (first {resident():.0f}) | Java, MiB |\n|---|---|---|---|")
        with StreamLearner(BSCAClassifier(arguments.budget, seed=0), f"{name}/model", on_progress=show) as learner:
            query(learner)
            seconds = time.perf_counter() - began
            print(f"the query: {seconds:.1f} s, {arguments.rows / seconds:,.0f} rows/s, {learner.loop.metric}")
        began = time.perf_counter()
        with StreamLearner(BSCAClassifier(arguments.budget, seed=0), f"{name}/model") as learner:
            print(f"the learner is there again after {time.perf_counter() - began:.3f} s, with {learner.loop.rows:,} rows")
            query(learner)
            print(f"and the query has found nothing new after {time.perf_counter() - began:.1f} s")
        spark.stop()


if __name__ == "__main__":
    main()
