"""`PartitionSource`: its rows, resumption, and foreign positions."""

import numpy as np
import pytest

from row_tables import float32_table
from streamsvm.stream.continuation import seek_or_begin
from streamsvm.stream.endpoints import BadRow, Row, StreamError
from streamsvm_kafka import JSONCodec, NpyCodec
from streamsvm_kafka.clients.kafka_python.record_batches import records_to_messages
from streamsvm_kafka.connection import TopicDescription
from streamsvm_kafka.source import PartitionSource

JSON = JSONCodec("y")


class Record:
    partition, headers, timestamp, key = 3, (), -1, None

    def __init__(self, offset, value):
        self.offset, self.value = offset, value


def source_of(start=None, restart=None, codec=JSON, commit=lambda *_: None):
    parameters = {"beginning": 10, "end_offset": 50, "start": 10, "restart": restart, "commit": commit}
    topic = TopicDescription("id", (0, 1, 2, 3))
    source = PartitionSource("kafka://host/rows", codec, topic="rows", description=topic, partition=3, **parameters)
    if start is not None:
        source.seek({**source_of().position, "offset": start})
    return source


def test_messages_before_position_are_ignored():
    source = source_of(12)
    source.add_messages(
        records_to_messages([Record(11, b'{"y": 0}'), Record(12, None), Record(14, b'{"a": 1, "y": 2}'), Record(15, b"no JSON")])
    )
    assert source.has_rows
    assert source.position["offset"] == 12
    rows = list(source)
    assert rows[0] == Row({"a": 1}, 2)
    assert type(rows[1]) is BadRow
    assert rows[1].place.endswith("partition 3, offset 15")
    assert source.position == {
        "topic": "rows",
        "topic_id": "id",
        "label": "y",
        "partition": 3,
        "offset": 16,
        "partitions": 4,
    }
    source.add_messages(
        records_to_messages([Record(15, b'{"y": 1}'), Record(16, b'{"y": 1}')])
    )  # an exhausted iterator continues
    assert list(source) == [Row({}, 1)]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"topic": "others"}, "of topic 'others'"),
        ({"label": "z"}, "of label 'z', not 'y'"),
        ({"partition": 4}, "of partition 4, not 3"),
        ({"topic_id": "another"}, "deleted and created again"),
        ({"offset": 9}, "holds offsets 10 to 50, the checkpoint continues at 9"),
        ({"offset": 51}, "holds offsets 10 to 50, the checkpoint has seen offset 51: the topic was truncated"),
        ({"offset": "17"}, "offset must be an integer .*, not '17'"),
        ({"offset": None}, "offset must be an integer .*, not None"),
        ({"partitions": "2"}, "partitions must be an integer .*, not '2'"),
        ({"rows_taken": -1}, "rows_taken must be an integer .*, not -1"),
    ],
)
def test_foreign_positions_are_refused(change, reason):
    with pytest.raises(StreamError, match=reason):
        source_of().seek({**source_of(20).position, **change})


def test_restart_offset_after_removed_messages():
    source = source_of(restart=30)
    source.seek({**source.position, "topic_id": "another", "offset": 20})
    assert source.offset == 30


def test_a_model_of_another_topic_is_kept_if_the_start_is_named():
    source, position = source_of(restart=10), {**source_of(20).position, "topic": "others"}
    seek_or_begin(source, position, 5)
    assert source.position == {**position, "topic": "rows", "offset": 10}
    with pytest.raises(StreamError, match="of topic 'others', not 'rows'. To continue with its model, .* --from"):
        seek_or_begin(source_of(), position, 5)


TABLE = NpyCodec(1).encode_rows(float32_table((0,), np.zeros((3, 1)), [1] * 3))


def test_rows_of_next_message_are_not_skipped_if_message_is_gone():
    source = source_of(codec=NpyCodec(1))
    source.seek({**source.position, "offset": 12, "rows_taken": 2})
    source.add_messages(records_to_messages([Record(14, TABLE)]))
    assert len(source.read(10)) == 3


def test_position_within_a_message_stays_until_it_is_read():
    source = source_of(codec=NpyCodec(1))
    source.seek({**source.position, "offset": 12, "rows_taken": 2})
    assert source.position["rows_taken"] == 2
    source.add_messages(records_to_messages([Record(12, TABLE), Record(13, TABLE)]))
    assert len(source.read(10)) == 1
    assert (source.position["offset"], source.position.get("rows_taken")) == (13, None)
    source = source_of(codec=NpyCodec(1))
    source.seek({**source.position, "offset": 12, "rows_taken": 2})
    source.skip_to(20)
    assert (source.position["offset"], source.position.get("rows_taken")) == (20, None)


def test_message_is_committed_after_all_its_rows():
    committed = []
    source = source_of(codec=NpyCodec(1), commit=committed.append)
    source.add_messages(records_to_messages([Record(10, TABLE)]))
    for _ in range(2):
        source.read(2)
        source.on_checkpoint()
    assert committed == [{3: 10}, {3: 11}]
