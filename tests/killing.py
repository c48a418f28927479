"""Kills a learner at random rows, so that the result does not depend on the speed of the machine."""

import multiprocessing
import os
import random
import signal
import sys
import time
from multiprocessing import forkserver
from unittest import mock

# Learners are forked from a process that has imported everything and has no threads: they start at once.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["warm_learner", "forked"])
AHEAD = 20  # rows that a learner processes after the row of its kill before it waits to be killed


def learn(url, options, folder, predictions, *extra_words):
    """Learn a stream into a checkpoint folder, announcing each row by a byte; wait to be killed after ``most`` rows (or None).

    Where the options have ``labels``, a URL, these are of another stream: ``join`` is then for `JoinedSource`, and ``delayed``
    for `DelayedLabels`. Predictions have the columns ``passthrough``, rotated by ``rotate``. With ``at_once`` the model is
    one that takes rows together.
    """
    *on_error, most, announcements = extra_words
    policy = {"on_error": on_error[0]} if on_error else {}
    from warm_learner import BSGDClassifier, CheckpointFolder, FileSink, LearningLoop, delayed_loop, make_model, open_source

    options = dict(options)
    labels, join, delayed, at_once = (options.pop(name, None) for name in ("labels", "join", "delayed", "at_once"))
    policy["passthrough"], rotate = options.pop("passthrough", ()), options.pop("rotate", None)
    source = open_source(url, **options)
    make_loop = LearningLoop
    if labels is not None:
        source, make_loop = delayed_loop(source, open_source(labels, **options), join, delayed)
    read, n_read, n_reported = source.read, 0, 0

    def announced_rows(rows):
        nonlocal n_read, n_reported
        os.write(announcements.fileno(), b"." * (n_read - n_reported))  # of those that were read before, which are learned by now
        n_reported = n_read
        if n_read == most:
            time.sleep(600)
        chunk = read(rows if most is None else min(rows, most - n_read))
        n_read += len(chunk or ())
        return chunk

    source.read = announced_rows
    sink = None if predictions is None else FileSink(predictions, rotate)
    with CheckpointFolder(folder) as checkpoints:
        model = BSGDClassifier(30, seed=1) if at_once else make_model()
        make_loop(source, model, sink=sink, checkpoints=checkpoints, checkpoint_every=73, **policy).run()
    source.close()
    if sink is not None:
        sink.close()


def call_with(variables, function, *arguments):
    os.environ.update(variables)
    function(*arguments)


def fork(function, *arguments):
    """Call a function in a process forked from the warm one, and return the process. Its environment has this process's options
    of Kafka.
    """
    # The fork server of Python 3.11 needs the module path.
    with mock.patch.dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)):
        forkserver.ensure_running()
    options = {name: value for name, value in os.environ.items() if name.startswith("STREAMSVM_KAFKA_")}
    options = {"STREAMSVM_KAFKA_OUTAGE_SECONDS": "60"} | options  # a broker on a busy machine responds late
    process = FORKS.Process(target=call_with, args=(options, function, *arguments))
    process.start()
    return process


def fork_with_pipe(function, *arguments):
    """Call a function with arguments and one end of a pipe, as `fork` does. Return the process and the reading end."""
    reader, writer = FORKS.Pipe(duplex=False)
    process = fork(function, *arguments, writer)
    writer.close()
    return process, reader


def run_to_the_end(*arguments):
    """Learn a stream, and report the number of rows.

    Arguments: URL, options of open_source, folder, file of predictions, and perhaps on_error.
    """
    process, reader = fork_with_pipe(learn, *arguments, None)
    rows = 0
    while announced := os.read(reader.fileno(), 1 << 16):
        rows += len(announced)
    process.join()
    assert process.exitcode == 0
    return rows


def learned_rows(folder):
    """Return the row count of the newest checkpoint of a folder; 0 without checkpoints."""
    return max((int(path.stem.partition("-")[2]) for path in folder.glob("checkpoint-*.ckpt")), default=0)


def kill_at_random_rows(seed, kills, rows, *arguments):
    """Start a learner ``kills`` times, and kill each before it has learned the stream's ``rows``."""
    print(f"kills at random rows with seed {seed}")  # noqa: T201 - pytest shows it when the test fails
    rng, folder = random.Random(seed), arguments[2]
    for left in range(kills, 0, -1):
        # Spread over the remaining rows; sometimes while the learner starts.
        at = rng.randint(1, 2 * (rows - learned_rows(folder)) // (left + 1) - 2 * AHEAD) if rng.random() < 0.8 else 0
        process, reader = fork_with_pipe(learn, *arguments, at + AHEAD)
        announced = 0
        while announced < at:
            new = os.read(reader.fileno(), 1 << 16)
            assert new, f"the learner ended after {announced} rows, before it could be killed at row {at}"
            announced += len(new)
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL


def whole_and_killed(folder, kills, rows, url, options, letters=None, predictions="out.jsonl"):
    """Learn a stream in two folders, in one of them with kills; return both. Each has checkpoints and predictions. There are that
    many kills for a release, and half of them otherwise.
    """
    from lists import OF_RELEASE

    kills = kills if OF_RELEASE else (kills + 1) // 2
    places = [folder / "whole", folder / "killed"]
    for place in places:
        place.mkdir()
        arguments = url, options, place, place / predictions, *([str(place / letters)] if letters else [])
        if place.name == "killed":
            kill_at_random_rows(random.randrange(10**6), kills, rows, *arguments)
        learned = learned_rows(place)
        assert (run_to_the_end(*arguments) < rows) == (learned > 0)
    newest = [max(place.glob("*.ckpt")) for place in places]
    assert newest[0].name == newest[1].name == f"checkpoint-{rows:012d}.ckpt"
    assert (places[0] / predictions).read_bytes() == (places[1] / predictions).read_bytes()
    return places
