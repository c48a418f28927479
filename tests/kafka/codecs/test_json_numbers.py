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
from streamsvm_kafka.clients.record_batches import messages_of
from streamsvm_kafka.decoding import MessageSource


def numbers(codec, texts, names):
    """What a codec makes of messages that lie behind each other, with something before and after them."""
    ends = 3 + np.cumsum([len(text) for text in texts])
    return codec.decode_numbers(b"{1," + b"".join(texts) + b'"}', np.array([3, *ends[:-1]]), ends, names)


@pytest.mark.parametrize("label", ["y", "\u00fc", None])
def test_messages_by_names_are_what_they_are_one_by_one(label):
    rng, codec, accepted = random.Random(0), JSONCodec(label), 0
    names = [*NAMES, "y"] if label is None else NAMES
    for _ in range(10_000):
        text = message(rng, label)
        found = numbers(codec, [text], names)
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
    X, y = numbers(codec, texts, NAMES)
    assert X.tolist() == [[x[name] for name in NAMES] for x, _ in rows]
    assert y == [label for _, label in rows]
    for wrong in (
        ["a"],
        ["a", "a", "b.c"],
        ["a", "b.c", "y"],
        ["a", 1],
        [],
        [*NAMES, "\ud800"],
    ):
        assert numbers(codec, texts, wrong) is None
    for name in ('a"b', "a\\b", "a/b", "\t"):
        for slash in (b"/", b"\\/"):  # which is not how most write it
            text = json.dumps({name: 0.5, "y": 1}).encode().replace(b"/", slash)
            found = numbers(codec, [*texts, text], [*NAMES, name])
            assert (found is None) == (name == "a/b" and slash == b"\\/")
            assert found is None or (np.isnan(found[0][:-1, 3]).all() and found[0][-1, 3] == 0.5)
    assert np.isnan(numbers(codec, [*texts, b"{}"], NAMES)[0][-1]).all()
    assert numbers(codec, [*texts, b'{"c": 1}'], NAMES) is None
    assert numbers(codec, [b" " * 2**24 + texts[0]], NAMES) is None


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
    source = Given("messages", "topic", JSONCodec("y"))
    rows = source._decode(messages_of(map(Sent, texts)), 100)
    by_pairs = columns_of([rows[i] for i in range(len(rows))], model)
    monkeypatch.setattr(JSONCodec, "decode_pairs", None)
    found = columns_of(rows[:], model)
    assert found.names == NAMES == model.feature_names
    assert found.X.astype(model._dtype).tobytes() == by_pairs.X.tobytes()
    assert (found.y, found.empty) == (by_pairs.y, 0)
    part = columns_of(rows[10:20], model)
    assert part.X.tobytes() == found.X[10:20].tobytes()
    assert math.isfinite(part.X.sum())
