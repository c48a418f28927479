"""Topics to which predictions and rows are written."""

import contextlib

import pytest
from kafka import KafkaConsumer, TopicPartition

from loops import prediction
from patience import until
from refused import raises
from streamsvm.stream.endpoints import Row, Sink, StreamError
from streamsvm_kafka import ArrowCodec, JSONCodec, KafkaSink, KafkaSource, publish


def test_predictions_are_messages(embedded):
    sink = KafkaSink(embedded.bootstrap, "out", client=embedded.client)
    assert isinstance(sink, Sink)
    sink.write(prediction(0, 1, 0, 0.75))
    sink.write(prediction(1, "spam", None, None))
    sink.write(prediction(2, None, 1, None))  # of a model that does not predict yet
    assert sink.flush() == {"topic": "out"}
    sink.seek({"topic": "out"})
    assert [sink.owns(position) for position in ({"topic": "out"}, {"topic": "other"}, {"name": "out.csv"})] == [
        True,
        False,
        False,
    ]
    with pytest.raises(StreamError, match="the prediction of row 3 cannot be written as JSON"):
        sink.write(prediction(3, object(), None, None))
    sink.close()
    source = KafkaSource(embedded.bootstrap, "out", JSONCodec("y_true"), stop_at_end=True, client=embedded.client)
    read = sorted(source, key=lambda row: row.x["row"])
    source.close()
    expected = [Row({"row": 0, "y_pred": 1, "probability": 0.75}, 0), Row({"row": 1, "y_pred": "spam"}, None), Row({"row": 2}, 1)]
    assert read == expected


def test_publishing_many_rows_a_message(embedded):
    rows = [Row({"a": float(i)} | ({"b": 2.0} if i == 4 else {}), i % 2 or None) for i in range(5)]
    where = {"client": embedded.client, "partition": 0}
    assert publish(rows, embedded.bootstrap, "rows", ArrowCodec("y"), rows_per_message=3, **where) == 5
    values = []

    def both():
        values.extend(record.value for records in consumer.poll(200).values() for record in records)
        return len(values) == 2

    with contextlib.closing(KafkaConsumer(**embedded.client, bootstrap_servers=embedded.bootstrap)) as consumer:
        consumer.assign([partition := TopicPartition("rows", 0)])
        consumer.seek(partition, 0)
        until(both)
    tables = [ArrowCodec("y").decode_rows(value) for value in values]
    assert [table.names for table in tables] == [("a",), ("a", "b")]
    assert [table.row(i) for table in tables for i in range(len(table))] == rows


def test_publishing_many_rows_a_message_that_has_one():
    raises("codec json has one row a message", publish, [], "localhost:1", "rows", JSONCodec("y"), rows_per_message=2)
    raises("rows_per_message must be at least 1, got 0", publish, [], "localhost:1", "rows", ArrowCodec("y"), rows_per_message=0)
