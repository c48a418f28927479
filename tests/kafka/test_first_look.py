"""A topic is looked at before it is learned, and each of its rows is learned once all the same."""

import json
import threading
import time

import pytest

from streamsvm import load
from streamsvm.stream import Row
from streamsvm_kafka import JSONCodec, publish

ROWS = [
    Row({"id": f"A{i}", "city": "KLB"[i % 3], "since": f"{1 + i % 28:02d}.03.2024", "n": i % 7 if i % 9 else None}, "uv"[i % 2])
    for i in range(300)
]


@pytest.fixture
def topic(embedded):
    """Publishes rows to a topic, and has its URL and what a client needs to know."""

    def send(rows, partition=0):
        publish(rows, embedded.bootstrap, "rows", JSONCodec("y"), partition=partition, client=embedded.client)

    send.url = embedded.url("rows")
    return send


def test_a_topic_of_a_table_needs_no_flag(topic, call, tmp_path):
    for partition in range(2):
        topic(ROWS[partition::2], partition)
    learn = ["learn", topic.url, "--label", "y", "--stop-at-end", "--checkpoint", tmp_path / "state"]
    said = call(*learn, "--max-rows", 100).stderr
    assert f"first look at {topic.url.partition('?')[0]}, 200 rows" in said
    flags = "--columns id:drop,city:category,since:date=%d.%m.%Y"
    assert f"read with {flags} (" in said
    said = call(*learn).stderr
    assert "first look" not in said
    assert "continuing after row 100" in said
    assert "300 rows" in said
    model = load(tmp_path / "state")
    call(*learn[:-1], tmp_path / "other", *flags.split())
    x = {**ROWS[3].x, "city": "L"}
    assert load(tmp_path / "other").predict_proba_one(x) == model.predict_proba_one(x)


def test_ask_stops_at_a_topic(topic, call):
    topic(ROWS)
    said = call("learn", topic.url, "--label", "y", "--stop-at-end", "--ask", status=1).stderr
    assert said.endswith("Try: --columns id:drop,city:category,since:date=%d.%m.%Y\n")


def test_an_empty_topic_that_ends_has_nothing_to_look_at(topic, call):
    topic([])
    call("learn", topic.url, "--label", "y", "--stop-at-end", status=1, says="has no rows: there is nothing to learn")


@pytest.mark.parametrize("more", [[], ["--metrics-port", "0"]])
def test_the_rows_of_a_topic_from_its_latest_are_all_learned(topic, call, tmp_path, more, monkeypatch):
    """Those that came while it was looked at, too; where metrics are served, the first row is not waited for."""
    monkeypatch.setattr("streamsvm.stream.look.beginnings.SECONDS", 0.5)
    topic(ROWS[:7])
    new = [Row({"n": i % 7, "k": i % 5} | ({} if more else {"city": "KLB"[i % 3]}), i % 2) for i in range(10)]

    def write():
        time.sleep(1.5)
        topic(new)

    writer = threading.Thread(target=write)
    writer.start()
    words = ["--from", "latest", "--max-rows", 10, "--to", tmp_path / "out.jsonl", "--keep", "n,k"]
    said = call("learn", topic.url, "--label", "y", *words, *more).stderr
    writer.join()
    assert ("waiting for the first row of" in said, "read with --columns city:category" in said) == (not more, not more)
    lines = list(map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines()))
    assert [(line["offset"], line["n"], line["k"]) for line in lines] == [(7 + i, i % 7, i % 5) for i in range(10)]
