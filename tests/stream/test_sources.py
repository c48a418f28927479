"""Sources of text: every format, every position, rows as they come, and what they refuse."""

import gzip
import json
import os
import queue
import re
import subprocess
import sys
import threading
import time
import tracemalloc
from functools import partial

import pytest

from chunks import check_chunks, chunks_of
from lists import first
from patience import PATIENCE
from reading import read
from refused import raises
from streamsvm.stream import BadRow, IterableSource, Row, StreamError, lines, open_source

TEXTS = {
    "csv": 'a,b c,y\n1,2,1\n\n3,,0\n"4","5.5",1\n',
    "jsonl": '{"a": 1, "b c": 2, "y": 1}\n{"a": 3, "b c": null, "y": 0}\n\n{"a": 4, "b c": 5.5, "y": 1}\n',
    "libsvm": "1 1:1 2:2\n\n0 1:3\n+1 1:4 2:5.5 # a comment\n",
}
ROWS = [({"a": 1.0, "b c": 2.0}, 1), ({"a": 3.0}, 0), ({"a": 4.0, "b c": 5.5}, 1)]
EXPECTED = {"csv": ROWS, "jsonl": ROWS, "libsvm": [({1: 1.0, 2: 2.0}, 1), ({1: 3.0}, 0), ({1: 4.0, 2: 5.5}, 1)]}
PLAIN_AND_COMPRESSED = pytest.mark.parametrize("compressed", [False, True])


def write(folder, kind, compressed=False, text=None):
    path = folder / f"rows.{kind}{'.gz' if compressed else ''}"
    data = TEXTS[kind] if text is None else text
    data = data if isinstance(data, bytes) else data.encode()
    path.write_bytes(gzip.compress(data, 1) if compressed else data)
    return path


@PLAIN_AND_COMPRESSED
@pytest.mark.parametrize("kind", TEXTS)
def test_formats_and_every_position(tmp_path, kind, compressed):
    path = write(tmp_path, kind, compressed)
    rows, positions = read(path)
    assert rows == EXPECTED[kind]
    for done, position in enumerate(positions):
        assert read(path, position) == (rows[done:], positions[done:])


