"""Fit a classifier on Spark: in this process on two cores, or on a cluster of a master and two workers on the loopback interface.

    python examples/spark_cluster.py [--cluster]

The rows are random: two concentric rings, in eight partitions. You need `pip install 'streamsvm[spark]'` and Java 17.
"""

import argparse
import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from streamsvm_spark import BudgetedSVMClassifier

ROWS, PARTITIONS = 40_000, 8
LOOPBACK = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.executor.memory": "512m",
    "spark.executorEnv.PYTHONPATH": os.environ.get("PYTHONPATH", ""),
}


@contextlib.contextmanager
def start_cluster(folder, workers=2, timeout=60.0):
    """Start a master and workers with one core each on this machine, and yield the address of the master."""
    command = [Path(pyspark.__file__).parent / "bin" / "spark-class"]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    processes = []

    def start_process(name, log, *arguments):
        with log.open("wb") as file:
            processes.append(
                subprocess.Popen(
                    [*command, f"org.apache.spark.deploy.{name}", "--host", "127.0.0.1", "--webui-port", "0", *arguments],
                    stdout=file, stderr=subprocess.STDOUT, env=environment,
                )
            )  # fmt: skip

    def wait_for_line(log, pattern):
        deadline = time.monotonic() + timeout
        while (match := re.search(pattern, log.read_text())) is None:
            if time.monotonic() > deadline or processes[-1].poll() is not None:
                raise SystemExit(f"Spark has not started:\n{log.read_text()}")
            time.sleep(0.05)
        return match

    try:
        start_process("master.Master", folder / "master.log", "--port", "0")
        address = wait_for_line(folder / "master.log", r"Starting Spark master at (spark://\S+)")[1]
        logs = [folder / f"worker-{number}.log" for number in range(workers)]
        for number, log in enumerate(logs):
            home = ("--work-dir", str(folder / f"work-{number}"))
            start_process("worker.Worker", log, "--cores", "1", "--memory", "1g", *home, address)
        for log in logs:
            wait_for_line(log, "Successfully registered with master")
        yield address
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            process.wait()


def make_session(master, **options):
    """Return a Spark session on the loopback interface."""
    builder = SparkSession.builder.master(master).appName("streamsvm")
    for name, value in {**LOOPBACK, **options}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def make_rings(spark, rows=ROWS, partitions=PARTITIONS, seed=0):
    """Return a frame of random rows: the two coordinates of a point as features, and its ring as label."""
    indexed = spark.range(0, rows, numPartitions=partitions)
    label = (F.rand(seed) > 0.5).cast("double")
    frame = indexed.select(label.alias("label"), (6.2832 * F.rand(seed + 1)).alias("angle"), F.randn(seed + 2).alias("noise"))
    radius = 1.0 + F.col("label") + 0.25 * F.col("noise")
    return frame.select(F.array(radius * F.cos("angle"), radius * F.sin("angle")).alias("features"), "label")


def main(spark):
    """Fit classifiers with one and two rounds, and print their accuracies."""
    train, test = make_rings(spark), make_rings(spark, 10_000, seed=100)
    for rounds in (1, 2):
        start = time.perf_counter()
        model = BudgetedSVMClassifier(budget=100, rounds=rounds).fit(train)
        seconds = time.perf_counter() - start
        correct = model.transform(test).filter("prediction = label").count() / test.count()
        print(f"{rounds} round(s): {seconds:.1f} s, {100 * correct:.1f} % of new rows correct")
    learner = model.learner()
    print(f"the learner has {learner.n_support} support vectors, of {learner.n_learned:,} rows")
    print(f"the class of (2, 0) is {learner.predict_one({0: 2.0, 1: 0.0}):g}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--cluster", action="store_true", help="start a master and two workers")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    with contextlib.ExitStack() as stack:
        master = "local[2]"
        if parser.parse_args().cluster:
            master = stack.enter_context(start_cluster(Path(stack.enter_context(tempfile.TemporaryDirectory()))))
        spark = make_session(master)
        stack.callback(spark.stop)
        main(spark)
