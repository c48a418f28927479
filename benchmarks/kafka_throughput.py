"""Measures the time to learn a row from a Kafka topic, compared with a consumer that only decodes the same messages.

It needs a real broker: ``--bootstrap HOST:PORT``, or Java 17 and Maven to start one. Rows have 22 features: ijcnn1 if there are
data (``--data``), else random rows. Times are those of a bounded pass over the topic: wall-clock time, and CPU time of this
process with the threads of the clients. The first pass is not counted. The bare consumer is kafka-python with orjson.
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
from common import load_file, make_parser, print_table, report_progress, summarise, write_json
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from river import linear_model, metrics, preprocessing

from streamsvm import BSGDClassifier, SVMClassifier
from streamsvm.stream import CheckpointFolder, FileSink, LearningLoop, Row
from streamsvm_kafka import ArrowCodec, Float32Codec, JSONCodec, KafkaSink, KafkaSource, TopicCheckpoints, publish

ROWS, FEATURES = 200_000, 22
NAMES = [f"x{j}" for j in range(FEATURES)]


def load_rows(data: Path | None) -> tuple[np.ndarray, np.ndarray]:
    """Return features, float32 [rows, features], and labels 0 and 1 of ijcnn1, or of random rows without a data folder."""
    if data is None:
        rng = np.random.default_rng(0)
        X = rng.normal(size=(ROWS, FEATURES)).astype(np.float32)
        return X, (X[:, 0] + X[:, 1] * X[:, 2] > 0).astype(int)
    arrays = load_file("ijcnn1", data)
    row_numbers = np.resize(np.arange(len(arrays["y"])), ROWS)
    return arrays["X"][row_numbers].astype(np.float32), (arrays["y"][row_numbers] > 0).astype(int)


@contextmanager
def open_broker(bootstrap: str | None) -> Iterator[str]:
    """Yield the address of a broker: the given one, or that of a new broker if it is None."""
    if bootstrap is not None:
        yield bootstrap
        return
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from kafka_broker import running_broker, why_no_broker  # noqa: PLC0415 - a module of the tests

    if (reason := why_no_broker()) is not None:
        raise SystemExit(f"no Kafka broker: {reason}; give one with --bootstrap")
    with tempfile.TemporaryDirectory() as folder, running_broker(Path(folder)) as running:
        yield running.plaintext


def read_clocks() -> np.ndarray:
    """Return wall-clock time and CPU time in seconds, float64 [2]."""
    return np.array([time.perf_counter(), time.process_time()])


def time_consumer(bootstrap: str, topic: str, decode: Callable[[bytes], Any]) -> np.ndarray:
    """Return the seconds (wall-clock and CPU) of a consumer that decodes all messages of a topic."""
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap, enable_auto_commit=False, isolation_level="read_committed", max_poll_records=1_000_000
    )
    key = TopicPartition(topic, 0)
    consumer.assign([key])
    consumer.seek_to_beginning(key)
    end_offset = consumer.end_offsets([key])[key]
    start, count = read_clocks(), 0
    while count < end_offset:
        for records in consumer.poll(200).values():
            for record in records:
                decode(record.value)
            count += len(records)
    seconds = read_clocks() - start
    consumer.close()
    return seconds


def time_river(bootstrap: str, topic: str) -> np.ndarray:
    """Return the seconds of a hand-written loop with river's scaler and logistic regression."""
    model = preprocessing.StandardScaler() | linear_model.LogisticRegression()
    metric = metrics.Accuracy()

    def learn(value: bytes) -> None:
        x = orjson.loads(value)
        y = x.pop("y")
        metric.update(y, model.predict_one(x))
        model.learn_one(x, y)

    return time_consumer(bootstrap, topic, learn)


def time_loop(bootstrap: str, topic: str, codec: Any, model: Any, client: str = "kafka-python", **options: Any) -> np.ndarray:
    """Return the seconds of a `LearningLoop` over all messages of a topic."""
    source = KafkaSource(bootstrap, topic, codec, stop_at_end=True, client={"client": client})
    loop = LearningLoop(source, model, **options)
    start = read_clocks()
    result = loop.run()
    seconds = read_clocks() - start
    assert result.rows == ROWS, result.rows
    source.close()
    return seconds


