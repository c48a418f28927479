"""Messages that are decoded together give the same rows as one by one."""

import json
import random

import pytest

from json_messages import NAMES
from streamsvm.stream.tables.chunk import Table, to_float_prefix
from streamsvm_kafka import JSONCodec
from streamsvm_kafka.clients.kafka_python.record_batches import records_to_messages
from streamsvm_kafka.decoding import MessageSource


class Sent:
    """A message of a topic."""

    headers, partition, offset, timestamp, key = (), 0, 0, -1, None

    def __init__(self, value):
        self.value = value


class Given(MessageSource):
    """A source of given messages."""

    def __init__(self, codec, values):
        super().__init__("messages", "topic", codec)
        self._values = values

    def _next_messages(self, max_messages):
        values, self._values = self._values[:max_messages], self._values[max_messages:]
        return records_to_messages(map(Sent, values)) if values else None


def test_rows_of_messages_are_columns_without_a_dict_each(monkeypatch):
    rng, codec = random.Random(2), JSONCodec("y")
    rows = [({name: rng.gauss(0.0, 1.0) for name in NAMES}, rng.choice([True, None])) for _ in range(30)]
    rows[4][0].pop("a")
    texts = [json.dumps({**x, "y": y}).encode() for x, y in rows]
    by_rows = Given(codec, texts).read(100)
    expected = Table.from_rows([by_rows.row(i) for i in range(len(by_rows))])
    monkeypatch.setattr(JSONCodec, "decode_with_fields", None)
    source = Given(codec, texts)
    for first, stop in ((0, 10), (10, 30)):
        chunk = source.read(stop - first)
        table = chunk.table(NAMES)
        assert table is chunk.table(tuple(NAMES))
        assert table.names == tuple(NAMES)
        for name in NAMES:
            numbers, n = to_float_prefix(expected.get_column(name)[first:stop])
            assert table.get_column(name).tobytes() == numbers.tobytes()
            assert n == stop - first
        assert table.y == expected.y[first:stop]
    assert source.read(100) is None


@pytest.mark.parametrize("keep", [[], ["b.c", "y", "n"]])
def test_rows_with_other_values_are_decoded_once(monkeypatch, keep):
    rng, codec, decoded = random.Random(3), JSONCodec("y"), []
    texts = [json.dumps({"a": rng.gauss(0.0, 1.0), "b.c": "x", "n": {"m": i}, "y": i % 2}).encode() for i in range(30)]
    texts[7] = b"[1]"
    decode = codec.decode_with_fields
    monkeypatch.setattr(codec, "decode_with_fields", lambda value, names: decoded.append(value) or decode(value, names))
    source = Given(codec, texts)
    assert source.request_passthrough(keep) == [*keep, "partition", "offset"]
    chunk = source.read(100)
    assert source.read(100) is None  # later reads do not change an earlier chunk
    for _ in range(2):
        table = chunk.table(["a"])
        assert [table.row(i) for i in range(30) if i != 7] == [chunk.row(i) for i in range(30) if i != 7]
        assert (chunk.row(7).raw, table.unparsed_rows) == (b"[1]", [7])
        kept = chunk.passthrough_columns(5, 9)
        values = [["x", "x", None, "x"], [1, 0, None, 0], [{"m": 5}, {"m": 6}, None, {"m": 8}]][: len(keep)]
        assert kept == [*values, [0] * 4, [0] * 4]
    assert decoded == texts
