"""A topic is looked at before it is learned, and each of its rows is learned once all the same."""

import json
import subprocess
import sys
import threading
from contextlib import closing
from types import SimpleNamespace

import pytest

from loops import make_model
from patience import PATIENCE, until
from streamsvm import load
from streamsvm.cli.arguments import Reporter
from streamsvm.stream import CheckpointFolder, FollowedFolder, LearningLoop, PredictionLoop, Row, Sink
from streamsvm.stream.checkpoint import CheckpointError
from streamsvm_kafka import JSONCodec, KafkaSource, publish

ROWS = [
    Row({"id": f"A{i}", "city": "KLB"[i % 3], "since": f"{1 + i % 28:02d}.03.2024", "n": i % 7 if i % 9 else None}, "uv"[i % 2])
    for i in range(300)
]


@pytest.fixture
def topic(embedded):
    """Publishes rows to a topic; has the topic's URL and options of clients."""

    def send(rows, partition=0):
        publish(rows, embedded.bootstrap, "rows", JSONCodec("y"), partition=partition, client=embedded.client)

    send.url = embedded.url("rows")
    return send


@pytest.fixture
def heard(monkeypatch):
    """Records the reports of the command line in this process; ``on`` maps beginnings of lines to actions."""
    monkeypatch.setattr("streamsvm.stream.schema.source_sample.SAMPLE_WAIT_SECONDS", 0.1)
    listener = SimpleNamespace(said=[], on={})

    report_event = Reporter.report_event

    def hears(self, text, event, **fields):
        listener.said.append(text)
        for begins, do in listener.on.items():
            if text.startswith(begins):
                do()
        report_event(self, text, event, **fields)

    monkeypatch.setattr(Reporter, "report_event", hears)
    return listener


def test_a_topic_of_a_table_needs_no_flag(topic, call, tmp_path):
    for partition in range(2):
        topic(ROWS[partition::2], partition)
    learn = ["learn", topic.url, "--label", "y", "--stop-at-end", "--checkpoint", tmp_path / "state"]
    flags = "--columns id:drop,city:category,since:date=%d.%m.%Y"
    assert call(*learn, "--ask", status=1).stderr.endswith(f"Try: {flags}\n")
    said = call(*learn, "--max-rows", 100).stderr
    assert f"first look at {topic.url.partition('?')[0]}, 200 rows" in said
    assert f"read with {flags} (" in said
    said = call(*learn).stderr
    assert "first look" not in said
    assert "continuing after row 100" in said
    assert "300 rows" in said
    model = load(tmp_path / "state")
    call(*learn[:-1], tmp_path / "other", *flags.split())
    x = {**ROWS[3].x, "city": "L"}
    assert load(tmp_path / "other").predict_proba_one(x) == model.predict_proba_one(x)


def test_sentences_of_a_topic_are_texts(topic, call):
    things, states = ("kettle", "lamp", "clock", "chair", "radio", "fan"), ("loud", "broken", "new", "warm")
    bodies = [f"The {thing} in our kitchen is {state}" for thing in things for state in states]
    topic([Row({"m": {"body": body}, "n": i}, "uv"[i % 2]) for i, body in enumerate(bodies)])
    said = call("learn", topic.url, "--label", "y", "--stop-at-end", "--ask", status=1).stderr
    assert "m.body (sentences or titles: 7 words per value, 100 % distinct; or a category)" in said
    assert "m.body:text" in said


def test_a_model_is_exported_and_compared_on_messages_with_marks(topic, call, tmp_path):
    """Marks of missing values, dates and formatted numbers are parsed in a sample as when they are learned."""
    rows = [Row({**row.x, "n": "NA" if i % 9 == 0 else f"{row.x['n']:,}.50"}, row.y) for i, row in enumerate(ROWS)]
    topic(rows)
    lines = tmp_path / "rows.jsonl"
    lines.write_text("".join(json.dumps(row.x | {"y": row.y}) + "\n" for row in rows))
    words = ["--columns", "id:drop,city:category,since:date=%d.%m.%Y", "--missing", "NA", "--decimal", ".", "--label", "y"]
    learn = ["learn", topic.url, *words, "--learner", "bsgd,budget=20", "--stop-at-end", "--checkpoint", tmp_path / "state"]
    call(*learn, "--quiet")
    export = ["export", tmp_path / "state", "--to", "numpy", "--out", tmp_path / "out", "--max-bytes", "600", "--sample"]
    for place in (topic.url, str(lines)):
        assert " of 300 rows (" in call(*export, place).stdout
    call(*export, topic.url, *["--name", "again"])


