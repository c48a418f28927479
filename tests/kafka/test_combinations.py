"""The command line with each pair of options of sources and sinks: predictions and models are the same in all cases."""

import json
import random
import uuid
from contextlib import closing
from functools import cache, partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition

import kills
from command_words import main
from pairwise import pairwise
from row_tables import stream
from saved import dumps
from streamsvm.stream import load
from streamsvm.stream.rows import find_learner

pytestmark = pytest.mark.broker

N, EVERY, BEGIN = 600, 200, 1_700_000_000.0  # rows (more than one poll returns), and the interval of bad rows
DRAW = random.Random(5)
# Numbers that float32 holds, as which they are read in Arrow.
POINTS = [(*np.float32([DRAW.gauss(), DRAW.gauss()]).tolist(), DRAW.choice(["red", "green", "blue"])) for _ in range(N)]
ROWS = [
    {"id": f"r{i:05}", "at": BEGIN + i, "w": i % 3 / 2, "a": a, "b": b, "c": c, "y": int((a * b > 0.0) ^ (c == "red"))}
    for i, (a, b, c) in enumerate(POINTS)
]
BAD = b"no row"

YES = ("no", "yes")
LEARN = {
    "source": ("file", "topic", "arrow"),
    "library": ("kafka-python", "confluent-kafka"),
    "checkpoint": ("folder", "topic", "none"),
    "sink": ("topic", "file", "none"),
    "letters": ("skip", "file", "topic"),
    "labels": ("inside", "file", "topic"),
    **dict.fromkeys(("weight", "keep", "headers", "metrics", "endless", "resumed", "group"), YES),
}
PREDICT = {
    "source": ("file", "topic", "arrow"),
    "library": ("kafka-python", "confluent-kafka"),
    "model": ("folder", "topic"),
    "sink": ("topic", "file"),
    "letters": ("skip", "file", "topic"),
    "checkpoint": ("folder", "none"),
    **dict.fromkeys(("follow", "answers", "labels", "keep", "headers", "metrics", "endless", "resumed"), YES),
}
EXCLUDED = [
    ("keep", "yes", "sink", "none"),
    *(("labels", place, *constraint) for place in ("file", "topic") for constraint in (("weight", "yes"), ("endless", "yes"))),
    *(("labels", place, "source", "arrow") for place in ("file", "topic")),
    *((name, "yes", "source", "file") for name in ("headers", "endless", "group")),
    *((name, "yes", "checkpoint", "none") for name in ("resumed", "group")),
]


def cases_of(factors):
    excluded = [exclusion for exclusion in EXCLUDED if {exclusion[0], exclusion[2]} <= factors.keys()]
    return [pytest.param(case, id="-".join(case.values())) for case in pairwise(factors, excluded)]


def lines_of(rows, bad=True):
    """Rows as messages of JSON, with bad ones."""
    results = []
    for i, row in enumerate(rows):
        results.append(json.dumps(row).encode())
        if bad and i % EVERY == EVERY - 1:
            results.append(BAD)
    return results


