"""Learners that are killed amid rows and checkpoints, in a folder and in a topic: by hand, ``python tests/kills.py``.

The last checkpoint must have the bytes of a learner that was left alone, and predictions hold each row once: in a file, and in a
topic for read_committed consumers.
"""
# ruff: noqa: T201

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from killing import fork_with_pipe
from streamsvm.stream import Row, Sink

N_FEATURES = 4
EVERY = 250  # rows between two checkpoints
SAVE_SECONDS = {"folder": 0.01, "topic": 0.04}  # about as long as a checkpoint takes


def open_place(kind, url, where):
    """Open the checkpoints and the sink of a run: a folder and a file, or two topics."""
    from streamsvm_kafka import TopicCheckpoints, client_options
    from warm_learner import CheckpointFolder, FileSink

    if kind == "folder":
        return CheckpointFolder(where), FileSink(Path(where) / "out.jsonl")
    bootstrap = url.removeprefix("kafka://").partition("/")[0]
    models, name, out, group = where
    checkpoints = TopicCheckpoints(bootstrap, models, name, group=group, client=client_options())  # of the environment
    return checkpoints, checkpoints.open_sink(out)


class Killer(Sink):
    """A sink that kills this process at a row, or some time after a checkpoint was begun, and reports where."""

    def __init__(self, kill, checkpoints, sink, pipe):
        self.how, self.at, self.seconds = kill
        self.pipe, self.rows, self.saves, self.inside = pipe, 0, 0, False
        self.name, self.flush, self.seek, self.close = sink.name, sink.flush, sink.seek, sink.close
        self.write_rows, self.save = sink.write_many, checkpoints.save
        self.accepts_messages = sink.accepts_messages
        checkpoints.save = self.saved

    def kill(self):
        os.write(self.pipe.fileno(), b"inside\n" if self.inside else b"outside\n")
        os.kill(os.getpid(), signal.SIGKILL)

    def write(self, record):
        self.write_many({name: [value] for name, value in record.items()})

    def write_many(self, columns, messages=None):
        self.write_rows(columns, messages)
        self.rows += len(columns["row"])
        if self.how == "row" and self.rows >= self.at:
            self.kill()

    def saved(self, *arguments, **facts):
        self.saves += 1
        self.inside = True
        if self.how == "save" and self.saves == self.at:
            threading.Timer(self.seconds, self.kill).start()
        result = self.save(*arguments, **facts)
        self.inside = False
        return result


def learn(kind, url, where, kill, pipe):
    """Learn a topic to its end, or until the kill; report the row count at the start."""
    from warm_learner import LearningLoop, make_model, open_source

    checkpoints, sink = open_place(kind, url, where)
    if kill is not None:
        sink = Killer(kill, checkpoints, sink, pipe)
    source = open_source(url, label=None, stop_at_end=True)
    loop = LearningLoop(source, make_model(), sink=sink, checkpoints=checkpoints, checkpoint_every=EVERY)
    os.write(pipe.fileno(), b"%d\n" % loop.rows)
    loop.run()
    for part in (source, sink, checkpoints):
        part.close()


def run(kind, url, where, kill=None):
    """Run a learner. Return its row count at the start, and where it was killed."""
    process, reader = fork_with_pipe(learn, kind, url, where, kill)
    output = b""
    while part := os.read(reader.fileno(), 1 << 16):
        output += part
    process.join()
    killed = process.exitcode == -signal.SIGKILL
    assert killed or process.exitcode == 0, f"the learner ended with {process.exitcode}"
    lines = output.decode().split()
    assert killed == (len(lines) == 2)
    return int(lines[0]), lines[1] if killed else None


