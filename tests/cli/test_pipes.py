"""A pipe is looked at as a file is, and each of its rows is learned once, at its own place."""

import contextlib
import gzip
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from command_words import with_a_model
from patience import PATIENCE, signals_of, until
from streamsvm import load
from streamsvm.cli import learn
from streamsvm.stream.lines import ByteStream
from streamsvm.stream.schema import source_sample

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFO")
LINES = [
    f"{i};{'KLB'[i % 3]}\u00f6;{i % 9 + 1}.{100 + i % 90},5{i % 10};{1 + i % 28:02d}.03.2024;{i % 3 == 1:d}" for i in range(400)
]
GERMAN = "\n".join(["id;Ort;Umsatz;Tag;gekauft", *LINES, ""]).encode("latin-1")


@pytest.fixture
def pipe(tmp_path, monkeypatch):
    """Makes a FIFO into which parts are written, some after seconds, or once it "waits" or has "looked"; returns its path."""
    monkeypatch.setattr(source_sample, "SAMPLE_WAIT_SECONDS", 0.3)
    events = {"waits": threading.Event(), "looked": threading.Event()}

    def looking(path, kind, wait_on):
        sample = source_sample.sample_pipe(path, kind, lambda name: (wait_on(name), events["waits"].set())[0])
        events["looked"].set()
        return sample

    monkeypatch.setattr(learn, "sample_pipe", looking)
    writers = []

    def make(*parts, name="rows.csv"):
        path = tmp_path / "pipes" / f"{len(writers)}" / name
        path.parent.mkdir(parents=True)
        os.mkfifo(path)

        def write():
            with contextlib.suppress(BrokenPipeError), path.open("wb", buffering=0) as file:
                for part in parts:
                    if isinstance(part, bytes):
                        file.write(part)
                    elif isinstance(part, str):
                        events[part].wait(PATIENCE)
                    else:
                        time.sleep(part)

        writers.append(threading.Thread(target=write))
        writers[-1].start()
        return path

    yield make
    for writer in writers:
        writer.join()


@pytest.mark.parametrize("packed", [False, True])
def test_a_table_from_elsewhere_is_read_from_a_pipe_as_from_a_file(pipe, tmp_path, call, packed):
    data, name = (gzip.compress(GERMAN), "rows.csv.gz") if packed else (GERMAN, "rows.csv")
    (tmp_path / name).write_bytes(data)
    learn = ["--label", "gekauft", "--checkpoint"]
    of_file = call("learn", tmp_path / name, *learn, tmp_path / "file").stderr
    of_pipe = call("learn", pipe(data, name=name), *learn, tmp_path / "pipe", "--max-rows", 150).stderr
    assert "--columns id:drop,Ort:category,Tag:date=%d.%m.%Y --encoding cp1252 --delimiter ';' --decimal ," in of_pipe
    assert of_pipe.partition("read with ")[2].partition(" (")[0] == of_file.partition("read with ")[2].partition(" (")[0]
    said = call("learn", pipe(data, name=name), *learn, tmp_path / "pipe").stderr
    assert "first look" not in said
    assert "continuing after row 150" in said
    newest = [load(tmp_path / where) for where in ("file", "pipe")]
    row = {"id": 7, "Ort": "K\u00f6", "Umsatz": "1.234,5", "Tag": "03.03.2024"}
    assert newest[0].predict_proba_one(row) == newest[1].predict_proba_one(row)
    positions = [json.loads(call("inspect", tmp_path / where, "--json").stdout)["position"] for where in ("file", "pipe")]
    assert positions[0] == positions[1]


def test_rows_keep_their_places(pipe, call, tmp_path):
    """An error names the line, and predictions have each row once and in order, whether it was looked at or not."""
    lines = [b"oops,1,2,3\n" if i in (5, 350) else b"%d,%c,%d\n" % (i % 9, b"uvw"[i % 3], i % 2) for i in range(400)]
    words = ["--on-error", tmp_path / "dead.jsonl", "--to", tmp_path / "out.jsonl", "--passthrough", "a,b"]
    call("learn", pipe(b"a,b,y\n", *lines), "--label", "y", *words)
    dead = list(map(json.loads, (tmp_path / "dead.jsonl").read_text().splitlines()))
    assert [row["place"].rpartition(", ")[2] for row in dead] == ["line 7", "line 352"]
    out = list(map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines()))
    assert [(row["row"], row["a"], row["b"]) for row in out] == [
        (i, str(i % 9), "uvw"[i % 3]) for i in range(400) if i not in (5, 350)
    ]


