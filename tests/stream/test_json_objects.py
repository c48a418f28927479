"""The compiled reader of JSON objects gives the values of the JSON parser."""

import json
import random

import numpy as np
import orjson
import pytest

from json_messages import NAMES, message
from streamsvm.stream.json_objects import JSONObjects
from streamsvm.stream.tables import TableParser
from streamsvm.stream.tables.chunk import Table, concatenate_rows
from streamsvm.stream.tables.values import normalize_label

pytestmark = pytest.mark.once
PARSERS = {"json": json.loads, "orjson": orjson.loads}


def expected(parse, text, label, reading=None):
    """Parse a row; return its values with types (floats as hex), and its label."""
    row = parse(text)
    y = None if label is None else normalize_label(row.pop(label, None))
    if reading is not None:
        row, y = reading.parse_row(row.items()), reading.parse_label(y)
    return exact({name: value for name, value in row.items() if value is not None}), y


def exact(x):
    return {name: value.hex() if isinstance(value, float) else (type(value), value) for name, value in x.items()}


def values(table, i):
    """Return the values and the label of a row of a table, as `expected` does."""
    row = Table.row(table, i)
    x = {name: table.get_column(name)[i] for name in row.x}
    return exact({name: value.item() if isinstance(value, np.generic) else value for name, value in x.items()}), row.y


@pytest.mark.parametrize("parser", PARSERS)
@pytest.mark.parametrize("label", ["y", "\u00fc", None])
@pytest.mark.parametrize("known_features", [[], NAMES])
def test_a_table_has_the_values_of_single_rows(parser, label, known_features):
    rng, parse, accepted = random.Random(0), PARSERS[parser], 0
    objects = JSONObjects(label, parse)
    for _ in range(300):
        texts = [message(rng, label) for _ in range(rng.randint(1, 12))]
        if (table := objects.parse_table(*concatenate_rows(texts), known_features)) is None:
            continue
        for i in range(len(texts)):
            if i in table.unparsed_rows:
                continue
            accepted += 1
            x, y = expected(parse, texts[i], label)
            values_read, label_read = values(table, i)
            if known_features:  # whole numbers may be floats
                x, values_read = ({name: float(value[1]).hex() if value[0] is int else value for name, value in values_.items()}
                            for values_ in (x, values_read))  # fmt: skip
            assert (values_read, label_read, type(label_read)) == (x, y, type(y))
    assert accepted > 600


def rows_of_kinds(rng, n):
    texts = ["Oslo", "Bergen", "T\u00f8nsberg", 'a "b" \\ c', "", " ", "7", "true", "\u2028", "x" * 300]
    for i in range(n):
        row = {
            "age": rng.choice([rng.randint(0, 99), rng.random(), None]),
            "zip": rng.choice([75001, 2**53 + 1 + 2 * rng.randint(0, 3), "01234", 75001.0]),
            "city": rng.choice(texts),
            "when": f"2024-0{rng.randint(1, 9)}-1{rng.randint(0, 9)}",
            "year": rng.choice([2023, 2024]) if i % 7 else None,
            "works": rng.choice([True, False, None]),
            "id": f"q{i}",
            "y": rng.choice(["yes ", "no", 1, 1.5, None, True]),
        }
        yield {name: row[name] for name in rng.sample(sorted(row), len(row)) if rng.random() < 0.98}


READINGS = [
    {"missing": ["-999", "7"], "columns": "y:drop"},
    {},
    {
        "columns": "zip:category,city:category,works:category,when:date,year:date,id:drop",
        "missing": ["7", "75001"],
    },
    {"columns": "age:number,when:date,year:date=s,*:drop", "missing": "no"},
    {"columns": "zip:category=,age:number=7", "missing": ["75001", "no"]},
]


@pytest.mark.parametrize("parser", PARSERS)
@pytest.mark.parametrize("escaped", [True, False])
@pytest.mark.parametrize("options", READINGS)
def test_columns_of_each_kind_are_read(parser, escaped, options):
    parse, rng = PARSERS[parser], random.Random(3)
    reading = TableParser(**options) if options else None
    objects = JSONObjects("y", parse, reading)
    texts = [json.dumps(row, ensure_ascii=escaped).encode() for row in rows_of_kinds(rng, 900)]
    n_odd = 0
    for first in range(0, 900, 300):
        chunk_texts = texts[first : first + 300]
        table = objects.parse_table(*concatenate_rows(chunk_texts), ())
        n_odd += len(table.unparsed_rows)
        for i in set(range(len(chunk_texts))).difference(table.unparsed_rows):
            x, y = expected(parse, chunk_texts[i], "y", reading)
            values_read, label = values(table, i)
            assert (values_read, label, type(label)) == (x, y, type(y))
    assert n_odd == 0


