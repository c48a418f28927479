"""Two learners of a group, a follower that predicts, and chaos: all are killed and started again at random.

    python examples/kafka_production.py --bootstrap localhost:9092 --seconds 60

A producer writes rows to a topic of four partitions, two learners share them with a model for each partition, and a follower
predicts all rows by the newest model of the first one. Every few seconds one of the three is killed (SIGKILL) or ended (SIGTERM),
and started again. At the end, the model of each partition is compared with one that has learned the same rows alone, in memory:
byte by byte. What the processes tell stands in the folder, as lines of JSON.
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
BATCH = 50  # rows that the producer writes to a partition at once


def row_of(partition: int, number: int) -> Row:
    """The same row whenever it is asked for."""
    rng = random.Random(f"{partition} {number}")
    x = {"a": rng.gauss(0.0, 1.0), "b": rng.gauss(0.0, 1.0)}
    return Row(x, int(x["a"] * x["b"] > 0.1 * partition))


class Producer(threading.Thread):
    """Writes rows to all partitions until it is stopped, some more to some than to others."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__()
        self._broker, self._topic = bootstrap, topic
        self.stopping = threading.Event()
        self.written = dict.fromkeys(range(PARTITIONS), 0)

    def run(self) -> None:
        codec = JSONCodec("y")
        with KafkaProducer(bootstrap_servers=self._broker) as producer:
            while not self.stopping.wait(0.1):
                for partition, begin in self.written.items():
                    n = BATCH + 10 * partition
                    for number in range(begin, begin + n):
                        producer.send(self._topic, codec.encode(row_of(partition, number)), partition=partition)
                    self.written[partition] += n


class Process:
    """A command of streamsvm that is started again whenever it was ended."""

    def __init__(self, name: str, folder: Path, words: list[object]) -> None:
        self.name, self.kills, self.ends = name, 0, 0
        self._command = [sys.executable, "-m", "streamsvm", *map(str, words), "--log-format", "json"]
        self._log = folder / f"{name}.jsonl"
        self.start()

    def start(self, *more: str) -> None:
        with self._log.open("a") as log:
            self._running = subprocess.Popen([*self._command, *more], stderr=log)

    @property
    def has_begun(self) -> bool:
        """Whether it has told something."""
        return self._log.stat().st_size > 0

    def disturb(self, kills: bool) -> None:
        """Kill it, or end it in order; and start it again."""
        self.kills, self.ends = self.kills + kills, self.ends + (not kills)
        self._running.send_signal(signal.SIGKILL if kills else signal.SIGTERM)
        self._running.wait()
        self.start()

    def end(self) -> None:
        """End it in order."""
        self._running.terminate()
        self._running.wait()

    def wait(self) -> None:
        """Wait for its end."""
        if self._running.wait():
            sys.exit(f"{self.name} has failed: see {self._log}")

    def kill(self) -> None:
        self._running.kill()
        self._running.wait()


def alone(partition: int, rows: int) -> BSGDClassifier:
    """The model that has learned the rows of a partition and nothing else."""
    model = BSGDClassifier(budget=BUDGET, seed=0)
    for number in range(rows):
        model.learn_one(*row_of(partition, number))
    return model


def bytes_of(model: BSGDClassifier, folder: Path) -> bytes:
    model.save(folder / "compared.safetensors")
    return (folder / "compared.safetensors").read_bytes()


def predicted(bootstrap: str, topic: str) -> tuple[int, int]:
    """How many predictions a topic has, and of how many rows."""
    with KafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False) as consumer:
        key = TopicPartition(topic, 0)
        consumer.assign([key])
        consumer.seek_to_beginning(key)
        end = consumer.end_offsets([key])[key]
        keys: list[bytes] = []
        while consumer.position(key) < end:
            keys += [message.key for messages in consumer.poll(1000).values() for message in messages]
    return len(keys), len(set(keys))


def main(bootstrap: str, seconds: float, pause: float, seed: int, folder: Path) -> None:
    rng, name = random.Random(seed), f"production-{uuid.uuid4().hex[:8]}"
    topic, predictions = f"{name}-rows", f"{name}-predictions"
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    sizes = {topic: PARTITIONS, predictions: 1}
    admin.create_topics({each: {"num_partitions": n, "replication_factor": 1} for each, n in sizes.items()})
    url, models = f"kafka://{bootstrap}/{topic}", folder / "models"
    learn = ["learn", url, "--label", "y", "--group", name, "--scope", "partition", "--checkpoint", models]
    learn += ["--checkpoint-every", 500, "--learner", f"bsgd,budget={BUDGET}"]
    predict = ["predict", url, "--model", models / "partition-0", "--follow", "--to", f"kafka://{bootstrap}/{predictions}"]
    predict += ["--checkpoint", folder / "position", "--checkpoint-every", 500]
    (models / "partition-0").mkdir(parents=True)
    producer = Producer(bootstrap, topic)
    processes = [Process(f"learner {i}", folder, learn) for i in (1, 2)] + [Process("follower", folder, predict)]
    try:
        while not all(process.has_begun for process in processes[:2]):  # the follower waits for a model
            time.sleep(0.1)
        producer.start()
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            time.sleep(rng.uniform(0.5, 1.5) * pause)
            victim, kills = rng.choice(processes), rng.random() < 0.7
            print(f"{victim.name} is {'killed' if kills else 'ended'}", flush=True)
            victim.disturb(kills)
        producer.stopping.set()
        producer.join()
        print("the rest is learned in peace", flush=True)
        for process in processes:
            process.end()
        for process in processes[::2]:  # one of the learners takes all partitions
            process.start("--stop-at-end")
        for process in processes[::2]:
            process.wait()
        show(processes, producer.written, models, folder)
        n, of = predicted(bootstrap, predictions)
        print(f"{n:,} predictions of {of:,} rows: {n - of:,} were written again after a kill")
        if of != sum(producer.written.values()):
            sys.exit(f"there are {sum(producer.written.values()):,} rows")
    finally:
        producer.stopping.set()
        for process in processes:
            process.kill()
        admin.delete_topics([topic, predictions])
        admin.close()


def show(processes: list[Process], written: dict[int, int], models: Path, folder: Path) -> None:
    """Compare the models with those that have learned alone, and print both tables; end with an error if one differs."""
    print(f"{'process':<12}{'killed':>8}{'ended':>8}")
    for process in processes:
        print(f"{process.name:<12}{process.kills:>8}{process.ends:>8}")
    print(f"{'partition':<12}{'rows':>8}{'learned':>9}  model")
    differ = 0
    for partition, rows in written.items():
        model = load(models / f"partition-{partition}")
        same = bytes_of(model, folder) == bytes_of(alone(partition, rows), folder)
        differ += not same
        learned = find_learner(model).n_learned
        print(f"{partition:<12}{rows:>8,}{learned:>9,}  {'as one alone' if same else 'ANOTHER THAN ONE ALONE'}")
    if differ:
        sys.exit(f"{differ} models differ")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--bootstrap", default="localhost:9092", metavar="HOST:PORT", help="a broker of Kafka")
    parser.add_argument("--seconds", type=float, default=60.0, metavar="S", help="of chaos (default: 60)")
    parser.add_argument("--pause", type=float, default=3.0, metavar="S", help="between two kills, about (default: 3)")
    parser.add_argument("--seed", type=int, default=0, help="of the chaos")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="for models and logs (default: a temporary one)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary) if options.folder is None else options.folder
        place.mkdir(parents=True, exist_ok=True)
        main(options.bootstrap, options.seconds, options.pause, options.seed, place)
