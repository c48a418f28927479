"""Sources and sinks of text: every format, every position, and what they refuse."""

import csv
import gzip
import io
import json
import os
import queue
import re
import subprocess
import sys
import threading
import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lists import first
from patience import PATIENCE
from streamsvm.stream import BadRow, IterableSource, Row, StreamError, open_sink, open_source
from streamsvm.stream.rows import parse_label

TEXTS = {
    "csv": 'a,b c,y\n1,2,1\n\n3,,0\n"4","5.5",1\n',
    "jsonl": '{"a": 1, "b c": 2, "y": 1}\n{"a": 3, "b c": null, "y": 0}\n\n{"a": 4, "b c": 5.5, "y": 1}\n',
    "libsvm": "1 1:1 2:2\n\n0 1:3\n+1 1:4 2:5.5 # a comment\n",
}
ROWS = [({"a": 1.0, "b c": 2.0}, 1), ({"a": 3.0}, 0), ({"a": 4.0, "b c": 5.5}, 1)]
NUMBERED = [({1: 1.0, 2: 2.0}, 1), ({1: 3.0}, 0), ({1: 4.0, 2: 5.5}, 1)]


def write(folder, kind, compressed, text=None):
    path = folder / f"rows.{kind}{'.gz' if compressed else ''}"
    data = (TEXTS[kind] if text is None else text).encode()
    path.write_bytes(gzip.compress(data) if compressed else data)
    return str(path)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("kind", TEXTS)
def test_formats_and_every_position(tmp_path, kind, compressed):
    path = write(tmp_path, kind, compressed)
    expected = NUMBERED if kind == "libsvm" else ROWS
    source = open_source(path, label="y")
    positions = [source.position]
    rows = []
    for row in source:
        rows.append(tuple(row))
        positions.append(source.position)
    source.close()
    assert rows == expected
    for done, position in enumerate(positions):
        again = open_source(path, label="y")
        again.seek(json.loads(json.dumps(position)))
        assert [tuple(row) for row in again] == expected[done:]
        assert again.position == positions[-1]
        again.close()


@pytest.mark.thorough
@pytest.mark.parametrize("kind", TEXTS)
def test_standard_input_is_read_forward(tmp_path, kind):
    source = open_source(write(tmp_path, kind, False), label="y")
    next(iter(source))
    script = (
        "import json, sys\nfrom streamsvm.stream import open_source\n"
        f"source = open_source('-', label='y', format={kind!r})\nsource.seek(json.loads(sys.argv[1]))\n"
        "print(json.dumps([list(row) for row in source]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, json.dumps(source.position)], input=TEXTS[kind], capture_output=True, text=True, check=True
    )
    source.close()
    expected = NUMBERED if kind == "libsvm" else ROWS
    assert json.loads(done.stdout) == json.loads(json.dumps([list(row) for row in expected[1:]]))


