"""Sources and sinks of text: every format, every position, and what they refuse."""

import csv
import gzip
import io
import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamsvm.runtime import FileSink, IterableSource, Prediction, StreamError, open_sink, open_source

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


@pytest.mark.parametrize("kind", TEXTS)
def test_standard_input_is_read_forward(tmp_path, kind):
    source = open_source(write(tmp_path, kind, False), label="y")
    next(iter(source))
    script = (
        "import json, sys\nfrom streamsvm.runtime import open_source\n"
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
        ("csv", "a,y\n1,1\n1,2,3\n", ["line 3", "3 cells for 2 columns"]),
        ("csv", 'a,y\n"1,1\n', ["unexpected end"]),
        ("jsonl", '{"a": 1}\n{"a": \n', ["line 2", "not JSON"]),
        ("jsonl", "[1, 2]\n", ["line 1", "not a JSON object"]),
        ("libsvm", "1 1:2 3\n", ["line 1", "index:value"]),
        ("libsvm", "1 1:2 1:3\n", ["line 1", "twice"]),
        ("libsvm", "1:2 2:3\n", ["line 1", "label"]),
    ],
)
def test_malformed_text_is_refused_by_line(tmp_path, kind, text, words):
    source = open_source(write(tmp_path, kind, False, text), label="y")
    with pytest.raises(StreamError) as caught:
        list(source)
    source.close()
    assert all(word in str(caught.value) for word in words), caught.value


def test_bytes_that_are_not_text(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_bytes(b"a,y\n1,1\n\xff,1\n")
    source = open_source(str(path), label="y")
    with pytest.raises(StreamError, match="line 3: not UTF-8"):
        list(source)
    source.close()
    cut = tmp_path / "cut.csv.gz"
    cut.write_bytes(gzip.compress(b"a,y\n" + b"1,1\n" * 1000)[:-12])
    source = open_source(str(cut), label="y")
    with pytest.raises(StreamError, match=r"cut\.csv\.gz"):
        list(source)
    source.close()


def test_a_line_without_end_is_refused_within_bounded_memory(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b" " * (17 * 2**20))
    source = open_source(str(path), label="y")
    with pytest.raises(StreamError, match="longer than"):
        list(source)
    source.close()


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


def test_names_that_say_nothing(tmp_path):
    with pytest.raises(StreamError, match="No such file"):
        open_source(str(tmp_path / "none.csv"), label="y")
    with pytest.raises(StreamError, match="--format"):
        open_source("-", label="y")
    with pytest.raises(StreamError, match="nothing installed knows amqp"):
        open_source("amqp://host/queue", label="y")
    with pytest.raises(StreamError, match="nothing installed knows amqp"):
        open_sink("amqp://host/queue")


def test_iterables(tmp_path):
    rows = [({"a": float(i)}, i % 2) for i in range(5)]
    source = IterableSource(rows)
    source.seek({"rows": 3})
    assert [tuple(row) for row in source] == rows[3:]
    assert source.position == {"rows": 5}
    with pytest.raises(StreamError, match="only 5 rows"):
        IterableSource(rows).seek({"rows": 6})
    with pytest.raises(StreamError, match="another kind"):
        IterableSource(rows).seek({"offset": 6})


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_file_sink_is_cut_back(tmp_path, suffix):
    path = tmp_path / f"out.{suffix}"
    path.write_text("something old")
    sink = FileSink(path)
    sink.write(Prediction(0, True, True, 0.75))
    position = sink.flush()
    before = path.read_bytes()
    sink.write(Prediction(1, "a,b", None, None))
    sink.close()
    whole = path.read_bytes()
    assert whole.startswith(before)
    again = FileSink(path)
    again.seek(position)
    assert path.read_bytes() == before
    again.write(Prediction(1, "a,b", None, None))
    again.close()
    assert path.read_bytes() == whole
    path.write_text("")
    other = FileSink(path)
    with pytest.raises(StreamError, match="has 0 bytes"):
        other.seek(position)
    with pytest.raises(StreamError, match="another kind of sink"):
        other.seek({"topic": 1})
    other.close()


def test_sinks_that_cannot_be(tmp_path):
    with pytest.raises(StreamError, match="compressed"):
        open_sink(str(tmp_path / "out.jsonl.gz"))
    with pytest.raises(StreamError, match="No such file"):
        open_sink(str(tmp_path / "none" / "out.jsonl"))
