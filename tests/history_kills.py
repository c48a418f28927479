"""Kills of processes that write, delete and roll back checkpoints, in a folder and in a topic: by hand, ``python
tests/history_kills.py --kills 50``.

After each kill, the newest checkpoint is the previous one or the one that was being written or restored, and none is lost.
"""
# ruff: noqa: T201

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import tempfile
import time
from pathlib import Path

from killing import fork_with_pipe

KEEP = 4
#: About as long as some checkpoints, and a rollback, take.
SECONDS = {"folder": (0.3, 0.015), "topic": (0.6, 0.6)}


def open_store(where):
    """Open the checkpoints of a folder (a path) or a topic (a pair of the address of a broker and the topic)."""
    from streamsvm_kafka import TopicCheckpoints
    from warm_learner import CheckpointFolder

    return CheckpointFolder(where, keep=KEEP) if isinstance(where, Path) else TopicCheckpoints(*where, "rows", keep=KEEP)


def read_history(where):
    """Return the numbers of rows of the checkpoints, newest first, in use and set aside. All must be readable."""
    from streamsvm.stream import FollowedFolder
    from streamsvm_kafka import FollowedTopic

    with contextlib.closing(FollowedFolder(where) if isinstance(where, Path) else FollowedTopic(*where, "rows")) as models:
        history = models.history()
        assert [saved.load(False).header["rows"] for saved in history] == [saved.rows for saved in history]
        return [[saved.rows for saved in history if saved.is_aside == aside] for aside in (False, True)]


def write_checkpoints(where, pipe):
    """Write a checkpoint every ten rows until the process is killed, beginning after the newest one."""
    from warm_learner import BSGDClassifier

    with open_store(where) as store:
        newest = store.newest()
        rows = 0 if newest is None else newest.header["rows"]
        os.write(pipe.fileno(), b"begin\n")
        while True:
            rows += 10
            store.save(BSGDClassifier(budget=3), None, rows=rows, position={})


def roll_back(where, rows, pipe):
    """Make the checkpoint of ``rows`` rows the newest one."""
    from streamsvm.stream import FollowedFolder
    from streamsvm.stream.checkpoint import find_saved
    from streamsvm_kafka import FollowedTopic

    with (
        contextlib.closing(FollowedFolder(where) if isinstance(where, Path) else FollowedTopic(*where, "rows")) as models,
        open_store(where) as store,
    ):
        target = find_saved("", models.history(), rows)
        os.write(pipe.fileno(), b"begin\n")
        store.roll_back(target)


def kill_after(seconds, function, *arguments):
    """Call a function in another process, and kill it some seconds after it has begun. Return whether it was still running."""
    process, reader = fork_with_pipe(function, *arguments)
    assert os.read(reader.fileno(), 100) == b"begin\n"
    time.sleep(seconds)
    process.kill()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


def settle(where):
    """Open and close a folder, as the next run does after a kill, and return the history."""
    if isinstance(where, Path):
        open_store(where).close()
    return read_history(where)


def kill_often(where, kills, rng, write_seconds, rollback_seconds):
    """Kill writers, and in turn processes that roll back. Return the number of kills by kind, and the number of rollbacks that
    were complete.
    """
    counts = {"writing": 0, "rolling back": 0, "rolled back": 0}
    active, aside = settle(where)
    while counts["writing"] + counts["rolling back"] < kills:
        newest, n_before, aside_before = max(active, default=0), len(active), aside
        assert kill_after(rng.uniform(0.0, write_seconds), write_checkpoints, where)
        counts["writing"] += 1
        assert max(read_history(where)[0], default=0) >= newest
        active, aside = settle(where)
        assert len(active) >= min(KEEP, n_before)
        assert aside == [rows for rows in aside_before if rows > max(active, default=0)]
        if len(active) < 2:
            continue
        target, newest, every = rng.choice(active[1:] + aside), active[0], active + aside
        killed = kill_after(rng.uniform(0.0, rollback_seconds), roll_back, where, target)
        counts["rolling back" if killed else "rolled back"] += 1
        assert read_history(where)[0][0] in ((newest, target) if killed else (target,))
        active, aside = settle(where)
        assert active == sorted((rows for rows in every if rows <= active[0]), reverse=True)
        assert sorted(aside) == sorted(rows for rows in every if rows > active[0])
    return counts


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    arguments = parser.parse_args()
    from kafka_broker import running_broker

    print(f"seed {arguments.seed}")
    print(
        "| checkpoints in a | kills while writing | kills in a rollback | complete rollbacks | seconds |\n|---|---|---|---|---|"
    )
    rng = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        (Path(name) / "broker").mkdir()
        broker = stack.enter_context(running_broker(Path(name) / "broker"))
        for kind, where in (("folder", Path(name) / "state"), ("topic", (broker.plaintext, "models"))):
            start_time = time.perf_counter()
            open_store(where).close()
            counts = kill_often(where, arguments.kills, rng, *SECONDS[kind])
            print(f"| {kind} | {' | '.join(map(str, counts.values()))} | {time.perf_counter() - start_time:.0f} |", flush=True)


if __name__ == "__main__":
    main()
