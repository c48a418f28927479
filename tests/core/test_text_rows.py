"""Parsers of text rows against Python's float, json and csv."""

import csv
import json
import math
import random
import re
import struct
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamsvm.core.compiling.common import INTERPRETED
from streamsvm.core.text_rows import read_cells, read_objects, read_pairs


class Parsed:
    """The results of a parser: its output arrays, the first row that it did not parse, and the number of its cell."""

    def __init__(self, read, rows, columns, texts, first=0, around=(b"1", b"1")):
        begins = np.cumsum([len(around[0]), *map(len, rows)])
        self.data = around[0] + b"".join(rows) + around[1]
        self.X, self.places = np.full((len(rows), columns), 7.0), np.full((len(rows), texts, 2), -7)
        data, bits = np.frombuffer(self.data, np.uint8), self.X.view(np.uint64)
        result = read(data, begins[:-1], begins[1:], first, self.X, bits, self.places)
        self.row, self.cell = result if isinstance(result, tuple) else (result, None)

    @property
    def texts(self):
        return [[self.data[start:stop] if start >= 0 else None for start, stop in row] for row in self.places.tolist()]

    def numbers(self, i):
        return self.X[i].tobytes()


def parse_cells(rows, delimiter=b",", kinds="n", **options):
    """Parse delimited rows. ``kinds`` has a letter for each cell: n for a number, t for text, b for both, - to ignore it."""
    columns, texts = (
        np.array([-1 if kind not in of else sum(previous in of for previous in kinds[:i]) for i, kind in enumerate(kinds)])
        for of in ("nb", "tb")
    )

    def read(data, begins, ends, first, *out):
        return read_cells(data, begins, ends, first, delimiter[0], columns, texts, *out)

    return Parsed(read, rows, int(columns.max()) + 1, int(texts.max()) + 1, **options)


def parse_objects(rows, names, label=None, texts="", **options):
    """Parse JSON objects of numbers. Values of the label and of ``texts`` can be of any kind."""
    names = [*names, *([] if label is None else [label])]
    json_names = [json.dumps(name).encode() for name in names]
    stops, order, text = (
        np.cumsum([len(name) for name in json_names]),
        np.arange(len(json_names)),
        np.frombuffer(b"".join(json_names), np.uint8),
    )
    is_text = np.array([name == label or name in texts for name in names])
    columns, places = (np.where(of, np.cumsum(of) - 1, -1) for of in (~is_text, is_text))

    def read(data, begins, ends, first, X, bits, where):
        return read_objects(data, begins, ends, first, text, stops, order, columns, places, X, bits, X == 0.5, where)

    return Parsed(read, rows, int(columns.max()) + 1, int(places.max()) + 1, **options)


def parse_pairs(rows, indices, **options):
    columns = np.full(max(indices) + 1, -1)
    columns[indices] = np.arange(len(indices))

    def read(data, begins, ends, first, X, bits, places):
        return read_pairs(data, begins, ends, first, columns, X, bits, places[:, 0])

    return Parsed(read, rows, len(indices), 1, **options)


def make_number(rng):
    """Return the text of a random number, such as repr writes it, or one that is hard to round."""
    kind = rng.randrange(7)
    if kind == 0:
        return repr(struct.unpack("d", struct.pack("Q", rng.getrandbits(64)))[0])
    if kind == 1:
        return repr(rng.gauss(0.0, 1.0) * 10.0 ** rng.randint(-30, 30))
    if kind == 2:
        return f"{rng.randint(-(10**19), 10 ** rng.randint(1, 19))}e{rng.randint(-70, 70)}"
    if kind == 3:  # halfway between two floats
        return str(((1 << 53) + 2 * rng.getrandbits(20) + 1) << rng.randint(0, 9))
    if kind == 4:
        return f"{(1 << 53) + 2 * rng.getrandbits(20) + 1}{rng.choice(['.0', 'e0', '.5', '.4999', 'e-3', 'e3', 'E+1'])}"
    if kind == 5:
        return f"{rng.randint(0, 10**6)}.{rng.randint(0, 10**6):0{rng.randint(1, 9)}}"
    return f"0.{'0' * rng.randint(0, 25)}{rng.getrandbits(60)}"


def test_parsed_numbers_equal_float():
    rng, read, n_texts = random.Random(0), 0, 1_000 if INTERPRETED else 10_000
    texts = [text for text in (make_number(rng) for _ in range(n_texts)) if "n" not in text]
    at = 0
    while at < len(texts):
        part = [text.encode() for text in texts[at : at + 5000]]
        n = (result := parse_cells(part)).row
        assert result.X[:n].tobytes() == np.array([float(text) for text in part[:n]]).tobytes()
        read += n
        at += n + 1  # skip the number that was not parsed
    assert read > 0.7 * n_texts