cells = st.text(alphabet=st.characters(codec="utf-8", exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)


@given(st.lists(st.lists(cells, min_size=3, max_size=3), min_size=1, max_size=8), st.sampled_from(["\n", "\r\n"]))
def test_csv_resumes_after_any_row_whatever_the_cells_hold(tmp_path_factory, table, newline):
    text = io.StringIO()
    writer = csv.writer(text, lineterminator=newline, quoting=csv.QUOTE_ALL)
    writer.writerow(["a", "b", "y"])
    writer.writerows(table)
    path = tmp_path_factory.mktemp("csv") / "rows.csv"
    path.write_bytes(text.getvalue().encode())
    source = open_source(str(path), label="y")
    rows, positions = [], [source.position]
    for row in source:
        rows.append(row)
        positions.append(source.position)
    source.close()
    assert len(rows) == len(table)
    for done, position in enumerate(positions):
        again = open_source(str(path), label="y")
        again.seek(position)
        assert repr(list(again)) == repr(rows[done:])
        again.close()


def test_rows_longer_than_what_is_kept_of_the_beginning(tmp_path):
    names = [f"feature_{i:04d}" for i in range(600)]
    text = ",".join([*names, "y"]) + "\n" + "".join(",".join(["0.123456"] * 600 + [str(i % 2)]) + "\n" for i in range(5))
    for compressed in (False, True):
        path = write(tmp_path, "csv", compressed, text)
        source = open_source(path, label="y")
        iterator = iter(source)
        next(iterator)
        next(iterator)
        again = open_source(path, label="y")
        again.seek(source.position)
        assert list(again) == list(iterator)
        again.close()
        source.close()


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("csv", "", ["is empty"]),
        ("csv", "a,a,y\n", ["line 1", "one name"]),
        ("csv", "a,b\n1,2\n", ["no column 'y'", "a, b"]),
        ("csv", b"a,\xff\n", ["line 1", "not UTF-8"]),
        ("csv", 'a,"y\n', ["line 1", "unexpected end"]),
    ],
)
def test_a_malformed_header_is_refused(tmp_path, kind, text, words):
    path = tmp_path / f"rows.{kind}"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    source = open_source(str(path), label="y")
    with pytest.raises(StreamError) as caught:
        list(source)
    source.close()
    assert all(word in str(caught.value) for word in words), caught.value


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
    path = tmp_path / (f"rows.{kind}" + ".gz" * compressed)
    text = header + good + b"\n" + bad + good * n_after + bad + good
    path.write_bytes(gzip.compress(text, 1) if compressed else text)
    source = open_source(str(path), label="y")
    rows, raws, positions = [], [], []
    for row in source:
        rows.append(row)
        raws.append(source.raw)
        positions.append(source.position)
    source.close()
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
        again = open_source(str(path), label="y")
        again.seek(positions[i])
        assert [type(row) for row in again] == [type(row) for row in rows[i + 1 :]]
        again.close()