def main() -> None:
    """Measure all cases, print a table and write JSON."""
    parser = make_parser(__doc__, "kafka_throughput")
    parser.add_argument("--bootstrap", help="host:port of a broker")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="+", help="run only cases whose names contain one of these texts")
    options = parser.parse_args()
    X, y = load_rows(options.data)
    results: dict[str, Any] = {}
    with ExitStack() as stack:
        bootstrap = stack.enter_context(open_broker(options.bootstrap))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        admin = KafkaAdminClient(bootstrap_servers=bootstrap)
        stack.callback(admin.close)

        def create_topic() -> str:
            name = f"throughput-{uuid.uuid4().hex[:8]}"
            admin.create_topics({name: {"num_partitions": 1, "replication_factor": 1}}, wait_for_metadata=True)
            return name

        dicts = [Row(dict(zip(NAMES, x, strict=True)), label) for x, label in zip(X.tolist(), y.tolist(), strict=True)]
        packed = [Row(dict(enumerate(row.x.values())), row.y) for row in dicts]
        json_codec, float32, arrow = JSONCodec("y"), Float32Codec(FEATURES), ArrowCodec("y")
        topics: dict[str, tuple[str, Any]] = {"json": (create_topic(), json_codec), "float32": (create_topic(), float32)}
        topics["arrow"] = (create_topic(), arrow)
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

        def make_model() -> Any:
            return BSGDClassifier(500, seed=0)

        def time_checkpoints(**when: Any) -> np.ndarray:
            with CheckpointFolder(folder / uuid.uuid4().hex) as checkpoints:
                return time_loop(bootstrap, topic, codec, make_model(), checkpoints=checkpoints, **when)

        def time_file_sink() -> np.ndarray:
            with FileSink(folder / f"{uuid.uuid4().hex}.jsonl") as sink:
                return time_loop(bootstrap, topic, codec, make_model(), sink=sink)

        def time_topic_sink(client: str) -> np.ndarray:
            sink = KafkaSink(bootstrap, create_topic(), client={"client": client})
            try:
                return time_loop(bootstrap, topic, codec, make_model(), client, sink=sink)
            finally:
                sink.close()

        def time_exactly_once(client: str) -> np.ndarray:
            checkpoints = TopicCheckpoints(bootstrap, f"models-{uuid.uuid4().hex[:8]}", "rows", client={"client": client})
            try:
                where = {"sink": checkpoints.open_sink(create_topic()), "checkpoints": checkpoints}
                return time_loop(
                    bootstrap, topic, codec, make_model(), client, checkpoint_every=None, checkpoint_seconds=1.0, **where
                )
            finally:
                checkpoints.close()

        runs: dict[str, Callable[[], np.ndarray]] = {"json, bare": lambda: time_consumer(bootstrap, topic, orjson.loads)}
        runs["json, river"] = lambda: time_river(bootstrap, topic)
        for client in ("kafka-python", "confluent-kafka"):
            runs |= {
                f"json, BSGD 500, {client}": lambda c=client: time_loop(bootstrap, topic, codec, make_model(), c),
                f"json, default, {client}": lambda c=client: time_loop(bootstrap, topic, codec, SVMClassifier(seed=0), c),
                f"json, predictions to a topic, {client}": lambda c=client: time_topic_sink(c),
                f"json, exactly once, {client}": lambda c=client: time_exactly_once(c),
            }
        runs["json, predictions to a file"] = time_file_sink
        runs["json, checkpoints each second"] = lambda: time_checkpoints(checkpoint_every=None, checkpoint_seconds=1.0)
        runs["json, checkpoints each 1,000 rows"] = lambda: time_checkpoints(checkpoint_every=1000)
        for name in ("float32", "arrow"):
            runs[f"{name}, bare"] = lambda n=name: time_consumer(bootstrap, topics[n][0], decoders[n])
            runs[f"{name}, BSGD 500"] = lambda n=name: time_loop(bootstrap, *topics[n], make_model())
        runs = {name: run for name, run in runs.items() if not options.only or any(part in name for part in options.only)}
        seconds: dict[str, list[np.ndarray]] = {name: [] for name in runs}
        for repeat in range(options.repeats + 1):
            for name, run in runs.items():
                report_progress(f"{repeat}: {name}")
                spent = run()
                if repeat:
                    seconds[name].append(1e6 * spent / ROWS)
    table = []
    for name, values in seconds.items():
        peers = seconds.get(f"{name.partition(',')[0]}, bare", values)
        for clock, number in (("clock", 0), ("CPU", 1)):
            statistics, peer = (summarise([float(part[number]) for part in spent]) for spent in (values, peers))
            results[f"{name}, {clock}"] = statistics | {"over bare": statistics["median"] / peer["median"]}
            figures = (f"{statistics[key]:.2f}" for key in ("min", "median", "max"))
            table.append((name, clock, *figures, f"{statistics['median'] / peer['median']:.2f}"))
    print_table("Microseconds a row of a topic", ("", "", "min", "median", "max", "over bare"), table)
    write_json(options.out, results)


if __name__ == "__main__":
    main()