def test_undecidable_numbers_are_left_to_python():
    for text in (
        "1" * 20,
        "0." + "1" * 20,
        "1e65",
        "1e-65",
        "1e999999999999999999999",
        "-" * 3,
        "1e",
        "1e+",
        "1.",
        ".1",
        "00",
        "--1",
    ):
        assert parse_cells([b"1", text.encode(), b"1"]).row == 1, text
    assert parse_cells([b"0e999999999999999999999", b"-0.000e-99999"]).X.tobytes() == np.array([[0.0], [-0.0]]).tobytes()


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=5))
def test_parsed_objects_equal_json(values):
    names = [f"x{i}" for i in range(len(values))]
    row = dict(zip(names, values, strict=True))
    for text in (json.dumps(row), json.dumps(row, indent=1), json.dumps(dict(reversed(row.items())), separators=(",", ":"))):
        n = (result := parse_objects([text.encode()], names)).row
        if n:
            assert result.numbers(0) == np.array(values).tobytes()
    if all(value == 0.0 or 1e-40 < abs(value) < 1e40 for value in values):
        assert n == 1


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "}", "{}{}", "[]", "1", '{"a"}', '{"a":}', '{"a":1,}', '{,"a":1}', '{"a":1 "y":2}', '{"a":1}x', "{a:1}"),
        *('{"a":1,"a":1}', '{"a":1,"z":1}', '{"A":1}', '{"a":nul}', '{"a":nulll}', '{"a":"1"}', '{"a":true}', '{"a":[1]}'),
        *(
            '{"y":"a\\q"}',
            '{"y":"\\u00g0"}',
            '{"y":"\\u00',
            '{"y":"\\',
            '{"y":"a\n"}',
            '{"y":nope}',
            '{"y":"a}',
            '{"y":[]}',
            '{"y":{}}',
            '{"y":}',
            '{"y":NaN}',
            '{"\\u0061":1}',
            "{\v}",
        ),
    ],
)
def test_unusual_objects_are_left_to_python(text):
    good = b'{"a": 1.5, "y": "b"}'
    result = parse_objects([good, text.encode(), good], ["a"], "y")
    assert (result.row, result.X[0, 0], result.texts[0]) == (1, 1.5, [b'"b"'])


def test_bytes_around_a_row_are_ignored():
    rows = [b'{"a":', b"1}", b"12", b'"a"', b"nul", b"l"]
    for row in rows:
        assert parse_objects([row], ["a"]).row == 0
    for rows in ([b"1,", b"2"], [b"1,2", b"3"], [b"1,2", b"1,2,3"], [b"1,", b'1,"2']):
        assert parse_cells(rows, kinds="nt").row == parse_cells(rows, kinds="nn").row == 1
    for row in (b"1 1:", b"1 1", b"1 ", b"1:"):
        assert parse_pairs([row], [1]).row == (row == b"1 ")


def test_labels_are_returned_as_ranges():
    rows = [
        b'{"y": %s, "a": 1}' % label for label in (b"1", b"-2.5e3", b'"\xc3\xa9 {"', b"true", b"false", b"null", b'"\\n\\u00e9"')
    ]
    result = parse_objects([*rows, b'{"a": 2}', b"{}"], ["a"], "y")
    labels = [b"1", b"-2.5e3", b'"\xc3\xa9 {"', b"true", b"false", b"null", b'"\\n\\u00e9"', None, None]
    assert (result.row, [text for (text,) in result.texts]) == (9, labels)
    assert result.X[:8, 0].tolist() == [1.0] * 7 + [2.0]
    assert np.isnan(result.X[8, 0])


def read_by_csv(row, delimiter):
    """Return the cells of a row by the csv module; None if it raises an error."""
    try:
        (result,) = csv.reader([row.decode("latin-1")], strict=True, delimiter=delimiter.decode(), skipinitialspace=True)
    except csv.Error:
        return None
    return result


PLAIN = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?[ \t\r]*")
CELLS = ["0", "-1", "2.5", "1e5 ", "-0", "01", "+1", ".5", "1.", "nan", "1e400", "1_0", "1\t", "1 2", "1\xa0"]
CELLS += ["", " ", "x", "Oslo x", "\xe9"]
QUOTED = [*(f'"{cell}"' for cell in CELLS), '"a,b"', '"a;\tb"', '"a""b"', 'a"b', '"a"b', '"1" ', '"', '"" ']
cell_texts = st.sampled_from([*CELLS, *QUOTED]) | st.floats(allow_nan=False).map(repr)
kinds_of_cells = st.sampled_from(["n", "t", "nt", "tn", "nnb", "-nb", "n-t", "nnnn"])


