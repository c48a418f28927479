"""Time of a row that a learner takes from a topic, beside a bare consumer that decodes the same messages and does nothing.

A real broker is needed: ``--bootstrap HOST:PORT``, or Java 17 and Maven, with which one is started. Rows have 22 features: those
of ijcnn1 where the data are given (``--data``), else drawn at random. Times are those of a whole bounded pass over them: on the
clock, and of the processor in this process, with the threads of the clients. The first pass is not counted. The peer is
kafka-python with orjson.
"""

from __future__ import annotations

import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from common import load_file, make_parser, print_table, report_progress, summarise, write_results
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from river import linear_model, metrics, preprocessing

from streamsvm import BSGDClassifier, SVMClassifier
from streamsvm.stream import CheckpointFolder, FileSink, LearningLoop, Row
from streamsvm_kafka import ArrowCodec, Float32Codec, JSONCodec, KafkaSink, KafkaSource, TopicCheckpoints, publish

ROWS, FEATURES = 200_000, 22
NAMES = [f"x{j}" for j in range(FEATURES)]


def rows_of(data: Path | None) -> tuple[np.ndarray, np.ndarray]:
    """Features float32 [rows, features] and labels."""
    if data is None:
        rng = np.random.default_rng(0)
        X = rng.normal(size=(ROWS, FEATURES)).astype(np.float32)
        return X, (X[:, 0] + X[:, 1] * X[:, 2] > 0).astype(int)
    found = load_file("ijcnn1", data)
    repeated = np.resize(np.arange(len(found["y"])), ROWS)
    return found["X"][repeated].astype(np.float32), (found["y"][repeated] > 0).astype(int)


@contextmanager
def broker(given: str | None) -> Iterator[str]:
    """The address of a broker."""
    if given is not None:
        yield given
        return
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from kafka_broker import running_broker, why_no_broker  # noqa: PLC0415 - of the tests

    if (reason := why_no_broker()) is not None:
        raise SystemExit(f"no Kafka broker: {reason}; give one with --bootstrap")
    with tempfile.TemporaryDirectory() as folder, running_broker(Path(folder)) as started:
        yield started.plaintext


def clocks() -> np.ndarray:
    """Seconds on the clock, and of the processor."""
    return np.array([time.perf_counter(), time.process_time()])


def bare(bootstrap: str, topic: str, decode: Callable[[bytes], Any]) -> np.ndarray:
    """Seconds of a consumer that decodes all messages of a topic."""
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap, enable_auto_commit=False, isolation_level="read_committed", max_poll_records=1_000_000
    )
    key = TopicPartition(topic, 0)
    consumer.assign([key])
    consumer.seek_to_beginning(key)
    end = consumer.end_offsets([key])[key]
    began, count = clocks(), 0
    while count < end:
        for records in consumer.poll(200).values():
            for record in records:
                decode(record.value)
            count += len(records)
    seconds = clocks() - began
    consumer.close()
    return seconds


def by_river(bootstrap: str, topic: str) -> np.ndarray:
    """Seconds of a loop as one writes it with river's scaler and logistic regression."""
    model = preprocessing.StandardScaler() | linear_model.LogisticRegression()
    metric = metrics.Accuracy()

    def learn(value: bytes) -> None:
        x = orjson.loads(value)
        y = x.pop("y")
        metric.update(y, model.predict_one(x))
        model.learn_one(x, y)

    return bare(bootstrap, topic, learn)


def learned(bootstrap: str, topic: str, codec: Any, model: Any, client: str = "kafka-python", **options: Any) -> np.ndarray:
    """Seconds of a loop over all messages of a topic."""
    source = KafkaSource(bootstrap, topic, codec, stop_at_end=True, client={"client": client})
    loop = LearningLoop(source, model, **options)
    began = clocks()
    end = loop.run()
    seconds = clocks() - began
    assert end.rows == ROWS, end.rows
    source.close()
    return seconds


