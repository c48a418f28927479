"""While a source is silent, everything that was learned, predicted or refused is saved, so that a kill loses nothing."""

import contextlib
import json
import os
import threading

import pytest

from patience import until
from streamsvm import BSGDClassifier
from streamsvm.stream import (
    CSVSource,
    DelayedLabels,
    DelayedLearningLoop,
    FileSink,
    IterableSource,
    JoinedSource,
    JSONLinesSource,
    LearningLoop,
    LIBSVMSource,
    PredictionLoop,
)

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFO")

N = 30
ROWS = {
    CSVSource: (b"a,b,y\n", [b"%d,%d,%d\n" % (i % 7, i % 5, i % 2) for i in range(N)]),
    JSONLinesSource: (b"", [b'{"a": %d, "b": %d, "y": %d}\n' % (i % 7, i % 5, i % 2) for i in range(N)]),
    LIBSVMSource: (b"", [b"%d 1:%d 2:%d\n" % (i % 2, i % 7, i % 5) for i in range(N)]),
}
#: A row that a writer has sent in part, and the rest of it.
HALVES = {
    CSVSource: (b'1,"2', b'\n",1\n'),
    JSONLinesSource: (b'{"a": 1, "b', b'": 2, "y": 1}\n'),
    LIBSVMSource: (b"1 1:1 2", b":2\n"),
}


@contextlib.contextmanager
def running(make_loop, path):
    """Run a loop over a FIFO in a thread; yields the loop and the file to write its rows to."""
    os.mkfifo(path)
    loop = make_loop(path)
    thread = threading.Thread(target=loop.run)
    thread.start()
    file = path.open("wb", buffering=0)
    try:
        yield loop, file
    finally:
        file.close()
        thread.join()
        loop.source.close()


@pytest.mark.parametrize("half", [False, True], ids=["complete", "within a row"])
@pytest.mark.parametrize("kind", ROWS)
def test_a_silent_pipe_gets_a_checkpoint(tmp_path, folder, kind, half):
    """Also if the writer pauses within a row, or within a cell of several lines."""
    (header, rows), (start, rest) = ROWS[kind], HALVES[kind]

    def make_loop(path):
        return LearningLoop(kind(path, "y"), BSGDClassifier(budget=20), checkpoints=folder, checkpoint_seconds=0.05)

    with running(make_loop, tmp_path / "rows") as (loop, file):
        file.write(header + b"".join(rows) + start * half)
        until(lambda: loop.saved_rows == N)
        assert folder.newest().header["rows"] == N
        file.write(rest * half)
    assert loop.state == "ended"
    assert loop.rows == folder.newest().header["rows"] == N + half


@pytest.mark.parametrize("learns", [False, True], ids=["predict", "learn"])
def test_outputs_of_a_silent_pipe_are_complete(tmp_path, learns):
    """Predictions and dead letters can be read while the source is silent, also without checkpoints."""
    model = BSGDClassifier(budget=20)
    model.learn_one({"a": 1.0, "b": 0.0}, 1)

    def make_loop(path):
        kind, sink = (LearningLoop if learns else PredictionLoop), FileSink(tmp_path / "out.jsonl")
        return kind(CSVSource(path, "y"), model, sink=sink, on_error=tmp_path / "dead.jsonl")

    with running(make_loop, tmp_path / "rows") as (loop, file):
        file.write(b"a,b,y\n" + b"1,2,1\n" * N + b"1,oops,1\n" * 3)
        until(lambda: len((tmp_path / "out.jsonl").read_text().splitlines()) == N)
        until(lambda: len((tmp_path / "dead.jsonl").read_text().splitlines()) == 3)
        assert loop.state == "running"
    loop.sink.close()


@pytest.mark.parametrize("silent", ["rows", "labels"])
def test_delayed_labels_of_a_silent_pipe_get_a_checkpoint(tmp_path, folder, silent):
    rows = [({"k": str(i), "t": float(i), "a": float(i % 7)}, None) for i in range(N)]
    labels = [({"k": str(i), "t": i + 0.5}, i % 2) for i in range(N)]

    def make_loop(path):
        pipe = JSONLinesSource(path, "y" if silent == "labels" else None)
        others = IterableSource(labels if silent == "rows" else rows)
        source = JoinedSource(*((pipe, others) if silent == "rows" else (others, pipe)), key="k", time="t")
        options = {"checkpoints": folder, "checkpoint_seconds": 0.05}
        return DelayedLearningLoop(source, BSGDClassifier(budget=20), delayed=DelayedLabels(), **options)

    pairs = rows if silent == "rows" else labels
    lines = [json.dumps(x if y is None else {**x, "y": y}) + "\n" for x, y in pairs[: N // 2]]
    with running(make_loop, tmp_path / "pipe") as (loop, file):
        file.write("".join(lines).encode())
        until(lambda: (loop.saved_rows or 0) >= N - 2)
        newest = folder.newest().header
        assert newest["rows"] == loop.rows
        assert newest["learned"] >= N // 2 - 1


def test_the_rate_is_of_the_whole_run():
    source = IterableSource([({"a": float(i % 7)}, i % 2) for i in range(500)])
    progress = LearningLoop(source, BSGDClassifier(budget=20), on_progress=lambda _: None).run()
    assert progress.rows_per_second == pytest.approx(500 / progress.seconds)
