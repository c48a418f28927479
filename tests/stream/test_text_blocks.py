"""Lines of a file that are read together give what they give one by one."""

import json
import math
import os
import random
import sys
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunks import check_chunks, chunks_of
from json_messages import NAMES, message
from saved import dumps
from streamsvm import BSGDClassifier, BSGDRegressor
from streamsvm.stream import CSVSource, FileSink, JSONLinesSource, LearningLoop, LIBSVMSource
from streamsvm.stream.text_numbers import JSONNumbers, laid_out

pytestmark = pytest.mark.once


@pytest.mark.parametrize("label", ["y", None])
def test_what_is_read_is_what_json_reads(label):
    rng, numbers, accepted = random.Random(1), JSONNumbers(label), 0
    names = [*NAMES, "y"] if label is None else NAMES
    for _ in range(10_000):
        text = message(rng, label)
        if (found := numbers.table(*laid_out([text]), names)).odd:
            continue
        accepted += 1
        row = json.loads(text)
        y = None if label is None else row.pop(label, None)
        row = {name: value for name, value in row.items() if value is not None}
        assert row.keys() <= set(names)
        assert np.array(found.columns).tobytes() == np.array([[float(row.get(name, math.nan))] for name in names]).tobytes()
        assert not any(isinstance(value, bool | str) for value in row.values())
        assert (type(found.y[0]), found.y) == (type(y), [y])
    assert accepted > 1000


def lines_of(rng, n, regression):
    """JSON lines, some of which are odd."""
    lines = []
    for i in range(n):
        if rng.random() < 0.95 or i < 50:
            x = {name: rng.gauss(0.0, 1.0) for name in NAMES}
            row = {**x, "y": x["a"] if regression else x["a"] > 0.0}
            if rng.random() < 0.1:
                row |= {rng.choice(NAMES): None}
            elif rng.random() < 0.1:
                row = dict.fromkeys(NAMES) if rng.random() < 0.1 else {name: row[name] for name in row if name != NAMES[1]}
            lines.append(json.dumps(row).encode())
        else:
            lines.append(
                rng.choice([b"", b" ", b"[1]", message(rng, "y").replace(b"\n", b" "), b"  " + lines[0], lines[0] + b"\r"])
            )
    return b"\n".join(lines)


CELLS = [
    "0",
    "1",
    "-1",
    "-0",
    "-0.0",
    "-0e3",
    "1e-05",
    "-1e-05",
    "1E-5",
    "1e400",
    "1e39",
    "01",
    "+1",
    ".5",
    "1.",
    "1_0",
    "nan",
    "inf",
    "text",
    "٣",
    "[1]",
    "1]",
    "''",
    "true",
    "null",
    "1;2",
    "x\ty",
]
CELLS += ["", " ", " 1", "1 ", "1\t", '"1"', '"1,2"', '"a ""b"""', "\0", "1\r", "9007199254740993", "1e308"]
LABELS = ["1", "0", "1.0", "007", "yes", "YES", "-0", "true", "True", "1e3", "é", "", " 1", "1 ", '"1"']


def cells_of(rng, n, regression, at, mark):
    """Lines of CSV, some of which are odd, with the label in column ``at``."""
    names = ["a", "b c", "d"]
    lines = [mark.join([*names[:at], "y", *names[at:]])]
    for i in range(n):
        row = [repr(rng.choice([0.0, rng.gauss(0.0, 1.0), rng.gauss(0.0, 1e-5), 3])) for _ in names]
        label = row[0] if regression else str(int(float(row[0]) > 0.0))
        if rng.random() < 0.05 and i > 50:
            odd = rng.random()
            if odd < 0.6:
                row[rng.randrange(len(row))] = rng.choice(CELLS)
            elif odd < 0.8:
                label = rng.choice(LABELS)
            elif odd < 0.9:
                row = rng.choice([row[:-1], [*row, "1"], []])
        elif rng.random() < 0.1:
            row[rng.randrange(len(row))] = ""
        elif rng.random() < 0.01:
            row = [""] * len(row)
        row.insert(at, label)
        lines.append(mark.join(row) + rng.choice(["\r", ""] if rng.random() < 0.01 else [""]))
        if rng.random() < 0.01:
            lines.append(rng.choice(["", " ", "\r", "\ufeff1"]))
    text = "\n".join(lines).encode()
    return text.replace(b",1,", b",\xff,", 2) if rng.random() < 0.5 else text


def runs_of(tmp_path, path, kind, regression, options):
    """What runs over a file leave whose lines are read one by one, and together."""
    one_by_one = type("OneByOne", (kind,), {"_lines_at_hand": lambda self, most: None})
    for source_of in (one_by_one, kind):
        model = (BSGDRegressor if regression else BSGDClassifier)(20, seed=0)
        letters, predictions = tmp_path / "letters.jsonl", tmp_path / "predictions.jsonl"
        with source_of(path, "y", **options) as source, FileSink(predictions) as sink:
            loop = LearningLoop(source, model, sink=sink, on_error=str(letters), error_share=1.0)
            end = loop.run()
            refused = [{**json.loads(line), "time": None} for line in letters.read_bytes().splitlines()]
            yield dumps(loop.model), predictions.read_bytes(), refused, source.position, loop.curve.state, end.metric
        letters.unlink()


