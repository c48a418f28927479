"""Learn the micro-batches of a streaming query, stop it within a micro-batch, resume, and predict a frame with the model.

    python examples/spark_stream.py [FOLDER]

The rows are random, in micro-batches of 1,000. In practice, read a Kafka topic instead: see docs/spark.md.
"""

import os
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from streamsvm import BSCAClassifier
from streamsvm_spark import BudgetedSVMClassificationModel, StreamLearner

BATCHES = 6


def add_features(numbers):
    """Return a frame of three features and a label, computed from the column ``value``."""
    features = [F.sin(F.col("value") * factor) for factor in (12.9898, 78.233, 37.719)]
    frame = numbers.select(F.array(*features).alias("features"))
    return frame.withColumn("label", (F.col("features")[0] * F.col("features")[1] > 0).cast("int"))


def learn_batches(spark, folder, n_batches):
    """Learn at least ``n_batches`` micro-batches; the query is stopped within the next one."""
    numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1000).load()

    def print_progress(progress):
        print(f"{progress.rows:>6,} rows, accuracy {progress.metric:.4f}, of the last 1,000 {progress.windowed:.4f}")

    with StreamLearner(BSCAClassifier(budget=100, seed=0), folder / "model", on_progress=print_progress) as learner:
        writer = add_features(numbers).writeStream.foreachBatch(learner).option("checkpointLocation", str(folder / "spark"))
        query = writer.start()
        while learner.loop.rows < 1000 * n_batches and query.isActive:
            query.awaitTermination(0.1)
        query.stop()
    return learner


def main(spark, folder):
    """Learn in two queries, predict new rows, and return the rows learned and the correct predictions."""
    learn_batches(spark, folder, BATCHES // 2)
    print("the query was stopped; a new one continues")
    learner = learn_batches(spark, folder, BATCHES)
    model = BudgetedSVMClassificationModel(learner.model)  # a model of pyspark.ml
    new = add_features(spark.range(10**6, 10**6 + 5000).withColumnRenamed("id", "value"))
    n_correct = model.transform(new).filter("prediction = label").count()
    print(f"{n_correct:,} of 5,000 new rows are predicted correctly")
    return learner.loop.rows, n_correct


if __name__ == "__main__":
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config("spark.ui.showConsoleProgress", "false")
    builder = builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
    with tempfile.TemporaryDirectory() as name:
        session = builder.getOrCreate()
        session.sparkContext.setLogLevel("ERROR")
        main(session, Path(sys.argv[1] if len(sys.argv) > 1 else name))