def arrow_of(rows):
    results = []
    for first in range(0, N, EVERY // 2):
        part = rows[first : first + EVERY // 2]
        results.append(stream(pa.RecordBatch.from_pylist(part)))
        if (first + len(part)) % EVERY == 0:
            results.append(BAD)
    return results


@pytest.fixture(scope="module")
def inputs(bootstrap, tmp_path_factory):
    """Makes files, topics and models, once each, and a place in them for an output."""
    folder = tmp_path_factory.mktemp("given")
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap)) as admin, KafkaProducer(bootstrap_servers=bootstrap) as producer:

        class Given:
            @staticmethod
            def topic(**configs):
                name = f"streamsvm-test-{uuid.uuid4().hex[:12]}"
                options = {"num_partitions": 1, "replication_factor": 1, "configs": {"retention.ms": "-1", **configs}}
                admin.create_topics({name: options}, wait_for_metadata=True)
                return name

            @staticmethod
            @cache
            def source(kind, labels, headers):
                """The place of rows: without their labels, unless these are inside."""
                rows = ROWS if labels else [{name: value for name, value in row.items() if name != "y"} for row in ROWS]
                if kind == "file":
                    path = folder / f"rows-{labels}.jsonl"
                    path.write_bytes(b"\n".join(lines_of(rows)) + b"\n")
                    return str(path)
                topic = Given.topic()
                for i, value in enumerate(arrow_of(rows) if kind == "arrow" else lines_of(rows)):
                    more = {"key": b"key %d" % i, "headers": [("trace", b"%d" % i)]} if headers else {}
                    producer.send(topic, value, **more)
                producer.flush()
                return f"kafka://{bootstrap}/{topic}" + "?codec=arrow" * (kind == "arrow")

            @staticmethod
            @cache
            def labels(kind):
                lines = lines_of([{"id": row["id"], "at": row["at"] + 5.0, "y": row["y"]} for row in ROWS], bad=False)
                if kind == "file":
                    (folder / "labels.jsonl").write_bytes(b"\n".join(lines) + b"\n")
                    return str(folder / "labels.jsonl")
                topic = Given.topic()
                for line in lines:
                    producer.send(topic, line)
                producer.flush()
                return f"kafka://{bootstrap}/{topic}"

            @staticmethod
            @cache
            def learned(labels, weight):
                """The model and the predictions of a run over files, without anything else."""
                state, out = (folder / f"{name} {labels} {weight}" for name in ("state", "out"))
                words = words_of(Given, {"source": "file", "labels": labels, "weight": weight})
                assert main(["learn", *words, "--checkpoint", state, "--to", f"{out}.jsonl", "--on-error", "skip"]) == 0
                return state, dumps(find_learner(load(state))), kept(records_of(bootstrap, f"{out}.jsonl"))

            @staticmethod
            @cache
            def model(kind):
                if kind == "folder":
                    return str(Given.learned("inside", "no")[0])
                place = f"kafka://{bootstrap}/{Given.topic(**{'cleanup.policy': 'compact'})}?name=rows"
                assert main(["learn", *words_of(Given, {"source": "file"}), "--on-error", "skip", "--checkpoint", place]) == 0
                return place

            @staticmethod
            @cache
            def predicted():
                words = Given.source("file", True, False), "--model", Given.model("folder"), "--to", folder / "predicted.jsonl"
                assert main(["predict", *words, "--on-error", "skip", *ANSWERS]) == 0
                return kept(records_of(bootstrap, folder / "predicted.jsonl"))

        yield Given


ANSWERS = "--probabilities", "--explain", "1"


def words_of(inputs, case):
    """What both commands are told of the source."""
    inside, weight = case.get("labels", "inside") == "inside", case.get("weight", "no") == "yes"
    words = [inputs.source(case["source"], inside, case.get("headers") == "yes"), "--label", "y", "--columns"]
    words.append("id:drop,at:drop,c:category" + ",w:drop" * (not weight))
    words += ["--weight", "w"] * weight
    return words if inside else [*words, "--labels", f"{inputs.labels(case['labels'])}?key=id&time=at"]


def records_of(bootstrap, place):
    """The records in a file or a topic, and the messages of a topic."""
    if not str(place).startswith("kafka://"):
        return [json.loads(line) for line in Path(place).read_text().splitlines()]
    messages = kills.committed(bootstrap, place.rpartition("/")[2])
    return [json.loads(message.value) | {"message": message} for message in messages]


def kept(records):
    names = "y_pred", "probability", "probabilities", "why"
    return [{name: record[name] for name in names if name in record} for record in records]


def places_of(case, bootstrap, inputs, tmp_path):
    """Return the sink, dead letters and checkpoints of a case as values of flags, or None."""
    compact = {"cleanup.policy": "compact"}

    def place(name, kind):
        if kind == "topic":
            is_model = name == "checkpoint"
            return f"kafka://{bootstrap}/{inputs.topic(**compact if is_model else {})}" + "?name=rows" * is_model
        return None if kind in ("none", "skip") else str(tmp_path / name) + ".jsonl" * (kind == "file")

    return [place(name, case[name]) for name in ("sink", "letters", "checkpoint")]


def run_all(case, words, total, call):
    """Run a command to the end, perhaps in two parts, and return its last JSON line."""
    words = [*words, "--quiet", *["--metrics-port", "0"] * (case["metrics"] == "yes")]
    done = 0
    if case["resumed"] == "yes":
        done = 450
        call(*words, "--max-rows", done, *["--stop-at-end"] * (case["endless"] == "no" and case["source"] != "file"))
    if case["endless"] == "yes":
        return call(*words, "--max-rows", total - done).end
    return call(*words, *["--stop-at-end"] * ("kafka://" in " ".join(map(str, words[1:])))).end