def test_anomalies_of_a_topic_are_those_of_a_file(topic, call, tmp_path):
    """A topic without labels is learned in two runs, and predicted, as the same rows in a file."""
    topic([Row(row.x, None) for row in ROWS])
    lines = tmp_path / "rows.jsonl"
    lines.write_text("".join(json.dumps(row.x) + "\n" for row in ROWS))
    words = ["--learner", "anomaly,budget=20", "--stop-at-end"]
    for place, name, more in ((topic.url, "topic", ["--max-rows", 120]), (topic.url, "topic", []), (lines, "file", [])):
        call("learn", place, *words, *more, "--checkpoint", tmp_path / name, "--to", tmp_path / f"{name}.jsonl")
    call("predict", topic.url, "--stop-at-end", "--model", tmp_path / "topic", "--to", tmp_path / "again.jsonl")
    call("predict", lines, "--model", tmp_path / "file", "--to", tmp_path / "expected.jsonl")

    def read_scores(name):
        rows = map(json.loads, (tmp_path / f"{name}.jsonl").read_text().splitlines())
        return [(row["y_pred"], row["is_anomaly"]) for row in rows]

    assert read_scores("topic") == read_scores("file")
    assert read_scores("again") == read_scores("expected")
    assert len(read_scores("again")) == len(ROWS)


def test_an_empty_topic_that_ends_has_nothing_to_look_at(topic, call):
    topic([])
    call("learn", topic.url, "--label", "y", "--stop-at-end", status=1, says="has no rows: there is nothing to learn")


@pytest.mark.parametrize("more", [[], ["--metrics-port", "0"]])
def test_the_rows_of_a_topic_from_its_latest_are_all_learned(topic, call, tmp_path, more, heard):
    """Those that came while it was looked at, too; where metrics are served, the first row is not waited for."""
    topic(ROWS[:7])
    new = [Row({"n": i % 7, "k": i % 5} | ({} if more else {"city": "KLB"[i % 3]}), i % 2) for i in range(10)]
    heard.on["waiting for rows" if more else "waiting for the first row of"] = lambda: topic(new)
    words = ["--from", "latest", "--max-rows", 10, "--to", tmp_path / "out.jsonl", "--passthrough", "n,k"]
    said = call("learn", topic.url, "--label", "y", *words, *more).stderr
    assert ("waiting for the first row of" in said, "read with --columns city:category" in said) == (not more, not more)
    lines = list(map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines()))
    assert [(line["offset"], line["n"], line["k"]) for line in lines] == [(7 + i, i % 7, i % 5) for i in range(10)]


def test_learner_killed_before_first_row_reads_later_rows(topic, embedded, call, tmp_path):
    """It was to begin at the latest row, and waited for it."""

    def answer(numbers):
        rows = [Row({"id": i}, i % 2) for i in numbers]
        publish(rows, embedded.bootstrap, "labels", JSONCodec("y"), client=embedded.client)

    topic(ROWS[:7])
    answer([99])
    words = ["learn", topic.url, "--label", "y", "--from", "latest", "--checkpoint", tmp_path / "state"]
    words += ["--labels", f"{embedded.url('labels')}&key=id"]
    killed = subprocess.Popen([sys.executable, "-m", "streamsvm", *map(str, words)], stderr=subprocess.PIPE, text=True)
    until(lambda: "waiting for the first row" in killed.stderr.readline())
    killed.kill()
    killed.communicate(timeout=PATIENCE)
    call("inspect", tmp_path / "state", status=1, says="holds no model yet: its learner has not had a row")
    with pytest.raises(CheckpointError, match="holds no model yet"):
        load(tmp_path / "state")
    topic([Row({"id": i, "n": i % 7}, None) for i in range(10)])
    answer(range(10))
    said = call(*words, "--max-rows", 20, "--columns", "id:drop").stderr
    assert "continuing" not in said
    assert load(tmp_path / "state")["BSGDClassifier"].n_learned == 10


def test_run_without_rows_resumes_at_its_start_position(topic, embedded, tmp_path):
    topic(ROWS[:7])

    def begun(kind, *arguments):
        source = KafkaSource(embedded.bootstrap, "rows", JSONCodec("y"), start="latest", client=embedded.client)
        loop = kind(source, make_model(), *arguments, checkpoints=stack[-1], on_error="skip")
        return closing(source), loop

    for kind, more in ((LearningLoop, ()), (PredictionLoop, (NoSink(),))):
        stack = [CheckpointFolder(tmp_path / kind.__name__)]
        for stopped in (False, True):  # dropped, as by a kill; and stopped
            source, loop = begun(kind, *more)
            with source:
                if stopped:
                    threading.Timer(0.3, loop.stop).start()
                    loop.run()
        assert FollowedFolder(tmp_path / kind.__name__).read_newer() is None
        topic([Row({"n": i}, i % 2) for i in range(5)])
        source, loop = begun(kind, *more)
        with source:
            assert loop.run(5).rows == 5
            assert loop.source.position["offsets"]["0"] == 12 + 5 * (kind is PredictionLoop)
        stack[-1].close()


class NoSink(Sink):
    name = "nothing"

    def write(self, record):
        pass

    def flush(self):
        return {}