@pytest.mark.thorough
@pytest.mark.parametrize("kind", TEXTS)
def test_standard_input_is_read_forward(tmp_path, kind):
    position = read(write(tmp_path, kind))[1][1]
    script = (
        "import json, sys\nfrom streamsvm.stream import open_source\n"
        f"source = open_source('-', label='y', format={kind!r})\nsource.seek(json.loads(sys.argv[1]))\n"
        "print(json.dumps([list(row) for row in source]))"
    )
    command = [sys.executable, "-c", script, json.dumps(position)]
    done = subprocess.run(command, input=TEXTS[kind], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == json.loads(json.dumps(EXPECTED[kind][1:]))


@PLAIN_AND_COMPRESSED
def test_rows_longer_than_what_is_kept_of_the_beginning(tmp_path, compressed):
    names = [f"feature_{i:04d}" for i in range(600)]
    text = ",".join([*names, "y"]) + "\n" + "".join(",".join(["0.123456"] * 600 + [str(i % 2)]) + "\n" for i in range(5))
    path = write(tmp_path, "csv", compressed, text)
    rows, positions = read(path)
    assert read(path, positions[2])[0] == rows[2:]


GOOD = {"csv": b"2,1\n", "jsonl": b'{"a": 2, "y": 1}\n', "libsvm": b"1 1:2\n"}


@pytest.mark.parametrize(
    ("kind", "bad", "reason"),
    [
        ("csv", b"1,2,3\n", "3 cells for 2 columns: '1,2,3'"),
        ("csv", b'"1,1\n', "'1,1'|unexpected end|not closed|expected after"),
        ("csv", b'"' + b"x" * 200_000 + b'",1\n', "field larger"),
        ("csv", b"\xff,1\n", "not UTF-8: invalid start byte at byte 0 of the line"),
        ("csv", b"1" * (17 * 2**20) + b",1\n", "longer than 16,777,216 bytes"),
        ("jsonl", b'{"a": \n', "not JSON"),
        ("jsonl", b"[\n", "in a list of rows, write each on a line of its own"),
        ("jsonl", b'{"a": 1' + b"0" * 5000 + b"}\n", "not JSON"),
        ("jsonl", b"[1, 2]\n", "not a JSON object"),
        ("jsonl", b'{"a": "\xff"}\n', "not UTF-8"),
        ("jsonl", b" " * (17 * 2**20) + b"\n", "longer than 16,777,216 bytes"),
        ("libsvm", b"1 1:2 3\n", "'3' is not index:value"),
        ("libsvm", b"1 1:2 1:3\n", "twice"),
        ("libsvm", b"1:2 2:3\n", "begin with a label"),
        ("libsvm", b"1 1:\xff\n", "not UTF-8"),
    ],
    ids=lambda value: str(value)[:20],
)
@pytest.mark.parametrize("n_after", [0, 3, 3000])
@pytest.mark.parametrize("compressed", first(1, [False, True]))
def test_a_malformed_row_is_given_as_a_bad_row_and_the_next_ones_are_read(tmp_path, kind, bad, reason, n_after, compressed):
    good = GOOD[kind]
    header = b"a,y\n" * (kind == "csv")
    path = write(tmp_path, kind, compressed, header + good + b"\n" + bad + good * n_after + bad + good)
    rows, raws, positions = [], [], []
    with open_source(str(path), label="y") as source:
        for chunk in chunks_of(source, 1):
            rows.append(chunk.row(0))
            raws.append(chunk.raw(0))
            positions.append(source.position)
    refused = [i for i, row in enumerate(rows) if isinstance(row, BadRow)]
    assert refused == [1, 2 + n_after]
    assert all(row == rows[0] for i, row in enumerate(rows) if i not in refused)
    assert raws[0] == raws[-1] == good
    first = 3 + len(header) // 4
    for i, line in zip(refused, (first, first + 1 + n_after), strict=True):
        assert rows[i].place.endswith(f"line {line:,}")
        assert re.search(reason, rows[i].reason), rows[i].reason
        raw = rows[i].raw.lstrip(b"\n")
        assert bad.startswith(raw)
        assert len(raw) == len(bad) or len(raw) > 2**24
    for i in refused:  # the position after a bad row
        assert [type(row) for row in read(path, positions[i])[0]] == [type(row) for row in rows[i + 1 :]]


WHOLE = gzip.compress(b"a,y\n" + b"".join(b"%d,1\n" % i for i in range(100_000)))


@pytest.mark.parametrize(
    "data",
    [WHOLE[:-12], b"a,y\n1,1\n", WHOLE[:10] + b"\xff" * 20 + WHOLE[30:], WHOLE[:-8] + bytes(8)],
    ids=["cut off", "not gzip", "changed", "checksum"],
)
def test_damaged_gzip_is_said(tmp_path, data):
    path = tmp_path / "rows.csv.gz"
    path.write_bytes(data)
    raises(r"rows\.csv\.gz, after byte", read, path, error=StreamError)


def test_a_line_without_end_is_refused_within_bounded_memory(tmp_path):
    path = tmp_path / "rows.jsonl"
    with path.open("wb") as file:
        for _ in range(100):
            file.write(b" " * 2**20)
    tracemalloc.start()
    rows, _ = read(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [type(row) for row in rows] == [BadRow]
    assert peak < 60 * 2**20


@pytest.mark.parametrize("kind", TEXTS)
def test_a_line_that_never_ends_ends_the_run(tmp_path, kind, monkeypatch):
    monkeypatch.setattr(lines, "LONGEST_SKIPPED", 2**22)
    path = tmp_path / f"rows.{kind}"
    path.write_bytes(TEXTS[kind].encode() + b"1" * (2**24 + 2**22 - 2**18))
    assert read(path)[0][-1].reason == "the line is longer than 16,777,216 bytes"
    path.write_bytes(TEXTS[kind].encode() + b"1" * (2**24 + 2**22 + 2**20))
    raises(r"rows\..*, after byte \d+: a line does not end within 4,194,304 bytes", read, path, error=StreamError)


@PLAIN_AND_COMPRESSED
def test_positions_of_other_streams_are_refused(tmp_path, compressed):
    def refuses(position, text, match, **options):
        raises(match, read, write(tmp_path, "csv", compressed, text), position, error=StreamError, **options)

    text, long = TEXTS["csv"], TEXTS["csv"] + "1,2,1\n" * 2000
    position = read(write(tmp_path, "csv", compressed))[1][-1]
    refuses(position, text.replace("3", "7"), "not the stream")
    refuses(position, text[:-4], "not the stream|ends at byte")
    refuses(position, text, "learned with the label 'y', not 'a'", label="a")
    refuses({"rows": 3}, text, "another kind of stream")
    refuses(read(write(tmp_path, "csv", compressed, long))[1][-1], long[:-600], "ends at byte")
    with open_source(str(write(tmp_path, "csv", compressed)), label="y") as source:
        list(source)
        raises("read already", source.seek, position, error=RuntimeError)


@PLAIN_AND_COMPRESSED
@pytest.mark.parametrize("kind", TEXTS)
def test_rows_may_be_appended_but_not_changed(tmp_path, kind, compressed):
    more = {"csv": "7,8,1\n", "jsonl": '{"a": 7, "b c": 8, "y": 1}\n', "libsvm": "1 1:7 2:8\n"}[kind]
    text = TEXTS[kind] + more * 2000
    position = read(write(tmp_path, kind, compressed, text))[1][-1]
    expected = [({1: 7.0, 2: 8.0} if kind == "libsvm" else {"a": 7.0, "b c": 8.0}, 1)]
    assert read(write(tmp_path, kind, compressed, text + more), position)[0] == expected
    changed = text[:-4] + text[-4:].replace("1", "0").replace("8", "9")
    raises("was changed before byte", read, write(tmp_path, kind, compressed, changed + more), position, error=StreamError)


@pytest.mark.parametrize("kind", TEXTS)
def test_a_last_line_without_end_may_not_grow(tmp_path, kind):
    text = TEXTS[kind].partition(" #")[0].rstrip()
    rows, (*_, position) = read(write(tmp_path, kind, False, text))
    for more in ("\n{}", "\r\n{}\n"):
        path = write(tmp_path, kind, False, text + more.format(text.splitlines()[-1]))
        with open_source(str(path), label="y") as source:
            source.seek(position)
            (chunk,) = chunks_of(source)
            assert (len(chunk), chunk.row(0)) == (1, rows[-1])
            assert chunk.place(0) == f"{path}, line {position['line'] + 1}"
    with pytest.raises(StreamError, match=rf"line {position['line']}: the line has grown"):
        read(write(tmp_path, kind, False, text + "5\n"), position)


class Feeding:
    """A FIFO, and a thread that reads rows from it as they come."""

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


@pytest.mark.parametrize("kind", TEXTS)
def test_rows_are_given_one_by_one_and_a_wait_can_be_ended(tmp_path, kind):
    feeding = Feeding(tmp_path / "fifo", kind)
    given = []
    text = TEXTS[kind].rstrip() + "\n"
    lines = text.encode().splitlines(keepends=True)
    for line in lines:
        feeding.writer.write(line)
        if line.strip() and line != b"a,b c,y\n":
            given.append(tuple(feeding.rows.get(timeout=PATIENCE)))
    assert given == EXPECTED[kind]
    position = feeding.source.position
    assert position["offset"] == len(text)
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


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kind", "head", "row", "blank"),
    [
        ("jsonl", "", '{"a": 1, "y": 2}\n', "\n"),
        ("csv", "a,y\n", "1,2\n", "\n"),
        ("libsvm", "", "2 0:1\n", "# of a logger\n"),
    ],
)
def test_lines_without_rows_are_not_held(tmp_path, kind, head, row, blank):
    path = write(tmp_path, kind, False, head + row + blank * (1_500_000 // len(blank)) + row + blank)
    with open_source(str(path), label="y") as source:
        chunks = chunks_of(source, 1)
        next(chunks)
        after_one, chunk = source.position, next(chunks)
        assert chunk.row(0).y == 2
        assert len(source._reader._buffer) < 700_000
        assert chunk.raw(0) == (blank * (len(chunk.raw(0)) // len(blank)) + row).encode()[-len(chunk.raw(0)) :]
        assert list(chunks) == []
        end = source.position
    rows, positions = read(path, after_one)
    assert [row.y for row in rows] == [2]
    assert positions[-1] == end


BLANK = {"jsonl": ["\n", " \n"], "csv": ["\n", "\r\n"], "libsvm": ["\n", "# of a logger\n"]}


@pytest.mark.parametrize(("kind", "blank"), [(kind, blank) for kind, blanks in BLANK.items() for blank in blanks])
def test_many_lines_without_rows_are_taken_in_parts(tmp_path, kind, blank, monkeypatch):
    """What asks for rows gets an answer all the time; the position does not depend on how bytes came."""
    path = write(tmp_path, kind, text=TEXTS[kind] + blank * (400_000 // len(blank)))
    ends = []
    for chunk in (2**18, 4093):
        monkeypatch.setattr(lines, "_CHUNK_BYTES", chunk)
        with open_source(str(path), label="y") as source:
            sizes = [len(chunk) for chunk in iter(partial(source.read, 1000), None)]
            ends.append(source.position)
        assert sum(sizes) == 3
        assert sizes.count(0) >= 5
    assert ends[0] == ends[1]
    assert ends[0]["line"] <= TEXTS[kind].count("\n") + 400_000 // len(blank)
    assert ends[0]["offset"] > 390_000 - 2**16


def test_iterables():
    rows = [({"a": float(i)}, i % 2) for i in range(5)]
    source = IterableSource(rows)
    source.seek({"rows": 3})
    assert list(source) == rows[3:]
    assert source.position == {"rows": 5}
    raises("read already", source.seek, {"rows": 3}, error=RuntimeError)
    for position, reason in (({"rows": 6}, "only 5 rows"), ({"offset": 6}, "another kind")):
        raises(reason, IterableSource(rows).seek, position, error=StreamError)
    found = list(IterableSource([rows[0], None, ({"a": 1.0}, True, 2)], "sensor"))
    assert [type(row) for row in found] == [Row, BadRow, BadRow]
    assert [chunk.place(0) for chunk in chunks_of(IterableSource(rows))] == [f"iterable, row {i}" for i in range(1, 6)]
    assert found[1] == ("sensor, row 2", None, "a row must be a pair (x, y), not None")


@pytest.mark.parametrize("most", [1, 3, 10, 1000])
@pytest.mark.parametrize("name", ["rows.csv", "rows.jsonl", "rows.libsvm", "rows.csv.gz"])
def test_rows_of_a_file_are_taken_together_as_one_by_one(tmp_path, name, most):
    kind = name.split(".")[1]
    lines = {
        "csv": ["a,b,y", "1,2,yes", '3,"4', '5",no', "", "6,7", "8,text,yes", *(f"{i},{i * i},no" for i in range(50)), "9,9,yes"],
        "jsonl": ['{"a": 1, "y": 0}', "", "[1]", "{", '{"a": {"b": 2}, "y": 1}', *(f'{{"a": {i}, "y": 0}}' for i in range(50))],
        "libsvm": ["+1 1:2 3:4", "# nothing", "-1 1:x", *(f"-1 1:{i} # row" for i in range(50))],
    }[kind]
    path, text = tmp_path / name, "\n".join(lines).encode()
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)

    def opened():
        source = open_source(str(path), label="y")
        source.keep(["a"] * (kind != "libsvm"))
        return source

    assert check_chunks(opened, most, ["a", 1]) > 40 or kind == "libsvm"  # whose comments are looked at closely
