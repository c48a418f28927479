"""A column that the producer of a topic renames is reported to the learner and to a follower."""

import json

import pytest

from streamsvm.stream import Row
from streamsvm_kafka import ArrowCodec, JSONCodec, publish


@pytest.mark.filterwarnings("ignore:.*of the columns that the model has learned")
@pytest.mark.parametrize(("codec", "rows_per_message"), [("json", 1), ("arrow", 50)])
def test_a_renamed_column_is_reported_within_1000_rows(embedded, call, tmp_path, codec, rows_per_message):
    rows = [Row({"a" if i < 2100 else "A": i % 7 / 7, "b": i % 11 / 11}, "uv"[i % 2]) for i in range(4200)]
    encoder = {"json": JSONCodec, "arrow": ArrowCodec}[codec]("y")
    for partition in range(2):
        publish(
            rows[partition::2],
            embedded.bootstrap,
            codec,
            encoder,
            rows_per_message=rows_per_message,
            partition=partition,
            client=embedded.client,
        )
    words = embedded.url(codec, codec=codec), "--stop-at-end", "--log-format", "json"
    state = tmp_path / "state"
    learned = call("learn", *words, "--label", "y", "--learner", "bsgd,budget=5", "--checkpoint", state)
    predicted = call("predict", *words, "--model", state, "--to", tmp_path / "predictions.csv")
    for done in (learned, predicted):
        (event,) = [line for line in map(json.loads, done.stderr.splitlines()) if line.get("event") == "schema"]
        assert event["changes"] == [["gone", "a"], ["new", "A"]]
        assert event["row"] <= 3100
