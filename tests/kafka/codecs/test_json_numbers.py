"""Messages that are read by names which are known give what they give one by one, or are left to that."""

import json
import math
import random

import numpy as np
import pytest

from streamsvm import BSGDClassifier
from streamsvm.stream.rows import columns_of
from streamsvm_kafka import JSONCodec
from streamsvm_kafka.clients.record_batches import messages_of
from streamsvm_kafka.decoding import MessageSource

NAMES = ["a", "b.c", "\u00e9"]
PIECES = [
    *(b"0 1 -1 -0.0 1.5 1e3 1E-400 1e400 1e39 01 +1 .5 1. 0x1 NaN Infinity true false null".split()),
    *(b'"" "1" "x" "\\u00e9" "a\nb" "a\\nb" "\xff" "\\ud800" [] [1] {} {"a":1}'.replace(b" ", b"\t").split(b"\t")),
    *(str(2**power + more).encode() for power in (53, 63, 64, 70) for more in (-1, 0, 1)),
    *(str(-(2**power) + more).encode() for power in (53, 63, 64) for more in (-1, 0, 1)),
    b"0.1000000000000000055511151231257827",
    b"9007199254740993",
    b"2.2250738585072011e-308",
    b"12345678901234567890123",
]


def numbers(codec, texts, names):
    """What a codec makes of messages that lie behind each other, with something before and after them."""
    ends = 3 + np.cumsum([len(text) for text in texts])
    return codec.decode_numbers(b"{1," + b"".join(texts) + b'"}', np.array([3, *ends[:-1]]), ends, names)


def message(rng, label):
    """A message that is nearly always one of numbers, with these names."""
    escaped = rng.random() < 0.1
    fields = [(json.dumps(name, ensure_ascii=escaped).encode(), repr(rng.gauss(0.0, 3.0)).encode()) for name in NAMES]
    name = json.dumps(label or "y", ensure_ascii=escaped and rng.random() < 0.9).encode()
    fields.append((name, rng.choice([b"0", b"1", b'"yes"', b"true", b"null", b"1.0"])))
    for _ in range(rng.choice([0, 0, 0, 1, 1, 2])):
        place = rng.randrange(len(fields))
        fields[place] = (fields[place][0], rng.choice(PIECES))
    if rng.random() < 0.1:
        fields.append(rng.choice(fields))
    if rng.random() < 0.1:
        fields.pop(rng.randrange(len(fields)))
    if rng.random() < 0.1:
        fields.append((rng.choice([b'"new"', b'"a "', b'"\\u0061"', b"a"]), rng.choice(PIECES)))
    rng.shuffle(fields)
    space = rng.choice([b"", b" ", b"\n", b"\t "])
    text = b"{" + (b"," + space).join(name + space + b":" + value for name, value in fields) + b"}"
    if rng.random() < 0.1:
        place = rng.randrange(len(text))
        text = text[:place] + bytes([rng.choice(b'{}[]",:\\ 0e.-\x00\xff')]) + text[place + rng.choice([0, 1]) :]
    return text + rng.choice([b"", b"", b"", b" ", b"\n", b"x", b"{}"])


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
        assert row.x.keys() == set(names)
        assert found[0].tobytes() == np.array([[float(row.x[name]) for name in names]]).tobytes()
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
        ["a", "b.c"],
        ["a", "a", "b.c"],
        ["a", "b.c", "y"],
        ["a", 1],
        [],
        [*NAMES, 'a"b'],
        [*NAMES, "a\\b"],
        [*NAMES, "\ud800"],
    ):
        assert numbers(codec, texts, wrong) is None
    assert numbers(codec, [*texts, b"{}"], NAMES) is None
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
