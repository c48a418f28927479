"""Sources, sinks and signals of a command, in a process of its own where that matters: what ends it, and how it ends."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from command_words import with_a_model
from forked import Command
from patience import PATIENCE, signals_of, until
from streamsvm.cli import streams
from streamsvm.stream import Chunk, IterableSource, Row, Table
from streamsvm.stream.tables.chunk import WeightedLabel

PIPES = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)


def command(*words):
    return [sys.executable, "-m", "streamsvm", *with_a_model(words)]


def start(*words):
    return Command(with_a_model(words), **PIPES)


@pytest.mark.thorough
def test_rows_piped_in_one_by_one_and_an_end_while_waiting(tmp_path):
    with start("learn", "-", "--format", "csv", "--label", "y", "--to", "-", "--checkpoint", tmp_path) as learner:
        learner.stdin.write(b"a,b,y\n")
        for row, line in enumerate((b"0.5,0.25,True\n", b"-1.5,0.5,False\n", b"1.0,1.0,True\n")):
            learner.stdin.write(line)
            assert json.loads(learner.stdout.readline())["row"] == row
        learner.stdin.write(b"0.5,0.")
        time.sleep(0.1)
        learner.send_signal(signal.SIGTERM)
        assert learner.wait(PATIENCE) == 130
        assert learner.stdout.read() == b""
        errors = learner.stderr.read().decode()
    assert all(text in errors for text in ("3 rows", "last 3 rows", "interrupted")), errors
    assert (tmp_path / "checkpoint-000000000003.ckpt").exists()


@pytest.fixture
def state(bananas, tmp_path, call):
    """A folder with a model of few rows."""
    call("learn", bananas(), "--label", "y", "--checkpoint", tmp_path / "state", "--max-rows", 10)
    return tmp_path / "state"


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["learn", "predict"])
def test_an_end_before_there_is_a_writer(tmp_path, state, name):
    os.mkfifo(tmp_path / "rows.csv")
    options = {"learn": ["--label", "y"], "predict": ["--model", state, "--to", "-"]}[name]
    with start(name, tmp_path / "rows.csv", *options) as waiting:
        until(lambda: signal.SIGTERM in signals_of(waiting.pid) or waiting.poll() is not None)
        waiting.send_signal(signal.SIGTERM)
        assert waiting.wait(PATIENCE) == 130
        assert b"Traceback" not in waiting.stderr.read()


def test_slow_stop_prints_hint(monkeypatch, caplog):
    monkeypatch.setattr(streams, "_SECONDS_TO_STOP", 0.05)
    stopped = []
    with streams.stop_on_signals(lambda: stopped.append(True)):
        signal.raise_signal(signal.SIGINT)
        until(lambda: "press Ctrl-C again to stop now" in caplog.text)
        with pytest.raises(KeyboardInterrupt):  # by a second one, of either kind
            signal.raise_signal(signal.SIGTERM)
    assert stopped == [True]
    caplog.clear()
    monkeypatch.setattr(streams, "_SECONDS_TO_STOP", PATIENCE)
    other_threads = set(threading.enumerate())
    with streams.stop_on_signals(lambda: None):
        signal.raise_signal(signal.SIGTERM)  # and the end comes at once
    until(lambda: set(threading.enumerate()) <= other_threads)
    assert caplog.text == ""


@pytest.mark.parametrize(
    "words",
    [
        ["learn", "{csv}", "--label", "y", "--to", "-"],
        ["learn", "{csv}", "--label", "y", "--quiet"],
        ["predict", "{csv}", "--model", "{state}", "--to", "-"],
        ["predict", "{csv}", "--model", "{state}", "--to", "/dev/null", "--quiet"],
        ["inspect", "{state}"],
    ],
)
def test_standard_output_that_is_full(bananas, state, call, monkeypatch, words):
    words = [word.format(csv=bananas(), state=state) for word in words]
    with Path("/dev/full").open("w") as full:  # to close it fails if there is something left to write, as an exit does
        monkeypatch.setattr(sys, "stdout", full)
        assert call(*words, status=1).last == "streamsvm: standard output: No space left on device"


@pytest.mark.thorough
def test_closed_output_pipe(bananas, state, call):
    with subprocess.Popen(command("predict", bananas(), "--model", state, "--to", "-"), **PIPES) as piped:
        assert piped.stdout.readline()
        piped.stdout.close()
        assert piped.wait(PATIENCE) == 1
        assert piped.stderr.read() == b""
    call("learn", bananas(), "--label", "y", "--to", "/dev/null", "--max-rows", 5)


@pytest.mark.thorough
@pytest.mark.parametrize(("words", "closed"), [(["-", "--format", "csv"], "<"), (["{csv}", "--to", "-"], ">")])
def test_closed_streams(rows, words, closed):
    learn = command("learn", "--label", "y", *(word.format(csv=rows) for word in words))
    shell = ["sh", "-c", f'exec "$@" {closed}&-', "sh", *learn]
    done = subprocess.run(shell, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"streamsvm: standard {'input' if closed == '<' else 'output'} is closed"


def test_a_sink_does_not_spoil_a_model(rows, tmp_path, call):
    state = tmp_path / "state"
    call("learn", rows, "--label", "y", "--checkpoint", state)
    (model,) = state.glob("*.ckpt")
    before = model.read_bytes()
    for more in (
        ["--model", model, "--to", model],
        ["--model", model, "--to", tmp_path / "out.csv", "--on-error", model],
        ["--model", state, "--to", state / "checkpoint-000000099999.ckpt"],
        ["--model", model, "--to", tmp_path / "p" / "out.csv", "--checkpoint", tmp_path / "p"],
    ):
        said = call("predict", rows, "--label", "y", *more, status=2).stderr
        assert "would write into" in said or "would overwrite" in said
    assert model.read_bytes() == before


@pytest.mark.parametrize("kind", [np.float32, np.float64, None])
def test_marks_of_missing_values_in_tables(kind):
    weights = [-999.0, 2.0, 3.0, None]
    table = Table(("a", "w"), [np.arange(4.0), weights if kind is None else np.array(weights, kind)], ["NA", -999, "b", "c"])
    source = IterableSource([])
    source.read = lambda _: Chunk(table, str)
    chunk = streams.parse_labels(source, {"missing": ["NA", "-999"]}, "y", "w").read(4)
    expected = [
        Row({"a": 0.0}),
        Row({"a": 1.0}),
        Row({"a": 2.0}, WeightedLabel("b", 3.0)),
        Row({"a": 3.0}, WeightedLabel("c", 1.0)),
    ]
    assert [chunk.row(i) for i in range(4)] == [*expected[:3], Row({"a": 3.0}, "c")]
    assert [chunk.table(()).row(i) for i in range(4)] == expected
    assert chunk.table(()) is chunk.table(())
    assert table.row(0) == Row({"a": 0.0, "w": -999.0}, "NA")


def test_labels_of_a_topic_have_the_kind_of_their_column():
    table = Table(("a",), [np.arange(4.0)], ["71 kg", "NA", 80, "heavy"])
    source = IterableSource([])
    source.read = lambda _: Chunk(table, str)
    chunk = streams.parse_labels(source, {"missing": ["NA"], "columns": {"y": "quantity=kg", "a": "number"}}, "y").read(4)
    assert [chunk.row(i).y for i in range(4)] == chunk.table(()).y == [71.0, None, 80, "heavy"]
