"""JSON rows make one model, whether they come from a file, a topic or the partition of a worker."""

import json
import math
from contextlib import closing

import numpy as np
import pytest
from kafka import KafkaProducer

from saved import dumps
from streamsvm import BSGDClassifier
from streamsvm.stream import (
    DelayedLabels,
    DelayedLearningLoop,
    IterableSource,
    JoinedSource,
    JSONLinesSource,
    LearningLoop,
    WeightedSource,
)
from streamsvm.stream.tables import TableEncoder
from streamsvm_kafka import JSONCodec, KafkaSource
from streamsvm_kafka.clients.messages import Messages
from streamsvm_kafka.connection import TopicDescription
from streamsvm_kafka.source import PartitionSource

N = 120


def make_row(i, **more):
    return {"a": math.sin(7.0 * i), "b": float(i % 5), **more, "y": "yes" if math.sin(7.0 * i) > 0.1 * (i % 3) else "no"}


def to_mongo(row, i):
    return {
        "_id": {"$oid": f"{i:024x}"},
        "a": {"$numberDouble": repr(row["a"])},
        "b": {"$numberDecimal": "NaN"} if i % 5 == 0 else {"$numberInt": str(int(row["b"]))},
        "n": {"$numberLong": str(i % 7)},
        "at": {"$date": {"$numberLong": str(1_700_000_000_000 + 1000 * i)}},
        "seen": {"$timestamp": {"t": 1_700_000_000 + i, "i": 1}},
        "y": {"$symbol": row["y"]} if i % 2 else row["y"],
        "none": {"$undefined": True},
    }


def to_plain(row, i):
    moment = {"at": 1_700_000_000.0 + i, "seen": 1_700_000_000.0 + i}
    return {"a": row["a"], **({"b": row["b"]} if i % 5 else {}), "n": i % 7, **moment, "y": row["y"]}


MONGO_OPTIONS = {"columns": "_id:drop,at:date,seen:date"}
#: By kind: the rows, the same rows without anything unusual, and the options of the encoder.
KINDS = {
    "NaN": (lambda i: make_row(i, c=math.nan if i % 3 else 1.0), lambda i: make_row(i, **({} if i % 3 else {"c": 1.0})), {}),
    "infinity as a mark": (
        lambda i: make_row(i, c=math.inf if i % 3 else 1.0),
        lambda i: make_row(i, **({} if i % 3 else {"c": 1.0})),
        {"missing": "inf"},
    ),
    "arrays": (lambda i: make_row(i, tags=["x", i, {"u": []}][: i % 4]), make_row, {"columns": "tags:drop"}),
    "objects": (lambda i: make_row(i, meta={"p": i % 3, "q": [{}]}), make_row, {"columns": "meta:drop"}),
    "MongoDB": (
        lambda i: to_mongo(make_row(i), i),
        lambda i: to_plain(make_row(i), i),
        MONGO_OPTIONS,
    ),
}


@pytest.fixture
def open_topic(embedded):
    """Sends messages to a topic, and returns its source."""
    sources = []

    def send(values):
        with closing(KafkaProducer(bootstrap_servers=embedded.bootstrap, **embedded.client)) as producer:
            for value in values:
                producer.send("rows", value, partition=0)
            producer.flush()
        sources.append(KafkaSource(embedded.bootstrap, "rows", JSONCodec("y"), stop_at_end=True, client=embedded.client))
        return sources[-1]

    yield send
    for source in sources:
        source.close()


def open_partition(values):
    offsets = {"beginning": 0, "end_offset": 0, "start": 0, "restart": None, "commit": lambda _: None}
    source = PartitionSource("partition", JSONCodec("y"), "rows", TopicDescription(None, (0,)), 0, **offsets)
    n = len(values)
    source.add_messages(Messages(0, np.arange(n), np.zeros(n, np.int64), None, None, values))
    return source


def learn(source, options):
    """Return the bytes of the model that has learned a source, and the progress."""
    loop = LearningLoop(source, TableEncoder(**options) | BSGDClassifier(budget=20, seed=1))
    progress = loop.run()
    return dumps(loop.model), progress


def encode(make, prefix=b""):
    return [prefix + json.dumps(make(i)).encode() for i in range(N)]


@pytest.mark.parametrize("kind", KINDS)
def test_unusual_values_make_the_same_model_in_a_file_and_a_topic(tmp_path, open_topic, kind):
    make_unusual, make_plain, options = KINDS[kind]
    values = encode(make_unusual)
    (tmp_path / "rows.jsonl").write_bytes(b"\n".join(values))
    with JSONLinesSource(tmp_path / "rows.jsonl", "y", **options) as source:
        of_file, progress = learn(source, options)
    assert progress.learned == N
    assert learn(open_partition(encode(make_plain)), options)[0] == of_file
    assert learn(open_partition(values), options)[0] == of_file
    assert learn(open_topic(values), options)[0] == of_file


def test_the_prefix_of_a_registry_is_skipped(open_topic):
    """The id of the schema may contain bytes that JSON uses."""
    expected = learn(open_partition(encode(make_row)), {})[0]
    for prefix in (b"\0\0\0\0\7", b'\0{:"\n'):
        assert learn(open_partition(encode(make_row, prefix)), {})[0] == expected
        assert JSONCodec("y").decode_with_fields(encode(make_row, prefix)[1], ["b"])[1] == [1.0]
    mixed = [encode(make_row, b"\0\0\0\0\7" if i % 2 else b"")[i] for i in range(N)]
    assert learn(open_topic(mixed), {})[0] == expected
    assert JSONCodec("y").decode_batch(b"", np.zeros(2, np.int64), np.zeros(2, np.int64), []).unparsed_rows == [0, 1]


@pytest.mark.parametrize(("kind", "learned"), [("arrays", N), ("objects", N), ("kept", 0)])
def test_dropped_arrays_may_wait_for_labels(kind, learned):
    make, options = KINDS["arrays" if kind == "kept" else kind][0], {} if kind == "kept" else KINDS[kind][2]
    rows = [{**make(i), "k": i, "t": i} for i in range(N)]
    values = [json.dumps({name: value for name, value in row.items() if name != "y"}).encode() for row in rows]
    labels = IterableSource([({"k": i, "t": i + 0.5}, make(i)["y"]) for i in range(N)])
    source = JoinedSource(open_partition(values), labels, key="k", time="t")
    model = TableEncoder(**options) | BSGDClassifier(budget=20, seed=1)
    progress = DelayedLearningLoop(source, model, delayed=DelayedLabels(), on_error="skip", error_share=1.0).run()
    assert progress.learned == learned
    assert progress.refused == ({} if learned == N else {"malformed": N - learned})


def test_refused_rows_are_counted_by_their_reason():
    """Also if the source, and not the model, finds the reason."""
    rows = [({"k": "a", "t": 1.0, "w": 1.0}, None), ({"t": 1.0}, None), ({"k": "b"}, None), ({"k": "c", "t": 2.0}, 1)]
    source = JoinedSource(IterableSource(rows), IterableSource([({"k": "a", "t": 2.0}, None)]), key="k", time="t")
    loop = DelayedLearningLoop(source, BSGDClassifier(budget=20, seed=1), delayed=DelayedLabels(), on_error="skip")
    assert loop.run().refused == {"key": 1, "time": 1, "label": 2}
    source = WeightedSource(IterableSource([({"a": 1.0, "w": w}, 1) for w in (1.0, -1.0, "x")]), "w")
    assert LearningLoop(source, BSGDClassifier(budget=20, seed=1), on_error="skip").run().refused == {"weight": 2}
