"""A topic as a source: what holds on the embedded broker too, so that it is tested on machines without Java."""

import itertools
import threading

import pytest

from streamsvm.stream.endpoints import Row, StreamError
from streamsvm_kafka import BrokerUnreachableError, JSONCodec, KafkaSink, KafkaSource, publish

CODEC = JSONCodec("y")
ROWS = [Row({"i": i}, i % 2) for i in range(100)]


@pytest.fixture
def open_topic(embedded):
    """Opens the embedded broker's topic "rows", which holds ROWS dealt to three of its four partitions."""
    for partition in range(3):
        publish(ROWS[partition::3], embedded.bootstrap, "rows", CODEC, partition=partition, client=embedded.client)
    sources = []

    def open_(**options):
        options = {"stop_at_end": True, "client": embedded.client, **options}
        sources.append(KafkaSource(embedded.bootstrap, "rows", CODEC, **options))
        return sources[-1]

    yield open_
    for source in sources:
        source.close()


@pytest.mark.parametrize("rows", [1, 50, 100])
def test_resumed_pass_is_the_same(open_topic, rows):
    source = open_topic()
    iterator = iter(source)
    read = list(itertools.islice(iterator, rows))
    position = source.position
    resumed = open_topic()
    resumed.seek(position)
    assert read + list(resumed) == ROWS
    assert list(iterator) == ROWS[rows:]
    assert resumed.position == source.position


@pytest.mark.parametrize("is_known", [True, False], ids=["known", "unknown"])
def test_complete_pass_continues_with_new_messages(embedded, open_topic, is_known):
    source = open_topic()
    list(source)
    # A checkpoint may be the last of its pass without saying so: it was written at the last row, before the end was seen.
    position = source.position if is_known else source.position | {"end_offsets": source.position["offsets"]}
    opened_before = open_topic()
    opened_before.seek(position)
    publish([Row({"i": -1}, 1)], embedded.bootstrap, "rows", CODEC, partition=3, client=embedded.client)
    assert list(opened_before) == []
    opened_after = open_topic()
    opened_after.seek(position)
    assert list(opened_after) == [Row({"i": -1}, 1)]


def test_endless_stream_stops(open_topic):
    source = open_topic(stop_at_end=False)
    rows = []

    def read():
        rows.extend(source)

    reader = threading.Thread(target=read)
    reader.start()
    while len(rows) < len(ROWS) and reader.is_alive():
        reader.join(0.01)
    source.stop()
    reader.join()
    assert sorted(row.x["i"] for row in rows) == list(range(100))
    assert source.position["offsets"] == {"0": 34, "1": 33, "2": 33, "3": 0}
    assert source.position["end_offsets"] is None


def test_stop_in_a_pass_keeps_the_position(open_topic):
    source = open_topic()
    iterator = iter(source)
    read = [next(iterator) for _ in range(7)]
    source.stop()
    assert list(iterator) == []
    resumed = open_topic()
    resumed.seek(source.position)
    assert read + list(resumed) == ROWS


def test_missing_topic(embedded, open_topic):
    with pytest.raises(StreamError, match=rf"no topic 'row' on {embedded.bootstrap}\. Perhaps 'rows'\. Create it"):
        KafkaSource(embedded.bootstrap, "row", CODEC, client=embedded.client)


def test_foreign_checkpoints(open_topic):
    source = open_topic()
    cut_back = "partition 0 holds offsets 0 to 34, the checkpoint has seen offset 35: the topic was truncated"
    for position, reason in (
        ({"path": "rows.csv", "byte": 12}, "another kind of stream"),
        (source.position | {"topic": "other"}, "the checkpoint is of topic 'other'"),
        (source.position | {"label": "z"}, "learned with the label 'z', not 'y'"),
        (source.position | {"offsets": {"9": 0}}, "it has no partition 9 any more"),
        (source.position | {"offsets": {"0": 35}}, cut_back),
        *((source.position | change, "the checkpoint is corrupt") for change in CORRUPT),
    ):
        with pytest.raises(StreamError, match=reason):
            source.seek(position)
    assert list(source) == ROWS


CORRUPT = [
    *({"offsets": wrong} for wrong in (None, [0], {"zero": 0}, {"1_0": 0}, *({"0": wrong} for wrong in (-1, 1.5, "1", 2**63)))),
    *[{"end_offsets": [3]}, {"end_offsets": {"0": None}}, {"next_partition": "first"}, {"next_partition": None}],
    *({"rows_taken": wrong} for wrong in (3, {"0": -1}, {"0": "many"}, {"-1": 3})),
]


@pytest.mark.parametrize("address", ["127.0.0.1:1", "no-such-host.invalid:9092", "127.0.0.1:1,localhost:2"])
def test_no_broker(address):
    for open_ in (lambda: KafkaSource(address, "rows", CODEC), lambda: KafkaSink(address, "out")):
        with pytest.raises(BrokerUnreachableError, match="no Kafka broker at ") as error:
            open_()
        assert all(part in str(error.value) for part in address.split(","))
