"""JSON objects are rows, however they are spread over lines."""

import itertools
import json
import os
import threading

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from patience import until
from saved import dumps
from streamsvm import BSGDClassifier
from streamsvm.stream import CheckpointFolder, JSONLinesSource, LearningLoop, object_lines
from streamsvm.stream.lines import ByteStream
from streamsvm.stream.object_lines import ObjectLines

#: How a writer may put objects behind each other: a function of one object, and what is between two of them.
LAYOUTS = {
    "lines": (json.dumps, "\n"),
    "no line ends": (json.dumps, ""),
    "blanks": (json.dumps, " "),
    "indented": (lambda row: json.dumps(row, indent=2), "\n"),
    "indented, no line ends between": (lambda row: json.dumps(row, indent=1, ensure_ascii=False), ""),
    "not indented": (lambda row: json.dumps(row, indent=0).replace("\n", "\r\n"), "\r\n"),
}
values = st.one_of(
    st.floats(allow_nan=False, width=32),
    st.integers(-(2**60), 2**60),
    st.text(max_size=8),
    st.sampled_from(['}{"', "}\n{", 'q"\\']),
)
rows_of_objects = st.lists(st.dictionaries(st.sampled_from("abcd"), values, min_size=1), min_size=1, max_size=6)


class InPieces(ByteStream):
    """Bytes that arrive in pieces."""

    def __init__(self, pieces):
        self.name, self._pieces = "pieces", [piece for piece in pieces if piece]

    def read(self, seconds=None):
        return self._pieces.pop(0) if self._pieces else b""

    def close(self):
        pass


@example("indented", [{"a": 0.0}], [1], True)
@given(st.sampled_from(sorted(LAYOUTS)), rows_of_objects, st.lists(st.integers(0, 200), max_size=5), st.booleans())
def test_rows_do_not_depend_on_lines(layout, rows, cuts, has_mark):
    write, separator = LAYOUTS[layout]
    data = ("\ufeff" * has_mark + separator.join(map(write, rows)) + separator).encode()
    cuts = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    source = JSONLinesSource(InPieces(data[a:b] for a, b in itertools.pairwise(cuts)))
    assert [row.x for row in source] == rows


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": 1}{"a": }{"a": 3}', [1, "object 2", 3]),
        ('{\n"a": 1\n}\n{\n"a": 2,\n}\n{\n"a": 3\n}\n{\n"a": 4', [1, "object 2", 3, "object 4"]),
        ('{"a": 1}{"a": 2} oops', [1, 2, "object 3"]),
        ('{"a": 1}\n{"a": 2, "b\n{"a": 3}\n', [1, "line 2", 3]),
        ('{"a": 1, "b\n{"a": 2}\n{"a": 3}\n', ["line 1", 2, 3]),
        ('{"a": 1,\n{"a": 2}\n{"a": 3}\n', ["line 1", 2, 3]),
        ('[{"a": 1}, {"a": 2}]\n', ["line 1"]),
        ('{"a": 1}, {"a": 2}\n{"a": 3}\n', ["line 1", 3]),
        ("", []),
        (" \n ", []),
        ("{", ["line 1"]),
    ],
)
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_a_malformed_object_is_one_bad_row(text, expected, size):
    data = text.encode()
    with JSONLinesSource(InPieces(data[i : i + size] for i in range(0, len(data), size))) as source:
        rows = [row.x["a"] if hasattr(row, "x") else row.place.removeprefix("pieces, ") for row in source]
    assert rows == expected


def make_rows(n):
    return [{"a": i % 7, "b": {"c": i % 5}, "y": i % 2} for i in range(n)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_run_continues_within_a_file_of_objects(tmp_path, layout):
    write, separator = LAYOUTS[layout]
    path = tmp_path / "rows.jsonl"
    texts = [write(row) + separator for row in make_rows(90)]

    def run(folder, max_rows=None):
        with CheckpointFolder(tmp_path / folder) as checkpoints, JSONLinesSource(path, "y") as source:
            loop = LearningLoop(source, BSGDClassifier(budget=20, seed=1), checkpoints=checkpoints)
            loop.run(max_rows)
            return loop.rows, dumps(loop.model)

    path.write_text("".join(texts[:60]))
    assert run("pieces", 25)[0] == 25
    assert run("pieces")[0] == 60
    path.write_text("".join(texts))
    assert run("pieces") == run("whole")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFO")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_objects_of_a_pipe_are_sampled_and_learned_as_they_come(tmp_path, layout, call):
    write, separator = LAYOUTS[layout]
    path = tmp_path / "rows.jsonl"
    os.mkfifo(path)

    def send():
        with path.open("wb", buffering=0) as file:
            file.write("".join(write(row) + separator for row in make_rows(210)).encode())
            until((tmp_path / "out.jsonl").exists)
            until(lambda: len((tmp_path / "out.jsonl").read_text().splitlines()) == 210)
            file.write("".join(write(row) + separator for row in make_rows(20)).encode())

    thread = threading.Thread(target=send)
    thread.start()
    said = call("learn", path, "--label", "y", "--learner", "bsgd,budget=20", "--to", tmp_path / "out.jsonl").stderr
    thread.join()
    assert "first look" in said
    assert "230 rows" in said


def test_bytes_of_lines_are_unchanged():
    data = b'\n {"a": 1}\r\n\r\n{"a": 2}{"a": 3}\n{'
    stream = ObjectLines(InPieces([data[:9], data[9:]]))
    assert b"".join(iter(stream.read, b"")) == data


@pytest.mark.parametrize("size", [2**12, 2**18])
def test_many_malformed_objects_take_linear_time(monkeypatch, size):
    """The error of a malformed object counts the lines before it."""
    text, starts = '{"a": 1}{"a": 2}' + "{x}" * 20_000 + '{"a": 3}', []
    find_end = object_lines._find_end
    monkeypatch.setattr(object_lines, "_find_end", lambda text, start, end: starts.append(start) or find_end(text, start, end))
    stream = ObjectLines(InPieces(text[i : i + size].encode() for i in range(0, len(text), size)))
    assert b"".join(iter(stream.read, b"")).decode() == text.replace("}", "}\n")
    assert len(starts) < 21_000
    assert max(starts) < 2**14 + 8


BLANKS = itertools.product([b"", b'{"a": 1}', b'{"a": 1}{"a": 2}', b'{"a": 1}{x}', b'{\n"a": 1}'], [b" ", b"\r\n", b"\t \n\n"])


@pytest.mark.parametrize(("before", "blank"), [pair for pair in BLANKS if pair[0] != b'{"a": 1}' or pair[1] == b" "])
def test_many_blanks_between_objects_are_not_kept(monkeypatch, before, blank):
    monkeypatch.setattr(object_lines, "MAX_LINE_BYTES", 2**12)
    kept, stream = [], ObjectLines(InPieces([before, *[blank * 2**10] * 100, b'{"a": 3}{"a": 4}']))
    read = stream._stream.read
    stream._stream.read = lambda seconds=None: kept.append(len(stream._text)) or read(seconds)
    assert b"".join(iter(stream.read, b"")).split(b"\n")[-3:] == [b'{"a": 3}', b'{"a": 4}', b""]
    assert max(kept) <= 3 * 2**12
