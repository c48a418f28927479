"""Two learners of a group and a follower that predicts; all are killed and restarted at random.

    python examples/kafka_production.py --bootstrap localhost:9092 --seconds 60

A producer writes rows to a topic of four partitions, two learners share them with a model for each partition, and a follower
predicts all rows with the newest model of the first partition. Every few seconds, one of the three processes is killed (SIGKILL)
or ended (SIGTERM), and restarted. At the end, the model of each partition is compared, byte by byte, with a model that has
learned the same rows in memory, without interruption. The logs of the processes are in the folder, as JSON lines.
"""

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition

from streamsvm import BSGDClassifier
from streamsvm.stream import Row, load
from streamsvm.stream.rows import find_learner
from streamsvm_kafka import JSONCodec

PARTITIONS = 4
BUDGET = 100
BATCH_ROWS = 50  # rows that the producer writes to a partition at a time


def make_row(partition: int, number: int) -> Row:
    """Return a pseudo-random row, which depends only on its partition and number."""
    rng = random.Random(f"{partition} {number}")
    x = {"a": rng.gauss(0.0, 1.0), "b": rng.gauss(0.0, 1.0)}
    return Row(x, int(x["a"] * x["b"] > 0.1 * partition))


class Producer(threading.Thread):
    """Writes rows to all partitions until it is stopped, more to partitions with higher numbers."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__()
        self._broker, self._topic = bootstrap, topic
        self.stopping = threading.Event()
        self.written = dict.fromkeys(range(PARTITIONS), 0)

    def run(self) -> None:
        """Write batches of rows until ``stopping`` is set."""
        codec = JSONCodec("y")
        with KafkaProducer(bootstrap_servers=self._broker) as producer:
            while not self.stopping.wait(0.1):
                for partition, first in self.written.items():
                    n = BATCH_ROWS + 10 * partition
                    for number in range(first, first + n):
                        producer.send(self._topic, codec.encode(make_row(partition, number)), partition=partition)
                    self.written[partition] += n


class Process:
    """A process of the command line, which can be killed and restarted."""

    def __init__(self, name: str, folder: Path, arguments: list[object]) -> None:
        self.name, self.kills, self.ends = name, 0, 0
        self._command = [sys.executable, "-m", "streamsvm", *map(str, arguments), "--log-format", "json"]
        self._log = folder / f"{name}.jsonl"
        self.start()

    def start(self, *extra_arguments: str) -> None:
        """Start the process, with additional arguments."""
        with self._log.open("a") as log:
            self._process = subprocess.Popen([*self._command, *extra_arguments], stderr=log)

    @property
    def has_started(self) -> bool:
        """Whether the process has written to its log."""
        return self._log.stat().st_size > 0

    def restart(self, is_kill: bool) -> None:
        """Kill or end the process, and start it again."""
        self.kills, self.ends = self.kills + is_kill, self.ends + (not is_kill)
        self._process.send_signal(signal.SIGKILL if is_kill else signal.SIGTERM)
        self._process.wait()
        self.start()

    def terminate(self) -> None:
        """End the process with SIGTERM, and wait for its end."""
        self._process.terminate()
        self._process.wait()

    def wait(self) -> None:
        """Wait until the process ends; exit with an error if it fails."""
        if self._process.wait():
            sys.exit(f"{self.name} has failed: see {self._log}")

    def kill(self) -> None:
        """Kill the process, and wait for its end."""
        self._process.kill()
        self._process.wait()


def train_uninterrupted(partition: int, rows: int) -> BSGDClassifier:
    """Return a model that has learned the first ``rows`` rows of a partition in memory."""
    model = BSGDClassifier(budget=BUDGET, seed=0)
    for number in range(rows):
        model.learn_one(*make_row(partition, number))
    return model


def serialise_model(model: BSGDClassifier, folder: Path) -> bytes:
    """Return the bytes of a saved model; ``folder`` holds the file."""
    model.save(folder / "compared.safetensors")
    return (folder / "compared.safetensors").read_bytes()


def count_predictions(bootstrap: str, topic: str) -> tuple[int, int]:
    """Return the number of predictions in a topic, and of distinct rows among them."""
    with KafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False) as consumer:
        key = TopicPartition(topic, 0)
        consumer.assign([key])
        consumer.seek_to_beginning(key)
        end_offset = consumer.end_offsets([key])[key]
        keys: list[bytes] = []
        while consumer.position(key) < end_offset:
            keys += [message.key for messages in consumer.poll(1000).values() for message in messages]
    return len(keys), len(set(keys))


def main(bootstrap: str, seconds: float, pause: float, seed: int, folder: Path) -> None:
    """Run the processes for some seconds, restart them at random, then compare the models."""
    rng, name = random.Random(seed), f"production-{uuid.uuid4().hex[:8]}"
    topic, predictions = f"{name}-rows", f"{name}-predictions"
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    sizes = {topic: PARTITIONS, predictions: 1}
    admin.create_topics({name: {"num_partitions": n, "replication_factor": 1} for name, n in sizes.items()})
    url, models = f"kafka://{bootstrap}/{topic}", folder / "models"
    learn = ["learn", url, "--label", "y", "--group", name, "--scope", "partition", "--checkpoint", models]
    learn += ["--checkpoint-every", 500, "--learner", f"bsgd,budget={BUDGET}"]
    predict = ["predict", url, "--model", models / "partition-0", "--follow", "--to", f"kafka://{bootstrap}/{predictions}"]
    predict += ["--checkpoint", folder / "position", "--checkpoint-every", 500]
    (models / "partition-0").mkdir(parents=True)
    producer = Producer(bootstrap, topic)
    processes = [Process(f"learner {i}", folder, learn) for i in (1, 2)] + [Process("follower", folder, predict)]
    try:
        while not all(process.has_started for process in processes[:2]):  # the follower waits for a model
            time.sleep(0.1)
        producer.start()
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            time.sleep(rng.uniform(0.5, 1.5) * pause)
            process, is_kill = rng.choice(processes), rng.random() < 0.7
            print(f"{process.name} is {'killed' if is_kill else 'ended'}", flush=True)
            process.restart(is_kill)
        producer.stopping.set()
        producer.join()
        print("the remaining rows are learned without interruption", flush=True)
        for process in processes:
            process.terminate()
        for process in processes[::2]:  # one learner gets all partitions
            process.start("--stop-at-end")
        for process in processes[::2]:
            process.wait()
        compare_models(processes, producer.written, models, folder)
        n, n_rows = count_predictions(bootstrap, predictions)
        print(f"{n:,} predictions of {n_rows:,} rows: {n - n_rows:,} were written again after a kill")
        if n_rows != sum(producer.written.values()):
            sys.exit(f"but {sum(producer.written.values()):,} rows were written")
    finally:
        producer.stopping.set()
        for process in processes:
            process.kill()
        admin.delete_topics([topic, predictions])
        admin.close()


def compare_models(processes: list[Process], written: dict[int, int], models: Path, folder: Path) -> None:
    """Print the restarts, and compare each model with an uninterrupted one; exit with an error if one differs."""
    print(f"{'process':<12}{'killed':>8}{'ended':>8}")
    for process in processes:
        print(f"{process.name:<12}{process.kills:>8}{process.ends:>8}")
    print(f"{'partition':<12}{'rows':>8}{'learned':>9}  model")
    n_different = 0
    for partition, rows in written.items():
        model = load(models / f"partition-{partition}")
        is_equal = serialise_model(model, folder) == serialise_model(train_uninterrupted(partition, rows), folder)
        n_different += not is_equal
        learned = find_learner(model).n_learned
        print(f"{partition:<12}{rows:>8,}{learned:>9,}  {'equal' if is_equal else 'DIFFERENT'}")
    if n_different:
        sys.exit(f"{n_different} models differ from uninterrupted ones")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--bootstrap", default="localhost:9092", metavar="HOST:PORT", help="address of a Kafka broker")
    parser.add_argument("--seconds", type=float, default=60.0, metavar="S", help="seconds of restarts (default: 60)")
    parser.add_argument("--pause", type=float, default=3.0, metavar="S", help="mean seconds between two restarts (default: 3)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the restarts")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="for models and logs (default: a temporary one)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) if options.folder is None else options.folder
        folder.mkdir(parents=True, exist_ok=True)
        main(options.bootstrap, options.seconds, options.pause, options.seed, folder)
