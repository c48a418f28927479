"""A learner that is killed at any moment and started again ends with the bytes of one that was left alone."""

import numpy as np
import pytest

from kafka_broker import LIBRARIES
from killing import whole_and_killed
from lists import pairs
from streamsvm.stream.endpoints import Row
from streamsvm_kafka import ArrowCodec, Float32Codec, publish

pytestmark = [pytest.mark.broker, pytest.mark.usefixtures("client_library")]
#: Codecs, and numbers of kills.
KILLS = [("float32", 6), ("arrow", 3)]

ROWS_A_PARTITION = (1500, 1000, 2500)
N_FEATURES = 4


@pytest.mark.parametrize(("codec_and_kills", "client_library"), pairs(KILLS, LIBRARIES), indirect=["client_library"])
def test_killed_learner_ends_with_the_same_bytes(bootstrap, new_topic, tmp_path, codec_and_kills):
    """For a release with more kills, and both codecs with both libraries."""
    codec, kills = codec_and_kills
    topic, points = new_topic(partitions=len(ROWS_A_PARTITION)), np.random.default_rng(7)
    made, many = (Float32Codec(N_FEATURES), {}) if codec == "float32" else (ArrowCodec("y"), {"rows_per_message": 130})
    for partition, length in enumerate(ROWS_A_PARTITION):
        features = points.normal(size=(length, N_FEATURES)).astype("f4")
        rows = [Row(dict(enumerate(x.tolist())), int(np.prod(np.sign(x[:2])) > 0)) for x in features]
        rows = rows if codec == "float32" else [Row({f"x{name}": value for name, value in x.items()}, y) for x, y in rows]
        publish(rows, bootstrap, topic, made, partition=partition, **many)
    url = f"kafka://{bootstrap}/{topic}?codec={codec}" + (f"&features={N_FEATURES}" if codec == "float32" else "")
    # One run learns rows one by one, the other all available rows together, also within Arrow tables.
    options = {"label": "y" if codec == "arrow" else None, "stop_at_end": True, "at_once": codec == "arrow"}
    uninterrupted, killed = whole_and_killed(tmp_path, kills, sum(ROWS_A_PARTITION), url, options)
    assert max(uninterrupted.glob("*.ckpt")).read_bytes() == max(killed.glob("*.ckpt")).read_bytes()
