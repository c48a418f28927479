"""Lines of JSON on standard error: what they tell, and what they do not."""

import io
import json
import logging
import select
import signal
import subprocess
import sys
from datetime import UTC, datetime

import pytest
from river import datasets

from command_words import with_a_model
from patience import PATIENCE
from streamsvm.stream.logs import RedactingFilter, event, json_lines, redacting


@pytest.fixture
def csv_file(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("a,b,y\n" + "".join(f"{x['1']},{x['2']},{y}\n" for x, y in datasets.Bananas().take(500)))
    return path


def lines_of(text):
    lines = [json.loads(line) for line in text.splitlines()]
    for line in lines:
        assert list(line)[:4] == ["time", "level", "logger", "message"]
        age = (datetime.now(UTC) - datetime.fromisoformat(line["time"])).total_seconds()
        assert -1.0 < age < 600.0
    return lines


def test_a_run_is_told_from_its_start_to_its_end(csv_file, tmp_path, call):
    words = "learn", csv_file, "--label", "y", "--checkpoint", tmp_path / "state", "--checkpoint-every", 200
    done = call(*words, "--log-format", "json")
    assert (done.returncode, done.stdout) == (0, "")
    lines = [line for line in lines_of(done.stderr) if line["event"] != "progress"]
    assert [line["event"] for line in lines] == ["start", "checkpoint", "checkpoint", "checkpoint", "end"]
    assert [line["rows"] for line in lines] == [0, 200, 400, 500, 500]
    newest = tmp_path / "state" / "checkpoint-000000000500.ckpt"
    assert lines[3]["path"] == str(newest)
    assert lines[3]["bytes"] == newest.stat().st_size
    assert 0.0 < lines[3]["seconds"] < 60.0
    assert lines[-1]["metric_name"] == "Accuracy"
    assert lines[-1]["interrupted"] is False
    again = call(*words, "--log-format", "json", "--quiet")
    assert [json.loads(line)["event"] for line in again.stdout.splitlines()] == ["end"]
    assert [line["event"] for line in lines_of(again.stderr)] == ["start", "end"]


@pytest.mark.filterwarnings("default")
def test_what_fails_and_what_is_warned_of_are_lines(csv_file, tmp_path, call):
    state, broken = tmp_path / "state", tmp_path / "state" / "checkpoint-000000009000.ckpt"
    words = "learn", csv_file, "--label", "y", "--checkpoint", state, "--log-format", "json", "--log-level", "warning"
    assert call(*words).stderr == ""
    broken.write_bytes(b"nothing")
    (line,) = lines_of(call(*words).stderr)
    assert line["level"] == "warning"
    assert f"{broken}" in line["message"]
    missing = lines_of(call("predict", tmp_path / "none.csv", "--model", state, "--to", "-", "--log-format", "json").stderr)
    assert (missing[-1]["level"], missing[-1]["event"]) == ("error", "error")
    assert "none.csv: No such file" in missing[-1]["message"]


def test_a_level_is_of_lines_of_json(csv_file, call):
    done = call("learn", csv_file, "--label", "y", "--log-level", "debug")
    assert done.returncode == 2
    assert "--log-level is about lines of JSON" in done.stderr


def test_text_stays_as_it_is_and_no_handler_stays(csv_file, tmp_path, call):
    logger = logging.getLogger("streamsvm")
    before = logging.getLogger().handlers[:], logger.level
    done = call("learn", csv_file, "--label", "y", "--checkpoint", tmp_path / "state", "--log-format", "json")
    assert done.returncode == 0
    assert (logging.getLogger().handlers, logger.level) == before
    text = call("learn", csv_file, "--label", "y", "--checkpoint", tmp_path / "other").stderr
    assert "{" not in text
    assert "checkpoint after" not in text


SECRET = 'an "open" secret with ünicode'


@pytest.mark.parametrize(
    "tell",
    [
        lambda logger: logger.warning("the password is %s", SECRET),
        lambda logger: logger.debug("%r", {"sasl_plain_password": SECRET}),
        lambda logger: logger.info("%r", SECRET.encode()),
        lambda logger: logger.info("sent %s", json.dumps({"password": SECRET})),
        lambda logger: logger.info("a field", extra=event("told", options={"password": SECRET})),
        lambda logger: logger.error("it failed", exc_info=ValueError(f"{SECRET} is wrong")),
    ],
)
@pytest.mark.parametrize("name", ["streamsvm", "streamsvm_kafka.sink", "kafka.a.logger.that.did.not.exist"])
def test_no_line_shows_a_secret(tell, name, monkeypatch):
    monkeypatch.setattr(redacting, "_secrets", set())
    stream = io.StringIO()
    with json_lines(stream, "debug"):
        redacting.add(SECRET)
        tell(logging.getLogger(name))
        monkeypatch.setattr(redacting, "_secrets", set())
        tell(logging.getLogger(name))
    hidden, *shown = lines_of(stream.getvalue())
    assert hidden["message"] == "(not shown, as it holds a secret)"
    assert list(hidden) == ["time", "level", "logger", "message"]
    assert all("secret" in str(line) for line in shown)  # so that it would have been seen


def test_arguments_that_do_not_fit_are_looked_at():
    some = RedactingFilter()
    some.add(SECRET)
    record = logging.makeLogRecord({"msg": "%s and %s", "args": (SECRET,)})
    assert some.filter(record)
    assert record.getMessage() == "(not shown, as it holds a secret)"
    assert some.filter(logging.makeLogRecord({"msg": "%s and %s", "args": ("nothing",)}))


def test_an_empty_secret_hides_nothing():
    nothing = RedactingFilter()
    nothing.add("")
    record = logging.makeLogRecord({"msg": "rows"})
    assert nothing.filter(record)
    assert record.getMessage() == "rows"


@pytest.mark.thorough
def test_a_follower_tells_of_its_models_and_ends_in_order(csv_file, tmp_path, call):
    state, position = tmp_path / "state", tmp_path / "position"
    learn = "learn", csv_file, "--label", "y", "--checkpoint", state
    assert call(*learn, "--max-rows", 200).returncode == 0
    words = "predict", "-", "--format", "jsonl", "--model", state, "--follow", "--to", tmp_path / "out.jsonl"
    command = [*words, "--checkpoint", position, "--log-format", "json"]
    with subprocess.Popen(
        [sys.executable, "-m", "streamsvm", *with_a_model(command)], stdin=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
    ) as follower:
        try:
            follower.stdin.write(b'{"a": 0.5, "b": 0.1}\n')
            assert json.loads(follower.stderr.readline())["version"] == 200
            assert call(*learn).returncode == 0
            line = b""
            while b'"event": "model"' not in line:
                follower.stdin.write(b'{"a": 0.5, "b": 0.1}\n')
                found, _, _ = select.select([follower.stderr], [], [], 0.1)
                line = follower.stderr.readline() if found else b""
            assert json.loads(line)["version"] == 500
            follower.send_signal(signal.SIGTERM)
            assert follower.wait(PATIENCE) == 130
            told = lines_of(follower.stderr.read().decode())
        finally:
            follower.kill()
    told = [line for line in told if "event" in line]  # without what is said of a slow end
    assert [line["event"] for line in told] == ["checkpoint", "end"]
    assert told[-1]["interrupted"] is True
    n = len((tmp_path / "out.jsonl").read_text().splitlines())
    assert (position / f"checkpoint-{n:012d}.ckpt").exists()
    assert told[-1]["rows"] == n