def kill_often(kind, url, where, rows, kills, seed):
    """Kill a learner ``kills`` times, half of the times during a checkpoint; then let it end. Return counts of kills by place."""
    print(f"kills with seed {seed}")
    rng, done, counts = random.Random(seed), 0, {"inside": 0, "outside": 0}
    for left in range(kills, 0, -1):
        at = rng.randint(1, max(2 * (rows - done - EVERY) // (left + 1), 1))
        if left % 2:
            kill = "save", max(round(at / EVERY), 1), rng.uniform(0.0, SAVE_SECONDS[kind])
        else:
            kill = "row", at, None
        begun, place = run(kind, url, where, kill)
        assert place is not None, "the learner ended before it could be killed"
        done = max(begun + at, done)  # at most
        counts[place] += 1
    run(kind, url, where)
    return counts


def publish_rows(bootstrap, topic, rows, seed=7):
    from streamsvm_kafka import Float32Codec, publish

    X = np.random.default_rng(seed).normal(size=(rows, N_FEATURES)).astype("f4")
    publish(
        (Row(dict(enumerate(x.tolist())), int(np.prod(np.sign(x[:2])) > 0)) for x in X),
        bootstrap,
        topic,
        Float32Codec(N_FEATURES),
    )
    return f"kafka://{bootstrap}/{topic}?codec=float32&features={N_FEATURES}"


def committed(bootstrap, topic, first=0, isolation="read_committed", partition=0):
    """Return the messages of a partition from an offset on."""
    from kafka import KafkaConsumer, TopicPartition

    key = TopicPartition(topic, partition)
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, isolation_level=isolation)
    with contextlib.closing(consumer):
        consumer.assign([key])
        consumer.seek(key, first)
        end_offset, result = consumer.end_offsets([key])[key], []
        while consumer.position(key) < end_offset:
            result += consumer.poll(200).get(key, [])
    return result


def topic_data(bootstrap, models, name):
    from streamsvm_kafka.connection import Connection
    from streamsvm_kafka.model_topic import ModelReader

    with contextlib.closing(ModelReader(Connection(bootstrap), models, name, models)) as reader:
        return reader.read_newest(to_end=True)


def kill_with_folder(url, folder, rows, kills, seed):
    """Kill learners with checkpoints in a folder. Return counts of kills, and whether model and predictions are equal."""
    ends = []
    for name in ("whole", "killed"):
        (folder / name).mkdir()
        counts = kill_often("folder", url, folder / name, rows, kills * (name == "killed"), seed)
        checkpoint = max((folder / name).glob("checkpoint-*.ckpt"))
        assert checkpoint.name == f"checkpoint-{rows:012d}.ckpt"
        ends.append((checkpoint.read_bytes(), (folder / name / "out.jsonl").read_bytes()))
    assert ends[0][1].count(b"\n") == rows
    return counts, ends[0][0] == ends[1][0], ends[0][1] == ends[1][1]


def kill_with_topic(url, bootstrap, models, out, rows, kills, seed, group=None):
    """Kill learners with checkpoints in a topic; returns the same as `kill_with_folder`."""
    ends, first = [], 0
    for name in ("whole", "killed"):
        counts = kill_often("topic", url, (models, name, out, group), rows, kills * (name == "killed"), seed)
        messages = committed(bootstrap, out, first)
        first = messages[-1].offset + 1
        ends.append(
            (topic_data(bootstrap, models, name), [(message.key, message.value, message.timestamp) for message in messages])
        )
    assert [key for key, *_ in ends[0][1]] == [b"%d" % row for row in range(rows)]
    return counts, ends[0][0] == ends[1][0], ends[0][1] == ends[1][1]


def main():
    from kafka import KafkaAdminClient

    from kafka_broker import running_broker

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rows, kills, seed = arguments.rows, arguments.kills, arguments.seed
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        (Path(name) / "broker").mkdir()
        broker = stack.enter_context(running_broker(Path(name) / "broker"))
        bootstrap = broker.plaintext
        admin = stack.enter_context(contextlib.closing(KafkaAdminClient(bootstrap_servers=bootstrap)))
        admin.create_topics({topic: {"num_partitions": 1, "replication_factor": 1} for topic in ("rows", "out")})
        url = publish_rows(bootstrap, "rows", rows)
        print("| checkpoints in a | kills | in a checkpoint | model equal | predictions equal, each row once | seconds |")
        print("|---|---|---|---|---|---|", flush=True)
        equal = True
        for kind in ("folder", "topic"):
            began = time.perf_counter()
            if kind == "folder":
                result = kill_with_folder(url, Path(name), rows, kills, seed)
            else:
                result = kill_with_topic(url, bootstrap, "models", "out", rows, kills, seed, "learners")
            counts, *same = result
            equal = equal and all(same)
            seconds = time.perf_counter() - began
            print(f"| {kind} | {sum(counts.values())} | {counts['inside']} | {same[0]} | {same[1]} | {seconds:.0f} |", flush=True)
        assert equal


if __name__ == "__main__":
    main()