def test_a_quote_that_is_never_closed_costs_one_row_of_a_long_file(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text('a,y\n1,1\n"2,1\n' + "3,0\n" * 5000 + '4,"1\nx"\n')
    with open_source(str(path), label="y") as source:
        rows = list(source)
    assert [i for i, row in enumerate(rows) if isinstance(row, BadRow)] == [1]
    assert "not closed within 1,000 lines" in rows[1].reason
    assert rows[-1] == ({"a": 4.0}, "1\nx")


def test_an_item_that_is_no_pair_is_a_bad_row():
    rows = list(IterableSource([({"a": 1.0}, True), None, ({"a": 1.0}, True, 2)], "sensor"))
    assert [type(row) for row in rows] == [Row, BadRow, BadRow]
    assert rows[1] == ("sensor, row 2", None, "a row must be a pair (x, y), not None")


def damaged(kind):
    whole = gzip.compress(b"a,y\n" + b"".join(b"%d,1\n" % i for i in range(100_000)))
    return {
        "cut off": whole[:-12],
        "not gzip": b"a,y\n1,1\n",
        "changed": whole[:10] + b"\xff" * 20 + whole[30:],
        "checksum": whole[:-8] + bytes(8),
    }[kind]


@pytest.mark.parametrize("kind", ["cut off", "not gzip", "changed", "checksum"])
def test_damaged_gzip_is_said(tmp_path, kind):
    path = tmp_path / "rows.csv.gz"
    path.write_bytes(damaged(kind))
    source = open_source(str(path), label="y")
    with pytest.raises(StreamError, match=r"rows\.csv\.gz, after byte"):
        list(source)
    source.close()


def test_a_line_without_end_is_refused_within_bounded_memory(tmp_path):
    path = tmp_path / "rows.jsonl"
    with path.open("wb") as file:
        for _ in range(100):
            file.write(b" " * 2**20)
    source = open_source(str(path), label="y")
    tracemalloc.start()
    rows = list(source)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    source.close()
    assert [type(row) for row in rows] == [BadRow]
    assert peak < 60 * 2**20


@pytest.mark.parametrize("compressed", [False, True])
def test_positions_of_other_streams_are_refused(tmp_path, compressed):
    path = write(tmp_path, "csv", compressed)
    source = open_source(path, label="y")
    list(source)
    position = source.position
    source.close()

    def refuses(text, match):
        other = open_source(write(tmp_path, "csv", compressed, text), label="y")
        with pytest.raises(StreamError, match=match):
            other.seek(position)
        other.close()

    refuses(TEXTS["csv"].replace("3", "7"), "not the stream")
    refuses(TEXTS["csv"][:-4], "not the stream|ends at byte")
    long = TEXTS["csv"] + "1,2,1\n" * 2000
    source = open_source(write(tmp_path, "csv", compressed, long), label="y")
    list(source)
    position = source.position
    source.close()
    refuses(long[:-600], "ends at byte")
    source = open_source(write(tmp_path, "csv", compressed), label="y")
    with pytest.raises(StreamError, match="another kind of stream"):
        source.seek({"rows": 3})
    source.close()


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("kind", TEXTS)
def test_rows_may_be_appended_but_not_changed(tmp_path, kind, compressed):
    more = {"csv": "7,8,1\n", "jsonl": '{"a": 7, "b c": 8, "y": 1}\n', "libsvm": "1 1:7 2:8\n"}[kind]
    text = TEXTS[kind] + more * 2000
    source = open_source(write(tmp_path, kind, compressed, text), label="y")
    list(source)
    position = source.position
    source.close()

    def resumed(text):
        other = open_source(write(tmp_path, kind, compressed, text), label="y")
        try:
            other.seek(position)
            return [tuple(row) for row in other]
        finally:
            other.close()

    assert resumed(text + more) == [({1: 7.0, 2: 8.0} if kind == "libsvm" else {"a": 7.0, "b c": 8.0}, 1)]
    changed = text[:-4] + text[-4:].replace("1", "0").replace("8", "9")
    with pytest.raises(StreamError, match="was changed before byte"):
        resumed(changed + more)


@pytest.mark.parametrize("kind", TEXTS)
def test_a_last_line_without_end_may_not_grow(tmp_path, kind):
    text = TEXTS[kind].partition(" #")[0].rstrip()
    path = write(tmp_path, kind, False, text)
    source = open_source(path, label="y")
    rows = list(source)
    position = source.position
    source.close()

    def resumed(more):
        write(tmp_path, kind, False, text + more)
        other = open_source(path, label="y")
        try:
            other.seek(position)
            return list(other), other.place
        finally:
            other.close()

    next_line = text.splitlines()[-1]
    expected = [rows[-1]], f"{path}, line {position['line'] + 1}"
    assert resumed("\n" + next_line) == resumed("\r\n" + next_line + "\n") == expected
    with pytest.raises(StreamError, match=rf"line {position['line']}: the line has grown"):
        resumed("5\n")


def test_another_label_is_refused(tmp_path):
    path = write(tmp_path, "csv", False)
    source = open_source(path, label="y")
    list(source)
    other = open_source(path, label="a")
    with pytest.raises(StreamError, match="learned with the label 'y', not 'a'"):
        other.seek(source.position)
    with pytest.raises(RuntimeError, match="read already"):
        source.seek(source.position)
    other.close()
    source.close()


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
    assert given == (NUMBERED if kind == "libsvm" else ROWS)
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


def test_a_folder_is_no_stream(tmp_path):
    with pytest.raises(StreamError, match="Is a directory"):
        open_source(str(tmp_path), label="y", format="csv")


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("0", 0),
        ("-1", -1),
        ("2.5", 2.5),
        ("1.0", 1.0),
        ("TRUE", True),
        (" spam ", "spam"),
        ("007", "007"),
        ("1_000", "1_000"),
        ("+1", "+1"),
        ("1e3", "1e3"),
        ("-0", "-0"),
        ("inf", "inf"),
        ("123456789012345678", 123456789012345678),
        ("12345678901234567890", "12345678901234567890"),
        ("9" * 5000, "9" * 5000),
        ("", None),
    ],
)
def test_labels_of_text_print_as_they_were(text, label):
    found = parse_label(text)
    assert (found, type(found)) == (label, type(label))