def test_an_invalid_row_is_unparsed_and_others_are_parsed():
    rows = [json.dumps({"a": i, "b": f"{i % 3}"}).encode() for i in range(200)]
    bad = {
        3: b"[1]", 50: b'{"a": 1, "a": 2}', 51: b'{"a": [1]}', 52: b'{"a": {"b": 1}}', 53: b'{"b": "\\q"}', 54: b'{"b": "\xff"}',
        55: b'{"b": trux}', 56: b"", 57: b'{"a": 01}', 58: b'{"b": "x}', 199: b'{"a": "one"}',
    }  # fmt: skip
    for i, text in bad.items():
        rows[i] = text
    table = JSONObjects(None, json.loads).parse_table(*concatenate_rows(rows), ())
    assert table.unparsed_rows == sorted(bad)
    assert [table.row(i).x for i in range(200) if i not in bad] == [json.loads(rows[i]) for i in range(200) if i not in bad]


NAMED, TEXTS = b'{"id": "\xc3\xb8", "a": 1}', b'{"y": "b", "a": "c"}'
LEFT_OUT = [b'"\xff"', b'"\\q"', b"trux", b"nul", b"1.", b'"a', b"[1]"]
ODD = [
    *((NAMED, b'{"id": %s, "a": 1}' % value, TableParser("id:drop")) for value in LEFT_OUT),
    *((TEXTS, row, None) for row in (b'{"y": "\xed\xa0\x80", "a": "c"}', b'{"y": 1, "a": "\xed\xa0\x80\\n"}')),  # invalid UTF-8
    *((NAMED, start + b"[" * 100_000, None) for start in (b'{"b": ', b"")),
    (NAMED, b'{"a": ' * 50_000, None),
    (NAMED, b'{"id": "x", "\\u0061": 2}', None),
]


@pytest.mark.parametrize(("good", "odd", "reading"), ODD)
def test_an_invalid_row_is_unparsed_with_any_dropped_columns(good, odd, reading):
    objects = JSONObjects("y", json.loads, reading)
    assert objects.parse_table(*concatenate_rows([good] * 30), ()).unparsed_rows == []
    assert objects.parse_table(*concatenate_rows([*[good] * 30, odd]), ()).unparsed_rows == [30]


def test_rows_with_ever_new_names_are_not_parsed_into_a_table():
    rng, objects = random.Random(5), JSONObjects(None, json.loads)
    for _ in range(30):
        rows = [json.dumps({f"f{rng.randint(0, 10**6)}": 1.0 for _ in range(5)}).encode() for _ in range(200)]
        assert objects.parse_table(*concatenate_rows(rows), ()) is None
        assert objects.parse_table(*concatenate_rows(rows), [f"f{k}" for k in range(5000)]) is None


@pytest.mark.parametrize("name", ["u", "\u00fc", "\ud800"])
def test_a_column_of_any_name_becomes_a_column_of_texts(name):
    def rows(values):
        return [
            json.dumps({name: i + 0.5, "\u00e9": 1, "a": value}, ensure_ascii=name > "\ud7ff").encode() for i, value in values
        ]

    objects = JSONObjects(None, json.loads)
    assert objects.parse_table(*concatenate_rows(rows((i, 1.5) for i in range(300))), ()).unparsed_rows == []
    table = objects.parse_table(*concatenate_rows(rows((i, f"t{i % 3}") for i in range(300))), ())
    assert (table.unparsed_rows, table.get_column("a")[:3]) == ([], ["t0", "t1", "t2"])


def test_a_lone_surrogate_in_a_name_does_not_affect_other_rows():
    objects, rows = JSONObjects(None, json.loads), ['{"\u00fc": 1.5}'.encode()] * 40
    assert objects.parse_table(*concatenate_rows([*rows, b'{"\\ud800": 1.0}', *rows]), ()).unparsed_rows == []
    assert objects.parse_table(*concatenate_rows(rows), ()).unparsed_rows == []


def test_later_names_become_columns():
    objects = JSONObjects(None, json.loads)
    rows = [json.dumps({"a": 0.5} | ({"b": "x"} if i > 90 else {})).encode() for i in range(100)]
    table = objects.parse_table(*concatenate_rows(rows), ())
    assert (table.names, table.unparsed_rows, table.columns[1][90:92]) == (("a", "b"), [], [None, "x"])
    assert objects.parse_table(*concatenate_rows(rows[:50]), ()).names == ("a",)


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a/b", "\t", "", "\u00fc", "\ud800"])
def test_names_are_found_in_each_spelling(name):
    objects = JSONObjects(None, json.loads)
    rows = [json.dumps({name: i + 0.5, "c": 1.5}).encode() for i in range(30)]
    table = objects.parse_table(*concatenate_rows(rows), ())
    assert table.names == (name, "c")
    assert table.columns[0].tolist() == [i + 0.5 for i in range(30)]


def test_a_row_that_is_too_long_is_not_parsed_into_a_table():
    assert JSONObjects(None, json.loads).parse_table(*concatenate_rows([b" " * 2**21 + b'{"a": 1}']), ()) is None
