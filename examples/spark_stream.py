"""Learn the micro-batches of a streaming query, end it within one of them, go on, and predict a frame with what was learned.

    python examples/spark_stream.py [FOLDER]

The rows are made up, in micro-batches of 1,000. A topic of Kafka, say, would stand in their place: see docs/spark.md.
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


def with_features(numbered):
    """Rows of three features and a label, each made of a number in the column ``value``."""
    features = [F.sin(F.col("value") * factor) for factor in (12.9898, 78.233, 37.719)]
    frame = numbered.select(F.array(*features).alias("features"))
    return frame.withColumn("label", (F.col("features")[0] * F.col("features")[1] > 0).cast("int"))


def learn(spark, folder, most):
    """Learn up to so many micro-batches: the query is stopped within the next one."""
    numbered = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1000).load()

    def show(progress):
        print(f"{progress.rows:>6,} rows, accuracy {progress.metric:.4f}, of the last 1,000 {progress.windowed:.4f}")

    with StreamLearner(BSCAClassifier(budget=100, seed=0), folder / "model", on_progress=show) as learner:
        writer = with_features(numbered).writeStream.foreachBatch(learner).option("checkpointLocation", str(folder / "spark"))
        query = writer.start()
        while learner.loop.rows < 1000 * most and query.isActive:
            query.awaitTermination(0.1)
        query.stop()
    return learner


def main(spark, folder):
    learn(spark, folder, BATCHES // 2)
    print("the query was stopped; a new one goes on")
    learner = learn(spark, folder, BATCHES)
    model = BudgetedSVMClassificationModel(learner.model)  # of pyspark.ml
    new = with_features(spark.range(10**6, 10**6 + 5000).withColumnRenamed("id", "value"))
    right = model.transform(new).filter("prediction = label").count()
    print(f"of 5,000 new rows {right:,} are predicted right")
    return learner.loop.rows, right


if __name__ == "__main__":
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config("spark.ui.showConsoleProgress", "false")
    builder = builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
    with tempfile.TemporaryDirectory() as name:
        session = builder.getOrCreate()
        session.sparkContext.setLogLevel("ERROR")
        main(session, Path(sys.argv[1] if len(sys.argv) > 1 else name))