@given(st.data(), st.sampled_from([b",", b";", b"\t", b"|"]), kinds_of_cells)
def test_parsed_cells_equal_csv_module(data, delimiter, kinds):
    row = st.lists(cell_texts, min_size=max(len(kinds) - 1, 1), max_size=len(kinds) + 1)
    blanks, ends = st.sampled_from(["", "", " "]), st.sampled_from(["", "\n", "\r\n"])
    texts = data.draw(st.lists(st.tuples(row, blanks, ends), min_size=1, max_size=5))
    rows = [
        (delimiter.decode().join(blank + cell for cell in row) + line_end).encode("latin-1") for row, blank, line_end in texts
    ]
    i = 0
    while i < len(rows):
        result = parse_cells(rows, delimiter, kinds, first=i)
        assert np.all(result.X[:i] == 7.0)
        for k in range(i, result.row):
            read = read_by_csv(rows[k].rstrip(b"\r\n"), delimiter) or [""]
            assert len(read) == len(kinds)
            numbers = [float(cell) if cell.strip() else math.nan for cell, kind in zip(read, kinds, strict=True) if kind in "nb"]
            assert result.numbers(k) == np.array(numbers).tobytes()
            assert [text.decode("latin-1") for text in result.texts[k]] == [
                cell for cell, kind in zip(read, kinds, strict=True) if kind in "tb"
            ]
        if (i := result.row) < len(rows):  # there must be a reason not to parse this row
            read = read_by_csv(rows[i].rstrip(b"\r\n"), delimiter)
            if result.cell < 0:
                assert read is None or len(read) != len(kinds)
            elif read is not None and b'"' not in rows[i]:
                assert kinds[result.cell] in "nb"
                assert not PLAIN.fullmatch(cell := read[result.cell]) or not 1e-40 < abs(float(cell)) < 1e40
        i += 1


@given(st.data(), st.sampled_from([[1], [1, 2, 3], [3, 0, 2]]))
def test_parsed_pairs_equal_python(data, indices):
    label = st.sampled_from(["1", "-1", "+1", "a", "\xe9", "", "#", "1:2", '"'])
    pair = st.tuples(st.sampled_from([0, 1, 2, 3, 4, "01", "x", "", 10**20]), cell_texts).map(lambda pair: f"{pair[0]}:{pair[1]}")
    row = st.tuples(label, st.lists(pair, max_size=4), st.sampled_from(["", " ", "\n", " # 1", "#"]))
    rows = [
        (" ".join([label, *cells]) + line_end).encode()
        for label, cells, line_end in data.draw(st.lists(row, min_size=1, max_size=5))
    ]
    i = 0
    while i < len(rows):
        result = parse_pairs(rows, indices, first=i)
        for k in range(i, result.row):
            label, *read = rows[k].decode().split()
            x = {int(index): float(value) for index, _, value in (pair.partition(":") for pair in read)}
            assert len(x) == len(read)
            assert x.keys() <= set(indices)
            assert result.texts[k] == [label.encode()]
            assert result.numbers(k) == np.array([x.get(name, math.nan) for name in indices]).tobytes()
        i = result.row + 1


def test_common_rows_are_parsed():
    rows = [b'1,Oslo,"2",,"a, b"\n', b' -2.5e3 ,,"", 7,""\r\n', b'"-0",x y,1e-5, "1",e']
    result = parse_cells(rows, kinds="ntnbt")
    assert (result.row, result.cell) == (3, -1)
    assert result.X.tobytes() == np.array([[1.0, 2.0, np.nan], [-2500.0, np.nan, 7.0], [-0.0, 1e-5, 1.0]]).tobytes()
    assert result.texts == [[b"Oslo", b"", b"a, b"], [b"", b"7", b""], [b"x y", b"1", b"e"]]
    assert parse_cells([row.replace(b",", b"\t") for row in rows], b"\t", "ntnbt").row == 3
    result = parse_pairs([b"+1 2:0.5 1:-1e3\n", b"a\n", b"  b\t1:2 \r\n"], [1, 2])
    assert (result.row, [text for (text,) in result.texts]) == (3, [b"+1", b"a", b"b"])
    assert result.X.tobytes() == np.array([[-1000.0, 0.5], [np.nan, np.nan], [2.0, np.nan]]).tobytes()


@pytest.mark.parametrize(
    ("read", "good", "bad"),
    [
        (partial(parse_cells, kinds="nt"), b"1,a", b"x,a"),
        (partial(parse_objects, names=["a"], label="y"), b'{"a": 1, "y": 2}', b'{"a": "1", "y": 2}'),
        (partial(parse_pairs, indices=[1]), b"a 1:1", b"a 1:x"),
    ],
)
def test_parsing_resumes_at_any_row(read, good, bad):
    rows = [good, bad, good, good, bad, bad, good]
    for first in range(len(rows)):
        result = read(rows, first=first)
        assert result.row == next((i for i in range(first, len(rows)) if rows[i] == bad), len(rows))
        assert result.X[:, 0].tolist()[:first] == [7.0] * first
        assert all(result.X[first : result.row, 0] == 1.0)
        assert result.texts[:first] == [[None]] * first
    assert read([], first=0).row == 0


@given(st.lists(st.binary(max_size=30) | st.text('{}[]",:.eE+-019 nulltrfas\n', max_size=30).map(str.encode), max_size=4))
def test_arbitrary_bytes(rows):
    rows = [*rows, b'{"a":1}']
    result = parse_objects(rows, ["a"], "y")
    for row, (value,) in zip(rows[: result.row], result.X.tolist(), strict=False):
        x = json.loads(row.replace(b'"y":n', b'"y":0')) if b"y" not in row else {}
        assert x.get("a") is None or x["a"] == value
    parse_pairs(rows, [1, 3])
    parse_cells(rows, kinds="tbn")
    result = parse_cells(rows)
    for row, (value,) in zip(rows[: result.row], result.X.tolist(), strict=False):
        assert np.isnan(value) or float(row) == value