def main() -> None:
    """Measure, print and write."""
    parser = make_parser(__doc__, "kafka_throughput")
    parser.add_argument("--bootstrap", help="host:port of a broker")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="+", help="rows of the table, by parts of their names, beside those that are bare")
    options = parser.parse_args()
    X, y = rows_of(options.data)
    results: dict[str, Any] = {}
    with ExitStack() as stack:
        bootstrap = stack.enter_context(broker(options.bootstrap))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        admin = KafkaAdminClient(bootstrap_servers=bootstrap)
        stack.callback(admin.close)

        def new_topic() -> str:
            name = f"throughput-{uuid.uuid4().hex[:8]}"
            admin.create_topics({name: {"num_partitions": 1, "replication_factor": 1}}, wait_for_metadata=True)
            return name

        dicts = [Row(dict(zip(NAMES, x, strict=True)), label) for x, label in zip(X.tolist(), y.tolist(), strict=True)]
        packed = [Row(dict(enumerate(row.x.values())), row.y) for row in dicts]
        json_codec, float32, arrow = JSONCodec("y"), Float32Codec(FEATURES), ArrowCodec("y")
        topics: dict[str, tuple[str, Any]] = {"json": (new_topic(), json_codec), "float32": (new_topic(), float32)}
        topics["arrow"] = (new_topic(), arrow)
        report_progress("publishing")
        publish(dicts, bootstrap, topics["arrow"][0], arrow, rows_per_message=1000)
        publish(dicts, bootstrap, topics["json"][0], json_codec)
        publish(packed, bootstrap, topics["float32"][0], float32)
        layout = np.dtype("<f4")
        decoders: dict[str, Callable[[bytes], Any]] = {
            "json": orjson.loads,
            "float32": lambda value: np.frombuffer(value, layout),
            "arrow": arrow.decode_rows,
        }
        topic, codec = topics["json"]

        def make() -> Any:
            return BSGDClassifier(500, seed=0)

        def checkpointed(**when: Any) -> np.ndarray:
            with CheckpointFolder(folder / uuid.uuid4().hex) as checkpoints:
                return learned(bootstrap, topic, codec, make(), checkpoints=checkpoints, **when)

        def to_file() -> np.ndarray:
            with FileSink(folder / f"{uuid.uuid4().hex}.jsonl") as sink:
                return learned(bootstrap, topic, codec, make(), sink=sink)

        def to_topic(client: str) -> np.ndarray:
            sink = KafkaSink(bootstrap, new_topic(), client={"client": client})
            try:
                return learned(bootstrap, topic, codec, make(), client, sink=sink)
            finally:
                sink.close()

        def exactly_once(client: str) -> np.ndarray:
            checkpoints = TopicCheckpoints(bootstrap, f"models-{uuid.uuid4().hex[:8]}", "rows", client={"client": client})
            try:
                where = {"sink": checkpoints.open_sink(new_topic()), "checkpoints": checkpoints}
                return learned(bootstrap, topic, codec, make(), client, checkpoint_every=None, checkpoint_seconds=1.0, **where)
            finally:
                checkpoints.close()

        runs: dict[str, Callable[[], np.ndarray]] = {"json, bare": lambda: bare(bootstrap, topic, orjson.loads)}
        runs["json, river"] = lambda: by_river(bootstrap, topic)
        for client in ("kafka-python", "confluent-kafka"):
            runs |= {
                f"json, BSGD 500, {client}": lambda c=client: learned(bootstrap, topic, codec, make(), c),
                f"json, default, {client}": lambda c=client: learned(bootstrap, topic, codec, SVMClassifier(seed=0), c),
                f"json, predictions to a topic, {client}": lambda c=client: to_topic(c),
                f"json, exactly once, {client}": lambda c=client: exactly_once(c),
            }
        runs["json, predictions to a file"] = to_file
        runs["json, checkpoints each second"] = lambda: checkpointed(checkpoint_every=None, checkpoint_seconds=1.0)
        runs["json, checkpoints each 1,000 rows"] = lambda: checkpointed(checkpoint_every=1000)
        for name in ("float32", "arrow"):
            runs[f"{name}, bare"] = lambda n=name: bare(bootstrap, topics[n][0], decoders[n])
            runs[f"{name}, BSGD 500"] = lambda n=name: learned(bootstrap, *topics[n], make())
        runs = {name: run for name, run in runs.items() if not options.only or any(each in name for each in options.only)}
        seconds: dict[str, list[np.ndarray]] = {name: [] for name in runs}
        for repeat in range(options.repeats + 1):
            for name, run in runs.items():
                report_progress(f"{repeat}: {name}")
                found = run()
                if repeat:
                    seconds[name].append(1e6 * found / ROWS)
    table = []
    for name, values in seconds.items():
        peers = seconds.get(f"{name.partition(',')[0]}, bare", values)
        for clock, number in (("clock", 0), ("CPU", 1)):
            facts, peer = (summarise([float(each[number]) for each in found]) for found in (values, peers))
            results[f"{name}, {clock}"] = facts | {"over bare": facts["median"] / peer["median"]}
            figures = (f"{facts[key]:.2f}" for key in ("min", "median", "max"))
            table.append((name, clock, *figures, f"{facts['median'] / peer['median']:.2f}"))
    print_table("Microseconds a row of a topic", ("", "", "min", "median", "max", "over bare"), table)
    write_results(options.out, results)


if __name__ == "__main__":
    main()
