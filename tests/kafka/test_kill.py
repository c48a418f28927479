"""A learner that is killed at any moment and started again ends with the bytes of one that was left alone."""

import random

import numpy as np
import pytest

from killing import kill_at_random_rows, run_to_the_end
from streamsvm.runtime.endpoints import Row
from streamsvm_kafka import Float32Codec, publish

pytestmark = pytest.mark.broker

ROWS_A_PARTITION = (1500, 1000, 2500)
N_FEATURES = 4


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
    url, options = f"kafka://{bootstrap}/{topic}?codec=float32&features={N_FEATURES}", {"label": None, "stop_at_end": True}
    total = sum(ROWS_A_PARTITION)
    assert run_to_the_end(url, options, tmp_path / "whole", None) == total
    expected = final_checkpoint(tmp_path / "whole")
    assert expected[0] == f"checkpoint-{total:012d}.ckpt"
    kill_at_random_rows(random.randrange(10**6), 20, total, url, options, tmp_path / "killed", None)
    assert run_to_the_end(url, options, tmp_path / "killed", None) < total
    assert final_checkpoint(tmp_path / "killed") == expected
