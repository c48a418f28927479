"""The flag --on-schema: a change of the columns is reported, or stops the run."""

import json
import random

import pytest


@pytest.fixture
def rows(tmp_path):
    """JSON lines whose column ``a`` is renamed at row 2,100."""
    rng, path = random.Random(0), tmp_path / "rows.jsonl"
    lines = [{"a" if i < 2100 else "A": rng.random(), "b": rng.random(), "y": i % 2} for i in range(3200)]
    path.write_text("".join(json.dumps(x) + "\n" for x in lines))
    return path


@pytest.mark.filterwarnings("ignore:.*of the columns that the model has learned")
def test_a_change_is_a_warning_or_stops_the_run(call, rows, tmp_path):
    words = "learn", rows, "--label", "y", "--learner", "bsgd,budget=5", "--checkpoint", tmp_path / "state"
    for _ in range(2):
        stopped = call(*words, "--on-schema", "stop", status=1).stderr
        assert "rows 2,501 to 3,000: column 'a' is gone (0%, before 100%), column 'A' is new" in stopped
        assert "(100%, before 0%). The run stops after 2,000 rows: fix the producer, or continue with --on-schema warn" in stopped
    log = call(*words, "--log-format", "json").stderr.splitlines()
    (event,) = [line for line in map(json.loads, log) if line.get("event") == "schema"]
    assert (event["level"], event["row"], event["changes"]) == ("warning", 3000, [["gone", "a"], ["new", "A"]])
    predicted = call(
        "predict", rows, "--model", tmp_path / "state", "--to", tmp_path / "out.csv", "--on-schema", "stop", status=1
    ).stderr
    assert "column 'a' is gone" in predicted
