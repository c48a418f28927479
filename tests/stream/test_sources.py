"""Sources of text: pipes, standard input, compression, damage, endless lines and bounded memory; and iterables."""

import os
import queue
import sys
import threading
import time
import tracemalloc
from functools import partial

import pytest

from chunks import check_chunks, chunks_of, text_of, write_text
from patience import PATIENCE
from reading import read
from refused import raises
from streamsvm.stream import BadRow, CSVSource, IterableSource, JSONLinesSource, Row, StreamError, lines, open_source

ROWS = [{"a": 1.0, "b c": 2.0, "y": 1}, {"a": 3.0, "b c": None, "y": 0}, {"a": 4.0, "b c": 5.5, "y": 1}]
TEXTS = {kind: text_of(ROWS, kind) for kind in ("csv", "jsonl", "libsvm")}
each_text = pytest.mark.parametrize("kind", TEXTS)


@each_text
def test_blank_lines_comments_and_a_byte_order_mark_are_skipped(tmp_path, kind):
    more = "\n  # a logger's\n" if kind == "libsvm" else "\n"
    rows, positions = read(path := write_text(tmp_path / f"rows.{kind}", TEXTS[kind].replace("\n", "\n" + more, 3) + more))
    assert rows == read(write_text(tmp_path / f"plain.{kind}", TEXTS[kind]))[0]
    for done, position in enumerate(positions):
        assert read(path, position) == (rows[done:], positions[done:])
    marked = write_text(tmp_path / f"marked.{kind}", "\ufeff" + TEXTS[kind])
    assert read(marked)[0] == rows
    check_chunks(lambda: open_source(str(marked), label="y"), 3, [1, 2])


@each_text
def test_standard_input_is_read_forward(tmp_path, kind, monkeypatch):
    rows, positions = read(write_text(tmp_path / f"rows.{kind}", TEXTS[kind]))
    receiver, sender = os.pipe()
    with os.fdopen(sender, "w") as writer:
        writer.write(TEXTS[kind])
    with os.fdopen(receiver) as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        assert read("-", positions[1], format=kind) == (rows[1:], positions[1:])
        assert not stream.closed


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_rows_longer_than_the_fingerprint(tmp_path, suffix):
    rows = [{f"feature_{i:04d}": 0.123456 for i in range(600)} | {"y": i % 2} for i in range(5)]
    rows_read, positions = read(path := write_text(tmp_path / f"rows.csv{suffix}", text_of(rows, "csv")))
    assert read(path, positions[2])[0] == rows_read[2:]
    assert len(rows_read) == 5


WHOLE = b"a,y\n" + b"".join(b"%d,1\n" % (i * i) for i in range(3000))


@pytest.mark.parametrize("name", ["cut off", "not gzip", "changed", "checksum"])
def test_damaged_gzip_raises_an_error(tmp_path, name):
    path = write_text(tmp_path / "rows.csv.gz", WHOLE)
    data = path.read_bytes()
    damaged = {"cut off": data[:-12], "not gzip": b"a,y\n1,1\n", "changed": data[:10] + b"\xff" * 20 + data[30:]}
    path.write_bytes(damaged.get(name, data[:-8] + bytes(8)))
    raises(r"rows\.csv\.gz, after byte", read, path, error=StreamError)