def test_available_lines_of_a_pipe_are_sampled(pipe, call):
    """A writer that pauses: the first row is waited for, and then a moment for more."""
    path = pipe(b"a,b", "waits", b",y\n1,u", 0.5, b",0\n2,v,1\n3", "looked", b",w,0\n4,u,1\n5,,0\n")
    said = call("learn", path, "--label", "y").stderr
    assert f"waiting for the first row of {path}" in said
    assert "2 rows\n" in said.partition("first look at")[2]
    assert "read with --columns b:category (" in said
    assert "5 rows" in said


@pytest.mark.parametrize(
    ("parts", "status", "says"),
    [
        ([], 1, "is empty: its first line must name the columns"),
        ([b"a,b,y\n"], 1, "has no rows: there is nothing to learn"),
        ([b"a,b,y\n1,u,0\n\n2,v,1\n3,u,0"], 0, "3 rows"),
        ([b"a,b\n1,u\n"], 1, "there is no column 'y' for the label"),
        ([b"a,b,y\n", b"x" * (2**24 + 2**18), b"\n1,2,0\n2,3,1\n"], 1, "line 2: the line is longer than 16,777,216 bytes"),
        ([b"x" * (2**24 + 2**18), b"\n1,2,0\n2,3,1\n"], 1, "line 1: the line is longer than 16,777,216 bytes"),
        ([bytes(range(256)) * 100], 1, "line 1"),
        ([b'a,b,y\n1,"u\n', "looked", b'v",0\n2,w,1\n'], 1, "'u\\nv', a str"),  # of a row, the look had one part
    ],
)
def test_hostile_pipes(pipe, call, parts, status, says):
    call("learn", pipe(*parts), "--label", "y", status=status, says=says)


def test_standard_input_is_looked_at(pipe, call, monkeypatch):
    with pipe(b'{"city": "Oslo", "a": 1, "y": 0}\n{"city": "Rome", "a": 2, "y": 1}\n').open() as file:
        monkeypatch.setattr(sys, "stdin", file)
        said = call("learn", "-", "--format", "jsonl", "--label", "y").stderr
    assert "first look at standard input, 2 rows" in said
    assert "read with --columns city:category (" in said


def test_a_pipe_without_a_row_serves_metrics(pipe, call):
    path = pipe(b"a,b,y\n", 1.0, b"1,2,0\n2,3,1\n")
    said = call("learn", path, "--label", "y", "--metrics-port", "0").stderr
    assert "metrics, and a page, at http://127.0.0.1:" in said
    assert "waiting for the first row" not in said
    assert "2 rows" in said


@pytest.mark.parametrize("first", [b"", b"a,b,y\n1,u,0\n"])
@pytest.mark.thorough
def test_a_signal_ends_the_look(tmp_path, first):
    words = with_a_model(["learn", "-", "--format", "csv", "--label", "y", "--checkpoint", tmp_path / "state"])
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    code = (  # the handlers first, as the command has them
        "import sys; from streamsvm.cli import exit_at_once, set_signal_handlers; set_signal_handlers(exit_at_once); "
        "from streamsvm.__main__ import main; from streamsvm.stream.schema import source_sample; "
        f"source_sample.SAMPLE_WAIT_SECONDS = {PATIENCE if first else 0.1}"
    )
    with subprocess.Popen([sys.executable, "-c", f"{code}; sys.exit(main())", *words], **pipes) as process:
        process.stdin.write(first)
        process.stdin.flush()
        if not first:
            assert b"waiting for the first row of standard input" in process.stderr.readline()
        else:  # before it looks, or while it does
            until(lambda: signal.SIGTERM in signals_of(process.pid))
            time.sleep(1.0)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130
        assert process.stderr.read() == b"streamsvm: interrupted\n"


@pytest.mark.parametrize("sizes", [(1,), (3, 100), (10_000,)])
def test_sampled_lines_of_a_pipe_are_read_again(pipe, sizes):
    data = b"".join(b"%d\n" % i for i in range(500)) + b"rest"
    cuts = [0, *sizes, len(data)]
    stream = ByteStream(pipe(*(data[a:b] for a, b in itertools.pairwise(cuts)), name="fifo"))
    peeked = stream.peek(200, 1, 2**20, PATIENCE, lambda: True)
    assert data.startswith(peeked)
    assert peeked.count(b"\n") >= 200
    assert b"".join(iter(stream.read, b"")) == data
    stream.close()
