"""Numbers in text: those that Python's float gives, whatever the text is."""

import json
import random
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamsvm.core.text_numbers import read_cells, read_objects


def places(rows, before=0):
    ends = before + np.cumsum([len(row) for row in rows])
    return np.array([before, *ends[:-1]]), ends


def cells(rows, mark=b",", width=1, data=None):
    """The rows that are read, and their numbers."""
    X, labels = np.full((len(rows), width), 7.0), np.empty((len(rows), 2), np.int64)
    data = np.frombuffer(b"1" + b"".join(rows) + b"1", np.uint8)
    n = read_cells(data, *places(rows, 1), mark[0], np.arange(width), X, X.view(np.uint64), labels)
    return int(n), X


def objects(rows, names, label=None):
    """The rows that are read, their numbers, and the texts of their labels."""
    X, places_of = np.full((len(rows), len(names)), 7.0), np.empty((len(rows), 2), np.int64)
    text = b'{"a":1' + b"".join(rows) + b',"a":1}'
    known = [json.dumps(name).encode() for name in [*names, *([] if label is None else [label])]]
    stops = np.cumsum([len(name) for name in known])
    order = np.arange(len(known))
    names = np.frombuffer(b"".join(known), np.uint8)
    n = read_objects(np.frombuffer(text, np.uint8), *places(rows, 6), names, stops, order, X, X.view(np.uint64), places_of)
    return int(n), X, [text[begin:end] if begin >= 0 else None for begin, end in places_of[:n].tolist()]


def numbers(rng):
    """Numbers as they are written, and those that are hard to round."""
    kind = rng.randrange(7)
    if kind == 0:
        return repr(struct.unpack("d", struct.pack("Q", rng.getrandbits(64)))[0])
    if kind == 1:
        return repr(rng.gauss(0.0, 1.0) * 10.0 ** rng.randint(-30, 30))
    if kind == 2:
        return f"{rng.randint(-(10**19), 10 ** rng.randint(1, 19))}e{rng.randint(-70, 70)}"
    if kind == 3:  # between two floats
        return str(((1 << 53) + 2 * rng.getrandbits(20) + 1) << rng.randint(0, 9))
    if kind == 4:
        return f"{(1 << 53) + 2 * rng.getrandbits(20) + 1}{rng.choice(['.0', 'e0', '.5', '.4999', 'e-3', 'e3', 'E+1'])}"
    if kind == 5:
        return f"{rng.randint(0, 10**6)}.{rng.randint(0, 10**6):0{rng.randint(1, 9)}}"
    return f"0.{'0' * rng.randint(0, 25)}{rng.getrandbits(60)}"


def test_numbers_are_those_of_float():
    rng, read = random.Random(0), 0
    texts = [text for text in (numbers(rng) for _ in range(30_000)) if "n" not in text]
    at = 0
    while at < len(texts):
        part = [text.encode() for text in texts[at : at + 5000]]
        n, X = cells(part)
        assert X[:n, 0].tobytes() == np.array([float(text) for text in part[:n]]).tobytes()
        read += n
        at += n + 1  # without the one that is left to others
    assert read > 20_000


def test_numbers_that_are_not_told_are_not_read():
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
        assert cells([b"1", text.encode(), b"1"])[0] == 1, text
    assert cells([b"0e999999999999999999999", b"-0.000e-99999"])[1].tobytes() == np.array([[0.0], [-0.0]]).tobytes()


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=5))
def test_objects_as_json_writes_them(values):
    names = [f"x{i}" for i in range(len(values))]
    row = dict(zip(names, values, strict=True))
    for text in (json.dumps(row), json.dumps(row, indent=1), json.dumps(dict(reversed(row.items())), separators=(",", ":"))):
        n, X, _ = objects([text.encode()], names)
        if n:
            assert X[0].tobytes() == np.array(values).tobytes()
    if all(value == 0.0 or 1e-40 < abs(value) < 1e40 for value in values):
        assert n == 1


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "}", "{}{}", "[]", "1", '{"a"}', '{"a":}', '{"a":1,}', '{,"a":1}', '{"a":1 "y":2}', '{"a":1}x', "{a:1}"),
        *('{"a":1,"a":1}', '{"a":1,"z":1}', '{"A":1}', '{"a":nul}', '{"a":nulll}', '{"a":"1"}', '{"a":true}', '{"a":[1]}'),
        *('{"y":"a\\n"}', '{"y":"a\n"}', '{"y":"a}', '{"y":[]}', '{"y":{}}', '{"y":}', '{"y":NaN}', '{"\\u0061":1}', "{\v}"),
    ],
)
def test_objects_of_another_form_are_not_read(text):
    good = b'{"a": 1.5, "y": "b"}'
    n, X, labels = objects([good, text.encode(), good], ["a"], "y")
    assert n == 1
    assert (X[0, 0], labels) == (1.5, [b'"b"'])


def test_what_lies_around_a_row_is_not_of_it():
    rows = [b'{"a":', b"1}", b"12", b'"a"', b"nul", b"l"]
    for row in rows:
        assert objects([row], ["a"])[0] == 0
    assert cells([b"1,", b"2"], width=2)[0] == 1
    assert cells([b"1,2", b"3"], width=2)[0] == 1


def test_labels_are_left_to_the_caller():
    rows = [b'{"y": %s, "a": 1}' % label for label in (b"1", b"-2.5e3", b'"\xc3\xa9 {"', b"true", b"false", b"null", b"nope")]
    n, X, labels = objects([*rows, b'{"a": 2}', b"{}"], ["a"], "y")
    assert n == 9
    assert labels == [b"1", b"-2.5e3", b'"\xc3\xa9 {"', b"true", b"false", b"null", b"nope", None, None]
    assert X[:8, 0].tolist() == [1.0] * 7 + [2.0]
    assert np.isnan(X[8, 0])


@given(st.lists(st.binary(max_size=30) | st.text('{}[]",:.eE+-019 nulltrfas\n', max_size=30).map(str.encode), max_size=4))
def test_any_bytes(rows):
    rows = [*rows, b'{"a":1}']
    n, X, _ = objects(rows, ["a"], "y")
    for row, (value,) in zip(rows[:n], X.tolist(), strict=False):
        found = json.loads(row.replace(b'"y":n', b'"y":0')) if b"y" not in row else {}
        assert found.get("a") is None or found["a"] == value
    n, X = cells(rows)
    for row, (value,) in zip(rows[:n], X.tolist(), strict=False):
        assert np.isnan(value) or float(row) == value
