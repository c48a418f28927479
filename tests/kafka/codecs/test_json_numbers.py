"""Messages that are read by names which are known give what they give one by one, or are left to that."""

import json
import math
import random

import numpy as np
import pytest

from json_messages import NAMES, message
from streamsvm import BSGDClassifier
from streamsvm.stream.rows import columns_of
from streamsvm_kafka import JSONCodec
from streamsvm_kafka.decoding import MessageSource


@pytest.mark.parametrize("label", ["y", "\u00fc", None])
def test_messages_by_names_are_what_they_are_one_by_one(label):
    rng, codec, accepted = random.Random(0), JSONCodec(label), 0
    names = [*NAMES, "y"] if label is None else NAMES
    for _ in range(10_000):
        text = message(rng, label)
        found = codec.decode_numbers([text], names)
        if found is None:
            continue
        accepted += 1
        row = codec.decode(text)
        assert row.x.keys() <= set(names)
        assert found[0].tobytes() == np.array([[float(row.x.get(name, math.nan)) for name in names]]).tobytes()
        assert not any(isinstance(value, bool | str) for value in row.x.values())
        assert (type(found[1][0]), found[1]) == (type(row.y), [row.y])
    assert accepted > 1000


def test_usual_messages_are_read_by_names():
    codec, rng = JSONCodec("y"), random.Random(1)
    rows = [({name: rng.gauss(0.0, 1.0) for name in NAMES}, rng.choice(["no", "yes"])) for _ in range(50)]
    texts = [json.dumps({**x, "y": y}, ensure_ascii=False).encode() for x, y in rows]
    X, y = codec.decode_numbers(texts, NAMES)
    assert X.tolist() == [[x[name] for name in NAMES] for x, _ in rows]
    assert y == [label for _, label in rows]
    for wrong in (
        ["a"],
        ["a", "a", "b.c"],
        ["a", "b.c", "y"],
        ["a", 1],
        [],
        [*NAMES, 'a"b'],
        [*NAMES, "a\\b"],
        [*NAMES, "\ud800"],
    ):
        assert codec.decode_numbers(texts, wrong) is None
    assert np.isnan(codec.decode_numbers([*texts, b"{}"], NAMES)[0][-1]).all()
    assert codec.decode_numbers([*texts, b'{"c": 1}'], NAMES) is None
    assert codec.decode_numbers([b" " * 2**24 + texts[0]], NAMES) is None


def test_rows_of_messages_are_columns_without_a_dict_each(monkeypatch):
    class Given(MessageSource):
        take = None

    class Sent:
        headers, partition, offset, timestamp, key = (), 0, 0, -1, None

        def __init__(self, value):
            self.value = value

    rng, model = random.Random(2), BSGDClassifier(budget=10)
    for _ in range(20):
        x = {name: rng.gauss(0.0, 1.0) for name in NAMES}
        model.learn_one(x, x["a"] > 0.0)
    texts = [json.dumps({**{name: rng.gauss(0.0, 1.0) for name in NAMES}, "y": True}).encode() for _ in range(30)]
    source = Given("messages", JSONCodec("y"))
    rows = source._decode(list(map(Sent, texts)), 100)
    by_pairs = columns_of([rows[i] for i in range(len(rows))], model)
    monkeypatch.setattr(JSONCodec, "decode_pairs", None)
    found = columns_of(rows[:], model)
    assert found.names == NAMES == model.feature_names
    assert found.X.astype(model._dtype).tobytes() == by_pairs.X.tobytes()
    assert (found.y, found.empty) == (by_pairs.y, 0)
    part = columns_of(rows[10:20], model)
    assert part.X.tobytes() == found.X[10:20].tobytes()
    assert math.isfinite(part.X.sum())
