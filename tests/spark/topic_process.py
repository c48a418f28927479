"""Learns a Kafka topic in a Spark query, and optionally exits between the model's checkpoint and Spark's commit.

    python topic_process.py BROKER TOPIC ROWS CHECKPOINT LOCATION JARS BATCH

ROWS is the size of a micro-batch; BATCH is the number of the batch after which it exits, or -1. It prints the score.
"""

import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from streamsvm import BSCAClassifier
from streamsvm_spark import StreamLearner


def main(broker, topic, rows, checkpoint, location, jars, last_batch):
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = SparkSession.builder.master("local[2]").config("spark.jars", jars).getOrCreate()
    options = {"kafka.bootstrap.servers": broker, "subscribe": topic, "startingOffsets": "earliest"}
    messages = spark.readStream.format("kafka").options(**options, maxOffsetsPerTrigger=rows).load()
    row = F.from_json(F.col("value").cast("string"), "x array<double>, y string")
    frame = messages.select(row.alias("row")).select("row.x", "row.y")
    with StreamLearner(BSCAClassifier(budget=20, seed=0), checkpoint, featuresCol="x", labelCol="y") as learner:

        def learn(batch, batch_id):
            learner(batch, batch_id)
            if batch_id == int(last_batch):
                os._exit(9)

        query = frame.writeStream.foreachBatch(learn).option("checkpointLocation", location).trigger(availableNow=True).start()
        query.awaitTermination()
        print(f"{learner.loop.progress.metric:.4f}")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
