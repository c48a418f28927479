"""Test of a Spark query that learns a Kafka topic, is killed, and writes its model to a model topic."""

import contextlib
import json
import subprocess
import sys
from itertools import permutations
from pathlib import Path

import pyspark
import pytest
from kafka import KafkaAdminClient, KafkaProducer
from river import metrics

from kafka_broker import broker_or_skip, jars_of, running_broker
from streamsvm import BSCAClassifier
from streamsvm.files.model_file import serialize_parts
from streamsvm_kafka import FollowedTopic

HERE = Path(__file__).parent
ROWS, ROWS_A_BATCH, PARTITIONS = 500, 100, 2


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with broker_or_skip(lambda: running_broker(tmp_path_factory.mktemp("kafka"))) as started:
        yield started.plaintext


def publish(broker, rows):
    with contextlib.closing(KafkaAdminClient(bootstrap_servers=broker)) as admin:
        admin.create_topics({"rows": {"num_partitions": PARTITIONS, "replication_factor": 1}}, wait_for_metadata=True)
    with contextlib.closing(KafkaProducer(bootstrap_servers=broker)) as producer:
        for i, (x, y) in enumerate(rows):
            producer.send("rows", json.dumps({"x": x, "y": y}).encode(), partition=i % PARTITIONS)


def run_plain_loop(rows, partitions):
    """Return the model's bytes and the score of a plain loop that reads the partitions of each micro-batch in this order."""
    model, metric = BSCAClassifier(budget=20, seed=0), metrics.Accuracy()
    for first in range(0, ROWS, ROWS_A_BATCH):
        for partition in partitions:
            for x, y in rows[first : first + ROWS_A_BATCH][partition::PARTITIONS]:
                x = dict(enumerate(x))
                if (predicted := model.predict_one(x)) is not None:
                    metric.update(y, predicted)
                model.learn_one(x, y)
    return serialize_parts({"model": model}, {}), f"{metric.get():.4f}"


@pytest.mark.broker
def test_killed_query_over_a_topic_resumes(broker, rows, tmp_path):
    X, labels, _, _ = rows
    rows = list(zip(X[:ROWS].tolist(), ["yes" if label else "no" for label in labels], strict=False))
    publish(broker, rows)
    jars = ",".join(map(str, sorted(jars_of(HERE / "pom.xml", f"-Dspark.version={pyspark.__version__}").glob("*.jar"))))
    models = f"kafka://{broker}/models?name=signs"

    def learn(last_batch):
        places = str(ROWS_A_BATCH), models, tmp_path / "spark", jars
        command = [sys.executable, HERE / "topic_process.py", broker, "rows", *places, str(last_batch)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert learn(last_batch=2).returncode == 9
    assert {path.name for path in (tmp_path / "spark" / "commits").glob("[0-9]*")} == {"0", "1"}  # batch 2 is not committed
    done = learn(last_batch=-1)
    assert done.returncode == 0, done.stderr
    with contextlib.closing(FollowedTopic(broker, "models", "signs")) as topic:
        newest = topic.read()
    assert newest.header["rows"] == ROWS
    # Spark does not specify the order of partitions, but it is the same in all micro-batches.
    trained, score = serialize_parts({"model": newest.model}, {}), done.stdout.split()[-1]
    assert (trained, score) in [run_plain_loop(rows, order) for order in permutations(range(PARTITIONS))]