@each_text
def test_a_line_without_end_is_refused_within_bounded_memory(tmp_path, kind, monkeypatch):
    path = write_text(tmp_path / f"rows.{kind}", TEXTS[kind])
    with path.open("r+b") as file:
        file.truncate(100 * 2**20)  # zeros
    tracemalloc.start()
    rows, _ = read(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert rows[-1].reason == "the line is longer than 16,777,216 bytes"
    assert [type(row) for row in rows] == [Row, Row, Row, BadRow]
    assert peak < 60 * 2**20
    monkeypatch.setattr(lines, "MAX_SKIPPED_BYTES", 2**22)
    raises(r"rows\..*, after byte \d+: a line does not end within 4,194,304 bytes", read, path, error=StreamError)
    with path.open("r+b") as file:
        file.truncate(2**24 + 2**22 - 2**18)
    assert [type(row) for row in read(path)[0]] == [Row, Row, Row, BadRow]


class Feeding:
    """A FIFO, and a thread that reads rows from it as they arrive."""

    def __init__(self, path, kind):
        os.mkfifo(path)
        self.source = open_source(str(path), label="y", format=kind)
        self.rows = queue.Queue()
        self.thread = threading.Thread(target=self.read)
        self.thread.start()
        self.writer = path.open("wb", buffering=0)

    def read(self):
        for row in self.source:
            self.rows.put(row)
        self.rows.put(None)


@each_text
def test_rows_of_a_pipe_are_returned_at_once_and_a_wait_can_be_ended(tmp_path, kind):
    feeding = Feeding(tmp_path / "fifo", kind)
    rows_fed, lines = [], TEXTS[kind].encode().splitlines(keepends=True)
    for line in lines:
        feeding.writer.write(line)
        if line != b"a,b c,y\n":
            rows_fed.append(tuple(feeding.rows.get(timeout=PATIENCE)))
    assert rows_fed == read(write_text(tmp_path / f"rows.{kind}", TEXTS[kind]))[0]
    position = feeding.source.position
    assert position["offset"] == len(TEXTS[kind])
    feeding.writer.write(b'"a row that\nis not' if kind == "csv" else lines[-1][:4])
    time.sleep(0.05)
    feeding.source.stop()
    feeding.thread.join(PATIENCE)
    assert feeding.rows.get(timeout=PATIENCE) is None
    assert feeding.source.position == position
    feeding.writer.close()
    feeding.source.close()


def test_a_wait_for_a_writer_can_be_ended(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    with open_source(str(tmp_path / "fifo"), label="y", format="csv") as source:
        threading.Timer(0.1, source.stop).start()
        assert list(source) == []


@pytest.mark.skipif(sys.platform == "win32", reason="no named pipes")
@pytest.mark.parametrize(
    ("kind", "head", "line"), [(JSONLinesSource, b"", b'{"a": 1, "y": 0}\n'), (CSVSource, b"a,y\n", b"1,0\n")]
)
def test_available_rows_of_a_pipe_are_returned_in_one_chunk(tmp_path, kind, head, line):
    os.mkfifo(path := tmp_path / "fifo")
    counts = []
    with kind(path, "y") as source:
        writer = threading.Thread(target=path.write_bytes, args=(head + line * 50 + line[:-1],))
        writer.start()
        for chunk in chunks_of(source, 30):
            assert all(chunk.row(i) == ({"a": 1.0}, 0) for i in range(len(chunk)))
            counts.append(len(chunk))
        writer.join()
        assert sum(counts) == 51
        assert max(counts) > 1
        assert (source.position["rows"], source.position["line"]) == (51, 51 + len(head) // 4)


BLANK = {"jsonl": ["\n", " \n"], "csv": ["\n", "\r\n"], "libsvm": ["\n", "# of a logger\n"]}


@pytest.mark.parametrize(("kind", "blank"), [(kind, blank) for kind, blanks in BLANK.items() for blank in blanks])
def test_many_blank_lines_are_read_in_parts_and_not_stored(tmp_path, kind, blank, monkeypatch):
    """Each read returns soon, and the position does not depend on the sizes of the reads."""
    many, last = blank * (60_000 // len(blank)), TEXTS[kind].splitlines(keepends=True)[-1]
    path, ends = write_text(tmp_path / f"rows.{kind}", TEXTS[kind] + many + last + many), []
    for size in (2**14, 1021):
        monkeypatch.setattr(lines, "_CHUNK_BYTES", size)
        with open_source(str(path), label="y") as source:
            sizes = []
            for chunk in iter(partial(source.read, 1000), None):
                sizes.append(len(chunk))
                assert len(source._reader._buffer) < 4096 + 2 * size
                ends += [source.position] if sum(sizes) == 3 and len(chunk) else []
                if sum(sizes) == 4 and len(chunk):
                    assert (many + last).encode().endswith(chunk.raw(0))
                    assert chunk.raw(0).endswith(last.encode())
            ends.append(source.position)
        assert sum(sizes) == 4
        assert sizes.count(0) >= 10
    assert ends[:2] == ends[2:]
    assert (ends[1]["line"], ends[1]["offset"]) == (path.read_bytes().count(b"\n"), path.stat().st_size)
    with open_source(str(path), label="y") as source:
        source.seek(ends[0])
        assert sum(map(len, iter(partial(source.read, 1000), None))) == 1
        assert source.position == ends[1]


@pytest.mark.parametrize(("kind", "beginning"), [("jsonl", " "), ("libsvm", "# of a"), ("libsvm", "  ")])
def test_an_unfinished_last_line_is_left_for_the_next_run(tmp_path, kind, beginning):
    path = write_text(tmp_path / f"rows.{kind}", TEXTS[kind] + beginning)
    with open_source(str(path), label="y") as source:
        n, position = len(list(source)), source.position
    assert position["offset"] == len(TEXTS[kind].encode())
    path.write_bytes(path.read_bytes() + b" logger\n1 1:1\n" if beginning[0] == "#" else TEXTS[kind].encode() * 2)
    with open_source(str(path), label="y") as source:
        source.seek(position)
        assert len(list(source)) == (1 if beginning[0] == "#" else n)


def test_rows_that_are_appended_after_the_end_are_for_the_next_run(tmp_path):
    path, line = tmp_path / "rows.jsonl", b'{"a": 1, "y": 0}\n'
    path.write_bytes(line * 3)
    with JSONLinesSource(path, "y") as source:
        assert len(source.read(10)) == 3
        assert source.read(10) is None
        with path.open("ab") as file:
            file.write(line)
        assert source.read(10) is None
        position = source.position
    with JSONLinesSource(path, "y") as source:
        source.seek(position)
        chunk = source.read(10)
        assert (len(chunk), chunk.place(0), chunk.raw(0)) == (1, f"{path}, line 4", line)


def test_an_item_that_is_not_a_pair_is_a_bad_row():
    rows_read = list(IterableSource([({"a": 0.0}, 0), None, ({"a": 1.0}, True, 2)], "sensor"))
    assert [type(row) for row in rows_read] == [Row, BadRow, BadRow]
    assert rows_read[1] == BadRow("sensor, row 2", None, "a row must be a pair (x, y), not None")