def test_labels_of_libsvm_text_are_numbers(tmp_path):
    labels = ["+1", "-1", "1.0", "0.5", "spam", "nan"]
    path = write(tmp_path, "libsvm", False, "".join(f"{label} 1:1\n" for label in labels))
    with open_source(path) as source:
        assert repr([row.y for row in source]) == "[1, -1, 1, 0.5, 'spam', nan]"
    assert repr(parse_label("NaN")) == "nan"


def test_names_that_say_nothing(tmp_path):
    with pytest.raises(StreamError, match="No such file"):
        open_source(str(tmp_path / "none.csv"), label="y")
    with pytest.raises(StreamError, match="name the format: csv, jsonl, libsvm"):
        open_source("-", label="y")
    with pytest.raises(StreamError, match="no installed package knows amqp"):
        open_source("amqp://host/queue", label="y")
    with pytest.raises(StreamError, match="no installed package knows amqp"):
        open_sink("amqp://host/queue")


def test_iterables(tmp_path):
    rows = [({"a": float(i)}, i % 2) for i in range(5)]
    source = IterableSource(rows)
    source.seek({"rows": 3})
    assert [tuple(row) for row in source] == rows[3:]
    assert source.position == {"rows": 5}
    assert source.place == "iterable, row 5"
    with pytest.raises(RuntimeError, match="read already"):
        source.seek({"rows": 3})
    with pytest.raises(StreamError, match="only 5 rows"):
        IterableSource(rows).seek({"rows": 6})
    with pytest.raises(StreamError, match="another kind"):
        IterableSource(rows).seek({"offset": 6})


def test_a_cell_of_several_lines_is_one_cell_whatever_it_looks_like(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("note,a,y\n" + "".join(f'"ticket\nhello,{i},1\nthanks",{i % 7},{int(i % 7 > 3)}\n' for i in range(20)))
    with (
        open_source(str(path), label="y", categorical="note") as source,
        pytest.warns(UserWarning, match="lines 5 to 7:") as said,
    ):
        rows = list(source)
    assert [row.x for row in rows] == [{"note": f"ticket\nhello,{i},1\nthanks", "a": float(i % 7)} for i in range(20)]
    assert len(said) == 1


def test_a_stray_quote_costs_its_line_where_the_next_quote_makes_no_row(tmp_path):
    path = tmp_path / "rows.csv"
    good = "3,0\n" * 9
    path.write_text('a,y\n1,1\n"\n' + good + '"x"z,5\n' + good + '7,"x\ny, 2\n"\n')
    with open_source(str(path), label="y") as source:
        rows = list(source)
    assert [i for i, row in enumerate(rows) if isinstance(row, BadRow)] == [1, 11]
    assert rows[-1] == ({"a": 7.0}, "x\ny, 2")


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
    path = tmp_path / f"rows.{kind}"
    many = blank * (1_500_000 // len(blank))
    path.write_text(head + row + many + row + blank)
    with open_source(str(path), label="y", format=kind) as source:
        rows = iter(source)
        next(rows)
        after_one = source.position
        assert next(rows).y == 2
        assert len(source._reader._buffer) < 700_000
        assert source.raw == (blank * (len(source.raw) // len(blank)) + row).encode()[-len(source.raw) :]
        assert list(rows) == []
        end = source.position
    with open_source(str(path), label="y", format=kind) as source:
        source.seek(after_one)
        assert [row.y for row in source] == [2]
        assert source.position == end
