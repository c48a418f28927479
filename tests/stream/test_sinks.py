"""File sinks: values, positions, pipes, and errors."""

import json
import os
import resource
import signal

import numpy as np
import pytest

from loops import prediction
from refused import raises
from streamsvm.stream import FileSink, StreamError


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_a_sink_continues_only_at_its_own_position(tmp_path, suffix):
    path, last = tmp_path / f"out.{suffix}", prediction(200, "a,b", None, None)
    path.write_text("something old")
    with FileSink(path) as sink:
        for row in range(200):
            sink.write(prediction(row, 1, 0, 0.5))
        position, before = sink.flush(), path.read_bytes()
        sink.write(last)
    data_written = path.read_bytes()
    assert data_written.startswith(before)

    def refused(match, name=path.name, place=position):
        with FileSink(tmp_path / name) as other_sink:
            raises(match, other_sink.seek, place, error=StreamError)

    refused(rf"other\.csv: the checkpoint is of another sink .*out\.{suffix}", "other.csv")
    assert not (tmp_path / "other.csv").exists()
    refused("the checkpoint is of another sink", place={"topic": 1})
    (tmp_path / "moved").mkdir()
    path = tmp_path / "moved" / path.name
    path.write_bytes(data_written + b"more")
    with FileSink(path) as moved:
        moved.seek(position)
        assert path.read_bytes() == before
        moved.write(last)
    assert path.read_bytes() == data_written


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_values_are_plain(tmp_path, suffix):
    path = tmp_path / f"out.{suffix}"
    with FileSink(path) as sink:
        sink.write(prediction(0, np.bool_(True), np.int64(2), np.float64(0.5)))
        sink.write(prediction(1, np.float32(0.25), np.str_("spam"), float("nan")))
        sink.write(prediction(2, float("nan"), ("a", 1), float("inf")))
    lines = path.read_text().splitlines()
    if suffix == "csv":
        assert lines[1:] == ["0,True,2,0.5", "1,0.25,spam,", "2,,\"('a', 1)\","]
    else:
        rows = [list(json.loads(line, parse_constant=pytest.fail).values()) for line in lines]
        assert rows == [[0, True, 2, 0.5], [1, 0.25, "spam", None], [2, None, ["a", 1], None]]


def test_devices_and_pipes_as_sinks(tmp_path):
    with FileSink("/dev/null") as sink:
        sink.write(prediction(0, 1, 0, 0.5))
        assert sink.flush()["offset"] > 0
    with FileSink("/dev/full") as full, pytest.raises(StreamError, match="/dev/full: No space left"):
        full.write(prediction(0, 1, 0, 0.5))
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    sink = FileSink(fifo)
    sink.write(prediction(0, 1, 0, 0.5))
    assert json.loads(os.read(reader, 4096))["row"] == 0  # without a flush
    os.close(reader)
    raises("Broken pipe", sink.write, prediction(1, 1, 0, 0.5), error=StreamError)
    sink.close()


def test_a_full_disk_raises_an_error_once_and_the_next_run_continues(tmp_path):
    path = tmp_path / "out.jsonl"
    sink = FileSink(path)
    sink.write(prediction(0, 1, 0, 0.5))
    position, size = sink.flush(), path.stat().st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, limits[1]))
    try:
        sink.write(prediction(1, 1, 0, 0.5))
        raises(r"out\.jsonl: File too large", sink.flush, error=StreamError)
        sink.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert path.stat().st_size == size + 10  # a part of a line
    with FileSink(path) as sink:
        sink.seek(position)
        sink.write(prediction(1, 1, 0, 0.5))
    assert [json.loads(line)["row"] for line in path.read_text().splitlines()] == [0, 1]


def test_two_writers_of_one_file(tmp_path):
    path = tmp_path / "out.jsonl"
    with FileSink(path) as sink:
        sink.write(prediction(0, 1, 1, 0.5))
        raises(r"out\.jsonl: another process is writing to it\. Stop it, or name another file", FileSink, path, error=StreamError)
    assert len(path.read_text().splitlines()) == 1
    FileSink(path).close()
