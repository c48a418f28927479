"""Workers of a group that come, go, hang and are killed, and a broker that is killed: by hand, ``python tests/rebalances.py``.

Each partition's model must have the bytes of one that a single worker has learned alone.
"""
# ruff: noqa: T201

from __future__ import annotations

import argparse
import contextlib
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

N_FEATURES = 4


def work(bootstrap, topic, group, folder, end_flag, pause):
    """Run a worker of the group in this process."""
    import warm_learner
    from streamsvm.stream import LearningLoop
    from streamsvm_kafka import Float32Codec, PartitionWorker, partitions

    partitions.SESSION_SECONDS, partitions.HEARTBEAT_SECONDS, partitions.TAKE_OVER_SECONDS = 2.0, 0.4, 6.0
    worker = PartitionWorker(
        bootstrap,
        topic,
        Float32Codec(N_FEATURES),
        group=group,
        folder=folder,
        make_loop=lambda source, folder: LearningLoop(
            source, warm_learner.make_model(), checkpoints=folder, checkpoint_every=500
        ),
        stop_at_end=end_flag == "end",
        client={"outage_seconds": 60.0},
    )
    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    worker.run(on_rows=lambda _: time.sleep(float(pause)))
    worker.close()


def start_worker(bootstrap, topic, group, folder, end_flag="", pause=0.0, log=subprocess.DEVNULL):
    command = [sys.executable, __file__, "--work", bootstrap, topic, group, str(folder), end_flag, str(pause)]
    return subprocess.Popen(command, stderr=log)


def checkpoints(folder):
    """Return the bytes of the newest checkpoint of each partition, by folder name."""
    return {
        partition_folder.name: max(partition_folder.glob("checkpoint-*.ckpt")).read_bytes()
        for partition_folder in sorted(folder.glob("partition-*"))
    }


def rows_done(folder):
    names = [
        max((path.stem for path in partition_folder.glob("checkpoint-*.ckpt")), default="-0")
        for partition_folder in folder.glob("partition-*")
    ]
    return sum(int(name.rpartition("-")[2]) for name in names)


def publish_rows(bootstrap, topic, lengths):
    from streamsvm.stream import Row
    from streamsvm_kafka import Float32Codec, publish

    points = np.random.default_rng(7)
    for partition, length in enumerate(lengths):
        X = points.normal(size=(length, N_FEATURES)).astype("f4")
        rows = [Row(dict(enumerate(x.tolist())), int(np.prod(np.sign(x[:2])) > 0)) for x in X]
        publish(rows, bootstrap, topic, Float32Codec(N_FEATURES), partition=partition)


def disturb(rng, workers, start):
    """Stop, kill or suspend one of the workers, and start another one. Return the action."""
    at = rng.randrange(len(workers))
    event = rng.choice(["leaves", "leaves", "is killed", "hangs"])
    old = workers[at]
    assert old.poll() is None, f"a worker ended by itself with {old.poll()}"
    workers[at] = start()
    if event == "leaves":
        old.terminate()
        old.wait(60)
    elif event == "is killed":
        old.kill()
        old.wait()
    else:  # longer than the group waits for it, now and then also than others wait for its folder
        old.send_signal(signal.SIGSTOP)
        time.sleep(rng.choice([3.0, 9.0]))
        old.send_signal(signal.SIGCONT)
        time.sleep(0.5)
        old.terminate()
        old.wait(60)
    return event


def main():
    from kafka import KafkaAdminClient

    from kafka_broker import running_broker

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rebalances", type=int, default=50)
    parser.add_argument("--broker-kills", type=int, default=10)
    parser.add_argument("--rows", type=int, default=100_000, help="of a partition; six partitions")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", type=Path, default=Path("/dev/null"), help="what the workers write on standard error")
    arguments = parser.parse_args()
    rng, lengths = random.Random(arguments.seed), [arguments.rows + 100 * p for p in range(6)]
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder, log = Path(name), stack.enter_context(arguments.log.open("w"))
        (folder / "broker").mkdir()
        broker = stack.enter_context(running_broker(folder / "broker"))
        bootstrap = broker.plaintext
        KafkaAdminClient(bootstrap_servers=bootstrap).create_topics({"rows": {"num_partitions": 6, "replication_factor": 1}})
        publish_rows(bootstrap, "rows", lengths)
        assert start_worker(bootstrap, "rows", "alone", folder / "alone", "end").wait(300) == 0
        expected = checkpoints(folder / "alone")
        assert rows_done(folder / "alone") == sum(lengths)

        def start():
            return start_worker(bootstrap, "rows", "shared", folder / "shared", pause=0.2, log=log)

        workers = [start() for _ in range(3)]
        stack.callback(lambda: [worker.kill() for worker in workers])
        time.sleep(4.0)
        kills = set(rng.sample(range(arguments.rebalances), arguments.broker_kills))
        for number in range(arguments.rebalances):
            time.sleep(rng.uniform(0.5, 4.0))
            if number in kills:
                broker.restart()
                time.sleep(2.0)
            print(number, disturb(rng, workers, start), number in kills, rows_done(folder / "shared"), flush=True)
        died = [worker.poll() for worker in workers if worker.poll() is not None]
        for worker in workers:
            worker.terminate()
            print("a worker ended with", worker.wait(60))
        assert not died, f"workers ended by themselves with {died}"
        print("rows at the end of the disturbances:", rows_done(folder / "shared"), "of", sum(lengths))
        assert start_worker(bootstrap, "rows", "shared", folder / "shared", "end").wait(300) == 0
        assert rows_done(folder / "shared") == sum(lengths)
        same = {name: expected[name] == content for name, content in checkpoints(folder / "shared").items()}
        print("equal to the byte:", same)
        assert len(same) == 6
        assert all(same.values())


if __name__ == "__main__":
    work(*sys.argv[2:]) if sys.argv[1:2] == ["--work"] else main()
