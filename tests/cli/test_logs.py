"""JSON lines on standard error: the events that they contain, and secrets that they do not."""

import json
import logging
import select
import signal
from datetime import UTC, datetime
from subprocess import PIPE

import pytest

from forked import Command
from patience import PATIENCE


def lines_of(text):
    lines = [json.loads(line) for line in text.splitlines()]
    for line in lines:
        assert list(line)[:4] == ["time", "level", "logger", "message"]
        age = (datetime.now(UTC) - datetime.fromisoformat(line["time"])).total_seconds()
        assert -1.0 < age < 600.0
    return lines


def test_json_logs_cover_a_whole_run(bananas, tmp_path, call):
    words = "learn", bananas(500), "--label", "y", "--checkpoint", tmp_path / "state", "--checkpoint-every", 200
    done = call(*words, "--log-format", "json")
    assert done.stdout == ""
    lines = [line for line in lines_of(done.stderr) if line["event"] != "progress"]
    assert [line["event"] for line in lines] == ["start", "checkpoint", "checkpoint", "checkpoint", "end"]
    assert [line["rows"] for line in lines] == [0, 200, 400, 500, 500]
    newest = tmp_path / "state" / "checkpoint-000000000500.ckpt"
    assert lines[3]["path"] == str(newest)
    assert lines[3]["bytes"] == newest.stat().st_size
    assert lines[3]["seconds"] > 0.0
    assert lines[-1]["metric_name"] == "Accuracy"
    assert lines[-1]["interrupted"] is False
    again = call(*words, "--log-format", "json", "--quiet")
    assert [json.loads(line)["event"] for line in again.stdout.splitlines()] == ["end"]
    assert [line["event"] for line in lines_of(again.stderr)] == ["start", "end"]


@pytest.mark.filterwarnings("default")
def test_errors_and_warnings_are_json_lines(bananas, tmp_path, call):
    state, broken = tmp_path / "state", tmp_path / "state" / "checkpoint-000000009000.ckpt"
    words = "learn", bananas(500), "--label", "y", "--checkpoint", state, "--log-format", "json", "--log-level", "warning"
    assert call(*words).stderr == ""
    broken.write_bytes(b"nothing")
    (line,) = lines_of(call(*words).stderr)
    assert line["level"] == "warning"
    assert f"{broken}" in line["message"]
    predict = "predict", tmp_path / "none.csv", "--model", state, "--to", "-", "--log-format", "json"
    missing = lines_of(call(*predict, status=1).stderr)[-1]
    assert (missing["level"], missing["event"]) == ("error", "error")
    assert "none.csv: No such file" in missing["message"]


def test_text_logs_are_unchanged_and_handlers_removed(bananas, tmp_path, call):
    logger = logging.getLogger("streamsvm")
    before = logging.getLogger().handlers[:], logger.level
    call("learn", bananas(500), "--label", "y", "--checkpoint", tmp_path / "state", "--log-format", "json")
    assert (logging.getLogger().handlers, logger.level) == before
    text = call("learn", bananas(500), "--label", "y", "--checkpoint", tmp_path / "other").stderr
    assert "{" not in text
    assert "checkpoint after" not in text


@pytest.mark.thorough
def test_follower_logs_new_models_and_stops_cleanly(bananas, tmp_path, call):
    state, position = tmp_path / "state", tmp_path / "position"
    learn = "learn", bananas(500), "--label", "y", "--checkpoint", state
    call(*learn, "--max-rows", 200)
    words = "predict", "-", "--format", "jsonl", "--model", state, "--follow", "--to", tmp_path / "out.jsonl"
    with Command([*words, "--checkpoint", position, "--log-format", "json"], stdin=PIPE, stderr=PIPE) as follower:
        try:
            follower.stdin.write(b'{"a": 0.5, "b": 0.1}\n')
            assert json.loads(follower.stderr.readline())["version"] == 200
            call(*learn)
            line = b""
            while b'"event": "model"' not in line:
                follower.stdin.write(b'{"a": 0.5, "b": 0.1}\n')
                readable, _, _ = select.select([follower.stderr], [], [], 0.1)
                line = follower.stderr.readline() if readable else b""
            assert json.loads(line)["version"] == 500
            follower.send_signal(signal.SIGTERM)
            assert follower.wait(PATIENCE) == 130
            records = lines_of(follower.stderr.read().decode())
        finally:
            follower.kill()
    records = [line for line in records if "event" in line]  # without the hint of a slow stop
    assert [line["event"] for line in records] == ["checkpoint", "end"]
    assert records[-1]["interrupted"] is True
    n = len((tmp_path / "out.jsonl").read_text().splitlines())
    assert (position / f"checkpoint-{n:012d}.ckpt").exists()
    assert records[-1]["rows"] == n
