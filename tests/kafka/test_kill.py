"""A learner that is killed at any moment and started again ends with the bytes of one that was left alone."""

import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from streamsvm.runtime.endpoints import Row
from streamsvm_kafka import Float32Codec, publish

pytestmark = pytest.mark.broker

LEARN = Path(__file__).with_name("learn.py")
KILLS = 20
ROWS_A_PARTITION = (4000, 2500, 6000)
N_FEATURES = 4


def start(url, folder):
    command = [sys.executable, LEARN, url, folder]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process):
    errors = process.communicate()[1]
    assert process.returncode == 0, errors


def final_checkpoint(folder):
    newest = max(folder.glob("checkpoint-*.ckpt"))
    return newest.name, newest.read_bytes()


def test_killed_learner_ends_with_the_same_bytes(bootstrap, new_topic, tmp_path):
    topic, codec = new_topic(partitions=len(ROWS_A_PARTITION)), Float32Codec(N_FEATURES)
    points = np.random.default_rng(7)
    for partition, length in enumerate(ROWS_A_PARTITION):
        features = points.normal(size=(length, N_FEATURES)).astype("f4")
        rows = [Row(dict(enumerate(x.tolist())), int(np.prod(np.sign(x[:2])) > 0)) for x in features]
        publish(rows, bootstrap, topic, codec, partition=partition)
    url = f"kafka://{bootstrap}/{topic}?codec=float32&features={N_FEATURES}"
    undisturbed = tmp_path / "undisturbed"
    finish(start(url, undisturbed))
    expected = final_checkpoint(undisturbed)
    assert expected[0] == f"checkpoint-{sum(ROWS_A_PARTITION):012d}.ckpt"

    moments, kills, runs = random.Random(7), 0, 0
    while kills < KILLS:
        runs += 1
        killed = tmp_path / f"killed-{runs}"
        ended = False
        while kills < KILLS and not ended:
            process = start(url, killed)
            assert process.stdout.readline() == "learning\n", process.stderr.read()
            try:
                errors = process.communicate(timeout=moments.uniform(0, 0.3))[1]
                assert process.returncode == 0, errors
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                kills += 1
            ended = (killed / expected[0]).exists()
        if not ended:
            finish(start(url, killed))
        assert final_checkpoint(killed) == expected