def check_records(case, bootstrap, sink, letters, expected):
    n_bad, of_topic = N // EVERY, case["source"] != "file"
    if letters is not None:
        assert [record["kind"] for record in records_of(bootstrap, letters)] == ["malformed"] * n_bad
    if sink is None:
        return
    results = records_of(bootstrap, sink)
    assert kept(results) == expected
    if case["keep"] == "yes":
        assert [(record["id"], record["w"]) for record in results] == [(row["id"], row["w"]) for row in ROWS]
    for i, record in enumerate(results):
        place = (i // (EVERY // 2), i % (EVERY // 2)) if case["source"] == "arrow" else (i, 0)
        number = place[0] + i // EVERY  # of the message, with the bad ones before it
        if of_topic:
            assert (record["partition"], record["offset"], record.get("within", 0)) == (0, number, place[1])
        if of_topic and case["headers"] == "yes" and case["sink"] == "topic":
            message = record["message"]
            assert (message.key, message.headers[0]) == (b"key %d" % number, ("trace", b"%d" % number))


@pytest.mark.parametrize("case", cases_of(LEARN))
def test_learn(case, bootstrap, inputs, call, tmp_path, monkeypatch):
    monkeypatch.setenv("STREAMSVM_KAFKA_CLIENT", case["library"])
    sink, letters, checkpoint = places_of(case, bootstrap, inputs, tmp_path)
    words = ["learn", *words_of(inputs, case), "--on-error", letters or "skip"]
    words += [*["--to", sink] * (sink is not None), *["--checkpoint", checkpoint] * (checkpoint is not None)]
    words += ["--passthrough", "id,w"] * (case["keep"] == "yes")
    group = uuid.uuid4().hex
    words += ["--group", group] * (case["group"] == "yes")
    n_bad, n_labels = N // EVERY, N * (case["labels"] != "inside")
    progress = run_all(case, words, N + n_bad + n_labels, call)
    _, model, expected = inputs.learned("inside" if case["labels"] == "inside" else "file", case["weight"])
    learned = sum(row["w"] > 0.0 for row in ROWS) if case["weight"] == "yes" else N
    assert (progress["rows"], progress["learned"], progress["refused"]) == (N + n_bad + n_labels, learned, {"malformed": n_bad})
    check_records(case, bootstrap, sink, letters, expected)
    if case["checkpoint"] == "folder":
        assert dumps(find_learner(load(checkpoint))) == model
    elif case["checkpoint"] == "topic":
        call("export", checkpoint, "--to", "numpy", "--out", tmp_path)
    if case["group"] == "yes":
        topic = words[1].rpartition("/")[2].partition("?")[0]
        key = TopicPartition(topic, 0)
        with closing(KafkaConsumer(bootstrap_servers=bootstrap, group_id=group)) as consumer:
            assert consumer.committed(key) == consumer.end_offsets([key])[key]


@pytest.mark.parametrize("case", cases_of(PREDICT))
def test_predict(case, bootstrap, inputs, call, tmp_path, monkeypatch):
    monkeypatch.setenv("STREAMSVM_KAFKA_CLIENT", case["library"])
    sink, letters, checkpoint = places_of(case, bootstrap, inputs, tmp_path)
    source = inputs.source(case["source"], case["labels"] == "yes", case["headers"] == "yes")
    words = ["predict", source, "--model", inputs.model(case["model"]), "--to", sink, "--on-error", letters or "skip"]
    words += [*["--checkpoint", checkpoint] * (checkpoint is not None), *["--follow"] * (case["follow"] == "yes")]
    words += [*["--passthrough", "id,w"] * (case["keep"] == "yes"), *(ANSWERS if case["answers"] == "yes" else ())]
    n_bad = N // EVERY
    progress = run_all(case, words, N + n_bad, call)
    assert (progress["rows"], progress["predicted"], progress["refused"]) == (N + n_bad, N, {"malformed": n_bad})
    names = {"y_pred", "probability"} | ({"probabilities", "why"} if case["answers"] == "yes" else set())
    expected = [{name: record[name] for name in record.keys() & names} for record in inputs.predicted()]
    check_records(case, bootstrap, sink, letters, expected)


@pytest.mark.parametrize("library", ["kafka-python", "confluent-kafka"])
@pytest.mark.parametrize(("weight", "metrics"), [("no", "yes"), ("yes", "no")])
def test_workers(library, weight, metrics, bootstrap, inputs, call, tmp_path, monkeypatch):
    monkeypatch.setenv("STREAMSVM_KAFKA_CLIENT", library)
    words = words_of(inputs, {"source": "topic", "weight": weight})
    words += ["--group", uuid.uuid4().hex, "--scope", "partition", "--checkpoint", tmp_path / "state", "--on-error", "skip"]
    run = partial(run_all, {"metrics": metrics, "resumed": "yes", "endless": "no", "source": "topic"})
    progress = run(["learn", *words], N, call)["partitions"]["0"]
    assert (progress["rows"], progress["refused"]) == (N + N // EVERY, {"malformed": N // EVERY})
    assert dumps(find_learner(load(tmp_path / "state" / "partition-0"))) == inputs.learned("inside", weight)[1]
