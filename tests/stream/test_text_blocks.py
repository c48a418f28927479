"""Lines of a file that are read together give what they give one by one."""

import json
import math
import os
import random
import sys
import threading

import numpy as np
import pytest

from json_messages import NAMES, message
from saved import dumps
from streamsvm import BSGDClassifier, BSGDRegressor
from streamsvm.stream import CSVSource, FileSink, JSONLinesSource, LearningLoop
from streamsvm.stream.text_numbers import CellNumbers, JSONNumbers, laid_out

pytestmark = pytest.mark.once


@pytest.mark.parametrize("label", ["y", None])
def test_what_is_read_is_what_json_reads(label):
    rng, numbers, accepted = random.Random(1), JSONNumbers(label), 0
    names = [*NAMES, "y"] if label is None else NAMES
    for _ in range(10_000):
        text = message(rng, label)
        if (found := numbers.decode(*laid_out([text]), names)) is None:
            continue
        accepted += 1
        row = json.loads(text)
        y = None if label is None else row.pop(label, None)
        row = {name: value for name, value in row.items() if value is not None}
        assert row.keys() <= set(names)
        assert found[0].tobytes() == np.array([[float(row.get(name, math.nan)) for name in names]]).tobytes()
        assert not any(isinstance(value, bool | str) for value in row.values())
        assert (type(found[1][0]), found[1]) == (type(y), [y])
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
    one_by_one = type("OneByOne", (kind,), {"_rows_at_hand": lambda self, most: []})
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


def numbers_between(rows, mark, width):
    found = CellNumbers(mark, range(width), str).decode(*laid_out([row.encode() for row in rows]))
    return None if found is None else found[0]


@pytest.mark.parametrize("cell", CELLS)
def test_numbers_of_csv_are_those_that_python_reads(cell):
    plain = ["0", "1", "-1", "-0", "-0.0", "-0e3", "1e-05", "-1e-05", "1E-5", " 1", "1 ", "1\t", "1\r", "9007199254740993"]
    found = numbers_between([f"{cell},1", "2,3"], ",", 2)
    assert (found is not None) == (cell in (*plain, ""))
    if found is not None:
        assert found.tobytes() == np.array([[float(cell or "nan"), 1.0], [2.0, 3.0]]).tobytes()


def test_numbers_of_csv_that_are_missing():
    nan = math.nan
    for rows, expected in (
        ([",,", "1,,2", ",3,"], [[nan, nan, nan], [1.0, nan, 2.0], [nan, 3.0, nan]]),
        (["1,2,", ",,-4"], [[1.0, 2.0, nan], [nan, nan, -4.0]]),
        (["1,-0,\n", ",1,\r\n"], [[1.0, -0.0, nan], [nan, 1.0, nan]]),
    ):
        assert numbers_between(rows, ",", 3).tobytes() == np.array(expected).tobytes()
        semicolons = [row.replace(",", ";") for row in rows]
        assert numbers_between(semicolons, ";", 3).tobytes() == np.array(expected).tobytes()
    for rows in (["1e308,", "1,2"], ["1,2", "1e309,"], ["1", ","], ["1", "1,,2"], ["x,", "1,2"], [" ,1", ",2"], ["1,2", "1,2,3"]):
        assert numbers_between(rows, ",", 2) is None
    assert numbers_between(["1", ""], ",", 1).tobytes() == np.array([[1.0], [nan]]).tobytes()


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
    assert len(parsed) < 2000  # at the beginning, points of the learning curve are near each other


def test_rows_that_come_after_the_end_are_for_the_next_run(tmp_path):
    path, line = tmp_path / "rows.jsonl", b'{"a": 1, "y": 0}\n'
    path.write_bytes(line * 3)
    with JSONLinesSource(path, "y") as source:
        assert len(source.take(10)) == 3
        assert source.take(10) is None
        with path.open("ab") as file:
            file.write(line)
        assert source.take(10) is None
        position = source.position
    with JSONLinesSource(path, "y") as source:
        source.seek(position)
        rows = source.take(10)
        assert (len(rows), source.place_of(0), source.raw_of(0)) == (1, f"{path}, line 4", line)


@pytest.mark.skipif(sys.platform == "win32", reason="no named pipes")
@pytest.mark.parametrize(("suffix", "head"), [("jsonl", b""), ("csv", b"a,y\n")])
def test_rows_of_a_pipe_that_have_come_are_given_together(tmp_path, suffix, head):
    path, line = tmp_path / f"rows.{suffix}", b'{"a": 1, "y": 0}\n' if suffix == "jsonl" else b"1,0\n"
    os.mkfifo(path)
    kind, counts = {"jsonl": JSONLinesSource, "csv": CSVSource}[suffix], []
    with kind(path, "y") as source:
        writer = threading.Thread(target=path.write_bytes, args=(head + line * 50 + line[:-1],))
        writer.start()
        while (rows := source.take(30)) is not None:
            assert all(row == ({"a": 1.0}, 0) for row in rows)
            counts.append(len(rows))
        writer.join()
        assert sum(counts) == 51
        assert max(counts) > 1
        assert (source.position["rows"], source.position["line"]) == (51, 51 + (suffix == "csv"))