@pytest.mark.parametrize("regression", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_json_lines_leave_the_bytes_of_their_rows_one_by_one(tmp_path, seed, regression):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(lines_of(random.Random(seed), 2500, regression))
    one_by_one, together = runs_of(tmp_path, path, JSONLinesSource, regression, {})
    assert together == one_by_one
    assert len(together[2]) > 20
    assert math.isfinite(together[-1])


@pytest.mark.filterwarnings("ignore:.*looks like a row")
@pytest.mark.parametrize("regression", [False, True])
@pytest.mark.parametrize(("at", "mark"), [(3, ","), (0, ","), (1, ","), (3, ";"), (3, "\t")])
def test_csv_leaves_the_bytes_of_its_rows_one_by_one(tmp_path, at, mark, regression):
    path = tmp_path / "rows.csv"
    path.write_bytes(cells_of(random.Random(at), 2500, regression, at, mark))
    one_by_one, together = runs_of(tmp_path, path, CSVSource, regression, {"delimiter": mark})
    assert together == one_by_one
    assert len(together[2]) > 20
    assert math.isfinite(together[-1])


NUMBERS = ["0", "-2.5", "1e3", "0.1", "7", "", "1.209,28", "-3", "20240131", "1700000000000"]
TEXTS = ["Oslo", "x y", '"q; z"', "7", "NA", "", '"NA"', "\xe9", "-999"]
DATES = ["2024-01-02", "2024-01-03", "2024-01-02T03:04", "2024-02-30", "02.01.2024", "1700000000", ""]
ODD_CELLS = [
    *CELLS,
    *TEXTS,
    *DATES,
    " nan ",
    '"',
    '"a',
    'b"c',
    '"1"x',
    '" 1"',
    '"1 "',
    '" "',
    '"\t"',
    '"a\nb"',
    "\x85",
    "\xa01",
    "\x1f",
    "(1,5)",
    "3 %",
]
WAYS = [
    {},
    {"missing": ["NA", "-999", "0"]},
    {"decimal": ","},
    {"categorical": "a"},
    {"dates": "a"},
    {"dates": {"a": "%d.%m.%Y"}, "missing": "2024-01-02"},
    {"dates": {"a": "ms"}, "categorical": "b c"},
    {"features": ["a"], "missing": "nan"},
    {"drop": "a", "decimal": "."},
]


@st.composite
def csv_texts(draw):
    """Text of CSV, the number of columns, and what stands between them."""
    mark, width = draw(st.sampled_from(",;\t|")), draw(st.integers(1, 3))
    names = ["a", "b c", "d"][:width]
    usual = [st.sampled_from(draw(st.sampled_from([NUMBERS, TEXTS, DATES, ODD_CELLS]))) for _ in names]
    rows = st.tuples(*usual) | st.tuples(*usual) | st.tuples(*(st.sampled_from(ODD_CELLS) for _ in names))
    others = st.sampled_from(["", " ", "\r", mark, mark * width, '"', mark.join(names), mark.join(f'"{name}"' for name in names)])
    lines = draw(st.lists(rows.map(mark.join) | rows.map(mark.join) | others, min_size=1, max_size=40))
    return draw(st.sampled_from(["\n", "\r\n"])).join([mark.join(names), *lines, ""]), names, mark


@pytest.mark.filterwarnings("ignore:.*looks like a row")
@given(st.data(), csv_texts(), st.sampled_from(["utf-8", "utf-8", "latin-1", "cp1252", "ascii", "shift_jis"]))
def test_columns_of_csv_say_what_its_rows_do(tmp_path_factory, data, text, encoding):
    text, names, mark = text
    written = text.encode(encoding, "replace")
    if data.draw(st.booleans()):
        at = data.draw(st.integers(text.index("\n") + 1, len(written)))
        written = written[:at] + data.draw(st.sampled_from([b"\xff", b"\xef\xbb\xbf", b'"'])) + written[at:]
    path = tmp_path_factory.mktemp("csv") / "rows.csv"
    path.write_bytes(written)
    label, keep = data.draw(st.sampled_from([None, *names[1:]])), data.draw(st.sets(st.sampled_from(names)))
    how = data.draw(st.sampled_from([how for how in WAYS if "b c" not in how.values() or ("b c" in names and label != "b c")]))

    def opened():
        source = CSVSource(path, label, delimiter=mark, encoding=encoding, **how)
        source.keep(sorted(keep))
        return source

    check_chunks(opened, data.draw(st.sampled_from([3, 1000])))


VALUES = st.sampled_from(
    ["0", "-1", "2.5", "-0.0", "1e400", "NaN", "true", "null", '"x"', '"1,5"', '"2024-01-02"', "[1]", '{"b": 1}', "1" * 30]
)
FIELDS = {"a": VALUES, "b": st.sampled_from(["1", "2.5", "null"]), "\xe9": st.sampled_from(["1", "-3"]), "y": VALUES}


@given(st.data(), st.sampled_from([["a", "b", "\xe9"], ["b", "a", "none"], ["a", 1], []]), st.sampled_from(WAYS[:6]))
def test_columns_of_json_lines_say_what_their_rows_do(tmp_path_factory, data, known, how):
    rows = st.fixed_dictionaries({}, optional=FIELDS) | st.just({"a": "1", "b": "2", "\xe9": "3", "y": "0"})
    lines = rows.map(lambda row: "{" + ", ".join(f'"{name}": {value}' for name, value in row.items()) + "}")
    others = st.sampled_from(["", " ", "{", "[1]", "{}", ' {"a": 1}', '{"\\u0061": 1}', '{"a": 1, "a": 2}', '{"a": "\x80"}'])
    text = "\n".join([*data.draw(st.lists(lines | lines | others, min_size=1, max_size=30)), ""])
    path = tmp_path_factory.mktemp("json") / "rows.jsonl"
    path.write_bytes(text.encode().replace(b"\xc2\x80", b"\xff"))

    def opened():
        source = JSONLinesSource(path, "y", **how)
        source.keep(["a"])
        return source

    check_chunks(opened, data.draw(st.sampled_from([3, 1000])), known)


@given(st.data(), st.sampled_from([[1, 2, 3], [3, 1], ["a", 2, 1.0, True], [-1], []]))
def test_columns_of_libsvm_text_say_what_its_rows_do(tmp_path_factory, data, known):
    label = st.sampled_from(["1", "-1", "+1", "1.0", "x", "\xe9", "1:2", "nan", "1_0", "a\xa0b", "\xa0"])
    pairs = st.dictionaries(st.sampled_from([1, 2, 3]), st.floats(-2, 2).map(repr) | st.sampled_from(CELLS), max_size=3)
    rows = st.tuples(label, pairs.map(lambda x: [f"{name}:{value}" for name, value in x.items()])).map(
        lambda row: " ".join([row[0], *row[1]])
    )
    others = st.sampled_from(
        ["", " ", "#", "# x", "\xa0", "\x1c", "\x1c# x", "1 1:1 1:1", "1 01:1", "1 1:2 # x", "1 \x1f1:2", "\ufeff1 1:2"]
    )
    path = tmp_path_factory.mktemp("libsvm") / "rows.svm"
    path.write_bytes("\n".join([*data.draw(st.lists(rows | rows | others, min_size=1, max_size=30)), ""]).encode())
    check_chunks(lambda: LIBSVMSource(path), data.draw(st.sampled_from([3, 1000])), known)


@pytest.mark.parametrize("kind", [JSONLinesSource, CSVSource])
def test_usual_lines_are_read_without_a_dict_each(tmp_path, monkeypatch, kind):
    path, rng = tmp_path / "rows", random.Random(0)
    rows = [{"a": rng.random(), "b": i % 9, "y": int(i % 9 > 4)} for i in range(4000)]
    if kind is CSVSource:
        path.write_text("a,b,y\n" + "".join(f"{row['a']},{row['b']},{row['y']}\n" for row in rows))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    parsed, read = [], kind._parse
    monkeypatch.setattr(kind, "_parse", lambda self, line: parsed.append(line) or read(self, line))
    with kind(path, "y") as source:
        LearningLoop(source, BSGDClassifier(20)).run()
    assert len(parsed) < 100


def test_rows_that_come_after_the_end_are_for_the_next_run(tmp_path):
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


@pytest.mark.skipif(sys.platform == "win32", reason="no named pipes")
@pytest.mark.parametrize(("suffix", "head"), [("jsonl", b""), ("csv", b"a,y\n")])
def test_rows_of_a_pipe_that_have_come_are_given_together(tmp_path, suffix, head):
    path, line = tmp_path / f"rows.{suffix}", b'{"a": 1, "y": 0}\n' if suffix == "jsonl" else b"1,0\n"
    os.mkfifo(path)
    kind, counts = {"jsonl": JSONLinesSource, "csv": CSVSource}[suffix], []
    with kind(path, "y") as source:
        writer = threading.Thread(target=path.write_bytes, args=(head + line * 50 + line[:-1],))
        writer.start()
        for chunk in chunks_of(source, 30):
            assert all(chunk.row(i) == ({"a": 1.0}, 0) for i in range(len(chunk)))
            counts.append(len(chunk))
        writer.join()
        assert sum(counts) == 51
        assert max(counts) > 1
        assert (source.position["rows"], source.position["line"]) == (51, 51 + (suffix == "csv"))
